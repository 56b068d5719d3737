//! arc-swap's `ArcSwapOption`, with what it documents: a load acquires what the store or swap of its value released.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, Weak};

use loom::sync::atomic::{AtomicUsize, Ordering};

/// An index into all the values it ever had. Those that were replaced are not kept alive by it.
pub(in crate::runtime) struct ArcSwapOption<T> {
    current: AtomicUsize,
    /// std's lock: it is part of the stand-in, and nothing that the checker should order by.
    values: std::sync::Mutex<Vec<Value<T>>>,
}

struct Value<T> {
    held: Option<Arc<T>>,
    /// A load that comes late may still get what was replaced, as long as somebody holds it.
    known: Weak<T>,
}

impl<T> ArcSwapOption<T> {
    pub(in crate::runtime) fn empty() -> Self {
        let nothing = Value { held: None, known: Weak::new() };
        Self { current: AtomicUsize::new(NONE), values: std::sync::Mutex::new(vec![nothing]) }
    }

    pub(in crate::runtime) fn load(&self) -> Guard<Option<Arc<T>>> {
        Guard(self.load_full())
    }

    fn load_full(&self) -> Option<Arc<T>> {
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            if current == NONE {
                return None;
            }
            if let Some(value) = self.values()[current].known.upgrade() {
                return Some(value);
            }
            // Gone: arc-swap looks again until it has one that is not, and so does this. A read-modify-write reads the last.
            current = self.current.fetch_add(0, Ordering::AcqRel);
        }
    }

    pub(in crate::runtime) fn store(&self, value: Option<Arc<T>>) {
        let replaced = self.current.swap(self.add(value), Ordering::AcqRel);
        self.let_go(replaced);
    }

    /// What is found is never looked at by those who use it, so it is not given.
    pub(in crate::runtime) fn compare_and_swap(&self, current: &Arc<T>, value: Option<Arc<T>>) {
        let found = self.values().iter().position(|value| std::ptr::eq(value.known.as_ptr(), Arc::as_ptr(current)));
        let Some(found) = found else { return };
        let value = self.add(value);
        if self.current.compare_exchange(found, value, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.let_go(found);
        }
    }

    fn add(&self, value: Option<Arc<T>>) -> usize {
        let Some(value) = value else { return NONE };
        let mut values = self.values();
        values.push(Value { known: Arc::downgrade(&value), held: Some(value) });
        values.len() - 1
    }

    fn let_go(&self, replaced: usize) {
        // Dropped after the lock is released.
        let _value = self.values()[replaced].held.take();
    }

    fn values(&self) -> std::sync::MutexGuard<'_, Vec<Value<T>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Always counted: whether a borrowed one is, nobody asks but arc-swap itself.
pub(in crate::runtime) struct Guard<T>(T);

impl<T> Guard<T> {
    pub(in crate::runtime) const fn from_inner(inner: T) -> Self {
        Self(inner)
    }

    pub(in crate::runtime) fn into_inner(guard: Self) -> T {
        guard.0
    }
}

impl<T> Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

const NONE: usize = 0;
