//! The gate that supervisors share: one dial while it is narrow, and whoever waits for a slot gets it, whatever becomes
//! of the one who has it.

use std::future::Future;
use std::io;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;

use super::world::{Answer, Door, Server, assert_free, block_on, check, gate, policy, settle, spawn};
use crate::machine::{Failure, StopReason};
use crate::runtime::{Gate, Stopped};

type Run = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

/// A supervisor that makes one attempt, and ends with the session that comes of it.
fn attempt(server: &Arc<Server>, gate: &Gate, seed: u64) -> Run {
    let policy = policy().max_attempts(NonZeroU32::MIN);
    let supervisor = server.builder(gate, seed).policy(policy).build().unwrap();
    Box::pin(async move { supervisor.run(|_, _| async { Ok::<_, io::Error>(ControlFlow::Break(())) }).await })
}

/// The first dial waits at a door; what comes of it is `first`. The others get `others`, at once.
fn door(first: Answer, others: Answer) -> (Arc<Server>, Arc<Door>) {
    let door = Arc::new(Door::default());
    let shut = Arc::clone(&door);
    let script = move |dial| if dial == 0 { (first, Some(Arc::clone(&shut))) } else { (others, None) };
    (Server::new(script), door)
}

/// One dials and waits at the door, the others wait for the slot.
fn one_dials_and_others_wait<const N: usize>(server: &Arc<Server>, gate: &Gate) -> (Run, [Run; N]) {
    let mut first = attempt(server, gate, 1);
    settle(first.as_mut());
    let mut seed = 1;
    let others = [(); N].map(|()| {
        seed += 1;
        let mut other = attempt(server, gate, seed);
        settle(other.as_mut());
        other
    });
    assert_eq!((gate.status().in_flight, gate.status().waiting), (1, N));
    (first, others)
}

#[test]
fn of_those_who_ask_at_once_one_dials() {
    check(2, || {
        let (server, gate) = (Server::new(|_| (Answer::Fail(Failure::Unreachable), None)), gate());
        let runs = [1, 2].map(|seed| {
            let run = attempt(&server, &gate, seed);
            spawn(move || block_on(run))
        });
        for run in runs {
            assert_eq!(run.join().unwrap().unwrap_err().reason, StopReason::GaveUp);
        }
        assert_eq!((server.dials(), server.most_under_way()), (2, 1));
        assert_free(&gate);
    });
}

#[test]
fn a_dial_that_fails_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, door) = door(Answer::Fail(Failure::Unreachable), Answer::Accept);
        let gate = gate();
        let (first, [second]) = one_dials_and_others_wait(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        block_on(second).unwrap();
        first.join().unwrap().unwrap_err();
        assert_free(&gate);
    });
}

#[test]
fn a_dial_that_panics_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, door) = door(Answer::Panic, Answer::Accept);
        let gate = gate();
        let (first, [second]) = one_dials_and_others_wait(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        block_on(second).unwrap();
        first.join().unwrap().unwrap_err();
        assert_free(&gate);
    });
}

#[test]
fn a_dial_that_is_dropped_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, _door) = door(Answer::Accept, Answer::Accept);
        let gate = gate();
        let (first, [second]) = one_dials_and_others_wait(&server, &gate);
        let dropper = spawn(move || drop(first));
        block_on(second).unwrap();
        dropper.join().unwrap();
        assert_free(&gate);
    });
}

#[test]
fn a_task_that_unwinds_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, _door) = door(Answer::Accept, Answer::Accept);
        let gate = gate();
        let (first, [second]) = one_dials_and_others_wait(&server, &gate);
        let task = spawn(move || {
            let unwinds = move || {
                let _first = first;
                resume_unwind(Box::new("on purpose"))
            };
            catch_unwind(AssertUnwindSafe(unwinds)).unwrap_or(())
        });
        block_on(second).unwrap();
        task.join().unwrap();
        assert_free(&gate);
    });
}

#[test]
fn a_turn_of_one_who_has_just_gone_passes_on() {
    check(2, || {
        let (server, door) = door(Answer::Accept, Answer::Accept);
        let gate = gate();
        let (first, [second, third]) = one_dials_and_others_wait(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        let dropper = spawn(move || drop(second));
        block_on(third).unwrap();
        first.join().unwrap().unwrap();
        dropper.join().unwrap();
        assert_free(&gate);
    });
}
