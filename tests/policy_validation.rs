//! What a policy refuses, and that it says so.

use std::num::NonZeroU32;
use std::time::Duration;

use steadfast::{Backoff, Growth, HintLimit, Jitter, Policy};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn curve(base: Duration, cap: Duration) -> Backoff {
    Backoff::new(base, cap)
}

fn growth(window: u64, factor: f64, ceiling: u64) -> Growth {
    Growth::new(secs(window), factor, secs(ceiling))
}

type Setter = fn(Policy, Duration) -> Policy;

/// A policy; field, value and a word of what is allowed, as the message has them.
type Row = (Policy, &'static str, &'static str, &'static str);

fn refused_curves() -> Vec<Row> {
    let policy = Policy::default;
    let half = Duration::from_millis(500);
    vec![
        (policy().base(Duration::ZERO), "quick.base", "0ns", "above zero"),
        (policy().base(secs(6)), "quick.cap", "5s", "at least base (6s)"),
        (policy().base(secs(2)), "quick.cap", "5s", "3 · base (6s)"),
        (policy().quick(curve(half, Duration::from_millis(1_499))), "quick.cap", "1.499s", "3 · base"),
        (policy().base(Duration::MAX), "quick.cap", "5s", "at least base"),
        (policy().quick(curve(half, Duration::ZERO)), "quick.cap", "0ns", "at least base"),
        (policy().quick(curve(half, secs(5)).floor(secs(6))), "quick.floor", "6s", "under base (500ms)"),
        (policy().quick(curve(half, secs(5)).floor(half)), "quick.floor", "500ms", "raise base"),
        (policy().quick(curve(half, secs(5)).fast(3, Duration::ZERO)), "quick.fast", "0ns", "above zero"),
        (policy().quick(curve(half, secs(5)).fast(3, secs(6))), "quick.fast", "6s", "at most cap (5s)"),
        (
            policy().quick(curve(secs(1), secs(5)).floor(half).fast(3, half)),
            "quick.fast",
            "500ms",
            "above floor (500ms)",
        ),
        (policy().quick(curve(half, secs(5)).jitter(Jitter::Band(1.0))), "quick.jitter", "1.0", "under 1"),
        (policy().quick(curve(half, secs(5)).jitter(Jitter::Band(-0.1))), "quick.jitter", "-0.1", "from 0"),
        (policy().quick(curve(half, secs(5)).jitter(Jitter::Band(f64::NAN))), "quick.jitter", "NaN", "from 0"),
        (policy().slow(curve(Duration::ZERO, secs(5))), "slow.base", "0ns", "above zero"),
        (policy().slow(curve(secs(9), secs(5))), "slow.cap", "5s", "at least base"),
        (policy().slow(curve(secs(2), secs(5))), "slow.cap", "5s", "3 · base"),
        (policy().slow(curve(secs(1), secs(5)).jitter(Jitter::Band(2.0))), "slow.jitter", "2.0", "under 1"),
    ]
}

fn refused_growth() -> Vec<Row> {
    let policy = Policy::default;
    let growing = || growth(15, 1.25, 120);
    vec![
        (policy().growing(growth(0, 1.25, 120)), "growing.window", "0ns", "at least base (500ms)"),
        (policy().growing(growth(1, 1.25, 120)), "growing.window", "1s", "3 · base"),
        (policy().growing(growing().from(secs(6))), "growing.window", "15s", "3 · from (18s)"),
        (policy().growing(growing().from(Duration::MAX)), "growing.window", "15s", "3 · from"),
        (policy().growing(growth(15, 1.25, 14)), "growing.ceiling", "14s", "at least window (15s)"),
        (policy().growing(growth(15, 0.9, 120)), "growing.factor", "0.9", "from 1"),
        (policy().growing(growth(15, -1.0, 120)), "growing.factor", "-1.0", "from 1"),
        (policy().growing(growth(15, f64::NAN, 120)), "growing.factor", "NaN", "from 1"),
        (policy().growing(growth(15, f64::INFINITY, 120)), "growing.factor", "inf", "from 1"),
        (policy().growing(growing().age_share(1.1)), "growing.age_share", "1.1", "0 to 1"),
        (policy().growing(growing().age_share(-0.1)), "growing.age_share", "-0.1", "0 to 1"),
        (policy().growing(growing().age_share(f64::NAN)), "growing.age_share", "NaN", "0 to 1"),
        (policy().growing(growing().timeout_weight(0)), "growing.timeout_weight", "0", "at least 1"),
        (policy().growing(growing().jitter(Jitter::Band(1.0))), "growing.jitter", "1.0", "under 1"),
        (policy().growing(growing().jitter(Jitter::Band(f64::NAN))), "growing.jitter", "NaN", "under 1"),
    ]
}

fn refused_bounds() -> Vec<Row> {
    let policy = Policy::default;
    let longest = "18446744073709551615.999999999s";
    let fields: [(&str, Setter); 5] = [
        ("stable_after", Policy::stable_after),
        ("attempt_deadline", Policy::attempt_deadline),
        ("handshake_limit", Policy::handshake_limit),
        ("drain", Policy::drain),
        ("close", Policy::close),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (field, set) in fields {
        rows.push((set(policy(), Duration::ZERO), field, "0ns", "above zero"));
        rows.push((set(policy(), Duration::MAX), field, longest, "at most a day"));
    }
    rows.extend([
        (policy().handshake_limit(secs(9)), "handshake_limit", "9s", "attempt_deadline (10s)"),
        (policy().attempt_deadline(secs(120)), "handshake_limit", "60s", "attempt_deadline (120s)"),
        (policy().hint_limit(Duration::ZERO, HintLimit::Clamp), "hint_limit", "0ns", "above zero"),
        (policy().advice_limit(Duration::ZERO), "advice_limit", "0ns", "above zero"),
        (policy().recovery_spread(Duration::MAX), "recovery_spread", longest, "window that ends"),
        (policy().startup_spread(Duration::MAX), "startup_spread", longest, "window that ends"),
        (policy().give_up_after(Duration::ZERO), "give_up_after", "0ns", "above zero"),
        (policy().max_age(Duration::ZERO), "max_age", "0ns", "after stable_after"),
        (policy().max_age(secs(11)), "max_age", "11s", "after stable_after (10s)"),
        (Policy::for_fleet(100, 0.0), "capacity_per_second", "0.0", "above zero"),
        (Policy::for_fleet(100, -0.0), "capacity_per_second", "-0.0", "above zero"),
        (Policy::for_fleet(100, -5.0), "capacity_per_second", "-5.0", "above zero"),
        (Policy::for_fleet(100, f64::NAN), "capacity_per_second", "NaN", "above zero"),
        (Policy::for_fleet(100, f64::INFINITY), "capacity_per_second", "inf", "finite"),
        (Policy::for_fleet(u32::MAX, f64::MIN_POSITIVE), "recovery_spread", longest, "window that ends"),
    ]);
    rows
}

#[test]
fn what_cannot_work_is_refused_by_field_value_and_what_is_allowed() {
    for (policy, field, value, allowed) in refused_curves().into_iter().chain(refused_growth()).chain(refused_bounds())
    {
        let Err(refused) = policy.validate() else { panic!("{field} = {value} was let through") };
        let message = refused.to_string();
        assert_eq!(refused.field(), field, "{message}");
        let (left, right) = message.split_once(", allowed is ").expect("says what is allowed");
        assert_eq!(left, format!("policy: {field} is {value}"));
        assert!(right.contains(allowed), "{message}");
    }
}

#[test]
fn what_is_shipped_is_valid() {
    for policy in [Policy::default(), Policy::lone()] {
        assert_eq!(policy.validate(), Ok(()));
    }
}

#[test]
fn fleets_of_every_size_are_valid() {
    for clients in [0, 1, 2, 10, 100, 1_000, 10_000, 1_000_000, u32::MAX - 1, u32::MAX] {
        for capacity in [0.001, 0.01, 0.5, 1.0, 10.0, 500.0, 1e4, 1e6, 1e9] {
            assert_eq!(Policy::for_fleet(clients, capacity).validate(), Ok(()), "{clients} clients, {capacity}/s");
        }
    }
}

#[test]
fn extremes_that_make_sense_are_valid() {
    let most = NonZeroU32::MAX;
    let policies = [
        Policy::default().quick(curve(Duration::from_nanos(1), Duration::MAX)),
        Policy::default().quick(curve(secs(1), secs(1)).jitter(Jitter::Full)),
        Policy::default().quick(curve(secs(1), secs(30)).fast(u32::MAX, secs(30))),
        Policy::default().slow(curve(secs(1), Duration::MAX)),
        Policy::default().growing(Growth::new(secs(15), f64::MAX, Duration::MAX).timeout_weight(u32::MAX)),
        Policy::default().growing(Growth::fixed(secs(30))),
        Policy::default().hint_limit(Duration::MAX, HintLimit::Obey),
        Policy::default().advice_limit(Duration::MAX),
        Policy::default().recovery_spread(Duration::ZERO).startup_spread(Duration::ZERO),
        Policy::default().give_up_after(Duration::MAX).max_attempts(most).max_age(Duration::MAX),
        Policy::default().failures_to_narrow(most),
        Policy::default().jitter(Jitter::None),
        Policy::default().jitter(Jitter::Band(0.0)),
    ];
    for policy in policies {
        assert_eq!(policy.validate(), Ok(()), "{policy:?}");
    }
}
