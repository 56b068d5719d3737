//! Where a supervised connection stands, for people and dashboards.

use std::time::Instant;

use super::Cause;
use crate::machine::{State, StopReason, WaitCause};

/// Where a supervised connection stands.
///
/// Published once for every decision, after it was taken and before anything else happens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The state.
    pub state: State,
    /// The live connection's number, or the last one's (0: none yet).
    pub generation: u64,
    /// Attempts made since the last stable session.
    pub attempt: u32,
    /// When the state began.
    pub since: Instant,
    /// When a wait, an attempt or a drain ends at the latest. What stands here is what is slept, up to the timer's
    /// millisecond.
    pub until: Option<Instant>,
    /// No attempt starts before this; set while it waits. Another connection's success can shorten a wait for the
    /// gate, but not below this.
    pub earliest: Option<Instant>,
    /// Why it waits, where it does.
    pub wait: Option<WaitCause>,
    /// The last failure, also of one that has been got over: it tells, and decides nothing.
    pub last_failure: Option<Cause>,
    /// Why it stopped, where it did.
    pub stopped: Option<StopReason>,
    /// Reports about a connection that was already gone.
    pub ignored_reports: u64,
}

impl Status {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            state: State::Idle,
            generation: 0,
            attempt: 0,
            since: now,
            until: None,
            earliest: None,
            wait: None,
            last_failure: None,
            stopped: None,
            ignored_reports: 0,
        }
    }
}
