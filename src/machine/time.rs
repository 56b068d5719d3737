//! Instants and durations that saturate.

use std::time::{Duration, Instant};

/// The instant `wait` after `now`, or a far future (30 years) where the platform's clock cannot say so.
///
/// Every addition to an instant in this crate goes through here, so a cap of [`Duration::MAX`] neither panics nor
/// wraps.
#[must_use]
pub fn add(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(FAR)).unwrap_or(now)
}

/// `duration` × `factor`, saturating; a factor that is not a positive number gives zero.
pub(super) fn scale(duration: Duration, factor: f64) -> Duration {
    let seconds = duration.as_secs_f64() * factor;
    if seconds.is_nan() || seconds <= 0.0 {
        return Duration::ZERO;
    }
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// As far as a timer ever looks ahead: tokio's own idea of for ever.
const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
