//! A bare gate, those who ask it, and the permits they hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::Failure;
use steadfast::machine::{Admission, Gate, Member, Permit, Step, add};

use crate::{MEMBERS, failures, policy};

/// One thing that somebody does at a bare gate.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Admit(usize),
    Settle(usize, Result<(), Failure>),
    Abandon(usize),
    Leave(usize),
    Hasten(usize),
    Later(Duration),
}

pub(crate) fn moves() -> impl Strategy<Value = Move> {
    let who = || 0..MEMBERS;
    let end = prop_oneof![Just(Ok(())), failures().prop_map(Err)];
    prop_oneof![
        4 => who().prop_map(Move::Admit),
        2 => (who(), end).prop_map(|(who, end)| Move::Settle(who, end)),
        1 => who().prop_map(Move::Abandon),
        1 => who().prop_map(Move::Leave),
        1 => who().prop_map(Move::Hasten),
        2 => (0_u64..30_000).prop_map(|millis| Move::Later(Duration::from_millis(millis))),
    ]
}

/// A gate, those who ask it, and the permits they hold.
pub(crate) struct Hall {
    now: Instant,
    gate: Gate,
    rng: SmallRng,
    members: Vec<Member>,
    steps: Vec<Step>,
    permits: BTreeMap<usize, Permit>,
}

impl Hall {
    const LEASE: Duration = Duration::from_secs(10);

    pub(crate) fn new(seed: u64, now: Instant) -> Self {
        let mut gate = Gate::new(Arc::new(policy(false)));
        let members = (0..MEMBERS as u64).map(|id| gate.join(id % 2)).collect();
        let steps = vec![Step::default(); MEMBERS];
        Self { now, gate, rng: SmallRng::seed_from_u64(seed), members, steps, permits: BTreeMap::new() }
    }

    pub(crate) fn play(&mut self, one: &Move) {
        match one {
            Move::Admit(who) => self.admit(*who),
            Move::Settle(who, end) => self.settle(*who, *end),
            Move::Abandon(who) => {
                if let Some(permit) = self.permits.remove(who) {
                    self.gate.abandon(self.now, permit);
                }
            }
            Move::Leave(who) => self.gate.leave(self.now, self.members[*who]),
            Move::Hasten(who) => self.gate.hasten(self.now, self.members[*who], self.now),
            Move::Later(time) => self.now = add(self.now, *time),
        }
        let woken = self.gate.wakes().count();
        assert!(woken <= MEMBERS, "{woken} wakes after {one:?}");
    }

    fn settle(&mut self, who: usize, end: Result<(), Failure>) {
        if let Some(permit) = self.permits.remove(&who) {
            let settled = self.gate.settle(self.now, permit, end, &mut self.steps[who], &mut self.rng);
            assert_eq!(settled.wait.is_none(), end.is_ok(), "{settled:?}");
            assert!(settled.wait.is_none_or(|wait| wait.until > self.now), "{settled:?}");
        }
    }

    fn admit(&mut self, who: usize) {
        if self.permits.contains_key(&who) {
            return;
        }
        match self.gate.admit(self.now, self.members[who], Self::LEASE, &mut self.rng) {
            Admission::Go(permit) => {
                self.permits.insert(who, permit);
            }
            Admission::Wait(wait) => assert!(wait.until > self.now && wait.earliest <= wait.until, "{wait:?}"),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn keep_all_and_admit_one_more(&mut self) {
        for member in &self.members {
            self.gate.leave(self.now, *member);
        }
        let newcomer = self.gate.join(0);
        for _ in 0..20 {
            match self.gate.admit(self.now, newcomer, Self::LEASE, &mut self.rng) {
                Admission::Go(permit) => return self.gate.abandon(self.now, permit),
                Admission::Wait(wait) => self.now = wait.until,
                other => panic!("{other:?}"),
            }
        }
        panic!("asked 20 times: {:?}", self.gate.status(self.now));
    }
}
