//! What holds after every sequence of events, whatever they are and whenever they come.

mod hall;
mod world;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, RngSeed};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::{Backoff, Failure, Growth, HintLimit, Jitter, Policy};

use hall::{Hall, moves};
use world::{Happening, World, happenings};

const MEMBERS: usize = 4;
const BASE: Duration = Duration::from_millis(500);
const STABLE_AFTER: Duration = Duration::from_secs(10);
const HINT_LIMIT: Duration = Duration::from_secs(600);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(60);
const SLOW_CAP: Duration = Duration::from_secs(600);
const QUICK_CAP: Duration = Duration::from_secs(5);
const ADVICE_LIMIT: Duration = Duration::from_secs(60);

fn growing() -> Growth {
    Growth::new(Duration::from_secs(15), 1.25, Duration::from_secs(120))
}

fn policy(stop_on_permanent: bool) -> Policy {
    Policy::default()
        .base(BASE)
        .quick(Backoff::new(BASE, QUICK_CAP))
        .growing(growing())
        .slow(Backoff::new(Duration::from_secs(60), SLOW_CAP))
        .stable_after(STABLE_AFTER)
        .handshake_limit(HANDSHAKE_LIMIT)
        .hint_limit(HINT_LIMIT, HintLimit::Clamp)
        .advice_limit(ADVICE_LIMIT)
        .stop_on_permanent(stop_on_permanent)
}

fn failures() -> impl Strategy<Value = Failure> {
    prop_oneof![
        1 => Just(Failure::Permanent),
        1 => Just(Failure::Planned),
        1 => Just(Failure::Timeout),
        3 => Just(Failure::Transient),
        1 => Just(Failure::Unauthorized),
        3 => Just(Failure::Unreachable),
        1 => Just(Failure::Throttled { retry_after: None }),
        1 => waits().prop_map(|wait| Failure::Throttled { retry_after: Some(wait) }),
    ]
}

fn waits() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
        Just(STABLE_AFTER),
        (0_u64..2_000).prop_map(Duration::from_millis),
        (0_u64..700).prop_map(Duration::from_secs),
    ]
}

/// The same cases in every run; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` look further.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let seed = if asked.rng_seed == RngSeed::Random { RngSeed::Fixed(1) } else { asked.rng_seed };
    let regressions = FileFailurePersistence::Direct("tests/machine_properties/regressions.txt");
    ProptestConfig { failure_persistence: Some(Box::new(regressions)), rng_seed: seed, ..asked }
}

fn played(seed: u64, stop_on_permanent: bool, happenings: &[Happening]) -> World {
    let mut world = World::new(seed, stop_on_permanent);
    for happening in happenings {
        world.play(happening);
    }
    world
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_sequence_of_events_keeps_the_invariants_and_leaves_no_permit(
        seed: u64,
        stop_on_permanent: bool,
        happenings in happenings(),
    ) {
        played(seed, stop_on_permanent, &happenings).leave();
    }

    #[test]
    fn after_every_sequence_of_events_a_healthy_server_gets_everybody_back(
        seed: u64,
        stop_on_permanent: bool,
        happenings in happenings(),
    ) {
        played(seed, stop_on_permanent, &happenings).heal();
    }

    #[test]
    fn a_permit_that_is_kept_for_ever_is_lost_at_the_end_of_its_lease(
        seed: u64,
        moves in prop::collection::vec(moves(), 1..60),
    ) {
        let mut hall = Hall::new(seed, Instant::now());
        for one in &moves {
            hall.play(one);
        }
        hall.keep_all_and_admit_one_more();
    }

    #[test]
    fn no_delay_is_zero_or_over_its_cap_at_any_attempt(
        seed: u64,
        failures in prop_oneof![1_u32..100, any::<u32>(), Just(u32::MAX)],
        base in 1_u64..2_000_000_000,
        factor in prop_oneof![Just(3_u32), 3_u32..1_000, Just(u32::MAX)],
        jitter in jitters(),
        steps in 1_u32..50,
    ) {
        let base = Duration::from_nanos(base);
        let cap = base.saturating_mul(factor);
        let curve = Backoff::new(base, cap).jitter(jitter);
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut previous = Duration::ZERO;
        for step in 0..steps {
            previous = curve.delay(failures.saturating_add(step).max(1), previous, &mut rng);
            prop_assert!(previous > Duration::ZERO && previous <= cap, "{previous:?} of {cap:?}");
        }
    }

    #[test]
    fn the_growing_cap_never_shrinks_and_never_exceeds_its_ceiling(
        refusals: u32,
        age in waits(),
        sharers: u32,
    ) {
        let growth = growing();
        let cap = growth.cap(refusals, age, sharers);
        prop_assert!(cap >= Duration::from_secs(15));
        prop_assert!(cap <= Duration::from_secs(120).max(age / 4));
        prop_assert!(growth.cap(refusals.saturating_add(1), age, sharers) >= cap);
        prop_assert!(growth.cap(refusals, age, sharers.saturating_add(1)) <= cap);
    }
}

fn jitters() -> impl Strategy<Value = Jitter> {
    prop_oneof![
        (0.0..0.99).prop_map(Jitter::Band),
        Just(Jitter::Decorrelated),
        Just(Jitter::Equal),
        Just(Jitter::Full),
        Just(Jitter::None),
    ]
}

#[test]
fn no_value_of_the_delay_holds_more_than_its_share() {
    for jitter in [Jitter::Band(0.3), Jitter::Decorrelated, Jitter::Equal, Jitter::Full] {
        let curve = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).jitter(jitter);
        let mut counts: BTreeMap<Duration, u32> = BTreeMap::new();
        for seed in 0..2_000 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut delay = Duration::ZERO;
            for failures in 1..=30 {
                delay = curve.delay(failures, delay, &mut rng);
            }
            *counts.entry(delay).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        assert!(most <= 2, "{jitter:?}: one value holds {most} of 2,000");
    }
}
