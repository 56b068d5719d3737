//! Control and view of a supervisor from outside.

use std::future::Future;
use std::sync::Arc;

use super::board::stopped;
use super::control::Control;
use super::error::Stopped;
use super::mailbox::Post;
use crate::machine::State;
use crate::observe::Status;

/// Control and view of a supervisor. It is weak: it keeps nothing alive, and dropping it ends nothing.
///
/// With the owner gone (the future of `run`, the last link of `keep`) it reads `Stopped(Dropped)`.
#[derive(Clone, Debug)]
pub struct Handle {
    control: Arc<Control>,
    /// The last status that [`changed`](Self::changed) gave.
    seen: u64,
}

impl Handle {
    pub(super) const fn new(control: Arc<Control>) -> Self {
        Self { control, seen: 0 }
    }

    /// Where the connection stands now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.control.board.status()
    }

    /// Waits for a status that this handle has not given yet. Statuses that follow each other closely may be seen as
    /// one: the last.
    ///
    /// ```no_run
    /// # async fn watch(mut handle: steadfast::Handle) {
    /// while let Ok(status) = handle.changed().await {
    ///     println!("{:?} since {:?}", status.state, status.since);
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Stopped`], at once, for as long as the supervisor is stopped.
    ///
    /// # Cancel safety
    ///
    /// Safe: a status counts as seen when it is returned.
    pub async fn changed(&mut self) -> Result<Status, Stopped> {
        let seen = self.seen;
        let changed = self.control.board.until(|| {
            let (version, status) = self.control.board.versioned();
            match stopped(&status) {
                Some(stopped) => Some(Err(stopped)),
                None => (version != seen).then_some(Ok((version, status))),
            }
        });
        let (version, status) = changed.await?;
        self.seen = version;
        Ok(status)
    }

    /// Asks the supervisor, at once, to end politely; the future resolves when it has stopped, and need not be
    /// awaited.
    ///
    /// Nothing is dialled any more. A session is told and has the policy's `drain` to end, closing has `close`; a
    /// supervisor that is not running has nothing to drain.
    ///
    /// # Cancel safety
    ///
    /// Safe: the drain goes on.
    pub fn drain(&self) -> impl Future<Output = ()> + Send + use<> {
        let control = Arc::clone(&self.control);
        // Under one lock: another run may end and the next one begin between two looks.
        let stops = control.board.stops_if_active();
        if stops.is_some() {
            control.mailbox.post(Post::Drain);
        }
        async move {
            if let Some(stops) = stops {
                control.board.until(|| (control.board.stops() != stops).then_some(())).await;
            }
        }
    }

    /// Asks for another connection now: after a change of network, or when a human says so.
    ///
    /// A live connection ends, which is charged to nobody; a wait is cut short, but never one that the server asked
    /// for, nor the draw that keeps a fleet apart; an attempt under way is waited for. It forgives nothing. `false` if
    /// there is nothing to reconnect: draining, stopped, not started.
    pub fn reconnect(&self) -> bool {
        match self.control.board.state() {
            State::Idle if !self.control.board.is_active() => false,
            State::Draining | State::Stopped => false,
            _ if self.control.mailbox.holds(Post::Drain) => false,
            State::Idle | State::Connecting | State::Connected | State::Backoff => {
                self.control.mailbox.post(Post::Reconnect);
                true
            }
        }
    }
}
