//! Every draw against its law, with fixed seeds: no value of the delay holds a mass, neighbours know nothing of each
//! other, and the mean is that of the formula.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Event, State};
use steadfast::{Backoff, Failure, Jitter, Policy};

use crate::door::{Door, open_time};
use crate::harness::{Lone, bin, dials, millis, plain, secs};
use crate::statistics::{chance, correlation, count};

const SAMPLES: u64 = 20_000;

/// Bins of equal width; 100 samples are expected in each.
const BINS: u32 = 200;

/// Every draw of this crate is uniform over some window [low, high), so its mean is (low + high) / 2.
fn assert_uniform(name: &str, samples: &[Duration], low: Duration, high: Duration) {
    let (n, width) = (count(samples.len()), (high - low).as_secs_f64());
    let mut values: Vec<f64> = Vec::with_capacity(samples.len());
    let mut exact: BTreeMap<Duration, u32> = BTreeMap::new();
    let mut bins = vec![0.0; BINS as usize];
    for sample in samples {
        assert!((low..high).contains(sample), "{name}: {sample:?} outside of {low:?} to {high:?}");
        values.push((*sample - low).as_secs_f64() / width);
        bins[bin((*sample - low) * BINS, high - low)] += 1.0;
        *exact.entry(*sample).or_default() += 1;
    }
    // From here on the law is uniform over [0, 1): mean 1/2, standard deviation 1/√12.
    let mean = values.iter().sum::<f64>() / n;
    assert!((mean - 0.5).abs() < 4.5 / (12.0 * n).sqrt(), "{name}: mean {mean} of the window");

    // No single nanosecond: where the window holds few of them, as many as Poisson's law gives.
    let share = n / (width * 1e9);
    let most = f64::from(exact.into_values().max().unwrap_or_default());
    assert!(most <= 3.0 + share + 6.0 * share.sqrt(), "{name}: {most} of {n} in one nanosecond");

    // No bin: Poisson's law for the fullest, and chi-square for all of them.
    let expected = n / f64::from(BINS);
    let fullest = bins.iter().copied().fold(0.0, f64::max);
    assert!(fullest < expected + 5.0 * expected.sqrt(), "{name}: {fullest} in one of {BINS} bins");
    let chi_square: f64 = bins.iter().map(|bin| (bin - expected).powi(2) / expected).sum();
    let degrees = f64::from(BINS - 1);
    assert!(chi_square < degrees + 4.5 * (2.0 * degrees).sqrt(), "{name}: chi-square {chi_square}");

    // One is independent of the next.
    let neighbours: Vec<_> = values.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let found = correlation(&neighbours);
    assert!(found.abs() < chance(neighbours.len()), "{name}: neighbours correlate by {found}");

    // Kolmogorov and Smirnov: the distance of the two distribution functions; by chance it is this large once in 2,000.
    values.sort_unstable_by(f64::total_cmp);
    let distance = values.iter().enumerate().fold(0.0_f64, |most, (rank, value)| {
        most.max((value - count(rank) / n).abs()).max((value - count(rank + 1) / n).abs())
    });
    assert!(distance * n.sqrt() < 2.05, "{name}: distance {distance}");
}

/// So many delays of one curve, one after the other, each as the `failures`-th in a row after `previous`.
fn delays(curve: Backoff, failures: u32, previous: Duration) -> Vec<Duration> {
    let mut rng = SmallRng::seed_from_u64(17);
    (0..SAMPLES).map(|_| curve.delay(failures, previous, &mut rng)).collect()
}

#[test]
fn a_delay_is_uniform_over_the_window_of_its_kind() {
    let curve = |jitter| Backoff::new(secs(1), secs(30)).jitter(jitter);
    let none = Duration::ZERO;
    let rows = [
        // [0, min(cap, base · 2ⁿ)), so half of the ceiling on average.
        ("full, fourth", curve(Jitter::Full), 4, none, none, secs(8)),
        ("full, at the cap", curve(Jitter::Full), 40, none, none, secs(30)),
        // The floor lifts the lower end of the window, and no mass lies on it.
        ("full, with a floor", curve(Jitter::Full).floor(millis(900)), 2, none, millis(900), secs(2)),
        // [ceiling / 2, ceiling): three quarters of it on average.
        ("equal, fourth", curve(Jitter::Equal), 4, none, secs(4), secs(8)),
        ("equal, at the cap", curve(Jitter::Equal), 40, none, secs(15), secs(30)),
        // [cap · (1 − p)/(1 + p), cap): cap/(1 + p) on average, whatever the attempt.
        ("band of a half", curve(Jitter::Band(0.5)), 1, none, secs(10), secs(30)),
        ("band of a half, later", curve(Jitter::Band(0.5)), 40, secs(29), secs(10), secs(30)),
        ("band of a quarter", curve(Jitter::Band(0.25)), 9, none, secs(18), secs(30)),
        // [min(prev, max(base, cap/3)), min(3 · prev, cap)) from prev = base: 2 · base on average at first, and as soon
        // as a delay was a third of the cap, [cap/3, cap) for ever, two thirds of the cap on average.
        ("decorrelated, first", curve(Jitter::Decorrelated), 1, none, secs(1), secs(3)),
        ("decorrelated, from 4 s", curve(Jitter::Decorrelated), 3, secs(4), secs(4), secs(12)),
        ("decorrelated, from a third", curve(Jitter::Decorrelated), 9, secs(10), secs(10), secs(30)),
        ("decorrelated, from the cap", curve(Jitter::Decorrelated), 9, secs(30), secs(10), secs(30)),
        // delay ± 50 %.
        ("quick attempts", curve(Jitter::Full).fast(8, millis(250)), 8, none, millis(125), millis(375)),
    ];
    for (name, curve, failures, previous, low, high) in rows {
        assert_uniform(name, &delays(curve, failures, previous), low, high);
    }
}

#[test]
fn without_jitter_the_delay_is_the_ceiling_itself() {
    let curve = Backoff::new(secs(1), secs(30)).jitter(Jitter::None);
    for (failures, delay) in (1..).zip([1, 2, 4, 8, 16, 30, 30]) {
        assert!(delays(curve, failures, secs(30)).iter().all(|drawn| *drawn == secs(delay)));
    }
}

/// The same wait of so many connections, each with a generator of its own.
fn siblings(policy: &Policy, wait: impl Fn(&mut Lone) -> Duration) -> Vec<Duration> {
    let sibling = |seed| wait(&mut Lone::seeded(policy.clone(), seed));
    (0..SAMPLES).map(sibling).collect()
}

/// How long it is told to wait after that.
fn told(lone: &mut Lone, event: Event) -> Duration {
    lone.tell(event);
    assert_eq!(lone.lifecycle.state(), State::Backoff);
    lone.lifecycle.deadline().expect("a wait ends").duration_since(lone.now)
}

/// How long it is told to wait after a dial that failed before the first success, `before` of them alike.
fn after_dials(failure: Failure, before: u32) -> impl Fn(&mut Lone) -> Duration {
    move |lone| {
        if !dials(lone.tell(Event::Start)) {
            lone.wait();
        }
        for _ in 0..before {
            lone.fail(failure);
        }
        lone.tell(Event::Reached);
        told(lone, Event::Failed(failure))
    }
}

/// How long a connection is told to wait after a session of an hour.
fn after_an_hour(failure: Failure) -> impl Fn(&mut Lone) -> Duration {
    move |lone| {
        lone.tell(Event::Start);
        lone.tell(Event::Opened);
        lone.pass(secs(3_600));
        told(lone, Event::Lost(failure))
    }
}

#[test]
fn siblings_spread_over_the_whole_of_every_first_attempt() {
    let spread = Policy::default().recovery_spread(secs(30)).startup_spread(secs(10));
    let started = siblings(&spread, |lone| told(lone, Event::Start));
    assert_uniform("start-up", &started, secs(0), secs(10));
    let lost = Policy::default().recovery_spread(secs(30));
    for failure in [Failure::Planned, Failure::Transient, Failure::Unauthorized] {
        let name = format!("recovery after {failure}");
        assert_uniform(&name, &siblings(&lost, after_an_hour(failure)), secs(0), secs(30));
    }
    // It waits for 16 s when somebody calls.
    let hastened = siblings(&plain().recovery_spread(secs(10)), |lone| {
        after_dials(Failure::Unreachable, 4)(lone);
        told(lone, Event::Reconnect)
    });
    assert_uniform("reconnect", &hastened, secs(0), secs(10));
    let aged = siblings(&Policy::default().max_age(secs(600)), |lone| {
        lone.tell(Event::Start);
        lone.tell(Event::Opened);
        let opened = lone.now;
        lone.wait_for_deadline();
        lone.lifecycle.deadline().expect("an end").duration_since(opened)
    });
    assert_uniform("maximum age", &aged, secs(540), secs(600));
}

#[test]
fn siblings_spread_over_the_whole_of_every_wait_after_a_failure() {
    let (default, unit) = (Policy::default(), Duration::from_micros(1));
    let throttled = |wait| Failure::Throttled { retry_after: Some(wait) };
    let brief = Duration::from_micros(1_400);
    let rows = [
        // The quick curve from 500 ms, the growing one from 3 s, the slow one from a minute, each decorrelated.
        (Failure::Unreachable, 0, default.clone(), millis(500), millis(1_500)),
        (Failure::Transient, 0, default.clone(), secs(3), secs(9)),
        (Failure::Timeout, 0, default.clone(), secs(3), secs(9)),
        (Failure::Permanent, 0, default.clone(), secs(60), secs(180)),
        // Once more with a fresh credential between base and twice as long, and then slowly.
        (Failure::Unauthorized, 0, default.clone(), millis(500), secs(1)),
        (Failure::Unauthorized, 1, default.clone(), secs(60), secs(180)),
        // A fifth on top of a server's wait, at most 2 s: v + min(v/10, 1 s) on average.
        (throttled(secs(1)), 0, default.clone(), secs(1), millis(1_200)),
        (throttled(secs(60)), 0, default.clone(), secs(60), secs(62)),
        (throttled(brief), 0, default.clone().base(millis(1)), brief, Duration::from_micros(1_680)),
        // A fleet of 10,000 at 500 a second: W is 23 s. W ± 5 % while nobody answers; refused, first over W/3.
        (Failure::Unreachable, 3, Policy::for_fleet(10_000, 500.0), millis(21_850) - unit, millis(24_150)),
        (Failure::Transient, 0, Policy::for_fleet(10_000, 500.0), secs(0), secs(23) / 3 + unit),
    ];
    for (failure, before, policy, low, high) in rows {
        assert_uniform(&format!("{failure}"), &siblings(&policy, after_dials(failure, before)), low, high);
    }
    let hinted = siblings(&default, after_an_hour(throttled(secs(60))));
    assert_uniform("a server's wait at the end of a session", &hinted, secs(60), secs(62));
}

#[test]
fn gates_that_trip_together_spread_over_the_whole_open_time() {
    let open = |failure| (0..SAMPLES).map(|seed| open_time(&Policy::default(), seed, failure)).collect::<Vec<_>>();
    assert_uniform("open, unreachable", &open(Failure::Unreachable), millis(500), millis(1_500));
    assert_uniform("open, transient", &open(Failure::Transient), secs(3), secs(9));
}

/// The offsets of the first starts of a pace of one a second within their slots of a second.
fn offsets(seed: u64, starts: u32) -> Vec<Duration> {
    let mut door = Door::new(Policy::default(), 2, seed);
    let first = door.next(0);
    door.settle(first, Ok(()));
    let began = door.now;
    let start = |slot| {
        // Neither a success nor a refusal: the pace stays as it is.
        let permit = door.next(1);
        door.gate.abandon(door.now, permit);
        door.now.duration_since(began) - secs(1) * slot
    };
    (0..starts).map(start).collect()
}

#[test]
fn gates_that_recover_together_do_not_tick_together() {
    let starts: Vec<_> = (0..SAMPLES / 4).flat_map(|seed| offsets(seed, 4)).collect();
    assert_uniform("slot", &starts, secs(0), secs(1));
}
