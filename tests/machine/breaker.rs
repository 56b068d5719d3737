//! The narrow gate: one probe, an open time that grows, no way to get stuck.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast::machine::{Mode, Step, Tenure};
use steadfast::{Backoff, Failure, Growth, Policy, WaitCause};

use crate::door::{Door, LEASE, open_time};
use crate::harness::{Answer, Crew, all_secs, bin, millis, plain, secs};

#[test]
fn half_open_lets_exactly_one_through() {
    for seed in 0..1_000 {
        let mut door = Door::new(Policy::default(), 100, seed);
        // Asleep until the open time is over, then all at the same instant.
        for _ in 0..2 {
            let permit = door.one_of_all();
            door.settle(permit, Err(Failure::Unreachable));
            door.pass(secs(1));
        }
        door.pass(secs(60));
        let probe = door.one_of_all();
        assert_eq!(door.gate.status(door.now).in_flight, 1);
        assert!((0..100).all(|who| door.ask(who).is_err()), "nor while it is under way");
        door.gate.abandon(door.now, probe);
    }
}

#[test]
fn the_probe_is_the_reconnect_of_one_that_waits() {
    let mut crew = Crew::started(plain(), 100, 5, |dial| {
        assert_eq!(dial.in_flight, 1, "one connect");
        Answer::Refuse { after: millis(100), failure: Failure::Unreachable }
    });
    crew.run_until(secs(120));
    let who: Vec<_> = crew.dials.iter().map(|dial| dial.who).collect();
    let in_turn = who.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(in_turn < who.len() / 2, "drawn, not one after the other: {who:?}");
    assert!(crew.distances().iter().all(|distance| *distance >= secs(1)), "at least base apart");
}

#[test]
fn a_cancelled_probe_frees_its_slot_and_is_charged_to_nobody() {
    let mut door = Door::new(plain(), 2, 5);
    for round in 0..10_000 {
        let probe = door.ask(0).expect("the slot is free");
        door.pass(millis(round % 100));
        door.gate.abandon(door.now, probe);
        door.gate.leave(door.now, door.members[0]);
        let status = door.gate.status(door.now);
        assert_eq!((status.mode, status.trips, status.in_flight), (Mode::HalfOpen, 0, 0));
        door.pass(secs(1));
    }
    assert!(door.ask(1).is_ok());
}

#[test]
fn a_probe_that_never_answers_loses_its_slot_and_counts_as_one_timeout() {
    let mut door = Door::new(plain(), 1, 5);
    let probe = door.ask(0).expect("nobody else");
    door.members.push(door.gate.join(0));
    let (wait, cause) = door.ask(1).expect_err("one at a time");
    assert_eq!((wait, cause), (LEASE + secs(1), WaitCause::BreakerOpen), "not before the attempt's own deadline");
    door.pass(wait);
    let next = door.ask(1).expect("on time");
    assert_eq!(door.gate.status(door.now).in_flight, 1);
    // The first one comes back to life: nobody listens any more.
    let before = door.gate.status(door.now);
    door.settle(probe, Ok(()));
    let after = door.gate.status(door.now);
    assert_eq!((after.mode, after.trips, after.epoch), (before.mode, before.trips, before.epoch));
    assert_eq!(after.ignored, before.ignored + 1);
    // Its timeout is the first failure; this one is the second of two different connections.
    door.settle(next, Err(Failure::Timeout));
    assert_eq!(door.gate.status(door.now).trips, 1);
}

#[test]
fn a_hanging_probe_of_a_gate_of_one_opens_for_longer() {
    let mut door = Door::new(plain(), 1, 5);
    let hangs = door.ask(0).expect("nobody else");
    door.pass(LEASE + secs(1));
    let (open, cause) = door.ask(0).expect_err("open");
    assert_eq!((open, cause), (secs(1), WaitCause::BreakerOpen));
    assert_eq!(door.gate.status(door.now).trips, 1, "counted once");
    door.pass(open);
    door.gate.abandon(door.now, hangs);
    assert!(door.ask(0).is_ok(), "the next probe comes on time");
}

#[test]
fn probes_that_hang_open_for_longer_each_time() {
    let mut door = Door::new(plain(), 2, 5);
    let mut waits = Vec::new();
    let mut kept = Vec::new();
    for round in 0..7 {
        kept.push(door.next(round % 2));
        door.pass(LEASE + secs(1));
        let (wait, cause) = door.ask((round + 1) % 2).map_or_else(
            |refused| refused,
            |permit| {
                // One connection alone shuts nobody out.
                door.gate.abandon(door.now, permit);
                (Duration::ZERO, WaitCause::BreakerOpen)
            },
        );
        assert_eq!(cause, WaitCause::BreakerOpen);
        waits.push(wait);
    }
    assert_eq!(waits, all_secs([0, 2, 4, 8, 16, 30, 30]));
    assert_eq!(door.gate.status(door.now).in_flight, 0);
}

#[test]
fn failures_before_a_recovery_do_not_trip_it_again_after_it() {
    let mut door = Door::new(plain(), 2, 5);
    for _ in 0..6 {
        for who in 0..2 {
            let permit = door.next(who);
            door.settle(permit, Err(Failure::Unreachable));
        }
    }
    assert_eq!(door.gate.status(door.now).mode, Mode::Open);
    // The probe succeeds, and while the pace lasts four failures in a row are not five.
    for row in 0..10 {
        let permit = door.next(row % 2);
        door.settle(permit, Ok(()));
        for _ in 0..4 {
            let permit = door.next(row % 2);
            door.settle(permit, Err(Failure::Unreachable));
            assert_eq!(door.gate.status(door.now).mode, Mode::Paced, "the row begins anew after each success");
        }
    }
    // Its session is stable, the gate closes, and a day later one connection fails.
    let permit = door.next(0);
    let epoch = door.gate.settle(door.now, permit, Ok(()), &mut Step::default(), &mut door.rng).epoch;
    let since = door.now;
    door.pass(secs(60));
    door.gate.stable(door.now, door.members[0], Tenure::new(epoch, since));
    let before = door.gate.status(door.now);
    assert_eq!((before.mode, before.trips), (Mode::Closed, 0));
    door.pass(secs(86_400));
    let permit = door.ask(0).expect("it is closed");
    door.settle(permit, Err(Failure::Unreachable));
    let after = door.gate.status(door.now);
    assert_eq!((after.trips, after.until), (0, None), "the old failures are forgotten: {after:?}");
}

#[test]
fn a_failed_probe_lengthens_the_open_time_until_it_is_forgiven() {
    let mut crew = Crew::started(plain(), 2, 5, |dial| {
        if dial.at < secs(80) {
            Answer::Refuse { after: Duration::ZERO, failure: Failure::Unreachable }
        } else if dial.at < secs(200) {
            Answer::Drop { after: Duration::ZERO, uptime: secs(200), failure: Failure::Transient }
        } else {
            Answer::Refuse { after: Duration::ZERO, failure: Failure::Unreachable }
        }
    });
    let mut trips = Vec::new();
    for at in [0, 2, 4, 8, 16, 32, 62] {
        crew.run_until(secs(at));
        trips.push(crew.status().trips);
    }
    assert_eq!(crew.dialled(), all_secs([0, 1, 3, 7, 15, 31, 61]));
    assert_eq!(trips, [0, 1, 2, 3, 4, 5, 6], "the first failure is of one connection alone");
    crew.run_until(secs(150));
    assert_eq!((crew.connected(), crew.status().trips), (2, 0), "stable");
    let before = crew.dials.len();
    crew.run_until(secs(304));
    let distances = &crew.distances()[before..];
    assert!(distances.starts_with(&all_secs([1, 2])), "from the beginning: {distances:?}");
}

#[test]
fn one_outage_is_one_charge() {
    let mut door = Door::new(plain(), 60, 5);
    let first = door.ask(0).expect("the first");
    door.settle(first, Ok(()));
    // Sixty quick successes let sixty be under way.
    for _ in 0..60 {
        let permit = door.next(1);
        door.settle(permit, Ok(()));
    }
    let flying: Vec<_> = (1..51).map(|who| door.next(who)).collect();
    assert_eq!(door.gate.status(door.now).in_flight, 50);
    door.pass(secs(5));
    let fell = door.now;
    let (mut epochs, mut trips, mut opened) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for permit in flying {
        door.pass(millis(2));
        door.settle(permit, Err(Failure::Unreachable));
        let status = door.gate.status(door.now);
        epochs.insert(status.epoch);
        trips.insert(status.trips);
        opened.extend(status.until.map(|until| until.duration_since(fell)));
    }
    assert_eq!(opened.into_iter().collect::<Vec<_>>(), [millis(1_010)], "the first step, from the fifth failure on");
    assert_eq!(epochs.len(), 2, "narrow once");
    assert_eq!(trips.into_iter().collect::<Vec<_>>(), [0, 1], "one charge");
    let status = door.gate.status(door.now);
    assert_eq!(status.ignored, 45, "five in a row end the pace, the late ones change nothing");
    assert_eq!(status.mode, Mode::Open);
}

#[test]
fn the_end_of_the_open_time_is_no_recovery() {
    let mut door = Door::new(plain(), 1, 5);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let permit = door.ask(0).expect("half open");
        let mut step = Step::default();
        let settled = door.gate.settle(door.now, permit, Err(Failure::Unreachable), &mut step, &mut door.rng);
        waits.push(settled.wait.unwrap().until.duration_since(door.now));
        door.pass(secs(3_600));
        assert_eq!(door.gate.status(door.now).mode, Mode::HalfOpen);
    }
    assert_eq!(door.gate.status(door.now).trips, 6);
}

#[test]
fn a_thousand_trips_end_at_the_next_probe() {
    let mut crew = Crew::started(plain(), 3, 5, |dial| {
        if dial.at < secs(30_100) {
            Answer::Refuse { after: Duration::ZERO, failure: Failure::Unreachable }
        } else {
            Answer::Accept { after: Duration::ZERO }
        }
    });
    crew.run_until(secs(30_100));
    assert!(crew.status().trips >= 1_000, "{}", crew.status().trips);
    let distances = crew.distances();
    assert!(distances[6..].iter().all(|distance| *distance == secs(30)), "the open time stays at its cap");
    crew.run_until(secs(30_131));
    assert!(crew.connected() >= 1, "connected at the next probe");
    crew.run_until(secs(30_150));
    assert_eq!(crew.connected(), 3);
}

/// The open times of 10,000 gates.
fn open_times(policy: &Policy, failure: Failure) -> Vec<Duration> {
    (0..10_000).map(|seed| open_time(policy, seed, failure)).collect()
}

#[test]
fn gates_that_trip_together_do_not_open_together() {
    let policy =
        Policy::default().quick(Backoff::new(millis(500), secs(30))).growing(Growth::new(secs(30), 1.0, secs(30)));
    let mut open = open_times(&policy, Failure::Transient);
    let mut buckets = [0_u32; 301];
    for time in &open {
        buckets[bin(*time, millis(100))] += 1;
    }
    assert!(buckets.iter().all(|count| *count <= 300), "{buckets:?}");
    open.sort_unstable();
    open.dedup();
    assert!(open.len() >= 9_990, "{}", open.len());
}

#[test]
fn a_short_base_gives_a_short_open_time() {
    let policy = Policy::default().quick(Backoff::new(millis(200), secs(30)));
    let open = open_times(&policy, Failure::Unreachable);
    assert!(open.iter().all(|time| *time >= millis(200) && *time < secs(1)));
    let distinct: BTreeSet<_> = open.iter().collect();
    assert!(distinct.len() >= 9_990);
}

#[test]
fn every_refusal_names_a_later_instant_and_is_asked_once_a_wake() {
    // Open, half open with a probe under way, and paced with every slot taken: `Door::ask` checks the instant.
    let mut door = Door::new(plain(), 5, 5);
    let probe = door.ask(0).expect("half open");
    for who in 1..5 {
        assert_eq!(door.ask(who).expect_err("taken").1, WaitCause::BreakerOpen);
    }
    door.settle(probe, Ok(()));
    let mut refused = 0;
    for _ in 0..200 {
        for who in 1..5 {
            refused += u32::from(door.ask(who).is_err_and(|(_, cause)| cause == WaitCause::Paced));
        }
        door.pass(millis(1));
    }
    assert!(refused > 100, "{refused}");
    // And connections that wait are not asked or told more often than somebody dials.
    let mut crew =
        Crew::started(plain(), 50, 5, |_| Answer::Refuse { after: millis(10), failure: Failure::Unreachable });
    crew.run_until(secs(3_600));
    let told: u32 = crew.told.iter().sum();
    let dials = u32::try_from(crew.dials.len()).unwrap();
    assert!(told < dials * 60, "{told} events for {dials} dials");
    assert!(crew.told.iter().all(|count| *count < 1_500), "{:?}", crew.told);
}

#[test]
fn the_wait_is_the_later_of_own_curve_and_open_time_and_not_their_sum() {
    let mut door = Door::new(plain(), 3, 5);
    let mut own = Step::default();
    let fail = |door: &mut Door, who: usize, step: &mut Step| {
        let permit = door.next(who);
        let wait = door.gate.settle(door.now, permit, Err(Failure::Unreachable), step, &mut door.rng).wait;
        let open = door.gate.status(door.now).until.map(|until| until.duration_since(door.now));
        (wait.expect("it failed").until.duration_since(door.now), open)
    };
    // One fails alone and goes along its own curve; nobody else is shut out.
    for wait in [1, 2, 4, 8] {
        assert_eq!(fail(&mut door, 0, &mut own), (secs(wait), None));
        door.pass(secs(wait));
    }
    // Another one fails as well: the gate opens by its own curve, which is at its second step.
    assert_eq!(fail(&mut door, 1, &mut Step::default()), (secs(2), Some(secs(2))));
    door.pass(secs(2));
    assert_eq!(fail(&mut door, 0, &mut own), (secs(16), Some(secs(4))), "its own is longer");
    assert_eq!(fail(&mut door, 1, &mut Step::default()), (secs(8), Some(secs(8))), "the gate's is longer");
}
