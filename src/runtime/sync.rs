//! What threads share and what tasks sleep on, in one place, so that the model checker can put its own in.
//!
//! Everything here is somebody else's, as it is; `tests/loom.sh` builds the same runtime over the checker's.

use std::sync::{LockResult, PoisonError};

pub(super) use std::sync::atomic::Ordering;

#[cfg(not(all(test, steadfast_loom)))]
mod real {
    pub(in crate::runtime) use arc_swap::{ArcSwapOption, Guard};
    pub(in crate::runtime) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
    /// An `Arc` whose count decides something.
    pub(in crate::runtime) use std::sync::{Arc as Counted, Mutex, MutexGuard, Weak as CountedWeak};
    pub(in crate::runtime) use tokio::sync::Notify;
    pub(in crate::runtime) use tokio::time::{Sleep, sleep, sleep_until, timeout, timeout_at};
}

#[cfg(not(all(test, steadfast_loom)))]
pub(super) use real::*;

#[cfg(all(test, steadfast_loom))]
pub(super) use super::loom_tests::stand_ins::*;

/// What is locked, also after a panic under the lock: no code of the user runs under any of ours, and what it was about
/// to change is given up.
pub(super) fn unpoisoned<G>(locked: LockResult<G>) -> G {
    locked.unwrap_or_else(PoisonError::into_inner)
}
