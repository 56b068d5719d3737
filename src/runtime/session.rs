//! `run`: the connection is lent to a closure of the user.

use std::fmt;
use std::future::Future;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::caught::{self, Boxed, Caught, Panicked};
use super::connector::{BoxError, Connector, Ended};
use super::control::Control;
use super::mailbox::Post;
use super::shell::{Over, Tenant, goodbye, judge};
use super::sync::{Mutex, Sleep, sleep, unpoisoned};
use crate::machine::{Failure, State};
use crate::observe::Cause;

/// A live connection, lent to a session. Dropped, it goes back to the supervisor, which closes it.
pub struct Lease<T> {
    connection: Option<T>,
    home: Home<T>,
}

/// Where a lent connection comes back to.
type Home<T> = Arc<Mutex<Option<T>>>;

impl<T> Lease<T> {
    /// Keeps the connection: it does not go back, and the supervisor does not close it.
    ///
    /// # Panics
    ///
    /// Never: a lease that can be named has its connection.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.connection.take().expect("a lease has its connection until it is dropped")
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.connection.as_ref().expect("a lease has its connection until it is dropped")
    }
}

impl<T> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.connection.as_mut().expect("a lease has its connection until it is dropped")
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        *unpoisoned(self.home.lock()) = self.connection.take();
    }
}

impl<T: fmt::Debug> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&**self).finish()
    }
}

/// What a session closure knows of its supervisor.
#[derive(Clone, Debug)]
pub struct Session {
    control: Arc<Control>,
    generation: u64,
}

impl Session {
    /// The number of this connection, never used twice by its supervisor.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the session is to end: a drain was asked for, or this connection is no longer the live one.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        let status = self.control.board.status();
        status.generation != self.generation || status.state != State::Connected
    }

    /// Resolves when the session is to end. From then on it has the policy's `drain` to do so.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub async fn draining(&self) {
        self.control.board.until(|| self.is_draining().then_some(())).await;
    }

    /// Passes on what the server said about how long its clients should spread their return. The first attempt after
    /// this session is drawn from it, up to the policy's `advice_limit`; the last advice is kept.
    pub fn advise(&self, spread: Duration) {
        self.control.advise(self.generation, spread);
    }
}

/// One session after the other.
pub(super) struct Sessions<C: Connector, F, Fut: Future, R> {
    control: Arc<Control>,
    connector: Arc<C>,
    session: F,
    /// A connection that waits to be lent: user code runs when it is polled for.
    opened: Option<(C::Connection, u64)>,
    running: Option<Caught<Fut>>,
    home: Option<Home<C::Connection>>,
    /// After a suspend: when another connection is asked for.
    doubted: Option<Pin<Box<Sleep>>>,
    /// What `Break` came with.
    pub(super) broke: Option<R>,
}

impl<C: Connector, F, Fut: Future, R> Sessions<C, F, Fut, R> {
    pub(super) const fn new(control: Arc<Control>, connector: Arc<C>, session: F) -> Self {
        Self { control, connector, session, opened: None, running: None, home: None, doubted: None, broke: None }
    }
}

impl<C, F, Fut, R, E> Sessions<C, F, Fut, R>
where
    C: Connector,
    F: FnMut(Lease<C::Connection>, Session) -> Fut,
    Fut: Future<Output = Result<ControlFlow<R>, E>>,
    E: Into<BoxError>,
{
    /// Lends the connection, if one waits.
    fn lend(&mut self) -> Result<(), Cause> {
        let Some((connection, generation)) = self.opened.take() else { return Ok(()) };
        let home = self.home.insert(Arc::default());
        let lease = Lease { connection: Some(connection), home: Arc::clone(home) };
        let session = Session { control: Arc::clone(&self.control), generation };
        let running = caught::call(|| (self.session)(lease, session)).map_err(|panicked| self.panicked(panicked))?;
        self.running = Some(Caught::new(running));
        Ok(())
    }

    fn panicked(&self, panicked: Panicked) -> Cause {
        self.control.cause("session", Failure::Transient, panicked)
    }
}

impl<C, F, Fut, R, E> Tenant<C> for Sessions<C, F, Fut, R>
where
    C: Connector,
    F: FnMut(Lease<C::Connection>, Session) -> Fut + Send,
    Fut: Future<Output = Result<ControlFlow<R>, E>> + Send,
    E: Into<BoxError>,
    R: Send,
{
    fn begin(&mut self, connection: C::Connection, generation: u64) {
        self.opened = Some((connection, generation));
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Over> {
        if let Err(cause) = self.lend() {
            return Poll::Ready(Over::Lost(Some(cause)));
        }
        if self.doubted.as_mut().is_some_and(|doubted| doubted.as_mut().poll(cx).is_ready()) {
            self.doubted = None;
            self.control.mailbox.post(Post::Reconnect);
        }
        let Some(running) = &mut self.running else { return Poll::Ready(Over::Lost(None)) };
        let cause = match ready!(Pin::new(running).poll(cx)) {
            Ok(Ok(ControlFlow::Break(value))) => {
                self.broke = Some(value);
                return Poll::Ready(Over::Finished);
            }
            Ok(Ok(ControlFlow::Continue(()))) => self.control.cause("session", Failure::Planned, "it ended"),
            Ok(Err(error)) => judge(&self.control, &*self.connector, "session", Ended::Session, error),
            Err(panicked) => self.panicked(panicked),
        };
        self.running = None;
        Poll::Ready(Over::Lost(Some(cause)))
    }

    fn wind_down(&mut self) {}

    fn end(&mut self) -> Option<Boxed<()>> {
        // With the session goes its lease, and the connection comes home.
        (self.running, self.doubted) = (None, None);
        let unlent = self.opened.take().map(|(connection, _)| connection);
        let home = self.home.take();
        let came_home = home.and_then(|home| unpoisoned(home.lock()).take());
        let connection = unlent.or(came_home)?;
        let bound = self.control.policy.close;
        Some(Boxed::boxed(goodbye(Arc::clone(&self.connector), bound, connection, |connection| connection)))
    }

    /// The connection is lent out, so it cannot be checked; another one is the safe answer.
    fn check(&mut self, wait: Duration) {
        self.doubted.get_or_insert_with(|| Box::pin(sleep(wait)));
    }
}
