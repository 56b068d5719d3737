//! What a running supervisor, its handles, links and sessions share: the machine, the mailbox, the status.
//!
//! Locks are taken in the order board, machine, gate. No code of the user runs under any of them, and nobody is woken.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::Notify;
use tracing::Span;

use super::caught;
use super::clock::Clock;
use super::connector::BoxError;
use super::error::Stopped;
use super::gate::{Gate, Wakes};
use super::mailbox::{Mailbox, Post};
use crate::machine::{Action, Event, Failure, Lifecycle, Member, Policy, State, StopReason, Transition, WaitCause};
use crate::observe::{Cause, Endpoint, Limiter, Line, Status};

/// Whom every decision is told, outside of any lock.
pub(super) type Observer = Arc<dyn Fn(&Transition) + Send + Sync>;

pub(super) struct Control {
    pub(super) mailbox: Mailbox,
    pub(super) policy: Arc<Policy>,
    pub(super) clock: Clock,
    /// Whether the watcher of suspends has it on its list; changed under the watcher's lock.
    pub(super) watched: AtomicBool,
    gate: Gate,
    credential: u64,
    endpoint: Endpoint,
    span: Span,
    observer: Option<Observer>,
    machine: Mutex<Machine>,
    board: Mutex<Board>,
    /// Rung with every published status.
    news: Notify,
    /// Rung when a connection is announced and at a stop.
    arrivals: Notify,
    log: Mutex<Log>,
    /// What came with `Post::Advised`, in nanoseconds.
    advice: AtomicU64,
    /// What came with `Post::Check`: after how long, in nanoseconds.
    check_after: AtomicU64,
    /// What came with `Post::Reached`: which dial.
    reached: AtomicU64,
    /// What came with `Post::Report`: which generation broke, and why.
    report: Mutex<Option<(u64, Cause)>>,
}

struct Machine {
    lifecycle: Lifecycle,
    /// Its place in the gate, until it parts.
    member: Option<Member>,
    /// Each run of the shell gets a fork.
    seed: SmallRng,
    rng: SmallRng,
}

/// What is published.
struct Board {
    status: Status,
    /// Counts what was published.
    version: u64,
    /// Counts how often supervision ended.
    stops: u64,
    activity: Activity,
    owner: Weak<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Keep,
    Run,
}

#[derive(Default)]
struct Log {
    limiter: Limiter<1>,
    suppressed: u64,
}

/// What the links of a kept connection own together: with the last of them it ends.
pub(super) struct Owner {
    control: Arc<Control>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.control.mailbox.post(Post::Dropped);
    }
}

/// What was decided, and what stands on the board for it.
pub(super) struct Decision {
    pub(super) action: Action,
    pub(super) deadline: Option<Instant>,
    at: Instant,
    state: State,
    generation: u64,
    attempt: u32,
    earliest: Option<Instant>,
    wait: Option<WaitCause>,
    /// The event's own and, where it coincided, the drain's.
    transitions: [Option<Transition>; 2],
}

/// What a supervisor is built from, apart from its connector.
pub(super) struct Parts {
    pub(super) policy: Arc<Policy>,
    pub(super) clock: Clock,
    pub(super) gate: Gate,
    pub(super) credential: u64,
    pub(super) endpoint: Endpoint,
    pub(super) span: Span,
    pub(super) observer: Option<Observer>,
    pub(super) rng: SmallRng,
}

impl Control {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { policy, clock, gate, credential, endpoint, span, observer, mut rng } = parts;
        let member = gate.join(credential);
        let lifecycle = Lifecycle::new(Arc::clone(&policy), member);
        let machine = Machine { lifecycle, member: Some(member), rng: rng.fork(), seed: rng };
        let board = Board {
            status: Status::new(clock.now()),
            version: 0,
            stops: 0,
            activity: Activity::Idle,
            owner: Weak::new(),
        };
        let control = Arc::new(Self {
            mailbox: Mailbox::default(),
            policy,
            clock,
            watched: AtomicBool::new(false),
            gate,
            credential,
            endpoint,
            span,
            observer,
            machine: Mutex::new(machine),
            board: Mutex::new(board),
            news: Notify::new(),
            arrivals: Notify::new(),
            log: Mutex::default(),
            advice: AtomicU64::new(0),
            check_after: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            report: Mutex::new(None),
        });
        control.gate.register(member, Arc::downgrade(&control));
        control
    }

    /// Leaves the gate: the supervisor and all that it ran are gone.
    pub(super) fn part(&self) {
        let board = self.board();
        if board.status.stopped.is_none() {
            self.abandon(board);
        } else {
            drop(board);
            self.leave_gate().ring();
        }
    }

    /// Why `step` failed.
    pub(super) fn cause(&self, step: &'static str, failure: Failure, source: impl Into<BoxError>) -> Cause {
        Cause::new(step, self.endpoint.clone(), failure, self.clock.now(), source.into())
    }

    // Beginning and ending.

    /// Makes the caller the one who runs it.
    pub(super) fn begin_run(&self) -> Result<(), Stopped> {
        self.begin(&mut self.board(), Activity::Run)
    }

    /// Gives the owner of the kept connection, and whether the caller has to start its task.
    pub(super) fn begin_keep(self: &Arc<Self>) -> Result<(Arc<Owner>, bool), Stopped> {
        let mut board = self.board();
        let begun = match board.activity {
            Activity::Keep => false,
            Activity::Idle | Activity::Run => {
                self.begin(&mut board, Activity::Keep)?;
                true
            }
        };
        let owner = board.owner.upgrade().unwrap_or_else(|| Arc::new(Owner { control: Arc::clone(self) }));
        board.owner = Arc::downgrade(&owner);
        Ok((owner, begun))
    }

    fn begin(&self, board: &mut Board, activity: Activity) -> Result<(), Stopped> {
        if board.activity != Activity::Idle {
            return Err(Stopped { reason: StopReason::Busy, cause: None });
        }
        board.activity = activity;
        let Status { generation, last_failure, ignored_reports, .. } = board.status.clone();
        board.status = Status { generation, last_failure, ignored_reports, ..Status::new(self.clock.now()) };
        self.mailbox.clear();
        Ok(())
    }

    /// A fork of the generator for this run, and a place in the gate if the last run lost it.
    pub(super) fn prepare(self: &Arc<Self>) {
        let mut machine = self.machine();
        machine.rng = machine.seed.fork();
        if machine.member.is_none() {
            let member = self.gate.join(self.credential);
            self.gate.register(member, Arc::downgrade(self));
            let generation = machine.lifecycle.generation();
            machine.lifecycle = Lifecycle::new(Arc::clone(&self.policy), member).after_generation(generation);
            machine.member = Some(member);
        }
    }

    /// Ends a kept connection whose last link is gone, unless somebody asked for another link in the meantime.
    pub(super) fn end_if_unowned(&self) -> bool {
        let board = self.board();
        let unowned = board.activity == Activity::Keep && board.owner.strong_count() == 0;
        if unowned {
            self.abandon(board);
        }
        unowned
    }

    /// The shell is gone: whatever it held passes on.
    pub(super) fn dropped(&self) {
        self.abandon(self.board());
    }

    /// Under the board's lock, so that nobody begins anew before all is given back.
    fn abandon(&self, board: MutexGuard<'_, Board>) {
        let wakes = self.leave_gate();
        self.publish_stop(board, StopReason::Dropped, None);
        wakes.ring();
    }

    fn leave_gate(&self) -> Wakes {
        let mut machine = self.machine();
        let Machine { lifecycle, member, .. } = &mut *machine;
        member.take().map_or_else(Wakes::default, |member| self.gate.part(self.clock.now(), member, lifecycle))
    }

    /// Publishes the end.
    pub(super) fn stop(&self, reason: StopReason, cause: Option<Cause>) {
        self.publish_stop(self.board(), reason, cause);
    }

    fn publish_stop(&self, mut board: MutexGuard<'_, Board>, reason: StopReason, cause: Option<Cause>) {
        let Status { generation, attempt, last_failure, ignored_reports, .. } = board.status.clone();
        board.status = Status {
            state: State::Stopped,
            generation,
            attempt,
            last_failure: cause.or(last_failure),
            stopped: Some(reason),
            ignored_reports,
            ..Status::new(self.clock.now())
        };
        board.activity = Activity::Idle;
        board.version += 1;
        board.stops += 1;
        drop(board);
        self.news.notify_waiters();
        self.arrivals.notify_waiters();
    }

    // Deciding.

    /// Hands one event to the machine. Advice that was given before it, and a drain that coincides with it, go along:
    /// what is published afterwards is the outcome of all of them.
    pub(super) fn decide(&self, event: Event) -> Decision {
        let at = self.clock.now();
        let mut machine = self.machine();
        let Machine { lifecycle, rng, .. } = &mut *machine;
        let mut transitions = [None, None];
        let (action, wakes) = self.gate.call(at, |gate| {
            if self.mailbox.take(Post::Advised) {
                let _ = lifecycle.on_event(at, Event::Advised(self.advice()), gate, rng);
            }
            let action = lifecycle.on_event(at, event, gate, rng);
            transitions[0] = lifecycle.take_transition();
            if event == Event::Drain || !self.mailbox.take(Post::Drain) {
                return action;
            }
            let drained = lifecycle.on_event(at, Event::Drain, gate, rng);
            transitions[1] = lifecycle.take_transition();
            if drained == Action::Continue { action } else { drained }
        });
        let decision = Decision {
            action,
            at,
            transitions,
            deadline: lifecycle.deadline(),
            state: lifecycle.state(),
            generation: lifecycle.generation(),
            attempt: lifecycle.attempt(),
            earliest: lifecycle.earliest_attempt(),
            wait: lifecycle.wait_cause(),
        };
        drop(machine);
        wakes.ring();
        decision
    }

    /// Publishes what was decided, then tells observer and log; `cause` is the failure that led to it.
    pub(super) fn publish(&self, decision: &Decision, cause: Option<Cause>) {
        match decision.action {
            Action::Continue => self.amend(decision),
            Action::Stop(reason) => self.stop(reason, cause.clone()),
            _ => self.put_up(decision, cause.clone()),
        }
        for transition in decision.transitions.iter().flatten() {
            if let Some(observer) = &self.observer {
                // A panic of the observer is its own affair: the hook has told it, the connection goes on.
                let _ = caught::call(|| observer(transition));
            }
        }
        if let Some(transition) = decision.transitions.iter().flatten().rfind(|transition| Line::is_due(transition)) {
            self.write(transition, cause.as_ref());
        }
    }

    fn put_up(&self, decision: &Decision, cause: Option<Cause>) {
        let mut board = self.board();
        let status = &mut board.status;
        if status.state != decision.state {
            status.since = decision.at;
        }
        status.state = decision.state;
        status.generation = decision.generation;
        if cause.is_some() {
            status.last_failure = cause;
        }
        board.amend(decision);
        board.version += 1;
        drop(board);
        self.news.notify_waiters();
        if matches!(decision.action, Action::Serve { .. }) {
            self.arrivals.notify_waiters();
        }
    }

    /// The same action goes on, but until another instant.
    fn amend(&self, decision: &Decision) {
        let mut board = self.board();
        if board.status.stopped.is_none() && board.amend(decision) {
            board.version += 1;
            drop(board);
            self.news.notify_waiters();
        }
    }

    fn write(&self, transition: &Transition, cause: Option<&Cause>) {
        let stands_for = {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.limiter.is_full(transition.at) || !self.gate.admits_line(transition.at) {
                log.suppressed += 1;
                return;
            }
            log.limiter.admit(transition.at);
            std::mem::take(&mut log.suppressed)
        };
        Line { transition, cause, suppressed: stands_for }.write(&self.span);
    }

    // What lies beside the mailbox.

    pub(super) fn advise(&self, spread: Duration) {
        self.advice.store(nanos(spread), Ordering::Relaxed);
        self.mailbox.post(Post::Advised);
    }

    pub(super) fn advice(&self) -> Duration {
        Duration::from_nanos(self.advice.load(Ordering::Relaxed))
    }

    pub(super) fn check(&self, after: Duration) {
        self.check_after.store(nanos(after), Ordering::Relaxed);
        self.mailbox.post(Post::Check);
    }

    pub(super) fn check_after(&self) -> Duration {
        Duration::from_nanos(self.check_after.load(Ordering::Relaxed))
    }

    pub(super) fn reach(&self, dial: u64) {
        self.reached.fetch_max(dial, Ordering::Relaxed);
        self.mailbox.post(Post::Reached);
    }

    pub(super) fn has_reached(&self, dial: u64) -> bool {
        self.reached.load(Ordering::Relaxed) == dial
    }

    pub(super) fn report(&self, generation: u64, cause: Cause) {
        *self.reports() = Some((generation, cause));
        self.mailbox.post(Post::Report);
    }

    pub(super) fn take_report(&self) -> Option<(u64, Cause)> {
        self.reports().take()
    }

    /// A report came too late.
    pub(super) fn ignore_report(&self) {
        self.board().status.ignored_reports += 1;
    }

    // What others see.

    pub(super) fn status(&self) -> Status {
        self.board().status.clone()
    }

    pub(super) fn state(&self) -> State {
        self.board().status.state
    }

    /// The status, and which of all that were published it is.
    pub(super) fn versioned(&self) -> (u64, Status) {
        let board = self.board();
        (board.version, board.status.clone())
    }

    /// How often supervision has ended, and whether it is active.
    pub(super) fn stops(&self) -> (u64, bool) {
        let board = self.board();
        (board.stops, board.activity != Activity::Idle)
    }

    pub(super) fn is_active(&self) -> bool {
        self.stops().1
    }

    pub(super) fn stopped(&self) -> Option<Stopped> {
        stopped(&self.board().status)
    }

    pub(super) fn last_failure(&self) -> Option<Cause> {
        self.board().status.last_failure.clone()
    }

    pub(super) const fn news(&self) -> &Notify {
        &self.news
    }

    pub(super) const fn arrivals(&self) -> &Notify {
        &self.arrivals
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reports(&self) -> MutexGuard<'_, Option<(u64, Cause)>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
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
    let reason = status.stopped?;
    let failed = matches!(reason, StopReason::GaveUp | StopReason::Permanent);
    Some(Stopped { reason, cause: status.last_failure.clone().filter(|_| failed) })
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("endpoint", &self.endpoint).field("status", &self.status()).finish()
    }
}
