//! What the checker sees instead of std's, tokio's and arc-swap's: the same promises to those who use it, none stronger.

mod counted;
mod notify;
mod swap;
mod timer;

pub(in crate::runtime) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
pub(in crate::runtime) use loom::sync::{Mutex, MutexGuard};

pub(in crate::runtime) use counted::{Counted, CountedWeak};
pub(in crate::runtime) use notify::Notify;
pub(in crate::runtime) use swap::{ArcSwapOption, Guard};
pub(in crate::runtime) use timer::{Sleep, begin, pass, passed, sleep, sleep_until, timeout, timeout_at};
