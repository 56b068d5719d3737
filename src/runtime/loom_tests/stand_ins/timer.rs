//! tokio's timers. In a model time passes when a wait of less than a minute does, after everybody else had a turn;
//! what is further away never comes. So whoever is not woken hangs, and the checker says so.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

thread_local! {
    /// The threads of a model are one thread of the system's.
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long the model has lasted.
pub(in crate::runtime) fn passed() -> Duration {
    PASSED.get()
}

/// A minute passes.
pub(in crate::runtime) fn pass() {
    PASSED.set(PASSED.get() + MOMENT);
}

/// The next run of the model begins.
pub(in crate::runtime) fn begin() {
    PASSED.set(Duration::ZERO);
}

pub(in crate::runtime) struct Sleep {
    comes: bool,
    had_a_turn: bool,
}

/// What is waited for is either shorter by far or longer by far, and so the checker's runs do not depend on the clock.
const MOMENT: Duration = Duration::from_secs(60);

pub(in crate::runtime) fn sleep(duration: Duration) -> Sleep {
    Sleep { comes: duration < MOMENT, had_a_turn: false }
}

pub(in crate::runtime) fn sleep_until(instant: Instant) -> Sleep {
    sleep(instant.saturating_duration_since(Instant::now()))
}

impl Sleep {
    pub(in crate::runtime) fn reset(mut self: Pin<&mut Self>, instant: Instant) {
        *self = sleep_until(instant);
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.comes {
            return Poll::Pending;
        }
        if self.had_a_turn {
            pass();
            return Poll::Ready(());
        }
        self.had_a_turn = true;
        loom::thread::yield_now();
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[derive(Debug)]
pub(in crate::runtime) struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

pub(in crate::runtime) async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    within(sleep(duration), future).await
}

pub(in crate::runtime) async fn timeout_at<F: Future>(instant: Instant, future: F) -> Result<F::Output, Elapsed> {
    within(sleep_until(instant), future).await
}

async fn within<F: Future>(sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let (mut sleep, mut future) = (pin!(sleep), pin!(future));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(Elapsed)),
    })
    .await
}
