//! A panic in somebody else's code becomes an error.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Calls `f`; what it was about to change is given up after a panic.
pub(super) fn call<T>(f: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(Panicked::new)
}

/// Calls `begin`, at once; the future that it gives is run to its end, or to its panic.
pub(super) fn run<F: Future>(begin: impl FnOnce() -> F) -> impl Future<Output = Result<F::Output, Panicked>> {
    let begun = call(begin).map(Caught::new);
    async move { begun?.await }
}

/// Somebody else's future. A panic in a poll is its outcome; one in its drop, which comes with the outcome or with the
/// drop of this, changes nothing. Once it is over, it stays pending.
///
/// It lies behind a box: dials and closes are rare, and so the shell of an idle connection stays small.
pub(super) struct Caught<F: Future + ?Sized>(Option<Pin<Box<F>>>);

/// A [`Caught`] of any type.
pub(super) type Boxed<T> = Caught<dyn Future<Output = T> + Send>;

impl<F: Future> Caught<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<T> Boxed<T> {
    /// One that is over. Where there may be none: an `Option` around it would take a word more.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    pub(super) const fn is_over(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn boxed(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future + ?Sized> Caught<F> {
    fn let_go(&mut self) {
        let future = self.0.take();
        let _ = call(|| drop(future));
    }
}

impl<F: Future + ?Sized> Future for Caught<F> {
    type Output = Result<F::Output, Panicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let outcome = match call(|| future.as_mut().poll(cx)) {
            Ok(poll) => Ok(ready!(poll)),
            Err(panicked) => Err(panicked),
        };
        self.let_go();
        Poll::Ready(outcome)
    }
}

impl<F: Future + ?Sized> Drop for Caught<F> {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// It panicked, with this message.
#[derive(Debug)]
pub(super) struct Panicked(Box<str>);

impl Panicked {
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no message)");
        let panicked = Self(message.into());
        // What was thrown may throw when it is dropped; what that throws is not looked at any more.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
        panicked
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.0)
    }
}

impl Error for Panicked {}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// What is thrown, and throws again when it is dropped.
    struct Again(u32);

    impl Drop for Again {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn what_was_thrown_may_throw_again_when_it_is_dropped() {
        let panicked = call(|| panic_any(Again(3))).unwrap_err();
        assert_eq!(panicked.to_string(), "panicked: (no message)");
    }

    /// A future that panics in its poll, in its drop, or in both.
    struct Bad {
        poll: bool,
        drop: bool,
    }

    impl Future for Bad {
        type Output = u32;

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
            assert!(!self.poll, "in the poll");
            Poll::Ready(7)
        }
    }

    impl Drop for Bad {
        fn drop(&mut self) {
            assert!(!self.drop, "in the drop");
        }
    }

    #[test]
    fn a_panic_in_the_drop_of_a_future_takes_nothing_of_its_outcome() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for (poll, drop) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut caught = Boxed::boxed(Bad { poll, drop });
            let Poll::Ready(outcome) = Pin::new(&mut caught).poll(&mut cx) else { panic!("it is ready at once") };
            let expected = if poll { Err("panicked: in the poll".to_owned()) } else { Ok(7) };
            assert_eq!(outcome.map_err(|panicked| panicked.to_string()), expected);
            assert!(Pin::new(&mut caught).poll(&mut cx).is_pending(), "it has said what it had to say");
            let unpolled = Caught::new(Bad { poll, drop });
            mem::drop(unpolled);
        }
    }
}
