//! What must hold after every step, seen from outside: the driver's own account against what the machine says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::{Action, Event, Failure, Gate, HintLimit, Lifecycle, Mode, Policy, State, Transition, WaitCause};

/// One step of one client, as the driver saw it.
pub(super) struct Observed<'a> {
    pub(super) now: Duration,
    pub(super) instant: Instant,
    pub(super) client: usize,
    pub(super) gate: usize,
    pub(super) event: Event,
    pub(super) action: Action,
    pub(super) from: State,
    pub(super) transition: Option<&'a Transition>,
    pub(super) life: &'a Lifecycle,
    pub(super) shared: &'a Gate,
}

/// Keeps books of its own and writes down where the machine disagrees.
#[derive(Debug)]
pub(super) struct Checker {
    policy: Arc<Policy>,
    clients: Vec<Client>,
    gates: Vec<Shared>,
    violations: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    generation: u64,
    attempts: u32,
    up_since: Option<Duration>,
    in_flight: bool,
    ended: bool,
    not_before: Duration,
}

#[derive(Clone, Debug, Default)]
struct Shared {
    /// Who dials, and when the slot is free at the latest.
    in_flight: Vec<(usize, Duration)>,
    last_start: Option<Duration>,
    not_before: Duration,
    epoch: u64,
}

impl Checker {
    pub(super) fn new(policy: Arc<Policy>, clients: usize, gates: usize) -> Self {
        Self {
            policy,
            clients: vec![Client::default(); clients],
            gates: vec![Shared::default(); gates],
            violations: Vec::new(),
        }
    }

    /// Writes one down; the first few are kept.
    pub(super) fn violation(&mut self, now: Duration, client: usize, what: String) {
        if self.violations.len() < MOST_VIOLATIONS {
            self.violations.push(format!("at {now:?}, client {client}: {what}"));
        }
    }

    pub(super) fn into_violations(self) -> Vec<String> {
        self.violations
    }

    /// A client is gone without an event.
    pub(super) fn cancelled(&mut self, client: usize) {
        self.clients[client].in_flight = false;
        for gate in &mut self.gates {
            gate.in_flight.retain(|(id, _)| *id != client);
        }
    }

    /// Checks one step.
    pub(super) fn after(&mut self, seen: &Observed<'_>) {
        self.note_hint(seen);
        for complaint in [self.record(seen), self.numbers(seen), self.start(seen)].into_iter().flatten() {
            self.violation(seen.now, seen.client, format!("{complaint} ({:?} in {:?})", seen.event, seen.from));
        }
        self.keep_books(seen);
    }

    /// A hint binds from the moment at which it is given.
    fn note_hint(&mut self, seen: &Observed<'_>) {
        let (Event::Failed(failure) | Event::Lost(failure)) = seen.event else { return };
        let Some(hint) = self.hint_of(failure) else { return };
        let not_before = seen.now.saturating_add(hint);
        if self.clients[seen.client].in_flight || self.clients[seen.client].up_since.is_some() {
            self.clients[seen.client].not_before = not_before;
        }
        if self.clients[seen.client].in_flight {
            let shared = &mut self.gates[seen.gate].not_before;
            *shared = (*shared).max(not_before);
        }
    }

    /// What the machine shows after the step agrees with itself, and has an end (I2, I6).
    fn record(&self, seen: &Observed<'_>) -> Option<String> {
        let state = seen.life.state();
        let deadline = seen.life.deadline();
        if matches!(state, State::Backoff | State::Connecting | State::Draining) && deadline.is_none() {
            return Some(format!("{state:?} has no deadline"));
        }
        if seen.action == Action::Continue {
            return (state != seen.from).then(|| format!("went to {state:?} and said nothing"));
        }
        let Some(transition) = seen.transition else { return Some("no record of a decision".to_owned()) };
        if transition.until != deadline {
            return Some(format!("the record says {:?}, the deadline is {deadline:?}", transition.until));
        }
        if state == State::Backoff && deadline.is_none_or(|at| at <= seen.instant) {
            return Some("waits for an instant that is past".to_owned());
        }
        if state != State::Backoff {
            return None;
        }
        let wait = deadline?.saturating_duration_since(seen.instant);
        let cause = transition.wait?;
        let cap = self.longest_wait(cause, seen.now)?;
        (wait > cap).then(|| format!("waits {wait:?} for {cause:?}, at most {cap:?} is allowed"))
    }

    /// Generations only grow, attempts are forgiven only after a stable session (I5, I8).
    fn numbers(&self, seen: &Observed<'_>) -> Option<String> {
        let known = &self.clients[seen.client];
        // A connection that nobody wants any more has used its number up as well.
        let opened = seen.event == Event::Opened && seen.action != Action::Continue;
        let expected = known.generation + u64::from(opened);
        if seen.life.generation() != expected {
            return Some(format!("generation {} instead of {expected}", seen.life.generation()));
        }
        let attempt = seen.life.attempt();
        let stable = known.up_since.is_some_and(|since| seen.now >= since + self.policy.stable_after);
        let forgiven = stable || seen.event == Event::Start;
        (attempt < known.attempts && !forgiven).then(|| format!("attempt {attempt} after {}", known.attempts))
    }

    /// An attempt begins: may it? (I1, I3, I10)
    fn start(&self, seen: &Observed<'_>) -> Option<String> {
        let Action::Dial { attempt, generation } = seen.action else { return None };
        let known = &self.clients[seen.client];
        let shared = &self.gates[seen.gate];
        if known.ended && seen.event != Event::Start {
            return Some("dials after its end".to_owned());
        }
        if generation != known.generation + 1 || attempt != seen.life.attempt() {
            return Some(format!("dial {attempt} for generation {generation} is misnumbered"));
        }
        let not_before = known.not_before.max(shared.not_before);
        if seen.now < not_before {
            return Some(format!("dials before the server's hint, {not_before:?}"));
        }
        let status = seen.shared.status(seen.instant);
        if status.epoch < shared.epoch {
            return Some(format!("epoch {} after {}", status.epoch, shared.epoch));
        }
        if !matches!(status.mode, Mode::Open | Mode::HalfOpen) {
            return None;
        }
        let others = shared.in_flight.iter().filter(|(id, end)| *id != seen.client && *end > seen.now).count();
        if others > 0 {
            return Some(format!("dials through a narrow gate, beside {others}"));
        }
        let since = shared.last_start.map(|last| seen.now.saturating_sub(last));
        since
            .filter(|gap| *gap < self.policy.quick.base)
            .map(|gap| format!("dials {gap:?} after the last, at a narrow gate"))
    }

    fn keep_books(&mut self, seen: &Observed<'_>) {
        let known = &mut self.clients[seen.client];
        let shared = &mut self.gates[seen.gate];
        known.generation = seen.life.generation();
        known.attempts = seen.life.attempt();
        if seen.action == Action::Continue {
            return;
        }
        shared.in_flight.retain(|(id, end)| *id != seen.client && *end > seen.now);
        known.in_flight = false;
        match seen.action {
            Action::Dial { .. } => {
                let deadline = seen.life.deadline().map_or(Duration::ZERO, |at| at - seen.instant);
                shared.in_flight.push((seen.client, seen.now + deadline + self.policy.quick.base));
                shared.last_start = Some(seen.now);
                shared.epoch = seen.shared.status(seen.instant).epoch;
                (known.in_flight, known.ended, known.up_since) = (true, false, None);
            }
            Action::Serve { .. } => known.up_since = Some(seen.now),
            Action::Close | Action::Wait => known.up_since = None,
            Action::Stop(_) => (known.up_since, known.ended) = (None, true),
            Action::Continue | Action::WindDown => {}
        }
    }

    /// The wait that a failure asks for, where it has to be obeyed.
    fn hint_of(&self, failure: Failure) -> Option<Duration> {
        let Failure::Throttled { retry_after: Some(hint) } = failure else { return None };
        let policy = &self.policy;
        let obeyed = if policy.over_limit == HintLimit::Clamp { hint.min(policy.hint_limit) } else { hint };
        (obeyed >= policy.quick.base).then_some(obeyed)
    }

    /// The longest wait for that cause; `None` where it depends on the queue.
    fn longest_wait(&self, cause: WaitCause, age: Duration) -> Option<Duration> {
        let policy = &self.policy;
        let growing = policy.growing.cap(u32::MAX, age, 1);
        let hinted = policy.hint_limit + growing.max(Duration::from_secs(2));
        let spread = policy.recovery_spread.max(policy.startup_spread).max(policy.advice_limit);
        match cause {
            WaitCause::Backoff => Some(policy.quick.cap.max(growing)),
            WaitCause::Refused => Some(policy.slow.cap),
            WaitCause::Spread => Some(spread),
            WaitCause::Throttled => (policy.over_limit == HintLimit::Clamp).then_some(hinted),
            WaitCause::BreakerOpen => {
                let clients = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
                let turns = policy.quick.base.saturating_mul(clients.saturating_add(2));
                (policy.over_limit == HintLimit::Clamp).then(|| hinted + policy.handshake_limit + turns)
            }
            WaitCause::Paced => None,
        }
    }
}

const MOST_VIOLATIONS: usize = 16;
