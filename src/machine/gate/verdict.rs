//! What an outcome means for the gate, and how long its connection waits.

use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::{Nanos, add};
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
                let (base, slow) = (self.policy.quick.base, &self.policy.slow);
                let until = self.refused.refuse(now, origin, base, slow, rng);
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
            (self.narrowed, self.proven) = (self.epoch, false);
            self.refused.distrust();
        }
    }

    /// The server lives: those who wait follow one another, in one random order.
    pub(super) fn pace<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        self.phase = Phase::Paced(Box::new(Pace::new(now, self.threshold, rng)));
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
            (self.row, self.step.throttled) = (self.row.saturating_add(1), 0);
            self.blame(origin.member);
            // A refusal among successes cuts the pace and no more; too many in a row, or a session that ends too soon,
            // end it.
            if self.cut_pace(now, origin, rng) && self.row < self.policy.failures_to_narrow.get() {
                return self.absorbed(now, weight, WaitCause::Backoff, step, rng);
            }
            self.narrow();
        }
        step.fail(now, weight);
        let delay = if origin.current { self.trip(now, weight, step, rng) } else { self.alone(now, weight, step, rng) };
        step.previous = delay;
        Wait::own(add(now, delay.duration()), WaitCause::Backoff)
    }

    /// A refused dial slows a pace down; `false` where there is none to slow down.
    fn cut_pace<R: Rng + ?Sized>(&mut self, now: Instant, origin: Origin, rng: &mut R) -> bool {
        let Phase::Paced(pace) = &mut self.phase else { return false };
        if origin.dial {
            pace.refused(now, origin.started, rng);
        }
        origin.dial
    }

    /// The gate is narrow and one more attempt has failed: draws the delay, which is the open time as well if more
    /// than one connection is to blame.
    fn trip<R: Rng + ?Sized>(&mut self, now: Instant, weight: u32, step: &Step, rng: &mut R) -> Nanos {
        if !self.note(now, weight, step) {
            return self.alone(now, weight, step, rng);
        }
        let delay = self.together(now, weight, rng);
        self.trips = self.trips.saturating_add(1);
        self.window.open(add(now, delay.duration()));
        self.queue.draw_head(now, rng);
        // A connection that is further along than all of them keeps its own, longer delay to itself.
        if step.failures() > self.step.failures() { self.alone(now, weight, step, rng).max(delay) } else { delay }
    }

    /// Takes the gate one step along its curve; `false` if one connection alone is to blame.
    fn note(&mut self, now: Instant, weight: u32, step: &Step) -> bool {
        let shared = self.is_shared();
        if shared || self.step.failures() == 0 {
            self.step.fail(now, weight);
        }
        if self.members <= 1 {
            // A gate of one is as far along as its connection.
            self.step = *step;
        }
        shared
    }

    /// The server asked for less. What it named is a floor for everyone; what it left open is a draw of the curve.
    fn throttled<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        retry_after: Option<Duration>,
        step: &mut Step,
        rng: &mut R,
    ) -> Wait {
        let hint = retry_after.and_then(|hint| self.policy.obeyed(hint));
        let paced = origin.current && self.cut_pace(now, origin, rng);
        step.throttled = step.throttled.saturating_add(1);
        if paced && hint.is_none() {
            return self.absorbed(now, 1, WaitCause::Throttled, step, rng);
        }
        step.fail(now, 1);
        if origin.current {
            self.step.throttled = self.step.throttled.saturating_add(1);
        }
        // A pace has been cut; a gate that has none goes one step along its own curve.
        let shared = origin.current && !paced && {
            self.blame(origin.member);
            self.note(now, 1, step)
        };
        let drawn = if shared { self.together(now, 1, rng) } else { self.alone(now, 1, step, rng) };
        step.previous = drawn;
        let until = match hint {
            Some(hint) => self.hinted(now, origin, hint, drawn.duration(), step, rng),
            None => {
                let until = add(now, drawn.duration());
                if shared {
                    self.shut(now, rng);
                    self.window.open(until);
                }
                until
            }
        };
        Wait::own(until, WaitCause::Throttled)
    }

    /// Until when the server's wait binds its connection; on a dial it binds the gate as well.
    fn hinted<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        origin: Origin,
        hint: Duration,
        drawn: Duration,
        step: &Step,
        rng: &mut R,
    ) -> Instant {
        let polite = self.policy.polite_jitter(hint, rng);
        // Ten thousand clients that obey the same minute need more than two seconds of spread.
        let again = step.throttled > 1 || (origin.current && self.step.throttled > 1);
        let until = add(now, hint.saturating_add(if again { polite.max(drawn) } else { polite }));
        if origin.dial && origin.current {
            self.shut(now, rng);
        }
        if origin.dial {
            self.window.hint(until);
        }
        until
    }

    /// Narrow, and whose reconnect the next attempt is gets drawn.
    fn shut<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        self.narrow();
        self.queue.draw_head(now, rng);
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

    /// The delay of all by the gate's curve: one speaks for those who wait.
    fn together<R: Rng + ?Sized>(&mut self, now: Instant, weight: u32, rng: &mut R) -> Nanos {
        let sharers = u32::try_from(self.queue.len() + 1).unwrap_or(u32::MAX);
        self.step.previous = self.draw(now, weight, &self.step, sharers, rng);
        self.step.previous
    }

    /// The delay of a connection by its own curve.
    fn alone<R: Rng + ?Sized>(&self, now: Instant, weight: u32, step: &Step, rng: &mut R) -> Nanos {
        self.draw(now, weight, step, 1, rng)
    }

    /// The wait of a connection that a pace refused: at first it queues again soon, because the pace bounds what that
    /// costs; refused again it may have a reason of its own, and waits the first growing step.
    fn absorbed<R: Rng + ?Sized>(
        &self,
        now: Instant,
        weight: u32,
        cause: WaitCause,
        step: &mut Step,
        rng: &mut R,
    ) -> Wait {
        let mut first = Step::default();
        first.fail(now, weight);
        let again = step.absorbed == self.epoch;
        step.previous = self.alone(now, if again { weight } else { 0 }, &first, rng);
        step.fail(now, weight);
        step.absorbed = self.epoch;
        Wait::own(add(now, step.previous.duration()), cause)
    }

    /// Nobody answered: the quick curve. It answered and failed: the growing one.
    fn draw<R: Rng + ?Sized>(&self, now: Instant, weight: u32, step: &Step, sharers: u32, rng: &mut R) -> Nanos {
        if weight == 0 {
            step.quick(&self.policy.quick, rng)
        } else {
            step.growing(&self.policy.growing, &self.policy.quick, now, sharers, rng)
        }
    }
}
