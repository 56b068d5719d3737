//! Notices that the machine was suspended: wall time went on, monotonic time did not.
//!
//! The connections of a suspended machine look alive for as long as nobody writes to them. One watcher for each tokio
//! runtime (and clock) compares the two every few seconds; the gap is no uptime, because the monotonic clock does not
//! contain it. A wall clock that is set back tells nothing, one that is set ahead costs a check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use tokio::runtime::{Handle, Id};

use super::clock::Clock;
use super::control::Control;
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
            watched.push(Watched { number, runtime: runtime.id(), clock: clock.clone(), members: vec![member] });
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

    /// Strikes out who has ended and gives the others; with nobody left, the watcher goes from the list.
    fn members(&self) -> Vec<Arc<Control>> {
        // Dropped after the lock: with the last reference goes code of the user.
        let mut ended = Vec::new();
        let mut watched = watched();
        let Some(at) = self.place(&watched) else { return Vec::new() };
        let mut active = Vec::new();
        watched[at].members.retain(|member| {
            let Some(control) = member.upgrade() else { return false };
            let keep = control.board.is_active();
            control.watched.store(keep, Ordering::Relaxed);
            if keep {
                active.push(control);
            } else {
                ended.push(control);
            }
            keep
        });
        if active.is_empty() {
            watched.swap_remove(at);
        }
        active
    }
}

impl Drop for Watcher {
    /// The runtime is shutting down: whoever goes on elsewhere is watched again when it starts there.
    fn drop(&mut self) {
        let mut watched = watched();
        let Some(at) = self.place(&watched) else { return };
        for control in watched.swap_remove(at).members.iter().filter_map(Weak::upgrade) {
            control.watched.store(false, Ordering::Relaxed);
        }
    }
}

async fn look(watcher: Watcher) {
    let clock = watcher.clock.clone();
    let mut rng: SmallRng = rand::make_rng();
    let (mut now, mut wall) = (clock.now(), clock.wall());
    loop {
        tokio::time::sleep(EVERY).await;
        let (before, wall_before) = (now, wall);
        (now, wall) = (clock.now(), clock.wall());
        let members = watcher.members();
        if members.is_empty() {
            return;
        }
        let passed = now.saturating_duration_since(before);
        let wall_passed = wall.duration_since(wall_before).unwrap_or_default();
        if wall_passed > passed.saturating_add(GAP) {
            for control in members {
                control.check(rng.random_range(Duration::ZERO..=control.policy.recovery_spread));
            }
        }
    }
}

/// A suspended machine is noticed this long after it woke, at the latest.
const EVERY: Duration = Duration::from_secs(5);

/// A smaller gap is a clock that was corrected.
const GAP: Duration = Duration::from_secs(10);
