//! The gate that supervisors share: one dial while it is narrow, and whoever waits for a slot gets it, whatever becomes
//! of the one who has it.

use std::future::Future;
use std::io;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::world::{Answer, Dialler, Door, Server, assert_free, block_on, check, gate, policy, settle, spawn};
use crate::machine::{Backoff, Failure, Growth, Policy, StopReason};
use crate::runtime::{Gate, Stopped, Supervisor};

type Run = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

/// A supervisor, and its run, which ends with the first session.
fn run(server: &Arc<Server>, gate: &Gate, seed: u64, policy: Policy) -> (Arc<Supervisor<Dialler>>, Run) {
    let supervisor = Arc::new(server.builder(gate, seed).policy(policy).build().unwrap());
    let of = Arc::clone(&supervisor);
    let run = async move { of.run(|_, _| async { Ok::<_, io::Error>(ControlFlow::Break(())) }).await };
    (supervisor, Box::pin(run))
}

/// The first dial waits at a door; what comes of it is `first`. The others get `others`, at once.
fn door(first: Answer, others: Answer) -> (Arc<Server>, Arc<Door>) {
    let door = Arc::new(Door::default());
    let shut = Arc::clone(&door);
    let script = move |dial| if dial == 0 { (first, Some(Arc::clone(&shut))) } else { (others, None) };
    (Server::new(script), door)
}

/// One dials and waits at the door, the others wait for the slot. What goes with a run goes while its supervisor stays:
/// with that a place in the gate goes anyway.
struct Line<const N: usize> {
    first: Run,
    others: [Run; N],
    _supervisors: Vec<Arc<Supervisor<Dialler>>>,
}

impl<const N: usize> Line<N> {
    fn new(server: &Arc<Server>, gate: &Gate) -> Self {
        let (mut supervisors, mut seed) = (Vec::new(), 0);
        let mut next = || {
            seed += 1;
            let (supervisor, mut run) = run(server, gate, seed, policy());
            supervisors.push(supervisor);
            settle(run.as_mut());
            run
        };
        let (first, others) = (next(), [(); N].map(|()| next()));
        assert_eq!((gate.status().in_flight, gate.status().waiting), (1, N));
        Self { first, others, _supervisors: supervisors }
    }
}

/// All fail, so the gate stays narrow.
fn one_dials_at_a_time<const N: usize>(preemptions: usize) {
    check(preemptions, || {
        let (server, gate) = (Server::new(|_| (Answer::FailLate(Failure::Unreachable), None)), gate(policy()));
        let mut seed = 0;
        let runs = [(); N].map(|()| {
            seed += 1;
            let (_, run) = run(&server, &gate, seed, policy().max_attempts(NonZeroU32::MIN));
            spawn(move || block_on(run))
        });
        for run in runs {
            assert_eq!(run.join().unwrap().unwrap_err().reason, StopReason::GaveUp);
        }
        assert_eq!((server.dials(), server.most_under_way()), (N, 1));
        assert_free(&gate);
    });
}

#[test]
fn of_two_who_ask_at_once_one_dials() {
    one_dials_at_a_time::<2>(3);
}

#[test]
fn of_three_who_ask_at_once_one_dials() {
    one_dials_at_a_time::<3>(1);
}

#[test]
fn a_dial_that_fails_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, door) = door(Answer::Fail(Failure::Unreachable), Answer::Accept);
        let gate = gate(policy());
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        block_on(second).unwrap();
        first.join().unwrap().unwrap();
        assert_free(&gate);
    });
}

#[test]
fn a_dial_that_panics_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, door) = door(Answer::Panic, Answer::Accept);
        let gate = gate(policy());
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        block_on(second).unwrap();
        first.join().unwrap().unwrap();
        assert_free(&gate);
    });
}

#[test]
fn a_dial_that_is_dropped_gives_its_slot_to_who_waits() {
    check(3, || {
        let (server, _door) = door(Answer::Accept, Answer::Accept);
        let gate = gate(policy());
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
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
        let gate = gate(policy());
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
        let task = spawn(move || {
            let unwinds = || {
                let _first = first;
                resume_unwind(Box::new("on purpose"));
            };
            assert!(catch_unwind(AssertUnwindSafe(unwinds)).is_err());
        });
        block_on(second).unwrap();
        task.join().unwrap();
        assert_free(&gate);
    });
}

#[test]
fn a_turn_of_one_who_has_just_gone_passes_on() {
    // One of the two is drawn as the next.
    for goes in [0, 1] {
        check(2, move || {
            let (server, door) = door(Answer::Accept, Answer::Accept);
            // Who comes behind is told to come a turn later in case the first does not: a turn is hours here.
            let turn = Duration::from_secs(2 * 3_600);
            let (quick, growing) = (Backoff::new(turn, 3 * turn), Growth::fixed(3 * turn));
            let gate = gate(policy().quick(quick).growing(growing));
            let Line { first, mut others, _supervisors } = Line::<2>::new(&server, &gate);
            others.rotate_left(goes);
            let [gone, stays] = others;
            let first = spawn(move || {
                door.open();
                block_on(first)
            });
            let dropper = spawn(move || drop(gone));
            block_on(stays).unwrap();
            first.join().unwrap().unwrap();
            dropper.join().unwrap();
            assert_free(&gate);
        });
    }
}

/// The first is refused at its first dial, and everybody is accepted afterwards; its second dial waits at a door.
fn refused_once() -> (Arc<Server>, Arc<Door>) {
    let door = Arc::new(Door::default());
    let shut = Arc::clone(&door);
    let server = Server::new(move |dial| match dial {
        0 => (Answer::Fail(Failure::Unauthorized), None),
        1 => (Answer::Accept, Some(Arc::clone(&shut))),
        _ => (Answer::Accept, None),
    });
    (server, door)
}

#[test]
fn a_credential_that_works_again_wakes_who_is_parked() {
    check(3, || {
        let ((server, door), gate) = (refused_once(), gate(policy()));
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
        let first = spawn(move || {
            door.open();
            block_on(first)
        });
        block_on(second).unwrap();
        first.join().unwrap().unwrap();
        assert_eq!((server.dials(), server.most_under_way()), (3, 1));
        assert_free(&gate);
    });
}

#[test]
fn the_one_try_of_a_refused_credential_passes_on() {
    check(3, || {
        let ((server, _door), gate) = (refused_once(), gate(policy()));
        let Line { first, others: [second], _supervisors } = Line::new(&server, &gate);
        let dropper = spawn(move || drop(first));
        block_on(second).unwrap();
        dropper.join().unwrap();
        assert_free(&gate);
    });
}
