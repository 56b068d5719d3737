//! When one connection dials, by its own machine alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Action, Event, Gate, Lifecycle, add};
use steadfast::{Backoff, Failure, Growth, Jitter, Policy};

/// Base 1 s, both curves to 30 s without growth, no jitter, no spread.
fn plain() -> Policy {
    let cap = Duration::from_secs(30);
    Policy::default()
        .quick(Backoff::new(Duration::from_secs(1), cap))
        .growing(Growth::fixed(cap))
        .jitter(Jitter::None)
        .recovery_spread(Duration::ZERO)
}

/// One connection in virtual time: every dial is answered by `answer` after `takes`.
struct Lone {
    lifecycle: Lifecycle,
    gate: Gate,
    rng: SmallRng,
    start: Instant,
    now: Instant,
    dials: Vec<f64>,
}

impl Lone {
    fn new(policy: Policy) -> Self {
        policy.validate().expect("a valid policy");
        let policy = Arc::new(policy);
        let mut gate = Gate::new(Arc::clone(&policy));
        let member = gate.join(0);
        let now = Instant::now();
        Self {
            lifecycle: Lifecycle::new(policy, member),
            gate,
            rng: SmallRng::seed_from_u64(7),
            start: now,
            now,
            dials: Vec::new(),
        }
    }

    fn tell(&mut self, event: Event) -> Action {
        let action = self.lifecycle.on_event(self.now, event, &mut self.gate, &mut self.rng);
        if let Action::Dial { .. } = action {
            self.dials.push(self.now.duration_since(self.start).as_secs_f64());
        }
        action
    }

    /// Sleeps until the deadline, again and again, until it says something else than to wait.
    fn wait(&mut self) -> Action {
        loop {
            self.now = self.lifecycle.deadline().expect("a wait has a deadline");
            match self.tell(Event::TimedOut) {
                Action::Continue | Action::Wait => {}
                action => return action,
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = add(self.now, time);
    }
}

#[test]
fn refused_dials_follow_the_curve() {
    let mut lone = Lone::new(plain());
    lone.tell(Event::Start);
    for _ in 0..6 {
        assert_eq!(lone.tell(Event::Failed(Failure::Unreachable)), Action::Wait);
        assert!(matches!(lone.wait(), Action::Dial { .. }));
    }
    assert_eq!(lone.dials, [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0]);
}

#[test]
fn accepted_and_dropped_is_the_same_as_refused() {
    let mut lone = Lone::new(plain());
    lone.tell(Event::Start);
    for _ in 0..6 {
        assert!(matches!(lone.tell(Event::Opened), Action::Serve { .. }));
        assert_eq!(lone.tell(Event::Lost(Failure::Planned)), Action::Wait);
        lone.wait();
    }
    assert_eq!(lone.dials, [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0]);
}

#[test]
fn a_stable_session_is_forgiven() {
    let mut lone = Lone::new(plain());
    lone.tell(Event::Start);
    for _ in 0..4 {
        lone.tell(Event::Failed(Failure::Transient));
        lone.wait();
    }
    lone.tell(Event::Opened);
    lone.pass(Duration::from_secs(11));
    lone.dials.clear();
    lone.start = lone.now;
    lone.tell(Event::Lost(Failure::Transient));
    assert_eq!(lone.dials, [0.0], "without a spread the first attempt after a stable session is at once");
    lone.tell(Event::Failed(Failure::Unreachable));
    lone.wait();
    assert_eq!(lone.dials, [0.0, 1.0]);
}
