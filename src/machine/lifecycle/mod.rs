//! One supervised connection: what to do next, and until when.
//!
//! `Connected` means usable: greeting, login and subscriptions belong inside the dial. The attempt number and
//! everything charged go back to zero only after `stable_after` of uptime; a session that ends sooner is one more
//! failed attempt, even if it ended as planned. So a server that accepts and drops in a loop sees the same curve as one
//! that refuses.
//!
//! This file is the table: one function for each state, each event listed. What the rows do stands in `rules`.

mod rules;

use std::sync::Arc;
use std::time::Instant;

use rand::Rng;

use self::rules::handshake;
use super::event::{Action, Event, State, StopReason, Transition, WaitCause};
use super::gate::{Gate, Member, Permit, Tenure, Wait};
use super::policy::Policy;
use super::time::{Nanos, add};
use super::{Failure, Step};

/// The state machine of one connection.
#[derive(Debug)]
pub struct Lifecycle {
    policy: Arc<Policy>,
    member: Member,
    phase: Phase,
    generation: u64,
    attempt: u32,
    /// How often a timed-out handshake has lengthened the next one's deadline.
    stretched: u8,
    step: Step,
    /// The first attempt after a loss is drawn from this: the policy's, until the server advises another.
    spread: Nanos,
    /// When a call to reconnect was last followed.
    hastened_at: Option<Instant>,
    /// No attempt before this, whoever asks.
    hint: Option<Instant>,
    /// Since when this outage lasts; until a stable session.
    outage_since: Option<Instant>,
}

/// The state, with what only that state has.
#[derive(Debug)]
enum Phase {
    Idle,
    Connecting(Dial),
    Connected(Up),
    Backoff(Rest),
    Draining(End),
    Stopped,
}

#[derive(Debug)]
struct Dial {
    permit: Permit,
    deadline: Instant,
    /// TCP stands.
    reached: bool,
    /// Somebody asked to reconnect meanwhile: its success is dropped.
    hastened: bool,
}

#[derive(Clone, Copy, Debug)]
struct Up {
    tenure: Tenure,
    /// When it is too old.
    retire_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    /// What it waits for, unless the outage is given up before.
    wait: Wait,
    /// It has a place in the gate's queue.
    queued: bool,
    /// Its credential was refused, and the gate will tell when it works.
    parked: bool,
    /// Somebody asked to reconnect: once a wait.
    hastened: bool,
}

#[derive(Clone, Copy, Debug)]
struct End {
    reason: StopReason,
    deadline: Instant,
    /// The session may still go on.
    winding_down: bool,
}

impl Lifecycle {
    /// A connection that has not started; `member` is what [`Gate::join`] gave.
    #[must_use]
    pub fn new(policy: Arc<Policy>, member: Member) -> Self {
        Self {
            spread: Nanos::new(policy.recovery_spread),
            policy,
            member,
            phase: Phase::Idle,
            generation: 0,
            attempt: 0,
            stretched: 0,
            step: Step::default(),
            hastened_at: None,
            hint: None,
            outage_since: None,
        }
    }

    /// Continues to count after that generation: numbers are never used twice.
    #[must_use]
    pub const fn after_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// Takes one event and says what to do.
    pub fn on_event<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        match self.state() {
            State::Idle => self.in_idle(now, event, gate, rng),
            State::Connecting => self.in_connecting(now, event, gate, rng),
            State::Connected => self.in_connected(now, event, gate, rng),
            State::Backoff => self.in_backoff(now, event, gate, rng),
            State::Draining => self.in_draining(now, event),
            State::Stopped => self.in_stopped(now, event, gate, rng),
        }
    }

    /// [`on_event`](Self::on_event), with the record of what was decided; `None` for [`Action::Continue`].
    pub fn decide<R: Rng + ?Sized>(
        &mut self,
        now: Instant,
        event: Event,
        gate: &mut Gate,
        rng: &mut R,
    ) -> Option<Transition> {
        let from = self.state();
        let action = self.on_event(now, event, gate, rng);
        (action != Action::Continue).then(|| Transition {
            at: now,
            event,
            from,
            to: self.state(),
            action,
            generation: self.generation,
            attempt: self.attempt,
            wait: self.wait_cause(),
            until: self.deadline(),
        })
    }

    /// The shell is gone (dropped, aborted): frees whatever this connection holds of the gate and leaves it.
    pub fn abandon(&mut self, now: Instant, gate: &mut Gate) {
        if let Phase::Connecting(dial) = std::mem::replace(&mut self.phase, Phase::Stopped) {
            gate.abandon(now, dial.permit);
        }
        gate.part(now, self.member);
    }

    /// When to hand in [`Event::TimedOut`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Idle | Phase::Stopped => None,
            Phase::Connecting(dial) => Some(dial.deadline),
            Phase::Connected(up) if up.tenure.stable => up.retire_at,
            Phase::Connected(up) => {
                let stable_at = self.stable_at(up.tenure.since);
                Some(up.retire_at.map_or(stable_at, |at| at.min(stable_at)))
            }
            Phase::Backoff(rest) => Some(self.gives_up_at().map_or(rest.wait.until, |at| at.min(rest.wait.until))),
            Phase::Draining(end) => Some(end.deadline),
        }
    }

    /// The earliest instant at which the next attempt can start, as far as is known; `None` unless it waits.
    ///
    /// Not later than the wait's end: another connection's success may shorten a wait for the gate, never the own
    /// curve.
    #[must_use]
    pub fn earliest_attempt(&self) -> Option<Instant> {
        if let Phase::Backoff(rest) = &self.phase { Some(rest.wait.earliest) } else { None }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Connecting(_) => State::Connecting,
            Phase::Connected(_) => State::Connected,
            Phase::Backoff(_) => State::Backoff,
            Phase::Draining(_) => State::Draining,
            Phase::Stopped => State::Stopped,
        }
    }

    /// Attempts made since the last stable session.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The live connection's number, or the last one's (0: none yet).
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Who it is to its gate.
    #[must_use]
    pub fn member(&self) -> Member {
        self.member
    }

    /// Why it waits; `None` unless in [`State::Backoff`].
    #[must_use]
    pub fn wait_cause(&self) -> Option<WaitCause> {
        if let Phase::Backoff(rest) = &self.phase { Some(rest.wait.cause) } else { None }
    }

    fn in_idle<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        match event {
            Event::Start => self.start(now, gate, rng),
            Event::Drain => self.stop(StopReason::Drained),
            Event::Advised(_)
            | Event::Closed
            | Event::Failed(_)
            | Event::Finished
            | Event::GateTurned
            | Event::Lost(_)
            | Event::Opened
            | Event::Reached
            | Event::Reconnect
            | Event::TimedOut => Action::Continue,
        }
    }

    fn in_connecting<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        let Phase::Connecting(dial) = &mut self.phase else { return Action::Continue };
        match event {
            Event::Opened => self.opened(now, gate, rng),
            Event::Failed(failure) => self.failed(now, failure, gate, rng),
            Event::TimedOut if dial.deadline <= now => self.failed(now, Failure::Timeout, gate, rng),
            Event::Reached if !dial.reached => {
                dial.reached = true;
                dial.deadline =
                    add(dial.deadline, handshake(&self.policy, self.stretched) - self.policy.attempt_deadline);
                Action::Continue
            }
            Event::Reconnect => {
                // Those that follow at once are the call that started this dial.
                let base = self.policy.quick.base;
                dial.hastened |= self.hastened_at.is_none_or(|at| add(at, base) <= now);
                Action::Continue
            }
            Event::Drain => {
                if let Phase::Connecting(dial) = std::mem::replace(&mut self.phase, Phase::Stopped) {
                    gate.abandon(now, dial.permit);
                }
                self.stop(StopReason::Drained)
            }
            Event::Advised(_)
            | Event::Closed
            | Event::Finished
            | Event::GateTurned
            | Event::Lost(_)
            | Event::Reached
            | Event::Start
            | Event::TimedOut => Action::Continue,
        }
    }

    fn in_connected<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        let Phase::Connected(mut up) = self.phase else { return Action::Continue };
        self.forgive_if_stable(now, &mut up, gate);
        match event {
            Event::Advised(spread) => {
                self.spread = Nanos::new(spread.min(self.policy.advice_limit));
                Action::Continue
            }
            Event::Lost(failure) => self.lost(now, up.tenure, failure, gate, rng),
            // Charged to nobody: the other side has done nothing wrong.
            Event::Reconnect => {
                self.hastened_at = Some(now);
                self.recover(now, None, gate, rng)
            }
            Event::TimedOut if up.retire_at.is_some_and(|at| at <= now) => self.recover(now, None, gate, rng),
            Event::Drain => {
                let deadline = add(now, self.policy.drain);
                self.phase = Phase::Draining(End { reason: StopReason::Drained, deadline, winding_down: true });
                Action::WindDown
            }
            Event::Finished => self.close(now, StopReason::Finished),
            Event::Closed
            | Event::Failed(_)
            | Event::GateTurned
            | Event::Opened
            | Event::Reached
            | Event::Start
            | Event::TimedOut => Action::Continue,
        }
    }

    fn in_backoff<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        let Phase::Backoff(rest) = &self.phase else { return Action::Continue };
        match event {
            Event::TimedOut if self.deadline().is_some_and(|at| at <= now) => self.ask(now, gate, rng),
            Event::GateTurned if rest.queued || rest.parked => self.ask(now, gate, rng),
            Event::Reconnect => self.hasten(now, gate, rng),
            Event::Drain => {
                gate.leave(now, self.member);
                self.stop(StopReason::Drained)
            }
            Event::Advised(_)
            | Event::Closed
            | Event::Failed(_)
            | Event::Finished
            | Event::GateTurned
            | Event::Lost(_)
            | Event::Opened
            | Event::Reached
            | Event::Start
            | Event::TimedOut => Action::Continue,
        }
    }

    fn in_draining(&mut self, now: Instant, event: Event) -> Action {
        let Phase::Draining(end) = self.phase else { return Action::Continue };
        match event {
            Event::Lost(_) | Event::Finished if end.winding_down => self.close(now, end.reason),
            Event::TimedOut if end.deadline <= now && end.winding_down => self.close(now, end.reason),
            Event::TimedOut if end.deadline <= now => self.stop(end.reason),
            Event::Closed if !end.winding_down => self.stop(end.reason),
            Event::Advised(_)
            | Event::Closed
            | Event::Drain
            | Event::Failed(_)
            | Event::Finished
            | Event::GateTurned
            | Event::Lost(_)
            | Event::Opened
            | Event::Reached
            | Event::Reconnect
            | Event::Start
            | Event::TimedOut => Action::Continue,
        }
    }

    fn in_stopped<R: Rng + ?Sized>(&mut self, now: Instant, event: Event, gate: &mut Gate, rng: &mut R) -> Action {
        match event {
            Event::Start => {
                let fresh = Self::new(Arc::clone(&self.policy), self.member).after_generation(self.generation);
                *self = Self { spread: self.spread, hint: self.hint, ..fresh };
                self.start(now, gate, rng)
            }
            Event::Advised(_)
            | Event::Closed
            | Event::Drain
            | Event::Failed(_)
            | Event::Finished
            | Event::GateTurned
            | Event::Lost(_)
            | Event::Opened
            | Event::Reached
            | Event::Reconnect
            | Event::TimedOut => Action::Continue,
        }
    }
}
