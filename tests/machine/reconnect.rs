//! `reconnect()`: ends a sleep, skips nothing that protects the server, forgives nothing.

use std::time::Duration;

use steadfast::machine::{Action, Event, State, add};
use steadfast::{Backoff, Failure, Policy};

use crate::harness::{Answer, Crew, Lone, bin, dials, millis, plain, secs};

#[test]
fn ten_calls_are_one_attempt_and_the_number_goes_on() {
    for spread in [millis(0), millis(50), secs(1)] {
        let mut lone = Lone::dialling(plain().recovery_spread(spread));
        for _ in 0..5 {
            lone.fail(Failure::Unreachable);
        }
        lone.tell(Event::Failed(Failure::Unreachable));
        assert_eq!(lone.lifecycle.attempt(), 6);
        lone.pass(secs(2));
        lone.restart_clock();
        for _ in 0..10 {
            while lone.lifecycle.state() == State::Backoff && lone.lifecycle.deadline() <= Some(lone.now) {
                lone.tell(Event::TimedOut);
            }
            lone.tell(Event::Reconnect);
            lone.pass(millis(10));
        }
        if lone.lifecycle.state() == State::Backoff {
            lone.wait();
        }
        assert_eq!(lone.dials.len(), 1, "spread {spread:?}");
        assert!(lone.dials[0] <= spread);
        assert_eq!(lone.lifecycle.attempt(), 7, "neither by calls nor back to zero");
        lone.pass(secs(1));
        lone.tell(Event::Failed(Failure::Unreachable));
        assert_eq!(lone.lifecycle.state(), State::Backoff, "spread {spread:?}");
        assert_eq!(lone.lifecycle.deadline().map(|at| at.duration_since(lone.now)), Some(secs(30)));
    }
}

#[test]
fn it_ends_the_sleep_and_the_open_time_within_the_spread() {
    let mut lone = Lone::dialling(Policy::default().quick(Backoff::new(secs(1), secs(30))));
    for _ in 0..9 {
        lone.fail(Failure::Unreachable);
    }
    lone.tell(Event::Failed(Failure::Unreachable));
    let attempt = lone.lifecycle.attempt();
    let asked = lone.now;
    // `base` has to pass between two dials of a narrow gate.
    lone.tell(Event::Reconnect);
    assert!(dials(lone.wait()));
    assert!(lone.now.duration_since(asked) <= secs(1));
    assert_eq!(lone.lifecycle.attempt(), attempt + 1);
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { .. }));
    assert_eq!(lone.lifecycle.attempt(), attempt + 1, "only stable_after resets it");
}

/// When the first dial after `reconnect()` comes at each of 1,000 sites that get it at one instant.
fn after_a_network_change(size: usize, spread: Duration) -> [u32; 10] {
    let policy =
        Policy::default().quick(Backoff::new(millis(500), secs(30))).recovery_spread(spread).attempt_deadline(secs(1));
    let mut buckets = [0; 10];
    for seed in 0..1_000 {
        let refuse = |_| Answer::Refuse { after: millis(1), failure: Failure::Unreachable };
        let mut crew = Crew::started(policy.clone(), size, seed, refuse);
        // Until an open time that is longer than the spread has just begun.
        let mut at = secs(60);
        loop {
            crew.run_until(at);
            if crew.status().until.is_some_and(|until| until >= add(crew.now(), spread + secs(1))) {
                break;
            }
            at += millis(100);
        }
        let before = crew.dials.len();
        crew.tell_all(Event::Reconnect);
        crew.run_until(at + spread + secs(2));
        let first = crew.dials[before].at - at;
        buckets[bin(first, spread / 10).min(9)] += 1;
    }
    buckets
}

#[test]
fn a_thousand_at_one_instant_fill_the_spread() {
    for size in [1, 5] {
        let buckets = after_a_network_change(size, secs(10));
        assert!(buckets.iter().all(|count| (60..=140).contains(count)), "{size} a gate: {buckets:?}");
    }
}

#[test]
fn a_draw_that_runs_is_not_drawn_again() {
    let mut late = 0;
    for seed in 0..1_000 {
        let mut lone = Lone::seeded(Policy::default().recovery_spread(secs(10)), seed);
        lone.tell(Event::Start);
        lone.live(secs(60), Event::Lost(Failure::Transient));
        let lost = lone.now;
        lone.tell(Event::Reconnect);
        lone.wait();
        late += u32::from(lone.now.duration_since(lost) >= secs(5));
    }
    assert!((430..=570).contains(&late), "half of them in the second half of the spread: {late}");
}

#[test]
fn it_never_undercuts_a_hint() {
    let mut lone = Lone::dialling(Policy::default());
    lone.tell(Event::Failed(Failure::Throttled { retry_after: Some(secs(60)) }));
    let refused = lone.now;
    lone.pass(secs(1));
    lone.tell(Event::Reconnect);
    assert!(dials(lone.wait()));
    assert!(lone.now.duration_since(refused) > secs(60));
}

#[test]
fn one_in_the_queue_never_undercuts_what_another_was_told() {
    let mut crew = Crew::started(plain(), 3, 5, |_| Answer::Refuse {
        after: millis(10),
        failure: Failure::Throttled { retry_after: Some(secs(60)) },
    });
    crew.run_until(secs(5));
    crew.tell_all(Event::Reconnect);
    crew.run_until(secs(59));
    assert_eq!(crew.dials.len(), 1);
    crew.run_until(secs(70));
    assert_eq!(crew.dials.len(), 2);
}

#[test]
fn it_keeps_the_distance_between_two_dials_of_a_narrow_gate() {
    let mut lone = Lone::dialling(plain());
    for _ in 0..20 {
        lone.tell(Event::Failed(Failure::Unreachable));
        lone.tell(Event::Reconnect);
        if lone.lifecycle.state() == State::Backoff {
            lone.wait();
        }
    }
    assert!(lone.dials.windows(2).all(|pair| pair[1] - pair[0] >= secs(1)), "{:?}", lone.dials);
    assert_eq!(lone.dials.len(), 21);
}

#[test]
fn while_connecting_it_skips_the_curve_if_this_dial_fails() {
    let mut lone = Lone::dialling(plain().recovery_spread(secs(1)));
    for _ in 0..5 {
        lone.fail(Failure::Unreachable);
    }
    lone.pass(secs(5));
    assert_eq!(lone.tell(Event::Reconnect), Action::Continue);
    assert!(lone.fail(Failure::Unreachable) <= secs(1));
    assert_eq!(lone.fail(Failure::Unreachable), secs(30), "once");
}

#[test]
fn while_connecting_it_drops_what_was_dialled_before_the_call() {
    let mut lone = Lone::dialling(plain());
    lone.pass(secs(5));
    lone.tell(Event::Reconnect);
    assert_eq!(lone.tell(Event::Opened), Action::Wait, "never announced");
    assert_eq!(lone.wait(), Action::Dial { attempt: 2, generation: 2 });
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { generation: 2 }));
}

#[test]
fn while_connected_it_ends_the_generation_and_charges_nobody() {
    for uptime in [secs(1), secs(60)] {
        let mut lone = Lone::dialling(plain());
        lone.fail(Failure::Unreachable);
        let trips = lone.gate.status(lone.now).trips;
        let before = lone.lifecycle.attempt();
        assert!(dials(lone.live(uptime, Event::Reconnect)), "without a spread at once");
        let forgiven = if uptime < secs(10) { (before, trips) } else { (0, 0) };
        assert_eq!(lone.lifecycle.attempt(), forgiven.0 + 1);
        assert_eq!(lone.gate.status(lone.now).trips, forgiven.1, "after {uptime:?}");
    }
}

#[test]
fn ten_calls_to_a_live_connection_end_one_generation() {
    let mut lone = Lone::dialling(plain());
    lone.live(secs(60), Event::Reconnect);
    for _ in 0..9 {
        lone.pass(millis(10));
        lone.tell(Event::Reconnect);
    }
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { generation: 2 }));
    assert_eq!(lone.dials.len(), 2);
}

#[test]
fn a_drained_or_stopped_connection_does_not_care() {
    let mut lone = Lone::dialling(plain());
    lone.live(secs(1), Event::Drain);
    assert_eq!(lone.tell(Event::Reconnect), Action::Continue);
    lone.tell(Event::Lost(Failure::Planned));
    assert_eq!(lone.tell(Event::Reconnect), Action::Continue);
    lone.tell(Event::Closed);
    assert_eq!(lone.lifecycle.state(), State::Stopped);
    assert_eq!(lone.tell(Event::Reconnect), Action::Continue);
}
