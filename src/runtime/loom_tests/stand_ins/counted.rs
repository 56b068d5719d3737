//! An `Arc` whose count the checker sees.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use loom::sync::atomic::{AtomicUsize, Ordering};

/// The count stands beside std's, which goes along with it: between the two the checker never switches.
pub(in crate::runtime) struct Counted<T> {
    value: Arc<T>,
    count: Arc<AtomicUsize>,
}

impl<T> Counted<T> {
    pub(in crate::runtime) fn new(value: T) -> Self {
        Self { value: Arc::new(value), count: Arc::new(AtomicUsize::new(1)) }
    }

    pub(in crate::runtime) fn downgrade(this: &Self) -> CountedWeak<T> {
        CountedWeak { value: Arc::downgrade(&this.value), count: Some(Arc::clone(&this.count)) }
    }
}

impl<T> Clone for Counted<T> {
    fn clone(&self) -> Self {
        self.count.fetch_add(1, Ordering::Relaxed);
        Self { value: Arc::clone(&self.value), count: Arc::clone(&self.count) }
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Counted<T> {
    /// `value` is dropped right after it.
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(in crate::runtime) struct CountedWeak<T> {
    value: Weak<T>,
    count: Option<Arc<AtomicUsize>>,
}

impl<T> CountedWeak<T> {
    pub(in crate::runtime) const fn new() -> Self {
        Self { value: Weak::new(), count: None }
    }

    pub(in crate::runtime) fn upgrade(&self) -> Option<Counted<T>> {
        let count = self.count.as_ref()?;
        let more = |count| if count == 0 { None } else { Some(count + 1) };
        count.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Counted { value: self.value.upgrade()?, count: Arc::clone(count) })
    }

    pub(in crate::runtime) fn strong_count(&self) -> usize {
        self.count.as_ref().map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
