//! How a running supervisor is told something: one word of bits and one waker.
//!
//! A thousand calls of `reconnect()` before the shell looks are one bit, and so one event. What a bit stands for beyond
//! itself (which generation broke, and why) lies in a slot beside it, of which there is one.

use std::task::{Context, Poll, Waker};

use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering, unpoisoned};

/// What can be posted; taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Post {
    /// The last link is gone.
    Dropped = 1,
    /// The dial reached the other side.
    Reached = 1 << 1,
    /// Somebody says that the live connection broke.
    Report = 1 << 2,
    /// End politely.
    Drain = 1 << 3,
    /// Reconnect now.
    Reconnect = 1 << 4,
    /// The gate says: ask again.
    Turned = 1 << 5,
    /// The machine was suspended.
    Check = 1 << 6,
}

impl Post {
    const ALL: [Self; 7] =
        [Self::Dropped, Self::Reached, Self::Report, Self::Drain, Self::Reconnect, Self::Turned, Self::Check];

    const fn bit(self) -> u32 {
        self as u32
    }
}

/// Many post, one takes.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    bits: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl Mailbox {
    pub(super) fn post(&self, post: Post) {
        self.bits.fetch_or(post.bit(), Ordering::AcqRel);
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes one kind, if it was posted.
    pub(super) fn take(&self, post: Post) -> bool {
        // Most often there is nothing, and a look costs less than a write.
        self.holds(post) && self.bits.fetch_and(!post.bit(), Ordering::AcqRel) & post.bit() != 0
    }

    /// Whether a post waits to be taken.
    pub(super) fn holds(&self, post: Post) -> bool {
        self.bits.load(Ordering::Acquire) & post.bit() != 0
    }

    /// Forgets everything: what was posted was meant for somebody else.
    pub(super) fn clear(&self) {
        self.bits.store(0, Ordering::Release);
    }

    /// Takes the first of what was posted.
    pub(super) fn poll_take(&self, cx: &Context<'_>) -> Poll<Post> {
        if let Some(post) = self.first() {
            return Poll::Ready(post);
        }
        let known = self.waker().as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if !known {
            // Cloned before the lock and dropped after it: a waker is code of the executor, and may hold a whole task.
            let waker = cx.waker().clone();
            let _older = self.waker().replace(waker);
        }
        // Whoever posted between the look and the registration found no waker.
        self.first().map_or(Poll::Pending, Poll::Ready)
    }

    fn first(&self) -> Option<Post> {
        let bits = self.bits.load(Ordering::Acquire);
        Post::ALL.into_iter().find(|post| bits & post.bit() != 0 && self.take(*post))
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        unpoisoned(self.waker.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Rung(AtomicUsize);

    impl Wake for Rung {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn many_posts_of_a_kind_are_one() {
        let (mailbox, rung) = (Mailbox::default(), Arc::new(Rung::default()));
        let waker = Waker::from(Arc::clone(&rung));
        let cx = Context::from_waker(&waker);
        assert!(mailbox.poll_take(&cx).is_pending());
        for _ in 0..1_000 {
            mailbox.post(Post::Reconnect);
        }
        assert_eq!(rung.0.load(Ordering::Relaxed), 1);
        assert_eq!(mailbox.poll_take(&cx), Poll::Ready(Post::Reconnect));
        assert!(mailbox.poll_take(&cx).is_pending());
    }

    /// A task that holds what posts when it goes, and goes with its last waker.
    struct Posts(Arc<Mailbox>);

    impl Wake for Posts {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Posts {
        fn drop(&mut self) {
            assert!(self.0.waker.try_lock().is_ok(), "or it would wait for itself");
            self.0.post(Post::Dropped);
        }
    }

    #[test]
    fn a_waker_that_is_replaced_may_post() {
        let mailbox = Arc::new(Mailbox::default());
        let waker = Waker::from(Arc::new(Posts(Arc::clone(&mailbox))));
        assert!(mailbox.poll_take(&Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert_eq!(mailbox.poll_take(&Context::from_waker(Waker::noop())), Poll::Ready(Post::Dropped));
    }

    #[test]
    fn kinds_are_taken_in_their_order() {
        let mailbox = Mailbox::default();
        let cx = Context::from_waker(Waker::noop());
        for post in Post::ALL.into_iter().rev() {
            mailbox.post(post);
        }
        for post in Post::ALL {
            assert_eq!(mailbox.poll_take(&cx), Poll::Ready(post));
        }
    }
}
