//! Clocks that jump, stand still and are set back: more than the shipped one, whose monotonic time is tokio's.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use steadfast::Clock;
use tokio::time::Instant;

use crate::common::lock;

/// What the two clocks of a supervisor read, as against tokio's timer.
#[derive(Clone)]
pub(crate) struct Clocks(Arc<Mutex<Skew>>);

struct Skew {
    start: Instant,
    /// The monotonic time is so far ahead.
    ahead: Duration,
    /// The wall clock goes on by this more than the monotonic time.
    gap: Duration,
    still: Option<Instant>,
}

impl Clocks {
    /// The monotonic time begins so far ahead, and can be set back by as much.
    pub(crate) fn ahead(ahead: Duration) -> Self {
        Self(Arc::new(Mutex::new(Skew { start: Instant::now(), ahead, gap: Duration::ZERO, still: None })))
    }

    pub(crate) fn clock(&self) -> Clock {
        let (now, wall) = (self.clone(), self.clone());
        Clock::new(move || now.now().into_std(), move || wall.wall())
    }

    fn now(&self) -> Instant {
        let skew = lock(&self.0);
        skew.still.unwrap_or_else(Instant::now) + skew.ahead
    }

    fn wall(&self) -> SystemTime {
        let (now, skew) = (self.now(), lock(&self.0));
        SystemTime::UNIX_EPOCH + now.duration_since(skew.start) + skew.gap
    }

    /// The machine slept, and the monotonic clock with it.
    pub(crate) fn suspend(&self, gap: Duration) {
        lock(&self.0).gap += gap;
    }

    /// Both clocks jump, and tokio's timer knows nothing of it.
    pub(crate) fn skip(&self, gap: Duration) {
        lock(&self.0).ahead += gap;
    }

    /// Both clocks are set back.
    pub(crate) fn set_back(&self, gap: Duration) {
        lock(&self.0).ahead -= gap;
    }

    /// Both clocks stand still, until they go on from there.
    pub(crate) fn stop(&self) {
        lock(&self.0).still = Some(Instant::now());
    }

    pub(crate) fn go_on(&self) {
        let mut skew = lock(&self.0);
        if let Some(since) = skew.still.take() {
            skew.ahead -= since.elapsed();
        }
    }
}
