//! A server's `Retry-After`: a floor, for everyone behind the gate.

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast::machine::{Action, Event};
use steadfast::{Failure, HintLimit, Policy, StopReason, WaitCause};

use crate::harness::{Answer, Crew, Lone, all_secs, bin, dials, millis, plain, secs};

fn throttled(wait: Duration) -> Failure {
    Failure::Throttled { retry_after: Some(wait) }
}

#[test]
fn a_hint_is_never_undercut_and_its_jitter_is_a_fifth_or_two_seconds_at_most() {
    let policy = Policy::default().base(millis(1));
    for hint in [secs(1), secs(60), Duration::from_micros(1_400)] {
        let most = hint + (hint / 5).min(secs(2));
        let waits: BTreeSet<_> = (0..10_000)
            .map(|seed| {
                let mut lone = Lone::seeded(policy.clone(), seed);
                lone.tell(Event::Start);
                lone.fail(throttled(hint))
            })
            .collect();
        assert!(waits.first() > Some(&hint), "early: {:?}", waits.first());
        assert!(waits.last() <= Some(&most), "late: {:?}", waits.last());
        assert!(waits.len() > 9_000, "{} distinct waits", waits.len());
    }
}

#[test]
fn a_thousand_who_obey_do_not_come_back_together() {
    let mut buckets = [0_u32; 20];
    for seed in 0..1_000 {
        let mut lone = Lone::seeded(Policy::default(), seed);
        lone.tell(Event::Start);
        let late = lone.fail(throttled(secs(60))) - secs(60);
        buckets[bin(late, millis(100)).min(19)] += 1;
    }
    assert!(buckets.iter().all(|count| *count <= 100), "{buckets:?}");
    assert!(buckets.iter().all(|count| *count > 0), "{buckets:?}");
}

#[test]
fn who_is_throttled_again_spreads_over_the_growing_curve() {
    let mut spread = Vec::new();
    for seed in 0..200 {
        let mut lone = Lone::seeded(Policy::default(), seed);
        lone.tell(Event::Start);
        assert!(lone.fail(throttled(secs(60))) <= secs(62));
        let second = lone.fail(throttled(secs(60)));
        assert!(second > secs(60));
        spread.push(second - secs(60));
    }
    assert!(spread.iter().filter(|late| **late > secs(3)).count() > 150, "{spread:?}");
}

#[test]
fn a_hint_below_base_is_ignored() {
    for hint in [Duration::ZERO, millis(999)] {
        assert_eq!(Lone::dialling(plain()).fail(throttled(hint)), secs(1), "the curve's own");
    }
    assert!(Lone::dialling(plain()).fail(throttled(secs(1))) > secs(1));
}

#[test]
fn a_hint_beyond_the_limit_is_decided_on_as_it_came() {
    let years = secs(4 * 365 * 86_400);
    let limit = secs(30);
    for seed in 0..1_000 {
        for (beyond, wait) in [(HintLimit::Clamp, limit), (HintLimit::Obey, years)] {
            let mut lone = Lone::seeded(plain().hint_limit(limit, beyond), seed);
            lone.tell(Event::Start);
            let slept = lone.fail(throttled(years));
            assert!(slept > wait && slept <= wait + secs(2), "{beyond:?}: {slept:?}");
        }
        let mut lone = Lone::seeded(plain().hint_limit(limit, HintLimit::GiveUp), seed);
        lone.tell(Event::Start);
        // One that is within the limit stays so, whatever its jitter.
        lone.fail(throttled(limit));
        assert_eq!(lone.tell(Event::Failed(throttled(years))), Action::Stop(StopReason::GaveUp));
    }
}

#[test]
fn a_hint_at_the_end_of_a_session_is_waited_out() {
    for uptime in [secs(1), secs(60)] {
        let mut lone = Lone::dialling(plain());
        assert_eq!(lone.live(uptime, Event::Lost(throttled(secs(7)))), Action::Wait);
        assert_eq!(lone.lifecycle.wait_cause(), Some(WaitCause::Throttled));
        let lost = lone.now;
        lone.wait();
        let slept = lone.now.duration_since(lost);
        assert!(slept > secs(7) && slept <= millis(8_400), "{slept:?}");
    }
}

#[test]
fn a_hint_outlives_a_stop() {
    for uptime in [secs(1), secs(60)] {
        let mut lone = Lone::dialling(plain());
        lone.live(uptime, Event::Lost(throttled(secs(7))));
        let lost = lone.now;
        assert_eq!(lone.tell(Event::Drain), Action::Stop(StopReason::Drained));
        lone.pass(secs(1));
        assert_eq!(lone.tell(Event::Start), Action::Wait);
        assert!(dials(lone.wait()));
        assert!(lone.now.duration_since(lost) > secs(7), "{:?}", lone.now.duration_since(lost));
    }
}

#[test]
fn a_hint_to_one_dial_binds_the_whole_gate() {
    let mut crew = Crew::started(plain(), 3, 11, |dial| {
        if dial.at < secs(1) {
            Answer::Refuse { after: millis(10), failure: throttled(secs(20)) }
        } else {
            Answer::Accept { after: millis(10) }
        }
    });
    crew.run_until(secs(15));
    assert_eq!(crew.dials.len(), 1, "the first one alone has asked");
    assert_eq!(crew.status().trips, 0, "the server is alive");
    crew.run_until(secs(60));
    assert!(crew.dials[1].at > millis(20_010));
    assert_eq!(crew.connected(), 3);
}

#[test]
fn throttled_probes_of_one_gate_spread_as_one() {
    // Each probe is another connection's, and each is told the same minute: the second in a row is the second.
    let mut later = Vec::new();
    for seed in 0..50 {
        let mut crew = Crew::started(Policy::default(), 40, seed, |_| Answer::Refuse {
            after: millis(10),
            failure: throttled(secs(60)),
        });
        crew.run_until(secs(200));
        later.push(crew.distances()[1]);
    }
    assert!(later.iter().filter(|wait| **wait > secs(63)).count() > 35, "{later:?}");
}

#[test]
fn throttled_without_a_number_grows_for_the_whole_gate() {
    let mut crew = Crew::started(plain(), 40, 5, |_| Answer::Refuse {
        after: Duration::ZERO,
        failure: Failure::Throttled { retry_after: None },
    });
    crew.run_until(secs(100));
    // Forty connections take turns, and each is at the beginning of its own curve.
    assert_eq!(crew.dialled(), all_secs([0, 1, 3, 7, 15, 31, 61, 91]));
    assert_eq!(crew.status().trips, 0, "the server is alive");
}

#[test]
fn throttled_dials_slow_a_pace_down() {
    for retry_after in [None, Some(secs(5))] {
        let mut number = 0;
        let mut crew = Crew::started(Policy::default(), 60, 3, move |_| {
            number += 1;
            if number == 12 {
                Answer::Refuse { after: millis(5), failure: Failure::Throttled { retry_after } }
            } else {
                Answer::Accept { after: millis(5) }
            }
        });
        let mut fastest: f64 = 0.0;
        for tick in 1..4_000 {
            crew.run_until(millis(tick * 10));
            fastest = fastest.max(crew.status().pace.unwrap_or_default());
        }
        assert_eq!(crew.connected(), 60);
        // It would double to 10,000 a second otherwise.
        assert!(fastest < 2_000.0, "{retry_after:?}: {fastest}");
    }
}
