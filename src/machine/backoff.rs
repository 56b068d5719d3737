//! How long to wait: growth, randomness, and how far along the curve somebody is.
//!
//! The one rule of this module: **bounds are clamped before the draw, never the sample after it.** A clamped sample
//! piles up at the cap, and whoever waits exactly the cap comes back in step with everybody else who does.

use std::time::{Duration, Instant};

use rand::Rng;

use super::time::Nanos;

/// Where in its window a delay is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Jitter {
    /// cap · uniform((1 − p)/(1 + p), 1): a window that does not grow, for a fleet whose first attempt was spread
    /// over the whole window.
    Band(f64),
    /// uniform(min(prev, max(base, cap/3)), min(3 · prev, cap)), from prev = base: the default of connections. In the
    /// long run it draws from [cap/3, cap) with no mass on any point.
    Decorrelated,
    /// Half of the exponential ceiling fixed, half drawn: where a minimum wait is wanted.
    Equal,
    /// uniform(0, min(cap, base · 2ⁿ)): the default of single calls.
    Full,
    /// The exponential ceiling itself. For one client only: a fleet that uses it returns in step.
    None,
}

impl Jitter {
    /// Between what the delay after the `n`-th failure is drawn (from 1), where the one before it was `previous`.
    #[inline]
    fn window(self, base: Nanos, cap: Nanos, n: u32, previous: Nanos) -> (Nanos, Nanos) {
        // min(cap, base · 2^(n − 1))
        let ceiling = || base.doubled(n.saturating_sub(1)).min(cap);
        match self {
            Self::Band(p) => (cap.share((1.0 - p) / (1.0 + p)), cap),
            Self::Decorrelated => {
                let prev = previous.max(base);
                (prev.min(base.max(cap.divided(3))), prev.times(3).min(cap))
            }
            Self::Equal => (ceiling().divided(2), ceiling()),
            Self::Full => (Nanos::ZERO, ceiling()),
            Self::None => (ceiling(), ceiling()),
        }
    }
}

/// Delay growth and randomness.
///
/// | setting | unit | default | extremes |
/// |---|---|---|---|
/// | `base` | time | given | the first delay; zero is refused by the policy |
/// | `cap` | time | given | under 3 · base is refused for `Decorrelated`; `Duration::MAX` is fine |
/// | `jitter` | | `Decorrelated` | see [`Jitter`] |
/// | `floor` | time | zero | no delay is shorter; from `base` on it is refused: early delays would all be the floor |
/// | `fast` | attempts, time | none | that many delays of `delay` ± 50 % before the curve begins |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    pub(super) jitter: Jitter,
    pub(super) floor: Duration,
    pub(super) fast: u32,
    pub(super) fast_delay: Duration,
}

impl Backoff {
    /// A curve from `base` to `cap`, decorrelated.
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, jitter: Jitter::Decorrelated, floor: Duration::ZERO, fast: 0, fast_delay: base }
    }

    /// Sets where in the window a delay is drawn.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the shortest delay, for dependencies where an early retry is expensive.
    #[must_use]
    pub const fn floor(mut self, floor: Duration) -> Self {
        self.floor = floor;
        self
    }

    /// Puts `attempts` delays of `delay` ± 50 % before the curve.
    #[must_use]
    pub const fn fast(mut self, attempts: u32, delay: Duration) -> Self {
        self.fast = attempts;
        self.fast_delay = delay;
        self
    }

    /// The delay after the `failures`-th failure in a row (from 1), where the previous one was `previous` (zero for
    /// none). Always in [1 ns, cap], or the floor where that is higher; a base above the cap is as the cap.
    pub fn delay<R: Rng + ?Sized>(&self, failures: u32, previous: Duration, rng: &mut R) -> Duration {
        self.draw(failures, Nanos::new(previous), rng).duration()
    }

    fn draw<R: Rng + ?Sized>(&self, failures: u32, previous: Nanos, rng: &mut R) -> Nanos {
        let (base, cap, floor) = (Nanos::new(self.base), Nanos::new(self.cap), Nanos::new(self.floor));
        let (low, high) = match failures.saturating_sub(self.fast) {
            0 => {
                let delay = Nanos::new(self.fast_delay);
                (delay.divided(2), delay.times(3).divided(2).min(cap))
            }
            grown => self.jitter.window(base, cap, grown, previous),
        };
        low.min(high).max(floor).up_to(high.max(floor), rng)
    }
}

/// The curve for a server that answered and failed: its cap grows with the outage.
///
/// W = min(`window` · `factor`ᵏ, max(`ceiling`, `age_share` · time since the first such failure)), and the delay is
/// drawn under W by `jitter`; a decorrelated draw starts from max(previous, `from`). Why it grows: as soon as refusing
/// costs the server a share r of accepting, a window below r × clients ÷ capacity collapses for good, and no client
/// knows that number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub(super) window: Duration,
    pub(super) factor: f64,
    pub(super) ceiling: Duration,
    pub(super) age_share: f64,
    pub(super) from: Duration,
    pub(super) timeout_weight: u32,
    pub(super) jitter: Jitter,
}

impl Growth {
    /// A cap that starts at `window` and is multiplied by `factor` with each failure, up to `ceiling` or a fifth of
    /// the outage's age; decorrelated from 3 s (or a third of the window, if that is less).
    #[must_use]
    pub const fn new(window: Duration, factor: f64, ceiling: Duration) -> Self {
        let from = if window.as_secs() >= 9 { Duration::from_secs(3) } else { Duration::ZERO };
        Self { window, factor, ceiling, age_share: 0.2, from, timeout_weight: 3, jitter: Jitter::Decorrelated }
    }

    /// A cap that does not grow.
    #[must_use]
    pub const fn fixed(cap: Duration) -> Self {
        Self { age_share: 0.0, from: Duration::ZERO, ..Self::new(cap, 1.0, cap) }
    }

    /// Sets where in the window a delay is drawn. `Band(0.5)` draws from [W/3, W] at once, the first of an outage from
    /// the whole of [0, W]: gentler on a server where no single 503 is usual, slower for a lone client after one.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets what the decorrelated draw starts from. Default 3 s: a lone client is back 5 s after one second of 503
    /// instead of 9 s.
    #[must_use]
    pub const fn from(mut self, from: Duration) -> Self {
        self.from = from;
        self
    }

    /// Sets which share of the outage's age the ceiling grows to. Default 0.2; 0 keeps the ceiling.
    #[must_use]
    pub const fn age_share(mut self, share: f64) -> Self {
        self.age_share = share;
        self
    }

    /// Sets how many failures a timeout counts for. Default 3: a server that answers too late has done the work.
    #[must_use]
    pub const fn timeout_weight(mut self, weight: u32) -> Self {
        self.timeout_weight = weight;
        self
    }

    /// The cap after `refusals` weighted failures in an outage of that `age`, with `sharers` connections behind one
    /// prober: the ceiling is divided among them, never under the first window.
    #[must_use]
    pub fn cap(&self, refusals: u32, age: Duration, sharers: u32) -> Duration {
        self.highest(refusals, age, sharers).duration()
    }

    fn highest(&self, refusals: u32, age: Duration, sharers: u32) -> Nanos {
        let exponent = i32::try_from(refusals).unwrap_or(i32::MAX);
        let window = Nanos::new(self.window);
        let grown = window.share(self.factor.powi(exponent));
        let ceiling = Nanos::new(self.ceiling).max(Nanos::new(age).share(self.age_share));
        grown.min(ceiling.divided(u64::from(sharers.max(1))).max(window))
    }

    fn draw<R: Rng + ?Sized>(&self, base: Duration, step: &Step, cap: Nanos, rng: &mut R) -> Nanos {
        if matches!(self.jitter, Jitter::Band(_)) && step.refusals <= 1 {
            return Nanos::ZERO.up_to(cap, rng);
        }
        let from = if self.jitter == Jitter::Decorrelated { Nanos::new(self.from) } else { Nanos::ZERO };
        let base = Nanos::new(base).min(cap);
        let (low, high) = self.jitter.window(base, cap, step.failures, step.previous.max(from));
        low.min(high).up_to(high, rng)
    }
}

/// How far along its curves somebody is who keeps failing: a connection, or a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub(super) failures: u32,
    pub(super) previous: Nanos,
    pub(super) refusals: u32,
    pub(super) refused_since: Option<Instant>,
    pub(super) throttled: u32,
    /// The epoch of the gate whose pace refused it last.
    pub(super) absorbed: u64,
    pub(super) slow: u32,
    pub(super) slow_previous: Nanos,
}

impl Step {
    /// Failures in a row so far.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// One more failure; `refusals` is its weight on the growing curve (none if nobody answered).
    pub(super) fn fail(&mut self, now: Instant, refusals: u32) {
        self.failures = self.failures.saturating_add(1);
        self.refusals = self.refusals.saturating_add(refusals);
        if refusals > 0 && self.refused_since.is_none() {
            self.refused_since = Some(now);
        }
    }

    /// A delay of the quick curve.
    pub(super) fn quick<R: Rng + ?Sized>(&self, curve: &Backoff, rng: &mut R) -> Nanos {
        curve.draw(self.failures, self.previous, rng)
    }

    /// A delay of the growing curve, which begins where the quick one does.
    pub(super) fn growing<R: Rng + ?Sized>(
        &self,
        curve: &Growth,
        quick: &Backoff,
        now: Instant,
        sharers: u32,
        rng: &mut R,
    ) -> Nanos {
        let age = self.refused_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        curve.draw(quick.base, self, curve.highest(self.refusals, age, sharers), rng)
    }

    /// One more refusal of the kind that only people heal: a delay of the slow curve.
    pub(super) fn slow<R: Rng + ?Sized>(&mut self, curve: &Backoff, rng: &mut R) -> Duration {
        self.slow = self.slow.saturating_add(1);
        self.slow_previous = curve.draw(self.slow, self.slow_previous, rng);
        self.slow_previous.duration()
    }
}
