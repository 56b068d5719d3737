//! Instants and durations that saturate.

use std::time::{Duration, Instant};

use rand::Rng;

/// The instant `wait` after `now`, or a far future (30 years) where the platform's clock cannot say so.
///
/// Every addition to an instant in this crate goes through here, so a cap of [`Duration::MAX`] neither panics nor
/// wraps.
#[must_use]
#[inline]
pub fn add(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(FAR)).unwrap_or(now)
}

/// A time of up to 584 years, in whole nanoseconds: what draws reckon in, and half the size of a [`Duration`].
///
/// Longer ones are for ever, as [`Duration::MAX`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nanos(u64);

impl Nanos {
    pub(super) const ZERO: Self = Self(0);

    #[inline]
    pub(super) const fn new(duration: Duration) -> Self {
        if duration.as_secs() >= u64::MAX / NANOS_PER_SECOND {
            return Self(u64::MAX);
        }
        Self(duration.as_secs() * NANOS_PER_SECOND + duration.subsec_nanos() as u64)
    }

    #[inline]
    pub(super) const fn duration(self) -> Duration {
        if self.0 == u64::MAX { Duration::MAX } else { Duration::from_nanos(self.0) }
    }

    pub(super) const fn divided(self, by: u64) -> Self {
        Self(self.0 / by)
    }

    pub(super) const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Doubled so many times, saturating.
    pub(super) fn doubled(self, times: u32) -> Self {
        self.times(1_u64.checked_shl(times).unwrap_or(u64::MAX))
    }

    /// Uniform over [self, high) (`self` where that is empty), never zero, by widening multiplication.
    pub(super) fn up_to<R: Rng + ?Sized>(self, high: Self, rng: &mut R) -> Self {
        let span = high.0.saturating_sub(self.0);
        let wide = u128::from(rng.next_u64()) * u128::from(span);
        let offset = u64::try_from(wide >> 64).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(offset).max(1))
    }

    /// `self` × `factor`, saturating; a factor that is not a positive number gives zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and a share of a wait need not be exact beyond 100 days"
    )]
    pub(super) fn share(self, factor: f64) -> Self {
        // Half a nanosecond more, because the cast rounds down.
        let share = self.0 as f64 * factor;
        Self(if share > 0.0 { (share + 0.5) as u64 } else { 0 })
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Uniform over [low, high) on whole nanoseconds (`low` where that is empty), never zero.
pub(super) fn uniform<R: Rng + ?Sized>(low: Duration, high: Duration, rng: &mut R) -> Duration {
    Nanos::new(low).up_to(Nanos::new(high), rng).duration()
}

/// As far as a timer ever looks ahead: tokio's own idea of for ever.
const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
