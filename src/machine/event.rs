//! What goes into a lifecycle and what comes out of it.

use std::time::{Duration, Instant};

use super::Failure;

/// Where a supervised connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Not started.
    Idle,
    /// An attempt is under way.
    Connecting,
    /// Usable: greeting, login and subscriptions are done.
    Connected,
    /// Waiting for the next attempt; [`WaitCause`] tells why.
    Backoff,
    /// Ending politely; nothing is dialled any more.
    Draining,
    /// Terminal, until it is started again.
    Stopped,
}

/// Why the next attempt is not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitCause {
    /// The connection's own curve after a failure.
    Backoff,
    /// The gate is narrow: its open time runs, or its one probe is under way.
    BreakerOpen,
    /// The gate lets dials through one after the other after an outage, or its bulkhead is full.
    Paced,
    /// `Permanent` or `Unauthorized`: the slow curve.
    Refused,
    /// The spread of a first attempt: after a loss, or at start-up.
    Spread,
    /// The server named a wait.
    Throttled,
}

/// Why a supervisor ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// `run` or `keep` was called while another one was active; that one goes on.
    Busy,
    /// `drain()` was called.
    Drained,
    /// The owner is gone: the future of `run`, or the last `Link` of `keep`.
    Dropped,
    /// The session said `Break`.
    Finished,
    /// `give_up_after`, `max_attempts`, or a hint beyond the limit under [`HintLimit::GiveUp`](super::HintLimit).
    GaveUp,
    /// Trying again cannot succeed: see [`Failure::Permanent`].
    Permanent,
}

impl StopReason {
    /// Whether it ended because of a failure, and not because somebody wanted it to.
    pub(crate) const fn is_failure(self) -> bool {
        matches!(self, Self::GaveUp | Self::Permanent)
    }
}

/// What the shell tells the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The session got advice about the spread of its next first attempt.
    Advised(Duration),
    /// Closing has ended (or its bound has passed).
    Closed,
    /// Somebody asked to end politely.
    Drain,
    /// The dial failed.
    Failed(Failure),
    /// The session said `Break`.
    Finished,
    /// The gate woke this connection: ask it again.
    GateTurned,
    /// The live session is over.
    Lost(Failure),
    /// The dial succeeded.
    Opened,
    /// The dial reached the other side (TCP stands): the handshake deadline replaces the dial deadline.
    Reached,
    /// Somebody asked to reconnect now.
    Reconnect,
    /// Begin, or begin again after a terminal state.
    Start,
    /// The deadline may have passed.
    TimedOut,
}

/// What the shell has to do now, instead of what it was doing; [`Action::Continue`] alone lets it go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Close the connection, until [`deadline`](super::Lifecycle::deadline); then [`Event::Closed`].
    Close,
    /// Go on.
    Continue,
    /// Dial, until [`deadline`](super::Lifecycle::deadline); then [`Event::Opened`] or [`Event::Failed`].
    Dial {
        /// The attempt's number since the last stable session, from 1.
        attempt: u32,
        /// The generation that the connection would get.
        generation: u64,
    },
    /// Announce the new connection and serve it; then [`Event::Lost`] or [`Event::Finished`].
    Serve {
        /// The generation of the new connection.
        generation: u64,
    },
    /// Wake everyone with the reason and end.
    Stop(StopReason),
    /// Hold nothing and sleep until [`deadline`](super::Lifecycle::deadline); then [`Event::TimedOut`]. A connection
    /// that was being served is closed, bounded, beside the wait.
    Wait,
    /// Tell the session to end and let it go on until [`deadline`](super::Lifecycle::deadline); then [`Event::Lost`] or
    /// [`Event::Finished`].
    WindDown,
}

/// A line of the log: one decision other than [`Action::Continue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// When it was decided.
    pub at: Instant,
    /// What was told.
    pub event: Event,
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// What the shell does now.
    pub action: Action,
    /// The generation of the live connection, or of the last one (0: none yet).
    pub generation: u64,
    /// Attempts made since the last stable session.
    pub attempt: u32,
    /// Why it waits, where it waits.
    pub wait: Option<WaitCause>,
    /// Until when the new state lasts at most, where it has a bound.
    pub until: Option<Instant>,
}
