//! What happens to a fleet, and when.

use std::ops::Range;
use std::time::Duration;

use super::server::Server;
use crate::machine::Failure;

/// A schedule of steps, from an instant at which every client starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub(super) server: Server,
    pub(super) steps: Vec<(Duration, Step)>,
    pub(super) end: Duration,
}

/// One thing that happens; clients are numbered from 0, numbers beyond the fleet are ignored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// The sessions are told that the spread of their next first attempt should be this.
    Advise(Range<usize>, Duration),
    /// Their tasks are dropped: whatever they hold of the gate is freed.
    Cancel(Range<usize>),
    /// They are asked to end politely.
    Drain(Range<usize>),
    /// Their futures are kept and never polled again.
    Forget(Range<usize>),
    /// Their live sessions end with that failure.
    Lose(Range<usize>, Failure),
    /// `reconnect()` is called on them.
    Reconnect(Range<usize>),
    /// The server behaves like this from now on; handshakes in its queue are reset.
    Serve(Server),
    /// They are started again, after a terminal state.
    Start(Range<usize>),
}

impl Scenario {
    /// Every client starts at once, against `server`, for at most an hour.
    #[must_use]
    pub fn new(server: Server) -> Self {
        Self { server, steps: Vec::new(), end: Duration::from_secs(3600) }
    }

    /// A minute of health, then everyone is lost, for `length` the server is as `during`, then as `after`.
    #[must_use]
    pub fn outage(during: Server, length: Duration, after: Server) -> Self {
        let lost = Self::HEALTHY_FOR;
        Self::new(Server::healthy())
            .at(lost, Step::Serve(during))
            .at(lost, Step::Lose(EVERYBODY, Failure::Transient))
            .at(lost + length, Step::Serve(after))
    }

    /// When [`outage`](Self::outage) begins: everyone has been forgiven by then.
    pub const HEALTHY_FOR: Duration = Duration::from_secs(60);

    /// Adds a step that long after the start; steps of one instant happen in the order in which they were added.
    #[must_use]
    pub fn at(mut self, when: Duration, step: Step) -> Self {
        self.steps.push((when, step));
        self
    }

    /// Ends the run that long after the start, if clients are still busy then. Default: an hour.
    #[must_use]
    pub const fn until(mut self, end: Duration) -> Self {
        self.end = end;
        self
    }

    /// When the first session is lost; the start, if none is.
    #[must_use]
    pub fn lost(&self) -> Duration {
        let losses = self.steps.iter().filter(|(_, step)| matches!(step, Step::Lose(..)));
        losses.map(|(at, _)| *at).min().unwrap_or_default()
    }

    /// When the server changes for the last time; the start, if it never does.
    #[must_use]
    pub fn healed(&self) -> Duration {
        let changes = self.steps.iter().filter(|(_, step)| matches!(step, Step::Serve(_)));
        changes.map(|(at, _)| *at).max().unwrap_or_default()
    }
}

const EVERYBODY: Range<usize> = 0..usize::MAX;
