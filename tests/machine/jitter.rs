//! Delays as distributions, with fixed seeds.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Event, add};
use steadfast::{Backoff, Failure, Growth, Jitter, Policy};

use crate::harness::{Lone, bin, millis, plain, secs};

const JITTERS: [Jitter; 6] =
    [Jitter::Band(0.05), Jitter::Band(0.5), Jitter::Decorrelated, Jitter::Equal, Jitter::Full, Jitter::None];

/// The mean of each draw, in seconds, and how many of those from the 20th on fall into each second from 10 to 30.
fn decorrelated(sequences: u32, mut draw: impl FnMut(u32, u32, Duration) -> Duration) -> ([f64; 60], [f64; 20]) {
    let (mut sums, mut bins, mut counted) = ([0.0; 60], [0.0; 20], 0.0);
    for sequence in 0..sequences {
        let mut previous = Duration::ZERO;
        for (number, sum) in (1..).zip(&mut sums) {
            let delay = draw(sequence, number, previous);
            assert!(delay < secs(30), "no sample equals the cap");
            assert!(delay >= secs(1), "nor is below base");
            *sum += delay.as_secs_f64();
            if number >= 20 {
                bins[bin(delay - secs(10), secs(1))] += 1.0;
                counted += 1.0;
            }
            previous = delay;
        }
    }
    (sums.map(|sum| sum / f64::from(sequences)), bins.map(|bin| bin / counted))
}

fn assert_spread(means: [f64; 60], bins: [f64; 20], slack: f64) {
    for (mean, expected) in means.into_iter().zip([2.0, 4.0, 8.0, 14.0, 18.0, 19.5]) {
        assert!((mean - expected).abs() < expected * slack, "{mean} instead of {expected}");
    }
    // 5 % ± 0.3 %.
    assert!(bins.iter().all(|bin| (bin - 0.05).abs() < 0.003), "{bins:?}");
}

#[test]
fn no_delay_piles_up_at_the_cap() {
    let curve = Backoff::new(secs(1), secs(30));
    let mut rng = SmallRng::seed_from_u64(13);
    let (means, bins) = decorrelated(20_000, |_, number, previous| curve.delay(number, previous, &mut rng));
    assert_spread(means, bins, 0.03);
}

#[test]
fn the_jitter_survives_the_way_to_the_sleep() {
    let policy = Policy::default().quick(Backoff::new(secs(1), secs(30)));
    let mut lone = Lone::dialling(policy.clone());
    let (means, bins) = decorrelated(4_000, |sequence, number, _| {
        if number == 1 {
            lone = Lone::seeded(policy.clone(), u64::from(sequence));
            lone.tell(Event::Start);
        }
        lone.fail(Failure::Unreachable)
    });
    assert_spread(means, bins, 0.05);
}

#[test]
fn no_kind_of_jitter_exceeds_its_cap() {
    let mut rng = SmallRng::seed_from_u64(14);
    for jitter in JITTERS {
        for (base, cap) in [
            (secs(1), secs(30)),
            (secs(1), secs(1)),
            (secs(1), millis(300)),
            (secs(1), Duration::from_nanos(1)),
            (Duration::from_nanos(1), secs(30)),
        ] {
            let curve = Backoff::new(base, cap).jitter(jitter);
            let mut previous = Duration::ZERO;
            for number in 1..=35_000 {
                previous = curve.delay(number % 100 + 1, previous, &mut rng);
                assert!(previous <= cap && !previous.is_zero(), "{jitter:?} {base:?} {cap:?}: {previous:?}");
            }
        }
    }
}

#[test]
fn quick_attempts_stay_below_the_cap_and_above_the_floor() {
    let mut rng = SmallRng::seed_from_u64(14);
    let curve = Backoff::new(secs(1), secs(30)).fast(3, secs(25)).floor(millis(900));
    for _ in 0..10_000 {
        let delay = curve.delay(2, Duration::ZERO, &mut rng);
        assert!(delay < secs(30) && delay >= millis(12_500), "{delay:?}");
    }
    let curve = Backoff::new(secs(1), secs(30)).fast(3, secs(1)).floor(millis(900));
    for _ in 0..10_000 {
        let delay = curve.delay(2, Duration::ZERO, &mut rng);
        assert!(delay < millis(1_500) && delay >= millis(900), "{delay:?}");
    }
}

/// The lower end of the window after so many failures, two of them quick; a delay is 584 years at most.
fn least(jitter: Jitter, base: Duration, cap: Duration, failures: u32) -> Duration {
    let most = cap.min(Duration::from_nanos(u64::MAX));
    let doubled = base.as_nanos() << (failures - 3).min(64);
    let ceiling = Duration::from_nanos(u64::try_from(doubled).unwrap_or(u64::MAX)).min(most);
    match jitter {
        // Floating point may be off by the last digit.
        Jitter::Band(p) => most.mul_f64(0.999_999 * (1.0 - p) / (1.0 + p)),
        Jitter::Decorrelated => base,
        Jitter::Equal => ceiling / 2,
        Jitter::None => ceiling,
        _ => Duration::ZERO,
    }
}

#[test]
fn no_kind_of_jitter_overflows() {
    let mut rng = SmallRng::seed_from_u64(15);
    let numbers = (1..=10_000).chain([1 << 31, u32::MAX - 1, u32::MAX]);
    for jitter in JITTERS {
        for cap in [secs(1), secs(30), secs(86_400 * 30), Duration::MAX] {
            for base in [Duration::from_nanos(1), millis(500), secs(1)] {
                let curve = Backoff::new(base, cap).jitter(jitter).fast(2, base);
                let mut previous = Duration::ZERO;
                for number in numbers.clone() {
                    let delay = curve.delay(number, previous, &mut rng);
                    assert!(!delay.is_zero() && delay <= cap, "{jitter:?} {cap:?} {number}");
                    if jitter == Jitter::None && number > 3 {
                        assert!(delay >= previous, "never decreasing");
                    }
                    if number > 2 {
                        assert!(delay >= least(jitter, base, cap, number), "{jitter:?} {cap:?} {number}: {delay:?}");
                    }
                    previous = delay;
                    let _ = add(Instant::now(), delay);
                }
            }
        }
    }
}

#[test]
fn the_growing_cap_follows_failures_age_and_sharers() {
    let growth = Growth::new(secs(15), 1.25, secs(120));
    let cap = |k, age, sharers| growth.cap(k, secs(age), sharers).as_secs_f64();
    let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
    assert!(near(cap(0, 0, 1), 15.0));
    assert!(near(cap(1, 0, 1), 18.75));
    assert!(near(cap(3, 0, 1), 29.296_875), "a timeout is three");
    assert!(near(cap(9, 0, 1), 111.758_708_953_857_42));
    assert!(near(cap(10, 0, 1), 120.0), "the ceiling");
    assert!(near(cap(100, 599, 1), 120.0));
    assert!(near(cap(100, 6_000, 1), 1_200.0), "a fifth of the age");
    assert!(near(cap(100, 6_000, 10), 120.0), "divided by those behind one prober");
    assert!(near(cap(100, 6_000, 1_000), 15.0), "never under the first window");
    assert!(near(cap(100, 0, 2), 60.0));
    assert!(near(cap(2, 6_000, 10), 23.4375), "k first");
    let endless = Growth::new(secs(15), 1.25, Duration::MAX);
    assert!(endless.cap(u32::MAX, Duration::MAX, u32::MAX) >= secs(15));
    assert_eq!(endless.cap(u32::MAX, secs(0), 0), Duration::MAX);
    let fixed = Growth::fixed(secs(30));
    assert_eq!(fixed.cap(1_000, secs(1_000_000), 1), secs(30));
}

#[test]
fn timeouts_count_three_times_and_unanswered_dials_not_at_all() {
    // The curve itself, without jitter: 1 s · 2ᵏ under a cap that is multiplied by 1.25.
    let policy = plain().growing(Growth::new(secs(15), 1.25, secs(120)).jitter(Jitter::None));
    let after = |failures: &[Failure]| {
        let mut lone = Lone::dialling(policy.clone());
        failures.iter().map(|failure| lone.fail(*failure)).last().unwrap().as_secs_f64()
    };
    let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
    let (timeout, transient, unreachable) = (Failure::Timeout, Failure::Transient, Failure::Unreachable);
    assert!(near(after(&[transient; 6]), 32.0));
    assert!(near(after(&[transient; 8]), 15.0 * 1.25_f64.powi(8)));
    assert!(near(after(&[unreachable, unreachable, unreachable, unreachable, unreachable, transient]), 18.75));
    assert!(near(after(&[timeout; 3]), 4.0));
    assert!(near(after(&[timeout, unreachable, unreachable, unreachable, unreachable, transient]), 32.0));
    assert!(near(after(&[timeout, unreachable, unreachable, unreachable, unreachable, unreachable, transient]), {
        15.0 * 1.25_f64.powi(4)
    }));
}
