//! What all who dial one endpoint share: breaker and pacer of dials in one window.
//!
//! A gate is one window (how many at once, how far apart, not before when) over one queue of waiters, in one of three
//! modes:
//!
//! - **closed**: healthy; nobody waits.
//! - **narrow** (the breaker): one attempt at a time, at least `base` apart, and not before the open time or a hint is
//!   over. The one attempt is the reconnect of a waiting connection that was drawn, not an extra one. New gates are
//!   narrow, and so are those that lost a stable session or saw a dial fail.
//! - **paced**: after the first success, one after the other, faster with every success.
//!
//! The gate hands out a [`Permit`] for each attempt and hears its outcome, and whether the session that followed lived.
//! What happened before the gate last became narrow is of an older epoch: it decides nothing any more.
//!
//! One connection alone cannot shut the others out: the open time counts only once two different connections have
//! failed since the last proof of health, or the gate has one member. Until then a failure narrows the window and
//! delays its own connection.

mod line;
mod pace;
mod queue;
mod refused;
mod status;
mod verdict;
mod window;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

pub use status::{GateStatus, Mode};

use self::pace::Pace;
use self::queue::Queue;
use self::refused::Refused;
use self::window::{Flight, Window};
use super::policy::Policy;
use super::time::add;
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
    member: Member,
    id: u64,
}

/// A live session, as the gate has to hear of it when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tenure {
    /// The epoch that [`Settled`] gave.
    pub epoch: u64,
    /// When it began.
    pub since: Instant,
    /// Whether it has lived `stable_after`.
    pub stable: bool,
}

impl Tenure {
    /// A session that begins.
    #[must_use]
    pub const fn new(epoch: u64, since: Instant) -> Self {
        Self { epoch, since, stable: false }
    }
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

impl Wait {
    /// A wait of a connection's own, which nobody else can shorten.
    #[must_use]
    pub const fn own(until: Instant, cause: WaitCause) -> Self {
        Self { until, earliest: until, cause }
    }
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

#[derive(Debug)]
enum Phase {
    Closed,
    Narrow,
    /// With what only an outage needs.
    Paced(Box<Pace>),
}

/// The shared state, pure; `steadfast::Gate` is the one to share between tasks.
#[derive(Debug)]
pub struct Gate {
    policy: Arc<Policy>,
    phase: Phase,
    window: Window,
    queue: Queue,
    refused: Refused,
    wakes: Vec<u64>,
    max_in_flight: Option<NonZeroUsize>,
    /// Changes of state so far; what carries a number below `narrowed` is older than the last narrowing.
    epoch: u64,
    narrowed: u64,
    /// A session that began after the last narrowing has lived `stable_after`.
    proven: bool,
    /// How far the gate itself is along the curves.
    step: Step,
    /// Up to two different connections that failed since the last proof of health.
    blamed: [Option<u64>; 2],
    /// Charged failures in a row, and openings since the last proof of health.
    row: u32,
    trips: u32,
    /// The rate up to which a pace may double: that of the last cut.
    threshold: f64,
    /// A crowd was woken while nobody has to wait: it comes back at a pace.
    crowd: bool,
    members: usize,
    next_member: u64,
    ignored: u64,
}

impl Gate {
    /// A gate with the curves of `policy`: narrow, without open time.
    #[must_use]
    pub fn new(policy: Arc<Policy>) -> Self {
        Self {
            policy,
            phase: Phase::Narrow,
            window: Window::default(),
            queue: Queue::default(),
            refused: Refused::default(),
            wakes: Vec::new(),
            max_in_flight: None,
            epoch: 1,
            narrowed: 1,
            proven: false,
            step: Step::default(),
            blamed: [None; 2],
            row: 0,
            trips: 0,
            threshold: f64::INFINITY,
            crowd: false,
            members: 0,
            next_member: 1,
            ignored: 0,
        }
    }

    /// At most `limit` attempts under way at once, in every mode.
    pub fn set_max_in_flight(&mut self, limit: NonZeroUsize) {
        self.max_in_flight = Some(limit);
    }

    /// Attaches a connection that presents `credential`.
    pub fn join(&mut self, credential: u64) -> Member {
        let id = self.next_member;
        self.next_member += 1;
        self.members += 1;
        Member { id, credential }
    }

    /// Detaches a connection; its place goes.
    pub fn part(&mut self, now: Instant, member: Member) {
        self.members = self.members.saturating_sub(1);
        self.leave(now, member);
    }

    /// May `member` dial now, for at most `lease`? A member that has to wait keeps one place until it goes or leaves.
    pub fn admit<R: Rng + ?Sized>(&mut self, now: Instant, member: Member, lease: Duration, rng: &mut R) -> Admission {
        self.tick(now, rng);
        if self.is_unhindered(now) {
            return Admission::Go(self.start(now, member, lease, rng));
        }
        if std::mem::take(&mut self.crowd) && self.is_closed() {
            self.pace(now, rng);
        }
        let base = self.policy.quick.base;
        let side_by_side = matches!(self.phase, Phase::Paced(_));
        if let Some(wait) = self.refused.ask(now, member, side_by_side, lease, base) {
            self.queue.remove(member, now);
            self.wake_head(now);
            return Admission::Wait(wait);
        }
        let opening = self.opening(now);
        if let Some((opening, _)) = opening {
            self.queue.skip_absent(opening, base, member, now);
        }
        let open = opening.is_some_and(|(opening, _)| opening <= now);
        let rank = match self.queue.rank(member) {
            Some(rank) => rank,
            // Nobody is in the way, and behind a closed gate nobody will be.
            None if self.queue.is_empty() && (open || (self.is_closed() && opening.is_some())) => 0,
            None => self.queue.join(member, now),
        };
        if rank == 0 && open {
            self.queue.remove(member, now);
            let permit = self.start(now, member, lease, rng);
            self.wake_head(now);
            return Admission::Go(permit);
        }
        let wait = self.wait(now, rank, opening);
        self.queue.told(member, wait.until);
        self.wake_at(now, opening);
        Admission::Wait(wait)
    }

    /// The outcome of the attempt made under `permit`; `step` is how far the connection is along its own curve.
    ///
    /// The delay after a failure is drawn once, for the connection and for the gate alike: waits never add.
    pub fn settle<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        permit: Permit,
        outcome: Result<(), Failure>,
        step: &mut Step,
        rng: &mut R,
    ) -> Settled {
        self.tick(now, rng);
        let member = permit.member;
        let flight = self.window.take(permit.id, now);
        let current = flight.is_some_and(|flight| self.is_current(flight.epoch));
        if !current {
            self.ignored += 1;
        }
        let started = flight.map_or(now, |flight| flight.started);
        let wait = match outcome {
            Ok(()) => {
                let woken = self.wakes.len();
                self.refused.accepted(now, member, self.policy.stable_after, &mut self.wakes);
                self.expect_crowd(woken);
                if current {
                    self.succeeded(now, started, rng);
                }
                None
            }
            Err(failure) => {
                if failure != Failure::Unauthorized {
                    self.refused.release(member, &mut self.wakes);
                }
                let origin = verdict::Origin { member, started, current, dial: true };
                Some(self.failed(now, origin, failure, step, rng))
            }
        };
        self.wake_head(now);
        // An attempt of an older epoch gives a session of an older epoch.
        let epoch = if current { self.epoch } else { flight.map_or(0, |flight| flight.epoch) };
        Settled { epoch, wait }
    }

    /// A session is over. `None` after a stable one: its first attempt is drawn from the recovery spread, and nothing
    /// is charged. Otherwise it was one more failed attempt, even if it ended as planned.
    pub fn lost<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        member: Member,
        tenure: Tenure,
        failure: Failure,
        step: &mut Step,
        rng: &mut R,
    ) -> Option<Wait> {
        self.tick(now, rng);
        let current = self.is_current(tenure.epoch);
        if failure != Failure::Unauthorized {
            self.refused.release(member, &mut self.wakes);
        }
        let wait = if tenure.stable {
            // Two hundred sessions lost to a silent server must not become two hundred hanging dials.
            if matches!(self.phase, Phase::Closed) || current {
                self.narrow();
            }
            None
        } else {
            let failure = match failure {
                Failure::Planned | Failure::Unreachable => Failure::Transient,
                other => other,
            };
            let current = current && !self.proven;
            let origin = verdict::Origin { member, started: tenure.since, current, dial: false };
            Some(self.failed(now, origin, failure, step, rng))
        };
        self.wake_head(now);
        wait
    }

    /// A session has lived `stable_after`: everything is forgiven.
    pub fn stable(&mut self, now: Instant, member: Member, tenure: Tenure) {
        self.close_if_quiet(now);
        let woken = self.wakes.len();
        self.refused.forget(member.credential, &mut self.wakes);
        self.expect_crowd(woken);
        if !self.is_current(tenure.epoch) {
            return;
        }
        self.proven = true;
        self.step = Step::default();
        (self.blamed, self.row, self.trips) = ([None; 2], 0, 0);
    }

    /// The attempt was cancelled: the slot is free and nothing is charged.
    pub fn abandon(&mut self, now: Instant, permit: Permit) {
        self.window.take(permit.id, now);
        self.refused.release(permit.member, &mut self.wakes);
        self.wake_head(now);
    }

    /// Gives up the place in the queue.
    pub fn leave(&mut self, now: Instant, member: Member) {
        self.queue.remove(member, now);
        self.refused.release(member, &mut self.wakes);
        self.wake_head(now);
    }

    /// A human or a network change says that it is worth asking by `drawn`: ends the open time and the slow curve of
    /// the member's credential then; not a hint, not the window, not the distance between two attempts.
    ///
    /// The first draw of each open time counts: of two hundred, the least would be no spread.
    pub fn hasten(&mut self, now: Instant, member: Member, drawn: Instant) {
        self.window.hasten(drawn);
        self.refused.hasten(member, drawn);
        self.wake_head(now);
    }

    /// Which members are to ask again: drained after every call, under the same lock.
    pub fn wakes(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.wakes.drain(..)
    }

    /// What time alone changes: leases end, and a pace without a queue.
    fn tick<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        while let Some(flight) = self.window.overdue(now).and_then(|permit| self.window.take(permit, now)) {
            let current = self.is_current(flight.epoch);
            self.refused.release(flight.member, &mut self.wakes);
            let origin = verdict::Origin { member: flight.member, started: flight.started, current, dial: true };
            self.failed(now, origin, Failure::Timeout, &mut Step::default(), rng);
        }
        self.close_if_quiet(now);
    }

    /// A pace ends when nobody has waited or dialled for `stable_after`.
    fn close_if_quiet(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Paced(_)) && self.is_quiet(now) {
            self.epoch += 1;
            self.phase = Phase::Closed;
            // All are back: a cut that an outage in between left behind says nothing about the next one.
            self.threshold = f64::INFINITY;
            self.shrink();
        }
    }

    /// A gate may be one connection's own: what it keeps between two outages is kept a hundred thousand times.
    fn shrink(&mut self) {
        self.queue = Queue::default();
        self.window.shrink();
        self.wakes.shrink_to_fit();
    }

    fn is_quiet(&self, now: Instant) -> bool {
        let quiet_since = self.window.last_start().unwrap_or(now);
        self.queue.is_empty() && self.window.in_flight() == 0 && now >= add(quiet_since, self.policy.stable_after)
    }

    /// Closed, and nothing of an outage left: whoever asks may go.
    fn is_unhindered(&self, now: Instant) -> bool {
        self.is_closed()
            && !self.crowd
            // Without a limit of its own nobody stands in its queue.
            && self.max_in_flight.is_none()
            && self.refused.is_empty()
            && self.window.shut().is_none_or(|(until, _)| until <= now)
    }

    fn start<R: Rng + ?Sized>(&mut self, now: Instant, member: Member, lease: Duration, rng: &mut R) -> Permit {
        if let Phase::Paced(pace) = &mut self.phase {
            pace.started(now, rng);
        }
        let lease_ends = add(now, lease.saturating_add(self.policy.quick.base));
        let id = self.window.start(Flight { member, started: now, epoch: self.epoch }, lease_ends);
        Permit { member, id }
    }

    /// Since or from when the next dial can start; `None` while every slot is taken.
    fn opening(&self, now: Instant) -> Option<(Instant, WaitCause)> {
        let in_flight = self.window.in_flight();
        if self.max_in_flight.is_some_and(|limit| in_flight >= limit.get()) {
            return None;
        }
        let (at, cause) = match &self.phase {
            Phase::Closed => (None, WaitCause::Paced),
            Phase::Narrow if in_flight > 0 => return None,
            Phase::Narrow => (self.window.after_gap(self.policy.quick.base), WaitCause::BreakerOpen),
            Phase::Paced(pace) if !pace.has_room(in_flight) => return None,
            Phase::Paced(pace) => (Some(pace.next_start()), WaitCause::Paced),
        };
        let at = at.max(self.window.freed_at()).unwrap_or(now);
        match self.window.shut() {
            Some((until, cause)) if until >= at => Some((until, cause)),
            _ => Some((at, cause)),
        }
    }

    /// How long the waiter of that rank waits: the first for the opening itself, the others a turn longer each, so
    /// that whoever does not come is passed over.
    fn wait(&self, now: Instant, rank: usize, opening: Option<(Instant, WaitCause)>) -> Wait {
        let base = self.policy.quick.base;
        let busy = if matches!(self.phase, Phase::Narrow) { WaitCause::BreakerOpen } else { WaitCause::Paced };
        let (from, cause) = opening.unwrap_or_else(|| (self.window.first_lease_end().unwrap_or(now), busy));
        // A waiter that is asked for its rank later than its turn waits one turn more, never zero.
        let until = queue::due(from, rank, base).max(if from > now { from } else { add(now, base) });
        let earliest = opening.map_or(now, |(opening, _)| opening.max(now));
        Wait { until, earliest, cause }
    }

    /// Those who were parked over a refused credential come back together, and the pace may have ended meanwhile.
    fn expect_crowd(&mut self, woken_before: usize) {
        self.crowd |= self.wakes.len() > woken_before + 1;
    }

    fn wake_head(&mut self, now: Instant) {
        if !self.queue.is_empty() {
            self.wake_at(now, self.opening(now));
        }
    }

    fn wake_at(&mut self, now: Instant, opening: Option<(Instant, WaitCause)>) {
        if let Some((opening, _)) = opening {
            self.queue.wake(opening.max(now), self.policy.quick.base, &mut self.wakes);
        }
    }

    /// Whether something that carries `epoch` began after the gate last became narrow.
    fn is_current(&self, epoch: u64) -> bool {
        epoch >= self.narrowed
    }
}
