//! What time it is: the only place in this crate that reads a clock.
#![expect(clippy::disallowed_methods, reason = "somebody has to read the clock, and nobody but this file does")]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::machine::add;

/// The monotonic time, which stops while the machine sleeps, and one that goes on.
///
/// The default reads tokio's clock, so that tests may pause it, and the system's. Waits are slept on tokio's timer: a
/// clock of one's own has to advance with it. The other one only serves to notice that the machine was
/// suspended.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use steadfast::Clock;
///
/// let fixed = Clock::new(|| Clock::system().now(), || SystemTime::UNIX_EPOCH);
/// assert_eq!(fixed.wall(), SystemTime::UNIX_EPOCH);
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Source>>);

struct Source {
    now: Box<dyn Fn() -> Instant + Send + Sync>,
    wall: Box<dyn Fn() -> SystemTime + Send + Sync>,
}

impl Clock {
    /// Tokio's monotonic clock and the system's wall clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock that asks `now` and `wall`.
    pub fn new<N, W>(now: N, wall: W) -> Self
    where
        N: Fn() -> Instant + Send + Sync + 'static,
        W: Fn() -> SystemTime + Send + Sync + 'static,
    {
        Self(Some(Arc::new(Source { now: Box::new(now), wall: Box::new(wall) })))
    }

    /// The monotonic time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Some(source) => (source.now)(),
            None => tokio::time::Instant::now().into_std(),
        }
    }

    /// The time that goes on while the machine sleeps. Of the system's clock only differences mean something: on Linux
    /// it counts from boot, so that nobody sets it; elsewhere it is the wall clock.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        match &self.0 {
            Some(source) => (source.wall)(),
            None => since_boot().map_or_else(SystemTime::now, |uptime| SystemTime::UNIX_EPOCH + uptime),
        }
    }

    /// When tokio's timer has to fire so that this clock reads `instant`; for ever, if there is none.
    pub(super) fn timer(&self, instant: Option<Instant>) -> tokio::time::Instant {
        if let (None, Some(instant)) = (&self.0, instant) {
            return tokio::time::Instant::from_std(instant);
        }
        let ahead = instant.map_or(Duration::MAX, |instant| instant.saturating_duration_since(self.now()));
        tokio::time::Instant::from_std(add(tokio::time::Instant::now().into_std(), ahead))
    }

    /// Whether both are the same clock.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The time since boot, sleep included.
#[cfg(target_os = "linux")]
fn since_boot() -> Option<Duration> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(uptime.split_ascii_whitespace().next()?.parse().ok()?).ok()
}

#[cfg(not(target_os = "linux"))]
const fn since_boot() -> Option<Duration> {
    None
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock(injected)" } else { "Clock(system)" })
    }
}
