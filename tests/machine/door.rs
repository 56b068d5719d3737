//! A bare gate, asked and told by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Admission, Gate, Member, Permit, Step, add};
use steadfast::{Failure, Policy, WaitCause};

use crate::harness::secs;

pub(crate) const LEASE: Duration = secs(10);

/// A gate, asked by hand.
pub(crate) struct Door {
    pub(crate) gate: Gate,
    pub(crate) members: Vec<Member>,
    pub(crate) rng: SmallRng,
    pub(crate) now: Instant,
}

impl Door {
    pub(crate) fn new(policy: Policy, members: u64, seed: u64) -> Self {
        let mut gate = Gate::new(Arc::new(policy));
        let members = (0..members).map(|_| gate.join(0)).collect();
        Self { gate, members, rng: SmallRng::seed_from_u64(seed), now: Instant::now() }
    }

    pub(crate) fn ask(&mut self, who: usize) -> Result<Permit, (Duration, WaitCause)> {
        match self.gate.admit(self.now, self.members[who], LEASE, &mut self.rng) {
            Admission::Go(permit) => Ok(permit),
            Admission::Wait(wait) => {
                assert!(wait.until > self.now, "a refusal names an instant in the future");
                Err((wait.until.duration_since(self.now), wait.cause))
            }
            _ => unreachable!(),
        }
    }

    /// Everybody asks, and all but one are refused.
    pub(crate) fn one_of_all(&mut self) -> Permit {
        let mut let_through: Vec<_> = (0..self.members.len()).filter_map(|who| self.ask(who).ok()).collect();
        assert_eq!(let_through.len(), 1);
        let_through.remove(0)
    }

    /// Waits for its turn.
    pub(crate) fn next(&mut self, who: usize) -> Permit {
        for _ in 0..1_000 {
            match self.ask(who) {
                Ok(permit) => return permit,
                Err((wait, _)) => self.pass(wait),
            }
        }
        panic!("its turn never comes: {:?}", self.gate.status(self.now))
    }

    pub(crate) fn settle(&mut self, permit: Permit, outcome: Result<(), Failure>) -> Option<Duration> {
        let settled = self.gate.settle(self.now, permit, outcome, &mut Step::default(), &mut self.rng);
        settled.wait.map(|wait| wait.until.duration_since(self.now))
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = add(self.now, time);
    }
}

/// How long a gate opens for when two connections have failed, the second one `base` after the first.
pub(crate) fn open_time(policy: &Policy, seed: u64, failure: Failure) -> Duration {
    let mut door = Door::new(policy.clone(), 2, seed);
    for who in 0..2 {
        let permit = door.next(who);
        door.settle(permit, Err(failure));
    }
    door.gate.status(door.now).until.expect("two have failed").duration_since(door.now)
}
