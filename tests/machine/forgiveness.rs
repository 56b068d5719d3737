//! What goes back to zero, and when.

use steadfast::Failure;
use steadfast::machine::{Action, Event};

use crate::harness::{Answer, Crew, Lone, all_millis, all_secs, dials, millis, plain, secs};

#[test]
fn a_stable_session_is_forgiven() {
    let mut lone = Lone::dialling(plain());
    for _ in 0..4 {
        lone.fail(Failure::Transient);
    }
    lone.tell(Event::Opened);
    lone.pass(secs(11));
    lone.restart_clock();
    lone.tell(Event::Lost(Failure::Transient));
    assert_eq!(lone.dials, all_secs([0]), "without a spread the first attempt after a stable session is at once");
    assert_eq!(lone.lifecycle.attempt(), 1);
    assert_eq!(lone.fail(Failure::Unreachable), secs(1));
    assert_eq!(lone.fail(Failure::Unreachable), secs(2));
}

#[test]
fn forgiveness_comes_at_stable_after_and_not_before() {
    for (uptime, attempt) in [(millis(9_999), 3), (secs(10), 0)] {
        let mut lone = Lone::dialling(plain());
        lone.fail(Failure::Transient);
        lone.fail(Failure::Transient);
        lone.tell(Event::Opened);
        lone.pass(uptime);
        lone.tell(Event::TimedOut);
        assert_eq!(lone.lifecycle.attempt(), attempt, "after {uptime:?}");
    }
}

#[test]
fn the_uptime_of_an_earlier_session_forgives_nothing() {
    let mut lone = Lone::dialling(plain().stable_after(secs(5)));
    lone.live(secs(3), Event::Lost(Failure::Transient));
    assert!(dials(lone.wait()));
    assert_eq!(lone.time(), secs(4));
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { generation: 2 }));
    for _ in 0..30 {
        // Past five seconds from the start of the first session.
        lone.pass(millis(100));
        lone.tell(Event::TimedOut);
        assert_eq!(lone.lifecycle.attempt(), 2);
    }
    lone.tell(Event::Lost(Failure::Transient));
    for _ in 0..10 {
        lone.pass(millis(100));
        lone.tell(Event::TimedOut);
        assert_eq!(lone.lifecycle.attempt(), 2);
    }
    assert!(dials(lone.wait()));
    assert_eq!(lone.lifecycle.attempt(), 3);
    assert_eq!(lone.time(), secs(9), "the second wait of the curve");
}

#[test]
fn a_clean_early_end_is_charged_like_a_refusal() {
    let mut lone = Lone::dialling(plain());
    for _ in 0..5 {
        lone.live(millis(100), Event::Lost(Failure::Planned));
        lone.wait();
    }
    assert_eq!(lone.dials, all_millis([0, 1100, 3200, 7300, 15_400, 31_500]));
    assert_eq!(lone.gate.status(lone.now).trips, 5, "the breaker is charged");
}

#[test]
fn a_planned_end_of_a_stable_session_is_charged_to_nobody() {
    let mut lone = Lone::dialling(plain());
    lone.live(secs(60), Event::Lost(Failure::Planned));
    assert_eq!(lone.dials, all_secs([0, 60]));
    assert_eq!(lone.gate.status(lone.now).trips, 0);
    assert_eq!(lone.fail(Failure::Unreachable), secs(1), "the curve begins at its beginning");
}

#[test]
fn connections_of_a_fixed_age_never_grow_the_curve() {
    for failure in [Failure::Planned, Failure::Transient, Failure::Unreachable] {
        let mut lone = Lone::dialling(plain().stable_after(secs(1)).recovery_spread(secs(1)));
        for _ in 0..20 {
            lone.tell(Event::Opened);
            lone.pass(secs(2));
            let lost = lone.now;
            lone.tell(Event::Lost(failure));
            assert!(dials(lone.wait()));
            assert!(lone.now.duration_since(lost) < secs(1), "within the recovery spread");
            assert_eq!(lone.lifecycle.attempt(), 1);
        }
        assert_eq!(lone.dials.len(), 21, "one attempt for each close");
    }
}

#[test]
fn a_maximum_age_rolls_over_before_the_server_does() {
    let mut lone = Lone::dialling(plain().stable_after(secs(1)).max_age(secs(20)));
    for generation in 1..=20 {
        lone.tell(Event::Opened);
        assert_eq!(lone.lifecycle.generation(), generation);
        let opened = lone.now;
        lone.wait();
        let age = lone.now.duration_since(opened);
        assert!(age >= secs(18) && age < secs(20), "{age:?}");
        assert_eq!(lone.lifecycle.attempt(), 1);
    }
    lone.dials.dedup();
    assert_eq!(lone.dials.len(), 21);
}

#[test]
fn only_a_session_of_the_last_epoch_forgives_the_gate() {
    // The first connection gets in and lives; the second is dropped at once, which narrows the gate again. That the
    // first one, of the older epoch, becomes stable afterwards says nothing about what came later.
    let mut crew = Crew::started(plain(), 2, 3, |dial| match dial.who {
        0 => Answer::Accept { after: millis(1) },
        _ => Answer::Drop { after: millis(1), uptime: secs(1), failure: Failure::Transient },
    });
    crew.run_until(secs(9));
    let before = crew.status();
    crew.run_until(secs(12));
    assert_eq!(crew.member(0).attempt(), 0, "the connection itself is forgiven");
    assert!(crew.status().epoch >= before.epoch);
    let distances = crew.distances();
    assert!(distances.last() > distances.first(), "the curve goes on: {distances:?}");
}
