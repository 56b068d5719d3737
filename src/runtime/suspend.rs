//! Notices that the machine was suspended: wall time went on, monotonic time did not.
//!
//! The connections of a suspended machine look alive for as long as nobody writes to them. One watcher for each tokio
//! runtime (and clock) compares the two every few seconds; the gap is no uptime, because the monotonic clock does not
//! contain it. A wall clock that is set back tells nothing, one that is set ahead costs a check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use super::clock::Clock;
use super::control::Control;
use super::mailbox::Post;
use super::sync::unpoisoned;

/// Puts a supervisor on the list of the current runtime's watcher, and starts one if there is none.
pub(super) fn watch(control: &Arc<Control>) {
    let Ok(runtime) = Handle::try_current() else { return };
    let mut watched = watched();
    if control.watched.swap(true, Ordering::Relaxed) {
        return;
    }
    let member = Arc::downgrade(control);
    match watched.iter_mut().find(|watched| watched.is(runtime.id(), &control.clock)) {
        Some(watched) => watched.members.push(member),
        None => {
            let (number, clock) = (NEXT.fetch_add(1, Ordering::Relaxed), control.clock.clone());
            let (runtime_id, members) = (runtime.id(), vec![member]);
            watched.push(Watched { number, runtime: runtime_id, clock: clock.clone(), members, next: 0 });
            // A runtime that has shut down drops the watcher here and now, and that takes the lock.
            drop(watched);
            runtime.spawn(look(Watcher { number, clock }));
        }
    }
}

/// Who is watched by one watcher.
struct Watched {
    number: u64,
    runtime: Id,
    clock: Clock,
    members: Vec<Weak<Control>>,
    /// Whom of them the next look begins with.
    next: usize,
}

impl Watched {
    fn is(&self, runtime: Id, clock: &Clock) -> bool {
        self.runtime == runtime && self.clock.is(clock)
    }
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// The number of the next watcher: one that goes must not strike out the one that follows it.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    unpoisoned(WATCHED.lock())
}

struct Watcher {
    number: u64,
    clock: Clock,
}

impl Watcher {
    fn place(&self, watched: &[Watched]) -> Option<usize> {
        watched.iter().position(|watched| watched.number == self.number)
    }

    /// Looks at `most` who go on, strikes out on the way who has ended, and gives those who go on; `None`, and the
    /// watcher goes from the list, with nobody left.
    fn members(&self, most: usize) -> Option<Vec<Arc<Control>>> {
        // Dropped after the lock: with the last reference goes code of the user.
        let mut ended = Vec::new();
        let mut watched = watched();
        let at = self.place(&watched)?;
        let Watched { members, next, .. } = &mut watched[at];
        if most >= members.len() {
            *next = 0;
        }
        let mut active = Vec::new();
        for _ in 0..members.len() {
            if active.len() == most {
                break;
            }
            if *next >= members.len() {
                *next = 0;
            }
            match members[*next].upgrade() {
                Some(control) if control.board.is_active() => {
                    active.push(control);
                    *next += 1;
                }
                gone => {
                    members.swap_remove(*next);
                    ended.extend(gone.inspect(|control| control.watched.store(false, Ordering::Relaxed)));
                }
            }
        }
        if members.is_empty() {
            watched.swap_remove(at);
            return None;
        }
        Some(active)
    }
}

impl Drop for Watcher {
    /// The runtime is shutting down: whoever goes on elsewhere is watched again when it starts there.
    fn drop(&mut self) {
        // Dropped after the lock: with the last reference goes code of the user.
        let members: Vec<Arc<Control>>;
        let mut watched = watched();
        let Some(at) = self.place(&watched) else { return };
        members = watched.swap_remove(at).members.iter().filter_map(Weak::upgrade).collect();
        for control in &members {
            control.watched.store(false, Ordering::Relaxed);
        }
    }
}

async fn look(watcher: Watcher) {
    let clock = watcher.clock.clone();
    let (mut now, mut wall) = (clock.now(), clock.wall());
    loop {
        tokio::time::sleep(EVERY).await;
        let (before, wall_before) = (now, wall);
        (now, wall) = (clock.now(), clock.wall());
        let passed = now.saturating_duration_since(before);
        let wall_passed = wall.duration_since(wall_before).unwrap_or_default();
        let suspended = wall_passed > passed.saturating_add(GAP);
        let Some(members) = watcher.members(if suspended { usize::MAX } else { AT_ONCE }) else { return };
        if suspended {
            for control in members {
                control.mailbox.post(Post::Check);
            }
        }
    }
}

/// Of a hundred thousand idle connections only these are touched in each look, to find who has ended. Those who have
/// are struck out beyond that number, so the list stays in proportion to who goes on.
const AT_ONCE: usize = 1_000;

/// A suspended machine is noticed this long after it woke, at the latest.
const EVERY: Duration = Duration::from_secs(5);

/// A smaller gap is a clock that was corrected.
const GAP: Duration = Duration::from_secs(10);
