//! What the rows of the table do.

use std::time::{Duration, Instant};

use rand::Rng;

use super::Lifecycle;
use crate::machine::event::{Action, State, StopReason, WaitCause};
use crate::machine::gate::{Admission, Gate, Tenure, Wait};
use crate::machine::policy::youngest;
use crate::machine::time::{add, uniform};
use crate::machine::{Failure, Step};

impl Lifecycle {
    pub(super) fn start<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let drawn = add(now, draw(self.policy.startup_spread, rng));
        self.ask_at(now, drawn, gate, rng)
    }

    /// Asks the gate, and dials or waits as it says.
    pub(super) fn ask<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        if self.has_given_up(now) {
            gate.leave(now, self.member);
            return self.stop(StopReason::GaveUp);
        }
        let lease = self.policy.attempt_deadline.max(self.handshake);
        match gate.admit(now, self.member, lease, rng) {
            Admission::Go(permit) => {
                self.permit = Some(permit);
                self.attempt = self.attempt.saturating_add(1);
                (self.state, self.wait) = (State::Connecting, None);
                (self.queued, self.parked) = (false, false);
                (self.reached, self.hastened) = (false, false);
                self.deadline = Some(add(now, self.policy.attempt_deadline));
                Action::Dial { attempt: self.attempt, generation: self.generation.saturating_add(1) }
            }
            Admission::Wait(wait) if self.queued && self.wait == Some(wait) => Action::Continue,
            Admission::Wait(wait) => {
                self.queued = true;
                if wait.cause != WaitCause::Paced {
                    // Somebody else found out that the server is down: the outage is this connection's as well.
                    self.outage_since.get_or_insert(now);
                }
                self.rest(now, wait)
            }
        }
    }

    pub(super) fn opened<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let Some(permit) = self.permit.take() else { return Action::Continue };
        let settled = gate.settle(now, permit, Ok(()), &mut self.step, rng);
        self.generation = self.generation.saturating_add(1);
        self.tenure = Some(Tenure::new(settled.epoch, now));
        if self.hastened {
            // What was dialled before somebody asked for a new connection is not the new one.
            return self.recover(now, None, gate, rng);
        }
        self.state = State::Connected;
        self.retire_at = self.policy.max_age.map(|age| add(now, uniform(youngest(age), age, rng)));
        self.deadline = Some(self.stable_at(now).min(self.retire_at.unwrap_or_else(|| self.stable_at(now))));
        Action::Serve { generation: self.generation }
    }

    pub(super) fn failed<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        failure: Failure,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        let Some(permit) = self.permit.take() else { return Action::Continue };
        if failure == Failure::Timeout && self.reached {
            self.handshake = self.handshake.saturating_mul(3).min(self.policy.handshake_limit);
        }
        let failure = if failure == Failure::Planned { Failure::Transient } else { failure };
        if failure == Failure::Permanent && !self.reached {
            // Our own mistake: nobody was asked, so it says nothing about the server.
            gate.abandon(now, permit);
            return self.stop(StopReason::Permanent);
        }
        let wait = gate.settle(now, permit, Err(failure), &mut self.step, rng).wait;
        self.outage_since.get_or_insert(now);
        if failure == Failure::Permanent && self.policy.stop_on_permanent {
            return self.stop(StopReason::Permanent);
        }
        self.after_failure(now, failure, wait, gate, rng)
    }

    pub(super) fn lost<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        failure: Failure,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        let Some(tenure) = self.tenure.take() else { return Action::Continue };
        let wait = gate.lost(now, self.member, tenure, failure, &mut self.step, rng);
        self.outage_since.get_or_insert(now);
        if self.policy.gives_up_on(failure.retry_after()) {
            return self.stop(StopReason::GaveUp);
        }
        if failure == Failure::Permanent {
            if self.policy.stop_on_permanent {
                return self.stop(StopReason::Permanent);
            }
            if tenure.stable {
                let until = add(now, self.step.slow(&self.policy.slow, rng));
                return self.rest(now, Wait::own(until, WaitCause::Refused));
            }
        }
        match wait {
            Some(_) => self.after_failure(now, failure, wait, gate, rng),
            None => self.recover(now, self.hint_of(now, failure, rng), gate, rng),
        }
    }

    /// The wait that the gate drew, unless it is time to give up.
    fn after_failure<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        failure: Failure,
        wait: Option<Wait>,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        let spent = self.policy.max_attempts.is_some_and(|most| self.attempt >= most.get());
        let hint = failure.retry_after();
        if spent || self.has_given_up(now) || self.policy.gives_up_on(hint) {
            return self.stop(StopReason::GaveUp);
        }
        let wait = wait.unwrap_or_else(|| Wait::own(now, WaitCause::Backoff));
        if hint.is_some_and(|hint| self.policy.obeyed(hint).is_some()) {
            self.hint = self.hint.max(Some(wait.until));
        }
        // A refused credential is the gate's affair: it wakes everyone who presents it once it works.
        self.parked = failure == Failure::Unauthorized;
        let hastened = self.hastened;
        self.hastened = false;
        let action = self.rest(now, wait);
        if hastened { self.hasten(now, gate, rng) } else { action }
    }

    /// The first attempt after a connection that had done nothing wrong: drawn, whatever ended it.
    pub(super) fn recover<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        hint: Option<Instant>,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        (self.tenure, self.hastened) = (None, false);
        self.hint = self.hint.max(hint);
        let drawn = add(now, self.draw_spread(rng));
        self.ask_at(now, drawn, gate, rng)
    }

    /// Ends the own curve, the slow curves and the gate's open time, all by one draw; not a hint, the window or a draw
    /// that runs already. Once a wait: ten calls are one.
    pub(super) fn hasten<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        if self.hastened {
            return Action::Continue;
        }
        (self.hastened, self.hastened_at) = (true, Some(now));
        let drawn = add(now, self.draw_spread(rng));
        gate.hasten(now, self.member, drawn);
        if self.queued {
            return self.ask(now, gate, rng);
        }
        match self.wait {
            Some(wait) if wait.cause == WaitCause::Spread => Action::Continue,
            wait => self.ask_at(now, wait.map_or(drawn, |wait| wait.until.min(drawn)), gate, rng),
        }
    }

    /// Waits for a draw and for what the server asked for, whichever is later; then asks the gate.
    fn ask_at<R: Rng + ?Sized>(&mut self, now: Instant, drawn: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let wait = match self.hint {
            Some(hint) if hint >= drawn => Wait::own(hint, WaitCause::Throttled),
            _ => Wait::own(drawn, WaitCause::Spread),
        };
        if wait.until <= now { self.ask(now, gate, rng) } else { self.rest(now, wait) }
    }

    /// Waits; until the outage is given up at most.
    fn rest(&mut self, now: Instant, wait: Wait) -> Action {
        self.state = State::Backoff;
        self.wait = Some(wait);
        let give_up = self.gives_up_at().unwrap_or(wait.until);
        self.deadline = Some(wait.until.min(give_up).max(now));
        Action::Wait
    }

    pub(super) fn close(&mut self, now: Instant) -> Action {
        self.winding_down = false;
        self.deadline = Some(add(now, self.policy.close));
        Action::Close
    }

    pub(super) fn stop(&mut self, reason: StopReason) -> Action {
        self.state = State::Stopped;
        (self.deadline, self.wait, self.tenure) = (None, None, None);
        (self.queued, self.parked) = (false, false);
        Action::Stop(reason)
    }

    /// Uptime belongs to this session alone: a timer of an earlier one forgives nothing.
    pub(super) fn forgive_if_stable(&mut self, now: Instant, gate: &mut Gate) {
        let Some(tenure) = &mut self.tenure else { return };
        if tenure.stable || now < add(tenure.since, self.policy.stable_after) {
            return;
        }
        tenure.stable = true;
        gate.stable(now, self.member, *tenure);
        (self.step, self.attempt, self.outage_since) = (Step::default(), 0, None);
        self.handshake = self.policy.attempt_deadline;
        self.deadline = self.retire_at;
    }

    fn draw_spread<R: Rng + ?Sized>(&self, rng: &mut R) -> Duration {
        draw(self.advice.unwrap_or(self.policy.recovery_spread), rng)
    }

    /// The server's wait at the end of a stable session, with its jitter.
    fn hint_of<R: Rng + ?Sized>(&self, now: Instant, failure: Failure, rng: &mut R) -> Option<Instant> {
        let hint = self.policy.obeyed(failure.retry_after()?)?;
        Some(add(now, hint.saturating_add(self.policy.polite_jitter(hint, rng))))
    }

    fn stable_at(&self, now: Instant) -> Instant {
        add(now, self.policy.stable_after)
    }

    fn gives_up_at(&self) -> Option<Instant> {
        Some(add(self.outage_since?, self.policy.give_up_after?))
    }

    fn has_given_up(&self, now: Instant) -> bool {
        self.gives_up_at().is_some_and(|at| at <= now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// A point of a spread; none of no spread.
fn draw<R: Rng + ?Sized>(spread: Duration, rng: &mut R) -> Duration {
    if spread.is_zero() { spread } else { uniform(Duration::ZERO, spread, rng) }
}
