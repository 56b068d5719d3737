//! The first attempt: after a loss, and ever.

use steadfast::machine::{Event, State};
use steadfast::{Failure, Policy, WaitCause};

use crate::harness::{Lone, bin, dials, plain, secs};

/// How many of `count` values of `first(seed)`, in seconds, fall into each of the 30 first seconds.
fn histogram(count: u64, first: impl Fn(u64) -> std::time::Duration) -> [u32; 30] {
    let mut bins = [0; 30];
    for seed in 0..count {
        bins[bin(first(seed), secs(1))] += 1;
    }
    bins
}

/// How long a stable session's end is from the next dial.
fn first_after(lone: &mut Lone, failure: Failure) -> std::time::Duration {
    lone.tell(Event::Opened);
    lone.pass(secs(60));
    let lost = lone.now;
    if !dials(lone.tell(Event::Lost(failure))) {
        assert_eq!(lone.lifecycle.wait_cause(), Some(WaitCause::Spread));
        lone.wait();
    }
    lone.now.duration_since(lost)
}

#[test]
fn the_first_attempt_after_a_loss_fills_the_recovery_spread() {
    let policy = Policy::default().recovery_spread(secs(30));
    let bins = histogram(10_000, |seed| {
        let mut lone = Lone::seeded(policy.clone(), seed);
        lone.tell(Event::Start);
        first_after(&mut lone, Failure::Transient)
    });
    // 3.3 % ± 0.8 %.
    assert!(bins.iter().all(|bin| (253..=413).contains(bin)), "{bins:?}");
}

#[test]
fn whatever_ended_a_stable_session_the_first_attempt_is_drawn() {
    let classes = [
        Failure::Planned,
        Failure::Throttled { retry_after: None },
        Failure::Timeout,
        Failure::Transient,
        Failure::Unauthorized,
        Failure::Unreachable,
    ];
    for failure in classes {
        let mut lone = Lone::dialling(Policy::default().recovery_spread(secs(30)));
        let waits: Vec<_> = (0..20).map(|_| first_after(&mut lone, failure)).collect();
        assert!(waits.iter().all(|wait| *wait < secs(30)), "{failure}: {waits:?}");
        assert!(waits.iter().any(|wait| *wait > secs(15)) && waits.iter().any(|wait| *wait < secs(15)), "{failure}");
        assert_eq!(lone.gate.status(lone.now).trips, 0, "{failure}");
    }
}

#[test]
fn those_who_start_together_fill_the_startup_spread() {
    let policy = Policy::default().startup_spread(secs(10));
    let bins = histogram(1_000, |seed| {
        let mut lone = Lone::seeded(policy.clone(), seed);
        lone.tell(Event::Start);
        assert_eq!(lone.lifecycle.state(), State::Backoff);
        lone.wait();
        lone.time()
    });
    assert!(bins[..10].iter().all(|bin| (62..=138).contains(bin)), "{bins:?}");
    assert!(bins[10..].iter().all(|bin| *bin == 0));
}

#[test]
fn without_a_startup_spread_the_first_attempt_is_at_once() {
    assert_eq!(Lone::dialling(Policy::default()).dials, [secs(0)]);
}

#[test]
fn advice_replaces_the_spread_is_kept_and_is_clamped() {
    let policy = plain().recovery_spread(secs(1));
    for (advice, most) in [(Some(5), 5), (Some(0), 0), (Some(3_600), 60), (None, 1)] {
        let mut lone = Lone::dialling(policy.clone());
        let mut waits = Vec::new();
        for round in 0..100 {
            lone.tell(Event::Opened);
            if let Some(advice) = advice
                && round == 0
            {
                lone.tell(Event::Advised(secs(advice)));
            }
            lone.pass(secs(60));
            let lost = lone.now;
            if !dials(lone.tell(Event::Lost(Failure::Planned))) {
                lone.wait();
            }
            assert_eq!(lone.lifecycle.attempt(), 1, "no failure charged");
            waits.push(lone.now.duration_since(lost));
        }
        assert!(waits.iter().all(|wait| *wait <= secs(most)), "{advice:?}: {waits:?}");
        assert!(waits.iter().any(|wait| *wait >= secs(most) * 9 / 10), "{advice:?}: {waits:?}");
    }
}

#[test]
fn the_last_advice_counts() {
    let mut lone = Lone::dialling(plain());
    lone.tell(Event::Opened);
    lone.tell(Event::Advised(secs(60)));
    lone.tell(Event::Advised(secs(2)));
    lone.pass(secs(60));
    let lost = lone.now;
    lone.tell(Event::Lost(Failure::Planned));
    lone.wait();
    assert!(lone.now.duration_since(lost) <= secs(2));
}
