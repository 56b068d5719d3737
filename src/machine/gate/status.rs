//! A gate as an operator sees it.

use std::time::Instant;

use super::super::WaitCause;
use super::{Gate, Phase};

/// Which rule is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Healthy: nobody waits, but those whose credential was refused.
    Closed,
    /// Narrow, one attempt may be under way.
    HalfOpen,
    /// Narrow, open time or a hint running: nobody may dial.
    Open,
    /// After an outage: one after the other.
    Paced,
}

/// What [`Gate::status`] gives.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GateStatus {
    /// Which rule is in force.
    pub mode: Mode,
    /// Until when nobody may dial, where that is so.
    pub until: Option<Instant>,
    /// Why nobody may dial until then.
    pub cause: Option<WaitCause>,
    /// Connections that wait for their turn.
    pub waiting: usize,
    /// Of these, connections whose credential was refused: the server is well, so the mode says nothing about them.
    pub refused: usize,
    /// When the next refused credential is tried again; `None` also while its turn has come or its try is under way.
    pub refused_until: Option<Instant>,
    /// Attempts under way.
    pub in_flight: usize,
    /// Dials started per second at most, while paced.
    pub pace: Option<f64>,
    /// Changes of state so far.
    pub epoch: u64,
    /// Openings since the last proof of health.
    pub trips: u32,
    /// Outcomes that came too late to decide anything.
    pub ignored: u64,
    /// Connections attached.
    pub members: usize,
}

impl Gate {
    /// Whether nobody has to wait.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// What an operator sees.
    #[must_use]
    pub fn status(&self, now: Instant) -> GateStatus {
        let shut = self.window.shut().filter(|(until, _)| *until > now);
        let (mode, pace) = match &self.phase {
            Phase::Closed => (Mode::Closed, None),
            Phase::Narrow if shut.is_some() => (Mode::Open, None),
            Phase::Narrow => (Mode::HalfOpen, None),
            // It ends by time alone, and nobody may have called since.
            Phase::Paced(_) if self.is_quiet(now) => (Mode::Closed, None),
            Phase::Paced(pace) => (Mode::Paced, Some(pace.rate())),
        };
        GateStatus {
            mode,
            until: shut.map(|(until, _)| until),
            cause: shut.map(|(_, cause)| cause),
            waiting: self.queue.len() + self.refused.waiting(),
            refused: self.refused.refused(),
            refused_until: self.refused.next_try(now),
            in_flight: self.window.in_flight(),
            pace,
            epoch: self.epoch,
            trips: self.trips,
            ignored: self.ignored,
            members: self.members,
        }
    }
}
