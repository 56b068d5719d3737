//! tokio's `Notify`, as far as `notify_waiters` goes.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::Mutex;
use crate::runtime::sync::unpoisoned;

/// Whoever has got a `Notified` before a call of `notify_waiters` is woken by it, as tokio promises, polled or not.
pub(in crate::runtime) struct Notify {
    /// Read without the lock and written under it, as in tokio's.
    calls: AtomicU64,
    waiters: Mutex<Vec<(usize, Waker)>>,
    /// Names of the waiters; no more than that.
    next: AtomicUsize,
}

impl Notify {
    pub(in crate::runtime) fn new() -> Self {
        Self { calls: AtomicU64::new(0), waiters: Mutex::default(), next: AtomicUsize::new(0) }
    }

    pub(in crate::runtime) fn notified(&self) -> Notified<'_> {
        Notified { notify: self, calls: self.calls.load(SeqCst), id: self.next.fetch_add(1, Relaxed), listed: false }
    }

    pub(in crate::runtime) fn notify_waiters(&self) {
        let mut waiters = unpoisoned(self.waiters.lock());
        self.calls.fetch_add(1, SeqCst);
        let woken = std::mem::take(&mut *waiters);
        drop(waiters);
        for (_, waker) in woken {
            waker.wake();
        }
    }
}

pub(in crate::runtime) struct Notified<'a> {
    notify: &'a Notify,
    /// How many there had been when this one came.
    calls: u64,
    id: usize,
    listed: bool,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let notify = self.notify;
        let mut waiters = unpoisoned(notify.waiters.lock());
        if notify.calls.load(SeqCst) != self.calls {
            self.listed = false;
            return Poll::Ready(());
        }
        waiters.retain(|(id, _)| *id != self.id);
        waiters.push((self.id, cx.waker().clone()));
        self.listed = true;
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if self.listed && !std::thread::panicking() {
            unpoisoned(self.notify.waiters.lock()).retain(|(id, _)| *id != self.id);
        }
    }
}
