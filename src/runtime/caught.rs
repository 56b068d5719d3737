//! A panic in somebody else's code becomes an error.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// A future behind a box: dials and closes are rare, and so the shell of an idle connection stays small.
pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls `f`; what it was about to change is given up after a panic.
pub(super) fn call<T>(f: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Panicked::new(&*payload))
}

/// Polls `future` once.
pub(super) fn poll<F: Future + ?Sized>(future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<Result<F::Output, Panicked>> {
    match call(|| future.poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panicked) => Poll::Ready(Err(panicked)),
    }
}

/// Runs `future` to its end, or to its panic.
pub(super) async fn run<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(|cx| poll(future.as_mut(), cx)).await
}

/// It panicked, with this message.
#[derive(Debug)]
pub(super) struct Panicked(Box<str>);

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no message)");
        Self(message.into())
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}

impl Error for Panicked {}
