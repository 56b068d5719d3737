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
use std::time::{Duration, Instant};

use rand::Rng;

use super::event::{Action, Event, State, StopReason, Transition, WaitCause};
use super::gate::{Gate, Member, Permit, Tenure, Wait};
use super::policy::Policy;
use super::time::add;
use super::{Failure, Step};

/// The state machine of one connection.
#[derive(Debug)]
pub struct Lifecycle {
    policy: Arc<Policy>,
    member: Member,
    state: State,
    generation: u64,
    attempt: u32,
    step: Step,
    deadline: Option<Instant>,
    /// In `Backoff`: what it waits for, and whether it has a place in the gate's queue.
    wait: Option<Wait>,
    queued: bool,
    /// In `Backoff`: its credential was refused, and the gate will tell when it works.
    parked: bool,
    /// Somebody asked to reconnect: once a wait; while connecting, the dial's success is dropped.
    hastened: bool,
    /// When a call to reconnect was last followed.
    hastened_at: Option<Instant>,
    /// No attempt before this, whoever asks.
    hint: Option<Instant>,
    /// In `Connecting`.
    permit: Option<Permit>,
    reached: bool,
    handshake: Duration,
    /// In `Connected`.
    tenure: Option<Tenure>,
    retire_at: Option<Instant>,
    advice: Option<Duration>,
    /// Since when this outage lasts; until a stable session.
    outage_since: Option<Instant>,
    /// In `Draining`: why it ends, and whether the session may still go on.
    ending: StopReason,
    winding_down: bool,
}

impl Lifecycle {
    /// A connection that has not started; `member` is what [`Gate::join`] gave.
    #[must_use]
    pub fn new(policy: Arc<Policy>, member: Member) -> Self {
        Self {
            handshake: policy.attempt_deadline,
            policy,
            member,
            state: State::Idle,
            generation: 0,
            attempt: 0,
            step: Step::default(),
            deadline: None,
            wait: None,
            queued: false,
            parked: false,
            hastened: false,
            hastened_at: None,
            hint: None,
            permit: None,
            reached: false,
            tenure: None,
            retire_at: None,
            advice: None,
            outage_since: None,
            ending: StopReason::Drained,
            winding_down: false,
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
        match self.state {
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
        let from = self.state;
        let action = self.on_event(now, event, gate, rng);
        (action != Action::Continue).then(|| Transition {
            at: now,
            event,
            from,
            to: self.state,
            action,
            generation: self.generation,
            attempt: self.attempt,
            wait: self.wait_cause(),
            until: self.deadline,
        })
    }

    /// The shell is gone (dropped, aborted): frees whatever this connection holds of the gate and leaves it.
    pub fn abandon(&mut self, now: Instant, gate: &mut Gate) {
        self.state = State::Stopped;
        self.deadline = None;
        if let Some(permit) = self.permit.take() {
            gate.abandon(now, permit);
        }
        gate.part(now, self.member);
    }

    /// When to hand in [`Event::TimedOut`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The earliest instant at which the next attempt can start, as far as is known; `None` unless it waits.
    ///
    /// Not later than the wait's end: another connection's success may shorten a wait for the gate, never the own
    /// curve.
    #[must_use]
    pub fn earliest_attempt(&self) -> Option<Instant> {
        self.wait.map(|wait| wait.earliest)
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
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

    /// Why it waits; `None` unless in [`State::Backoff`].
    #[must_use]
    pub fn wait_cause(&self) -> Option<WaitCause> {
        self.wait.map(|wait| wait.cause)
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
        match event {
            Event::Opened => self.opened(now, gate, rng),
            Event::Failed(failure) => self.failed(now, failure, gate, rng),
            Event::TimedOut if self.is_due(now) => self.failed(now, Failure::Timeout, gate, rng),
            Event::Reached if !self.reached => {
                self.reached = true;
                let longer = self.handshake.saturating_sub(self.policy.attempt_deadline);
                self.deadline = self.deadline.map(|at| add(at, longer));
                Action::Continue
            }
            Event::Reconnect => {
                // Those that follow at once are the call that started this dial.
                let base = self.policy.quick.base();
                self.hastened |= self.hastened_at.is_none_or(|at| add(at, base) <= now);
                Action::Continue
            }
            Event::Drain => {
                if let Some(permit) = self.permit.take() {
                    gate.abandon(now, permit);
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
        self.forgive_if_stable(now, gate);
        match event {
            Event::Advised(spread) => {
                self.advice = Some(spread.min(self.policy.advice_limit));
                Action::Continue
            }
            Event::Lost(failure) => self.lost(now, failure, gate, rng),
            // Charged to nobody: the other side has done nothing wrong.
            Event::Reconnect => {
                self.hastened_at = Some(now);
                self.recover(now, None, gate, rng)
            }
            Event::TimedOut if self.retire_at.is_some_and(|at| at <= now) => self.recover(now, None, gate, rng),
            Event::Drain => {
                (self.state, self.winding_down, self.ending) = (State::Draining, true, StopReason::Drained);
                self.deadline = Some(add(now, self.policy.drain));
                Action::WindDown
            }
            Event::Finished => {
                (self.state, self.ending) = (State::Draining, StopReason::Finished);
                self.close(now)
            }
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
        match event {
            Event::TimedOut if self.is_due(now) => self.ask(now, gate, rng),
            Event::GateTurned if self.queued || self.parked => self.ask(now, gate, rng),
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
        match event {
            Event::Lost(_) | Event::Finished if self.winding_down => self.close(now),
            Event::TimedOut if self.is_due(now) && self.winding_down => self.close(now),
            Event::TimedOut if self.is_due(now) => self.stop(self.ending),
            Event::Closed if !self.winding_down => self.stop(self.ending),
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
                *self = Self { advice: self.advice, hint: self.hint, ..fresh };
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
