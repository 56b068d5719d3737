//! One step of a connection's machine, by the mean of a life.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use steadfast::machine::{Event, Gate, Lifecycle, State};
use steadfast::{Failure, Policy};

use crate::crew::{Path, way};
use crate::table::Report;

pub(crate) fn bench(criterion: &mut Criterion, report: &mut Report) {
    let base = way(
        "one `SmallRng` u64",
        || SmallRng::seed_from_u64(7),
        |rng| {
            black_box(rng.next_u64());
        },
    );
    let ways = vec![way("one step, the mean of a life", Life::new, Life::step)];
    let title = "One `Lifecycle` step with a gate of its own (base: one `SmallRng` u64)";
    Path { name: "life", title, base, ways, threads: &[1], aims: Vec::new() }.bench(criterion, report);
}

/// How dials end, one after the other.
const OUTCOMES: [Result<(), Failure>; 8] = [
    Err(Failure::Unreachable),
    Ok(()),
    Err(Failure::Unreachable),
    Err(Failure::Unreachable),
    Err(Failure::Throttled { retry_after: None }),
    Err(Failure::Transient),
    Ok(()),
    Ok(()),
];

/// Connections that fail, become stable, are lost, come back, are drained and start again.
struct Life {
    lifecycle: Lifecycle,
    gate: Gate,
    rng: SmallRng,
    now: Instant,
    dials: usize,
    /// The dial has reached the server, the session is stable, or the drain waits for the close.
    half: bool,
}

impl Life {
    fn new() -> Self {
        let policy = Arc::new(Policy::default());
        let mut gate = Gate::new(Arc::clone(&policy));
        let member = gate.join(0);
        let lifecycle = Lifecycle::new(policy, member);
        Self { lifecycle, gate, rng: SmallRng::seed_from_u64(7), now: Instant::now(), dials: 0, half: false }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(3);
        let event = self.next();
        black_box(self.lifecycle.decide(self.now, event, &mut self.gate, &mut self.rng));
        for id in self.gate.wakes() {
            black_box(id);
        }
    }

    fn next(&mut self) -> Event {
        let was_half = std::mem::replace(&mut self.half, false);
        match self.lifecycle.state() {
            State::Backoff => self.deadline(),
            State::Connecting if was_half => {
                self.dials += 1;
                OUTCOMES[self.dials % OUTCOMES.len()].map_or_else(Event::Failed, |()| Event::Opened)
            }
            State::Connected if was_half && self.dials.is_multiple_of(OUTCOMES.len()) => Event::Drain,
            State::Connected if was_half => Event::Lost(Failure::Transient),
            State::Draining if was_half => Event::Closed,
            State::Connecting => self.first_half(Event::Reached),
            State::Connected => {
                let stable = self.deadline();
                self.first_half(stable)
            }
            State::Draining => self.first_half(Event::Finished),
            _ => Event::Start,
        }
    }

    fn first_half(&mut self, event: Event) -> Event {
        self.half = true;
        event
    }

    fn deadline(&mut self) -> Event {
        self.now = self.lifecycle.deadline().map_or(self.now, |at| at.max(self.now));
        Event::TimedOut
    }
}
