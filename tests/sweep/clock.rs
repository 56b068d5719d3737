//! Clocks that tests set.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use steadfast::Clock;

use crate::common::lock;

/// Monotonic time is tokio's, the wall clock's lead over it is what the test says.
pub(crate) fn suspended_clock() -> (Clock, Arc<Mutex<SystemTime>>) {
    let wall = Arc::new(Mutex::new(SystemTime::UNIX_EPOCH));
    let (read, start) = (Arc::clone(&wall), tokio::time::Instant::now());
    (Clock::new(|| Clock::system().now(), move || *lock(&read) + start.elapsed()), wall)
}
