//! What all who dial one endpoint share: breaker and pacer of dials in one window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

use super::policy::Policy;
use super::{Failure, Step, WaitCause};

/// One supervised connection as a gate knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Member {
    /// Which connection: its place in the queue goes by it.
    pub id: u64,
    /// Which credential it presents: refusals are kept per credential.
    pub credential: u64,
}

/// The right to make one attempt; settled or abandoned exactly once.
#[derive(Debug)]
#[must_use = "a permit that is neither settled nor abandoned holds its slot until the lease ends"]
pub struct Permit {
    pub(super) member: Member,
    pub(super) id: u64,
}

/// The answer to [`Gate::admit`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Admission {
    /// Dial now.
    Go(Permit),
    /// Ask again at [`Wait::until`], or when woken.
    Wait(Wait),
}

/// How long to wait, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// When to ask (or dial) again; always in the future.
    pub until: Instant,
    /// No attempt of this connection can start before this.
    pub earliest: Instant,
    /// Why.
    pub cause: WaitCause,
}

/// What an outcome led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// The epoch that a session carries which began with this outcome.
    pub epoch: u64,
    /// The connection's own wait after a failure; `None` after a success.
    pub wait: Option<Wait>,
}

/// Which rule is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Healthy: nobody waits.
    Closed,
    /// Narrow, open time or a hint running: nobody may dial.
    Open,
    /// Narrow, one attempt may be under way.
    HalfOpen,
    /// After an outage: one after the other.
    Paced,
}

/// A gate as an operator sees it.
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
    /// Attempts under way.
    pub in_flight: usize,
    /// Dials started per second at most, while paced.
    pub pace: Option<f64>,
    /// Changes of state so far.
    pub epoch: u64,
    /// Charged failures of this outage.
    pub trips: u32,
    /// Outcomes that came too late to decide anything.
    pub ignored: u64,
    /// Connections attached.
    pub members: usize,
}

/// The shared state, pure; `steadfast::Gate` is the one to share between tasks.
#[derive(Debug)]
pub struct Gate {
    policy: Arc<Policy>,
}

impl Gate {
    /// A gate with the curves of `policy`: narrow, without open time.
    #[must_use]
    pub fn new(policy: Arc<Policy>, now: Instant) -> Self {
        let _ = now;
        Self { policy }
    }

    /// At most `limit` attempts under way at once, in every mode.
    pub fn set_max_in_flight(&mut self, limit: std::num::NonZeroUsize) {
        let _ = limit;
    }

    /// Attaches a connection that presents `credential`.
    pub fn join(&mut self, credential: u64) -> Member {
        let _ = (credential, &self.policy);
        todo!()
    }

    /// Detaches a connection; its place goes.
    pub fn part(&mut self, now: Instant, member: Member) {
        let _ = (now, member);
        todo!()
    }

    /// May `member` dial now, for at most `lease`?
    pub fn admit<R: Rng + ?Sized>(&mut self, now: Instant, member: Member, lease: Duration, rng: &mut R) -> Admission {
        let _ = (now, member, lease, rng);
        todo!()
    }

    /// The outcome of the attempt made under `permit`; `step` is how far the connection is along its own curve.
    pub fn settle<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        permit: Permit,
        outcome: Result<(), Failure>,
        step: &mut Step,
        rng: &mut R,
    ) -> Settled {
        let _ = (now, permit, outcome, step, rng);
        todo!()
    }

    /// The attempt was cancelled: the slot is free and nothing is charged.
    pub fn abandon(&mut self, now: Instant, permit: Permit) {
        let _ = (now, permit);
        todo!()
    }

    /// Gives up the place in the queue.
    pub fn leave(&mut self, now: Instant, member: Member) {
        let _ = (now, member);
        todo!()
    }

    /// A human or a network change says that it is worth asking now: ends the open time, not a hint.
    pub fn hasten(&mut self, now: Instant, member: Member) {
        let _ = (now, member);
        todo!()
    }

    /// Who is to ask again: drained after every call, under the same lock.
    pub fn wakes(&mut self) -> impl Iterator<Item = u64> + '_ {
        std::iter::empty()
    }

    /// What an operator sees.
    #[must_use]
    pub fn status(&self, now: Instant) -> GateStatus {
        let _ = now;
        todo!()
    }
}
