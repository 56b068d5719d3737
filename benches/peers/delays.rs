//! The next delay: what every failure draws.

use std::hint::black_box;
use std::time::Duration;

use backoff::backoff::Backoff as _;
use backon::BackoffBuilder;
use criterion::Criterion;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use steadfast::{Backoff, Growth, Jitter};
use stubborn_io::strategies::ExpBackoffStrategy;
use tokio_retry2::strategy::{ExponentialBackoff, jitter};

use crate::crew::{Path, Way, way};
use crate::table::{Aim, Report};

const BASE: Duration = Duration::from_millis(500);
const CAP: Duration = Duration::from_secs(5);

pub(crate) fn bench(criterion: &mut Criterion, report: &mut Report) {
    let base = way("one `SmallRng` u64", generator, |rng| {
        black_box(rng.next_u64());
    });
    let mut ways = vec![
        ours("`Jitter::Decorrelated`", Jitter::Decorrelated),
        ours("`Jitter::Full`", Jitter::Full),
        ours("`Jitter::Equal`", Jitter::Equal),
        ours("`Jitter::Band(0.5)`", Jitter::Band(0.5)),
        ours("`Jitter::None`", Jitter::None),
        way("`Growth::cap`, once an outage has begun", growth, |(curve, failures)| {
            *failures = failures.wrapping_add(1);
            black_box(curve.cap(*failures % 16, Duration::from_secs(90), 1));
        }),
    ];
    ways.extend(theirs());
    let title = "The next delay (base: one `SmallRng` u64)";
    let aims = vec![
        Aim::Times("`Jitter::Decorrelated`", &["one `SmallRng` u64"], 3.0),
        Aim::Times("`Jitter::Decorrelated`", &OTHERS, 1.0),
        Aim::Times("`Jitter::Full`", &["one `SmallRng` u64"], 3.0),
        Aim::Times("`Jitter::Full`", &OTHERS, 1.0),
    ];
    Path { name: "delay", title, base, ways, threads: &[1], aims }.bench(criterion, report);
}

fn generator() -> SmallRng {
    SmallRng::seed_from_u64(7)
}

fn growth() -> (Growth, u32) {
    (Growth::new(Duration::from_secs(15), 1.25, Duration::from_secs(120)), 0)
}

/// Eight failures in a row, again and again; each delay is told to the next draw.
fn ours(name: &'static str, jitter: Jitter) -> Way {
    let state = move || (Backoff::new(BASE, CAP).jitter(jitter), 0_u32, Duration::ZERO, generator());
    way(name, state, |(curve, failures, previous, rng)| {
        *failures = *failures % 8 + 1;
        *previous = curve.delay(*failures, *previous, rng);
        black_box(*previous);
    })
}

const OTHERS: [&str; 6] = [
    "exponential-backoff",
    "backon, with jitter",
    "tokio-retry2, with jitter",
    "backoff",
    "stubborn-io",
    "failsafe, equal jitter",
];

/// Those of others, as iterators without end.
fn theirs() -> Vec<Way> {
    let exponential = || exponential_backoff::Backoff::new(u32::MAX, BASE, CAP).into_iter();
    let backon = || {
        let curve = backon::ExponentialBuilder::default().with_min_delay(BASE).with_max_delay(CAP);
        curve.with_jitter().without_max_times().build()
    };
    let retry = || ExponentialBackoff::from_millis(2).factor(250).max_delay(CAP).map(jitter);
    let backoff = || {
        let mut curve = backoff::ExponentialBackoffBuilder::new();
        curve.with_initial_interval(BASE).with_max_interval(CAP).with_max_elapsed_time(None).build()
    };
    // It panics once its curve is longer than a `Duration`, so it begins anew in time.
    let stubborn = || {
        let curve = || ExpBackoffStrategy::new(BASE, 2.0, 0.5).with_max(CAP).with_seed(7).into_iter().take(60);
        std::iter::repeat_with(curve).flatten()
    };
    let failsafe = || failsafe::backoff::equal_jittered(Duration::from_secs(1), CAP);
    vec![
        way(OTHERS[0], exponential, |delays| {
            black_box(delays.next());
        }),
        way(OTHERS[1], backon, |delays| {
            black_box(delays.next());
        }),
        way(OTHERS[2], retry, |delays| {
            black_box(delays.next());
        }),
        way(OTHERS[3], backoff, |delays| {
            black_box(delays.next_backoff());
        }),
        way(OTHERS[4], stubborn, |delays| {
            black_box(delays.next());
        }),
        way(OTHERS[5], failsafe, |delays| {
            black_box(delays.next());
        }),
    ]
}
