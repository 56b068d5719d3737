//! What a supervisor publishes, and whose it is at the moment.
//!
//! Status and ownership change under one lock, so that whoever sees a terminal state can begin anew at once. Causes
//! hold errors of the user, so what is replaced is dropped after the lock is released.

use std::sync::Arc;
use std::time::Instant;

use super::control::Owner;
use super::error::Stopped;
use super::sync::{Counted, CountedWeak, Mutex, MutexGuard, Notify, unpoisoned};
use crate::machine::{Action, State, StopReason, Transition, WaitCause};
use crate::observe::{Cause, Status};

/// What was decided, and what stands on the board for it.
pub(super) struct Decision {
    pub(super) action: Action,
    pub(super) at: Instant,
    pub(super) state: State,
    pub(super) generation: u64,
    pub(super) attempt: u32,
    pub(super) deadline: Option<Instant>,
    pub(super) earliest: Option<Instant>,
    pub(super) wait: Option<WaitCause>,
    /// The event's own and, where it coincided, the drain's.
    pub(super) transitions: [Option<Transition>; 2],
}

pub(super) struct Board {
    posted: Mutex<Posted>,
}

struct Posted {
    status: Status,
    /// Counts what was published.
    version: u64,
    /// Counts how often supervision ended.
    stops: u64,
    activity: Activity,
    owner: CountedWeak<Owner>,
    bells: Bells,
}

/// Those who wait, if anybody does. Each bell is rung once; whoever goes on waiting hangs up another one.
#[derive(Default)]
struct Bells {
    /// Rung with the next published status.
    news: Option<Arc<Notify>>,
    /// Rung when a connection is announced and at a stop.
    arrivals: Option<Arc<Notify>>,
}

impl Bells {
    /// Takes down what is to be rung once the lock is released.
    fn take(&mut self, arrivals: bool) -> Self {
        Self { news: self.news.take(), arrivals: if arrivals { self.arrivals.take() } else { None } }
    }

    fn ring(self) {
        for bell in [self.news, self.arrivals].into_iter().flatten() {
            bell.notify_waiters();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Keep,
    Run,
}

/// In which case supervision ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum If {
    Always,
    NotStopped,
    /// It is kept, and the last link is gone.
    Unowned,
}

impl Board {
    pub(super) fn new(now: Instant) -> Self {
        let posted = Posted {
            status: Status::new(now),
            version: 0,
            stops: 0,
            activity: Activity::Idle,
            owner: CountedWeak::new(),
            bells: Bells::default(),
        };
        Self { posted: Mutex::new(posted) }
    }

    /// Makes the caller the one who runs it; `first` happens before anybody knows.
    pub(super) fn begin_run(&self, now: Instant, first: impl FnOnce()) -> Result<(), Stopped> {
        self.posted().begin(now, Activity::Run, first)
    }

    /// Gives the owner of what is kept, and whether the caller has to start its task.
    pub(super) fn begin_keep(
        &self,
        now: Instant,
        new_owner: impl FnOnce() -> Counted<Owner>,
        first: impl FnOnce(),
    ) -> Result<(Counted<Owner>, bool), Stopped> {
        let mut posted = self.posted();
        let begins = posted.activity != Activity::Keep;
        if begins {
            posted.begin(now, Activity::Keep, first)?;
        }
        let owner = posted.owner.upgrade().unwrap_or_else(new_owner);
        posted.owner = Counted::downgrade(&owner);
        Ok((owner, begins))
    }

    /// Publishes what was decided; `cause` is the failure that led to it.
    pub(super) fn publish(&self, decision: &Decision, cause: Option<Cause>) {
        let mut posted = self.posted();
        let mut replaced = None;
        match decision.action {
            Action::Continue => {
                if posted.status.stopped.is_some() || !posted.amend(decision) {
                    return;
                }
            }
            Action::Stop(reason) => replaced = posted.stop(decision.at, reason, cause),
            _ => {
                let status = &mut posted.status;
                if status.state != decision.state {
                    (status.state, status.since) = (decision.state, decision.at);
                }
                status.generation = decision.generation;
                if cause.is_some() {
                    replaced = std::mem::replace(&mut status.last_failure, cause);
                }
                posted.amend(decision);
            }
        }
        posted.version += 1;
        let bells = posted.bells.take(matches!(decision.action, Action::Serve { .. } | Action::Stop(_)));
        drop(posted);
        drop(replaced);
        bells.ring();
    }

    /// Ends supervision because its owner is gone; `first` happens before anybody can begin anew.
    pub(super) fn abandon<T>(&self, now: Instant, when: If, first: impl FnOnce() -> T) -> Option<T> {
        let mut posted = self.posted();
        let applies = match when {
            If::Always => true,
            If::NotStopped => posted.status.stopped.is_none(),
            If::Unowned => posted.activity == Activity::Keep && posted.owner.strong_count() == 0,
        };
        if !applies {
            return None;
        }
        let result = first();
        posted.stop(now, StopReason::Dropped, None);
        posted.version += 1;
        let bells = posted.bells.take(true);
        drop(posted);
        bells.ring();
        Some(result)
    }

    /// A report came too late.
    pub(super) fn ignore_report(&self) {
        self.posted().status.ignored_reports += 1;
    }

    pub(super) fn status(&self) -> Status {
        self.posted().status.clone()
    }

    pub(super) fn state(&self) -> State {
        self.posted().status.state
    }

    pub(super) fn generation(&self) -> u64 {
        self.posted().status.generation
    }

    /// The status, and which of all that were published it is.
    pub(super) fn versioned(&self) -> (u64, Status) {
        let posted = self.posted();
        (posted.version, posted.status.clone())
    }

    /// How often supervision has ended.
    pub(super) fn stops(&self) -> u64 {
        self.posted().stops
    }

    /// The same, if it is active: the end of the present one is the next.
    pub(super) fn stops_if_active(&self) -> Option<u64> {
        let posted = self.posted();
        (posted.activity != Activity::Idle).then_some(posted.stops)
    }

    pub(super) fn is_active(&self) -> bool {
        self.posted().activity != Activity::Idle
    }

    pub(super) fn stopped(&self) -> Option<Stopped> {
        stopped(&self.posted().status)
    }

    pub(super) fn last_failure(&self) -> Option<Cause> {
        self.posted().status.last_failure.clone()
    }

    /// Waits for what `look` finds in what is published.
    pub(super) async fn until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.wait(|bells| &mut bells.news, look).await
    }

    /// The same, for those who only want a connection or the end.
    pub(super) async fn until_arrival<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.wait(|bells| &mut bells.arrivals, look).await
    }

    async fn wait<T>(
        &self,
        bell: impl Fn(&mut Bells) -> &mut Option<Arc<Notify>>,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        if let Some(found) = look() {
            return found;
        }
        loop {
            let hung;
            let notified = {
                // Under the lock it listens before the bell can be rung, and it looks afterwards: nothing falls in between.
                let mut posted = self.posted();
                hung = Arc::clone(bell(&mut posted.bells).get_or_insert_with(|| Arc::new(Notify::new())));
                hung.notified()
            };
            if let Some(found) = look() {
                return found;
            }
            notified.await;
        }
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        unpoisoned(self.posted.lock())
    }
}

impl Posted {
    fn begin(&mut self, now: Instant, activity: Activity, first: impl FnOnce()) -> Result<(), Stopped> {
        if self.activity != Activity::Idle {
            return Err(Stopped::new(StopReason::Busy, None));
        }
        first();
        self.activity = activity;
        let Status { generation, ignored_reports, .. } = self.status;
        let last_failure = self.status.last_failure.take();
        self.status = Status { generation, last_failure, ignored_reports, ..Status::new(now) };
        Ok(())
    }

    /// Gives the cause that was replaced.
    fn stop(&mut self, now: Instant, reason: StopReason, cause: Option<Cause>) -> Option<Cause> {
        let Status { generation, attempt, ignored_reports, .. } = self.status;
        let older = self.status.last_failure.take();
        let (last_failure, replaced) = if cause.is_some() { (cause, older) } else { (older, None) };
        let (state, stopped) = (State::Stopped, Some(reason));
        self.status = Status { state, generation, attempt, last_failure, stopped, ignored_reports, ..Status::new(now) };
        self.activity = Activity::Idle;
        self.stops += 1;
        replaced
    }

    /// Puts up what changes also while the same action goes on, and tells whether it is new.
    fn amend(&mut self, decision: &Decision) -> bool {
        // What a live connection waits for is its forgiveness, which ends nothing.
        let until = if decision.state == State::Connected { None } else { decision.deadline };
        let new = (decision.attempt, until, decision.earliest, decision.wait);
        let Status { attempt, until, earliest, wait, .. } = &mut self.status;
        let old = (*attempt, *until, *earliest, *wait);
        (*attempt, *until, *earliest, *wait) = new;
        old != new
    }
}

/// The end that `status` tells of, if it does.
pub(super) fn stopped(status: &Status) -> Option<Stopped> {
    Some(Stopped::new(status.stopped?, status.last_failure.clone()))
}
