//! What the crate ships for other people's tests does what it says.
#![cfg(test)]

mod clock;
mod server;
mod transport;

use std::io;
use std::time::Duration;

use steadfast::Attempt;
use tokio::time::{Instant, timeout};

const HOUR: Duration = Duration::from_secs(3_600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn is_pending<F: Future>(work: F) -> bool {
    timeout(HOUR, work).await.is_err()
}

fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("an error").kind()
}

fn attempt() -> Attempt {
    Attempt::first(Instant::now().into_std() + HOUR)
}
