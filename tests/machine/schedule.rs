//! When one connection dials, by its own machine alone.

use rand::RngExt as _;
use steadfast::machine::{Action, Event, State};
use steadfast::{Backoff, Failure, Policy};

use crate::harness::{Lone, all_millis, all_secs, dials, millis, plain, secs};

#[test]
fn refused_dials_follow_the_curve() {
    let mut lone = Lone::dialling(plain());
    for _ in 0..6 {
        lone.fail(Failure::Unreachable);
    }
    assert_eq!(lone.dials, all_secs([0, 1, 3, 7, 15, 31, 61]));
}

#[test]
fn accepted_and_dropped_is_the_same_as_refused() {
    for failure in [Failure::Planned, Failure::Timeout, Failure::Transient, Failure::Unreachable] {
        let mut lone = Lone::dialling(plain());
        for attempt in 1..=6 {
            assert_eq!(lone.live(millis(100), Event::Lost(failure)), Action::Wait);
            assert_eq!(lone.lifecycle.attempt(), attempt, "a connect forgives nothing");
            lone.wait();
        }
        assert_eq!(lone.dials, all_millis([0, 1100, 3200, 7300, 15_400, 31_500, 61_600]), "{failure}");
    }
}

#[test]
fn every_failure_of_a_dial_is_waited_out() {
    let classes = [
        Failure::Permanent,
        Failure::Planned,
        Failure::Throttled { retry_after: None },
        Failure::Throttled { retry_after: Some(secs(5)) },
        Failure::Timeout,
        Failure::Transient,
        Failure::Unauthorized,
        Failure::Unreachable,
    ];
    for failure in classes {
        let mut lone = Lone::dialling(plain());
        lone.tell(Event::Reached);
        assert!(lone.fail(failure) >= secs(1), "{failure}");
    }
}

#[test]
fn a_wait_counts_from_the_end_of_a_slow_attempt() {
    let mut lone = Lone::dialling(plain());
    for expected in [1, 2, 4, 8, 16, 30, 30] {
        let began = lone.now;
        assert_eq!(lone.wait_for_deadline(), Action::Wait);
        assert_eq!(lone.now.duration_since(began), secs(10), "the attempt deadline");
        let ended = lone.now;
        assert!(dials(lone.wait()));
        assert_eq!(lone.now.duration_since(ended), secs(expected));
    }
}

#[test]
fn a_walk_over_several_addresses_is_one_attempt() {
    let mut lone = Lone::dialling(plain());
    for _ in 0..3 {
        lone.tell(Event::Reached);
    }
    assert_eq!(lone.fail(Failure::Transient), secs(1));
    assert_eq!(lone.lifecycle.attempt(), 2);
    assert_eq!(lone.dials, all_secs([0, 1]));
}

#[test]
fn by_default_nothing_limits_the_attempts_and_the_cap_limits_the_wait() {
    for (down, failure, cap) in [
        (secs(60), Failure::Unreachable, secs(5)),
        (secs(7200), Failure::Unreachable, secs(5)),
        // A fifth of the outage's age.
        (secs(7200), Failure::Transient, secs(1440)),
    ] {
        let mut lone = Lone::dialling(Policy::default());
        while lone.time() < down {
            lone.fail(failure);
        }
        assert!(lone.time() - down < cap, "back within one wait of the server, was {:?}", lone.time() - down);
        lone.tell(Event::Opened);
        assert_eq!(lone.lifecycle.state(), State::Connected);
    }
}

#[test]
fn thirty_days_of_refusals_end_in_a_connection() {
    let policy = Policy::default().quick(Backoff::new(secs(1), secs(30)));
    let mut lone = Lone::dialling(policy);
    let mut longest = secs(0);
    while lone.time() < secs(30 * 86_400) {
        let wait = lone.fail(Failure::Unreachable);
        assert!(wait >= secs(1) && wait < secs(30), "{wait:?}");
        longest = longest.max(wait);
    }
    assert!(longest > secs(29));
    lone.tell(Event::Opened);
    assert_eq!(lone.lifecycle.state(), State::Connected);
}

#[test]
fn an_older_failure_decides_nothing_after_a_success() {
    let mut lone = Lone::dialling(plain());
    lone.fail(Failure::Transient);
    lone.fail(Failure::Timeout);
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { generation: 1 }));
    assert_eq!(lone.lifecycle.state(), State::Connected);
    for failure in [Failure::Transient, Failure::Permanent] {
        assert_eq!(lone.tell(Event::Failed(failure)), Action::Continue);
    }
    assert_eq!(lone.lifecycle.state(), State::Connected);
}

#[test]
fn only_a_drain_or_our_own_mistake_ends_the_loop() {
    for failure in [Failure::Timeout, Failure::Transient, Failure::Planned, Failure::Unreachable] {
        let mut lone = Lone::dialling(plain());
        for _ in 0..50 {
            lone.fail(failure);
            assert_eq!(lone.live(millis(1), Event::Lost(failure)), Action::Wait, "{failure}");
            lone.wait();
        }
    }
    let mut lone = Lone::dialling(plain());
    assert!(matches!(lone.tell(Event::Failed(Failure::Permanent)), Action::Stop(_)));
}

#[test]
fn a_timer_that_fires_early_changes_nothing() {
    let mut lone = Lone::dialling(plain());
    lone.pass(secs(9));
    assert_eq!(lone.tell(Event::TimedOut), Action::Continue, "dialling");
    lone.tell(Event::Failed(Failure::Transient));
    let due = lone.lifecycle.deadline();
    for _ in 0..20 {
        let passes = lone.rng.random_range(0..50);
        lone.pass(millis(passes));
        if lone.lifecycle.deadline() > Some(lone.now) {
            assert_eq!(lone.tell(Event::TimedOut), Action::Continue, "waiting");
        }
    }
    assert_eq!(lone.lifecycle.deadline(), due);
}

#[test]
fn a_timed_out_handshake_gets_three_times_as_long_and_a_dial_does_not() {
    let mut lone = Lone::dialling(plain());
    for reached in [10, 30, 60, 60] {
        assert_eq!(lone.lifecycle.deadline().map(|at| at.duration_since(lone.now)), Some(secs(10)), "the dial");
        lone.pass(secs(2));
        assert_eq!(lone.tell(Event::Reached), Action::Continue);
        assert_eq!(lone.lifecycle.deadline().map(|at| at.duration_since(lone.now)), Some(secs(reached - 2)));
        lone.wait_for_deadline();
        lone.wait();
    }
    // A stable session forgives that as well.
    lone.live(secs(10), Event::Lost(Failure::Transient));
    lone.tell(Event::Reached);
    assert_eq!(lone.lifecycle.deadline().map(|at| at.duration_since(lone.now)), Some(secs(10)));
}

#[test]
fn only_the_time_that_is_handed_in_counts() {
    // The same script an hour later: whatever other clocks did meanwhile, no wait is shorter or longer.
    let waits = |offset| {
        let mut lone = Lone::new(Policy::default());
        lone.pass(offset);
        lone.restart_clock();
        lone.tell(Event::Start);
        for failure in [Failure::Transient, Failure::Throttled { retry_after: Some(secs(30)) }, Failure::Unreachable] {
            lone.fail(failure);
        }
        lone.live(secs(60), Event::Lost(Failure::Planned));
        lone.wait();
        lone.dials
    };
    assert_eq!(waits(secs(0)), waits(secs(3_600)));
}
