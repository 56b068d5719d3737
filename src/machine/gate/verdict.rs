//! What an outcome means for the gate, and how long its connection waits.

use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::add;
use super::super::{Failure, Step, WaitCause};
use super::pace::Pace;
use super::{Gate, Member, Phase, Wait};

/// Whose outcome it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) member: Member,
    /// When its dial (or session) began.
    pub(super) started: Instant,
    /// It is of the present epoch, so it decides.
    pub(super) current: bool,
    /// It is the outcome of a dial, not the end of a session.
    pub(super) dial: bool,
}

impl Gate {
    /// A dial succeeded: the narrow window ends, a pace quickens.
    pub(super) fn succeeded<R: Rng + ?Sized>(&mut self, now: Instant, started: Instant, rng: &mut R) {
        self.row = 0;
        match &mut self.phase {
            Phase::Closed => {}
            Phase::Narrow => self.pace(now, rng),
            Phase::Paced(pace) => pace.succeeded(now, started, rng),
        }
    }

    /// A dial failed, or a session ended too soon: decides for the gate and draws the connection's wait.
    pub(super) fn failed<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        failure: Failure,
        step: &mut Step,
        rng: &mut R,
    ) -> Wait {
        match failure {
            Failure::Permanent => {
                self.proved_alive(now, origin, rng);
                let wait = step.slow(&self.policy.slow, rng);
                Wait::own(add(now, wait), WaitCause::Refused)
            }
            Failure::Unauthorized => {
                self.proved_alive(now, origin, rng);
                let (base, slow) = (self.policy.quick.base, self.policy.slow);
                let until = self.refused.refuse(now, origin.member.credential, origin.started, base, &slow, rng);
                Wait::own(until, WaitCause::Refused)
            }
            Failure::Throttled { retry_after } => self.throttled(now, origin, retry_after, step, rng),
            Failure::Planned | Failure::Timeout | Failure::Transient | Failure::Unreachable => {
                self.charged(now, origin, failure, step, rng)
            }
        }
    }

    /// The window becomes one wide; what is under way or alive is of an older epoch from here on.
    pub(super) fn narrow(&mut self) {
        if let Phase::Paced(pace) = &self.phase {
            self.threshold = pace.threshold();
        }
        if !matches!(self.phase, Phase::Narrow) {
            self.phase = Phase::Narrow;
            self.epoch += 1;
            (self.narrowed, self.proven, self.row) = (self.epoch, false, 0);
        }
    }

    /// The server lives: those who wait follow one another, in one random order.
    fn pace<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        self.phase = Phase::Paced(Pace::new(now, self.threshold, rng));
        self.epoch += 1;
        self.window.end_open_time();
        self.queue.shuffle(now, rng);
    }

    fn proved_alive<R: Rng + ?Sized>(&mut self, now: Instant, origin: Origin, rng: &mut R) {
        if origin.current && origin.dial {
            self.row = 0;
            if matches!(self.phase, Phase::Narrow) {
                self.pace(now, rng);
            }
        }
    }

    fn charged<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        failure: Failure,
        step: &mut Step,
        rng: &mut R,
    ) -> Wait {
        let weight = self.weight(failure);
        step.throttled = 0;
        if origin.current {
            self.row = self.row.saturating_add(1);
            if self.absorbed_by_pace(now, origin, rng) {
                return self.first_step(now, weight, rng);
            }
            self.narrow();
            self.blame(origin.member);
        }
        step.fail(now, weight);
        let delay =
            if origin.current { self.trip(now, origin, weight, step, rng) } else { self.alone(now, step, weight, rng) };
        step.previous = delay;
        Wait::own(add(now, delay), WaitCause::Backoff)
    }

    /// A refusal among successes cuts the pace and no more; too many in a row, or a session that ends too soon, end it.
    fn absorbed_by_pace<R: Rng + ?Sized>(&mut self, now: Instant, origin: Origin, rng: &mut R) -> bool {
        let enough = self.row >= self.policy.failures_to_narrow.get();
        match &mut self.phase {
            Phase::Paced(pace) if origin.dial => {
                pace.refused(now, origin.started, rng);
                !enough
            }
            Phase::Closed | Phase::Narrow | Phase::Paced(_) => false,
        }
    }

    /// The gate is narrow and one more attempt has failed: draws the delay, which is the open time as well if more
    /// than one connection is to blame.
    fn trip<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        weight: u32,
        step: &Step,
        rng: &mut R,
    ) -> Duration {
        let shared = self.is_shared();
        if shared || self.step.failures() == 0 {
            let counts = self.counted.is_none_or(|counted| origin.started > counted);
            self.step.fail(now, if counts { weight } else { 0 });
            if counts && weight > 0 {
                self.counted = Some(origin.started);
            }
        }
        if !shared {
            return self.alone(now, step, weight, rng);
        }
        if self.members <= 1 {
            // A gate of one is as far along as its connection.
            self.step = *step;
        }
        let sharers = u32::try_from(self.queue.len() + 1).unwrap_or(u32::MAX);
        let delay = self.draw(now, &self.step, weight, sharers, rng);
        self.step.previous = delay;
        self.trips = self.trips.saturating_add(1);
        self.window.open(add(now, delay));
        self.queue.draw_head(now, rng);
        // A connection that is further along than all of them keeps its own, longer delay to itself.
        if step.failures() > self.step.failures() { self.alone(now, step, weight, rng).max(delay) } else { delay }
    }

    fn throttled<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        retry_after: Option<Duration>,
        step: &mut Step,
        rng: &mut R,
    ) -> Wait {
        step.throttled = step.throttled.saturating_add(1);
        step.fail(now, 1);
        let growing = self.alone(now, step, 1, rng);
        let Some(hint) = retry_after.and_then(|hint| self.policy.obeyed(hint)) else {
            step.previous = growing;
            let until = add(now, growing);
            if origin.current && self.binds_all(now, origin, rng) {
                self.narrow();
                self.window.open(until);
            }
            return Wait::own(until, WaitCause::Throttled);
        };
        let polite = self.policy.polite_jitter(hint, rng);
        // Ten thousand clients that obey the same minute need more than two seconds of spread.
        let jitter = if step.throttled > 1 { polite.max(growing) } else { polite };
        let until = add(now, hint.saturating_add(jitter));
        if origin.dial {
            if origin.current {
                self.narrow();
            }
            self.window.hint(until);
        }
        Wait::own(until, WaitCause::Throttled)
    }

    /// Whether a throttled dial without a number holds everybody: not while a pace absorbs it, and not one
    /// connection's own limit.
    fn binds_all<R: Rng + ?Sized>(&mut self, now: Instant, origin: Origin, rng: &mut R) -> bool {
        if origin.dial
            && let Phase::Paced(pace) = &mut self.phase
        {
            pace.refused(now, origin.started, rng);
            return false;
        }
        self.blame(origin.member);
        self.is_shared()
    }

    fn weight(&self, failure: Failure) -> u32 {
        match failure {
            Failure::Unreachable => 0,
            Failure::Timeout => self.policy.growing.timeout_weight,
            Failure::Permanent
            | Failure::Planned
            | Failure::Throttled { .. }
            | Failure::Transient
            | Failure::Unauthorized => 1,
        }
    }

    fn blame(&mut self, member: Member) {
        if !self.blamed.contains(&Some(member.id))
            && let Some(free) = self.blamed.iter_mut().find(|blamed| blamed.is_none())
        {
            *free = Some(member.id);
            // The outage of all begins when the second connection fails, not when the first one was poisoned.
            if self.is_shared() && self.members > 1 {
                self.step.refused_since = None;
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.members <= 1 || self.blamed[1].is_some()
    }

    /// The delay of a connection by its own curve.
    fn alone<R: Rng + ?Sized>(&self, now: Instant, step: &Step, weight: u32, rng: &mut R) -> Duration {
        self.draw(now, step, weight, 1, rng)
    }

    fn first_step<R: Rng + ?Sized>(&self, now: Instant, weight: u32, rng: &mut R) -> Wait {
        let mut first = Step::default();
        first.fail(now, weight);
        Wait::own(add(now, self.alone(now, &first, weight, rng)), WaitCause::Backoff)
    }

    /// Nobody answered: the quick curve. It answered and failed: the growing one.
    fn draw<R: Rng + ?Sized>(&self, now: Instant, step: &Step, weight: u32, sharers: u32, rng: &mut R) -> Duration {
        if weight == 0 {
            step.quick(&self.policy.quick, rng)
        } else {
            step.growing(&self.policy.growing, self.policy.quick.base, now, sharers, rng)
        }
    }
}
