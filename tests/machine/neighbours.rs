//! Whole sequences of delays, of connections side by side: what one draw tells about the next, and about a sibling's.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::Event;
use steadfast::{Backoff, Failure, Jitter, Policy};

use crate::harness::{Lone, dials, secs};
use crate::statistics::{chance, correlation, count};

const SIBLINGS: usize = 2_000;
const DRAWS: usize = 60;

/// The delays of so many connections, whose generators are all forked from one.
fn fleet(curve: Backoff) -> Vec<[f64; DRAWS]> {
    let mut parent = SmallRng::seed_from_u64(13);
    let mut sibling = || {
        let (mut rng, mut previous, mut delays) = (SmallRng::from_rng(&mut parent), Duration::ZERO, [0.0; DRAWS]);
        for (failures, drawn) in (1..).zip(&mut delays) {
            previous = curve.delay(failures, previous, &mut rng);
            *drawn = previous.as_secs_f64();
        }
        delays
    };
    (0..SIBLINGS).map(|_| sibling()).collect()
}

fn curve(jitter: Jitter) -> Backoff {
    Backoff::new(secs(1), secs(30)).jitter(jitter)
}

/// Pairs of a connection's draws, so many apart, from the 20th on.
fn along(fleet: &[[f64; DRAWS]], lag: usize) -> Vec<(f64, f64)> {
    let pairs = |delays: &[f64; DRAWS]| (19..DRAWS - lag).map(|i| (delays[i], delays[i + lag])).collect::<Vec<_>>();
    fleet.iter().flat_map(pairs).collect()
}

/// Pairs of the draws of one connection and the next, so many draws later, from that number on.
fn across(fleet: &[[f64; DRAWS]], from: usize, lag: usize) -> Vec<(f64, f64)> {
    let pairs = |two: &[[f64; DRAWS]]| (from..DRAWS - lag).map(|i| (two[0][i], two[1][i + lag])).collect::<Vec<_>>();
    fleet.windows(2).flat_map(pairs).collect()
}

/// The window of a decorrelated draw hangs on the one before it, so the first ones correlate. But the window of whoever
/// waited for a third of the cap or longer is [cap/3, cap), whatever the delay was: from there on the law gives
/// independent draws, a correlation of exactly zero, and never a way back. All are there by the 20th.
#[test]
fn from_the_twentieth_draw_on_one_delay_tells_nothing_about_the_next() {
    for jitter in [Jitter::Band(0.5), Jitter::Decorrelated, Jitter::Equal, Jitter::Full] {
        let fleet = fleet(curve(jitter));
        for lag in 1..=3 {
            let pairs = along(&fleet, lag);
            let found = correlation(&pairs);
            assert!(found.abs() < chance(pairs.len()), "{jitter:?}, {lag} apart: {found}");
        }
    }
}

/// What the law gives before that, so that the zero above is seen to be one. X is uniform over [1, 3) and the second
/// draw is X · (1 + 2U), with U uniform over [0, 1): E X = 2, E X² = 13/3, E (1 + 2U) = 2, E (1 + 2U)² = 13/3. Hence a
/// covariance of 2 · 13/3 − 2 · 4 = 2/3, variances of 13/3 − 4 = 1/3 and (13/3)² − 16 = 25/9, and a correlation of
/// (2/3) / √(1/3 · 25/9) = 2√3 / 5 = 0.693.
#[test]
fn the_first_two_decorrelated_delays_correlate_as_the_law_says() {
    let pairs: Vec<_> = fleet(curve(Jitter::Decorrelated)).iter().map(|delays| (delays[0], delays[1])).collect();
    let found = correlation(&pairs);
    assert!((found - 2.0 * 3.0_f64.sqrt() / 5.0).abs() < chance(pairs.len()), "{found}");
}

#[test]
fn the_delays_of_one_connection_tell_nothing_about_those_of_its_neighbour() {
    for jitter in [Jitter::Band(0.5), Jitter::Decorrelated, Jitter::Equal, Jitter::Full] {
        let fleet = fleet(curve(jitter));
        for lag in 0..=2 {
            let pairs = across(&fleet, 19, lag);
            let found = correlation(&pairs);
            assert!(found.abs() < chance(pairs.len()), "{jitter:?}, {lag} later: {found}");
        }
        // And so it is from the first draw on: each draw of all of them by itself, for the means still move.
        for draw in 0..20 {
            let pairs: Vec<_> = fleet.windows(2).map(|two| (two[0][draw], two[1][draw])).collect();
            let found = correlation(&pairs);
            assert!(found.abs() < chance(pairs.len()), "{jitter:?}, draw {draw}: {found}");
        }
    }
}

/// The mean of each of the first six draws, from the law by hand for the first three (each draw is uniform over
/// [prev, 3 · prev) there, so the mean doubles), and of all from the 20th on two thirds of the cap.
#[test]
fn the_means_of_decorrelated_delays_double_and_end_at_two_thirds_of_the_cap() {
    let fleet = fleet(curve(Jitter::Decorrelated));
    for (draw, expected) in [(0, 2.0), (1, 4.0), (2, 8.0)].into_iter().chain((19..DRAWS).map(|draw| (draw, 20.0))) {
        let mean = fleet.iter().map(|delays| delays[draw]).sum::<f64>() / count(SIBLINGS);
        let squares: f64 = fleet.iter().map(|delays| (delays[draw] - mean).powi(2)).sum();
        let spread = (squares / count(SIBLINGS)).sqrt();
        let off = (mean - expected).abs();
        assert!(off < 4.5 * spread / count(SIBLINGS).sqrt(), "draw {draw}: {mean} for {expected}");
    }
}

/// Brings a connection to its first wait.
type First = fn(&mut Lone);

#[test]
fn five_thousand_siblings_wait_differently_from_the_first_wait_on() {
    let policy = Policy::default().startup_spread(secs(1));
    let firsts: [(&str, First); 6] = [
        ("start-up", |lone| {
            lone.tell(Event::Start);
        }),
        ("lost", |lone| {
            dialled(lone);
            lone.live(secs(60), Event::Lost(Failure::Transient));
        }),
        ("unreachable", |lone| {
            dialled(lone);
            lone.tell(Event::Failed(Failure::Unreachable));
        }),
        ("throttled", |lone| {
            dialled(lone);
            lone.tell(Event::Failed(Failure::Throttled { retry_after: Some(secs(60)) }));
        }),
        ("refused", |lone| {
            dialled(lone);
            lone.tell(Event::Failed(Failure::Unauthorized));
        }),
        ("reconnected", |lone| {
            dialled(lone);
            lone.live(secs(60), Event::Reconnect);
        }),
    ];
    for (name, first) in firsts {
        let mut parent = SmallRng::seed_from_u64(5);
        let wait = |_| {
            let mut lone = Lone::new(policy.clone());
            lone.rng = SmallRng::from_rng(&mut parent);
            first(&mut lone);
            lone.lifecycle.deadline().expect("it waits").duration_since(lone.now)
        };
        let waits: BTreeSet<_> = (0..5_000).map(wait).collect();
        assert_eq!(waits.len(), 5_000, "{name}");
    }
}

fn dialled(lone: &mut Lone) {
    if !dials(lone.tell(Event::Start)) {
        lone.wait();
    }
}
