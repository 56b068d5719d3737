//! What the rows of the table do.

use std::time::{Duration, Instant};

use rand::Rng;

use super::{Dial, End, Lifecycle, Phase, Rest, Up};
use crate::machine::event::{Action, StopReason, WaitCause};
use crate::machine::gate::{Admission, Gate, Tenure, Wait};
use crate::machine::policy::{Policy, youngest};
use crate::machine::time::{Nanos, add, uniform};
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
        let lease = handshake(&self.policy, self.stretched);
        match gate.admit(now, self.member, lease, rng) {
            Admission::Go(permit) => {
                self.attempt = self.attempt.saturating_add(1);
                let deadline = add(now, self.policy.attempt_deadline);
                self.phase = Phase::Connecting(Dial { permit, deadline, reached: false, hastened: false });
                Action::Dial { attempt: self.attempt, generation: self.generation.saturating_add(1) }
            }
            Admission::Wait(wait) => self.queue(now, wait),
        }
    }

    /// Waits for the gate; in silence if that is known.
    fn queue(&mut self, now: Instant, wait: Wait) -> Action {
        if let Phase::Backoff(rest) = &self.phase
            && rest.queued
            && rest.wait == wait
        {
            return Action::Continue;
        }
        if wait.cause != WaitCause::Paced {
            // Somebody else found out that the server is down: the outage is this connection's as well.
            self.outage_since.get_or_insert(now);
        }
        self.rest(Rest { queued: true, ..self.resting(wait) })
    }

    pub(super) fn opened<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let Some(dial) = self.end_dial() else { return Action::Continue };
        let settled = gate.settle(now, dial.permit, Ok(()), &mut self.step, rng);
        self.generation = self.generation.saturating_add(1);
        if dial.hastened {
            // What was dialled before somebody asked for a new connection is not the new one.
            return self.recover(now, None, gate, rng);
        }
        let retire_at = self.policy.max_age.map(|age| add(now, uniform(youngest(age), age, rng)));
        self.phase = Phase::Connected(Up { tenure: Tenure::new(settled.epoch, now), retire_at });
        Action::Serve { generation: self.generation }
    }

    pub(super) fn failed<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        failure: Failure,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        let Some(dial) = self.end_dial() else { return Action::Continue };
        if failure == Failure::Timeout && dial.reached {
            self.stretched = self.stretched.saturating_add(1);
        }
        let failure = if failure == Failure::Planned { Failure::Transient } else { failure };
        if failure == Failure::Permanent && !dial.reached {
            // Our own mistake: nobody was asked, so it says nothing about the server.
            gate.abandon(now, dial.permit);
            return self.stop(StopReason::Permanent);
        }
        let wait = gate.settle(now, dial.permit, Err(failure), &mut self.step, rng).wait;
        self.outage_since.get_or_insert(now);
        if failure == Failure::Permanent && self.policy.stop_on_permanent {
            return self.stop(StopReason::Permanent);
        }
        let action = self.after_failure(now, failure, wait);
        if dial.hastened && action == Action::Wait { self.hasten(now, gate, rng) } else { action }
    }

    pub(super) fn lost<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        tenure: Tenure,
        failure: Failure,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
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
                return self.rest(self.resting(Wait::own(until, WaitCause::Refused)));
            }
        }
        match wait {
            Some(_) => self.after_failure(now, failure, wait),
            None => self.recover(now, self.hint_of(now, failure, rng), gate, rng),
        }
    }

    /// The wait that the gate drew, unless it is time to give up.
    fn after_failure(&mut self, now: Instant, failure: Failure, wait: Option<Wait>) -> Action {
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
        let parked = failure == Failure::Unauthorized;
        self.rest(Rest { parked, ..self.resting(wait) })
    }

    /// The first attempt after a connection that had done nothing wrong: drawn, whatever ended it.
    pub(super) fn recover<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        hint: Option<Instant>,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Action {
        self.hint = self.hint.max(hint);
        let drawn = add(now, self.draw_spread(rng));
        self.ask_at(now, drawn, gate, rng)
    }

    /// Ends the own curve, the slow curves and the gate's open time, all by one draw; not a hint, the window or a draw
    /// that runs already. Once a wait: ten calls are one.
    pub(super) fn hasten<R: Rng + ?Sized>(&mut self, now: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let Phase::Backoff(rest) = &mut self.phase else { return Action::Continue };
        if rest.hastened {
            return Action::Continue;
        }
        rest.hastened = true;
        let rest = *rest;
        self.hastened_at = Some(now);
        let drawn = add(now, self.draw_spread(rng));
        gate.hasten(now, self.member, drawn);
        if rest.queued {
            self.ask(now, gate, rng)
        } else if rest.wait.cause == WaitCause::Spread {
            Action::Continue
        } else {
            self.ask_at(now, rest.wait.until.min(drawn), gate, rng)
        }
    }

    /// Waits for a draw and for what the server asked for, whichever is later; then asks the gate.
    fn ask_at<R: Rng + ?Sized>(&mut self, now: Instant, drawn: Instant, gate: &mut Gate, rng: &mut R) -> Action {
        let wait = match self.hint {
            Some(hint) if hint >= drawn => Wait::own(hint, WaitCause::Throttled),
            _ => Wait::own(drawn, WaitCause::Spread),
        };
        if wait.until <= now || self.has_given_up(now) {
            self.ask(now, gate, rng)
        } else {
            self.rest(self.resting(wait))
        }
    }

    /// Goes on with the wait that it is in, if it is in one, for another reason or time.
    fn resting(&self, wait: Wait) -> Rest {
        match self.phase {
            Phase::Backoff(rest) => Rest { wait, ..rest },
            Phase::Idle | Phase::Connecting(_) | Phase::Connected(_) | Phase::Draining(_) | Phase::Stopped => {
                Rest { wait, queued: false, parked: false, hastened: false }
            }
        }
    }

    fn rest(&mut self, rest: Rest) -> Action {
        self.phase = Phase::Backoff(rest);
        Action::Wait
    }

    pub(super) fn close(&mut self, now: Instant, reason: StopReason) -> Action {
        let deadline = add(now, self.policy.close);
        self.phase = Phase::Draining(End { reason, deadline, winding_down: false });
        Action::Close
    }

    pub(super) fn stop(&mut self, reason: StopReason) -> Action {
        self.phase = Phase::Stopped;
        Action::Stop(reason)
    }

    /// Uptime belongs to this session alone: a timer of an earlier one forgives nothing.
    pub(super) fn forgive_if_stable(&mut self, now: Instant, up: &mut Up, gate: &mut Gate) {
        if up.tenure.stable || now < self.stable_at(up.tenure.since) {
            return;
        }
        up.tenure.stable = true;
        self.phase = Phase::Connected(*up);
        gate.stable(now, self.member, up.tenure);
        (self.step, self.attempt, self.outage_since) = (Step::default(), 0, None);
        self.stretched = 0;
    }

    /// The dial is over; what follows sets the next state.
    fn end_dial(&mut self) -> Option<Dial> {
        match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Connecting(dial) => Some(dial),
            other => {
                self.phase = other;
                None
            }
        }
    }

    fn draw_spread<R: Rng + ?Sized>(&self, rng: &mut R) -> Duration {
        draw(self.spread.duration(), rng)
    }

    /// The server's wait at the end of a stable session, with its jitter.
    fn hint_of<R: Rng + ?Sized>(&self, now: Instant, failure: Failure, rng: &mut R) -> Option<Instant> {
        let hint = self.policy.obeyed(failure.retry_after()?)?;
        Some(add(now, hint.saturating_add(self.policy.polite_jitter(hint, rng))))
    }

    /// When a session that began then is forgiven everything.
    pub(super) fn stable_at(&self, since: Instant) -> Instant {
        add(since, self.policy.stable_after)
    }

    /// When the outage is given up, whatever it waits for then.
    pub(super) fn gives_up_at(&self) -> Option<Instant> {
        Some(add(self.outage_since?, self.policy.give_up_after?))
    }

    fn has_given_up(&self, now: Instant) -> bool {
        self.gives_up_at().is_some_and(|at| at <= now)
    }
}

/// The longest that an attempt may take: handshakes that timed out have each tripled it.
pub(super) fn handshake(policy: &Policy, stretched: u8) -> Duration {
    let first = policy.attempt_deadline;
    if stretched == 0 {
        return first;
    }
    let grown = Nanos::new(first).times(3_u64.saturating_pow(u32::from(stretched)));
    grown.duration().min(policy.handshake_limit).max(first)
}

/// A point of a spread; none of no spread.
fn draw<R: Rng + ?Sized>(spread: Duration, rng: &mut R) -> Duration {
    if spread.is_zero() { spread } else { uniform(Duration::ZERO, spread, rng) }
}
