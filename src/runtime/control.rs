//! What a running supervisor, its handles, links and sessions share: the machine, the mailbox, the status.
//!
//! Locks are taken in the order board, machine, gate. No code of the user runs under any of them, and nobody is woken.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tracing::Span;

use super::board::{Board, Decision, If};
use super::caught;
use super::clock::Clock;
use super::connector::BoxError;
use super::error::Stopped;
use super::gate::{Seat, Wakes};
use super::mailbox::{Mailbox, Post};
use super::suspend;
use super::sync::{AtomicU32, AtomicU64, Counted, Mutex, MutexGuard, Ordering, unpoisoned};
use crate::machine::{Action, Event, Failure, Lifecycle, Policy, State, StopReason, Transition, add};
use crate::observe::{Cause, Endpoint, Limiter, Line};

/// Whom every decision is told, outside of any lock.
pub(super) type Observer = Arc<dyn Fn(&Transition) + Send + Sync>;

pub(super) struct Control {
    pub(super) mailbox: Mailbox,
    pub(super) policy: Arc<Policy>,
    pub(super) clock: Clock,
    pub(super) board: Board,
    /// Its entry on the list of a watcher of suspends; changed under the watcher's lock.
    pub(super) watch: AtomicU64,
    /// How many hold the place in the gate.
    pub(super) holders: AtomicU32,
    gate: Seat,
    endpoint: Endpoint,
    /// There if a subscriber wants it.
    span: Option<Box<Span>>,
    observer: Option<Observer>,
    machine: Mutex<Machine>,
    /// Twice the number of the last dial, counted over all runs, and one more once it has reached the other side: of an
    /// older one that is no news.
    dial: AtomicU64,
}

struct Untold {
    transition: Transition,
    cause: Option<Cause>,
    due: Instant,
}

/// What the shell decides by, and what it is told along with a post.
struct Machine {
    lifecycle: Lifecycle,
    /// It has given up its place in the gate.
    parted: bool,
    /// Each run of the shell goes on with a fork.
    rng: SmallRng,
    /// What this connection may still log.
    limiter: Limiter<1>,
    /// The last line, if it was left out: told as soon as there is room, or the log would end with something that is
    /// over, or without the reason of a wait of minutes. Not the loss of a connection: what follows it says more. Nor a
    /// success that the gate had no room for: it is one of many, and each would wake to hear that there is still none.
    untold: Option<Box<Untold>>,
    /// What came with `Post::Report`: which generation broke, and why.
    report: Option<(u64, Cause)>,
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

/// What a supervisor is built from, apart from its connector.
pub(super) struct Parts {
    pub(super) policy: Arc<Policy>,
    pub(super) clock: Clock,
    pub(super) gate: Seat,
    pub(super) credential: u64,
    pub(super) endpoint: Endpoint,
    pub(super) span: Span,
    pub(super) observer: Option<Observer>,
    pub(super) rng: SmallRng,
}

impl Control {
    pub(super) fn new(parts: Parts) -> Arc<Self> {
        let Parts { policy, clock, gate, credential, endpoint, span, observer, rng } = parts;
        let member = gate.join(credential);
        let lifecycle = Lifecycle::new(Arc::clone(&policy), member);
        let limiter = Limiter::default();
        let machine = Machine { lifecycle, parted: false, rng, limiter, untold: None, report: None };
        let control = Arc::new(Self {
            mailbox: Mailbox::default(),
            policy,
            board: Board::new(clock.now()),
            clock,
            watch: AtomicU64::new(suspend::NOBODY),
            holders: AtomicU32::new(0),
            gate,
            endpoint,
            span: (!span.is_disabled()).then(|| Box::new(span)),
            observer,
            machine: Mutex::new(machine),
            dial: AtomicU64::new(0),
        });
        control.gate.register(member, &control);
        control
    }

    /// Why `step` failed.
    pub(super) fn cause(&self, step: &'static str, failure: Failure, source: impl Into<BoxError>) -> Cause {
        Cause::new(step, self.endpoint.clone(), failure, self.clock.now(), source.into())
    }

    // Beginning and ending.

    /// Gives the owner of the kept connection, and whether the caller has to start its task.
    pub(super) fn begin_keep(self: &Arc<Self>) -> Result<(Counted<Owner>, bool), Stopped> {
        let owner = || Counted::new(Owner { control: Arc::clone(self) });
        self.board.begin_keep(self.clock.now(), owner, || self.mailbox.clear())
    }

    /// Makes the caller the one who runs it.
    pub(super) fn begin_run(&self) -> Result<(), Stopped> {
        self.board.begin_run(self.clock.now(), || self.mailbox.clear())
    }

    /// A fork of the generator for this run, and a place in the gate if the last run lost it.
    pub(super) fn prepare(self: &Arc<Self>) {
        let mut machine = self.machine();
        machine.rng = machine.rng.fork();
        if std::mem::take(&mut machine.parted) {
            let member = self.gate.join(machine.lifecycle.member().credential);
            self.gate.register(member, self);
            let generation = machine.lifecycle.generation();
            machine.lifecycle = Lifecycle::new(Arc::clone(&self.policy), member).after_generation(generation);
        }
    }

    /// Ends a kept connection whose last link is gone, unless somebody asked for another link in the meantime.
    pub(super) fn end_if_unowned(&self) -> bool {
        self.abandon(If::Unowned)
    }

    /// The shell is gone: whatever it held passes on.
    pub(super) fn dropped(&self) {
        self.abandon(If::Always);
    }

    /// Leaves the gate: the supervisor and all that it ran are gone.
    pub(super) fn part(&self) {
        self.abandon(If::NotStopped);
        self.leave_gate(self.clock.now()).ring(&self.mailbox);
    }

    /// All is given back before anybody can begin anew.
    fn abandon(&self, when: If) -> bool {
        let now = self.clock.now();
        let wakes = self.board.abandon(now, when, || self.leave_gate(now));
        wakes.map(|wakes| wakes.ring(&self.mailbox)).is_some()
    }

    fn leave_gate(&self, now: Instant) -> Wakes {
        let mut machine = self.machine();
        if std::mem::replace(&mut machine.parted, true) {
            return Wakes::default();
        }
        self.gate.part(now, &mut machine.lifecycle)
    }

    // Deciding.

    /// Hands one event to the machine. The mark that the dial reached the other side, and a drain that coincides with
    /// it, go along: what is published afterwards is the outcome of all of them.
    pub(super) fn decide(&self, event: Event) -> Decision {
        let at = self.clock.now();
        let mut machine = self.machine();
        let Machine { lifecycle, rng, .. } = &mut *machine;
        let (transitions, wakes) = self.gate.call(|gate| {
            // A dial may reach the other side and fail in one poll: what it failed with depends on it.
            if self.mailbox.take(Post::Reached) && self.has_reached() {
                let _ = lifecycle.on_event(at, Event::Reached, gate, rng);
            }
            let own = lifecycle.decide(at, event, gate, rng);
            let drains = event != Event::Drain && self.mailbox.take(Post::Drain);
            [own, drains.then(|| lifecycle.decide(at, Event::Drain, gate, rng)).flatten()]
        });
        let last = transitions.iter().flatten().last();
        let decision = Decision {
            action: last.map_or(Action::Continue, |transition| transition.action),
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
        wakes.ring(&self.mailbox);
        decision
    }

    /// Publishes what was decided, then tells observer and log; `cause` is the failure that led to it.
    pub(super) fn publish(&self, decision: &Decision, mut cause: Option<Cause>) {
        let dialled = decision.transitions.iter().flatten().any(|transition| transition.from == State::Connecting);
        if let Some(cause) = cause.as_ref().filter(|_| dialled) {
            self.gate.note_failure(cause);
        }
        if decision.action == Action::Stop(StopReason::GaveUp) && cause.is_none() {
            cause = self.last_failure();
        }
        self.board.publish(decision, cause.clone());
        for transition in decision.transitions.iter().flatten() {
            if let Some(observer) = &self.observer {
                // A panic of the observer is its own affair: the hook has told it, the connection goes on.
                let _ = caught::call(|| observer(transition));
            }
        }
        if let Some(transition) = decision.transitions.iter().flatten().rfind(|transition| Line::is_due(transition)) {
            self.write(transition, cause.as_ref());
        }
        self.write_untold(decision.at);
    }

    /// Its own last failure, or that of whoever it waits behind.
    pub(super) fn last_failure(&self) -> Option<Cause> {
        self.board.last_failure().or_else(|| self.gate.last_failure())
    }

    /// Logs, unless this connection or its gate has said enough for now.
    fn write(&self, transition: &Transition, cause: Option<&Cause>) {
        let now = transition.at;
        let (told, older) = {
            let mut own = self.machine();
            let older = own.untold.take();
            let too_soon = own.limiter.is_full(now);
            let told = if too_soon { None } else { self.gate.admit_line(now) };
            let told = match told {
                Some(gate_suppressed) => Some((own.limiter.write(now), gate_suppressed)),
                None => {
                    own.limiter.suppress();
                    let says_more = too_soon || cause.is_some();
                    let outcome = transition.from == State::Connecting && !matches!(transition.action, Action::Stop(_));
                    if says_more && outcome {
                        let (transition, cause) = (*transition, cause.cloned());
                        own.untold = Some(Box::new(Untold { transition, cause, due: add(now, LINE_WAIT) }));
                    }
                    None
                }
            };
            (told, older)
        };
        // Errors are the user's: dropped after the lock is released.
        drop(older);
        if let Some((suppressed, gate_suppressed)) = told {
            // Else a connection that is lost within a second of each success would never say why.
            let untold = if suppressed > 0 && cause.is_none() { self.board.last_failure() } else { None };
            self.write_line(&Line { transition, cause, untold: untold.as_ref(), suppressed, gate_suppressed });
        }
    }

    /// Whoever listens formats errors of the user: a panic there is its own affair.
    fn write_line(&self, line: &Line<'_>) {
        let _ = caught::call(|| line.write(self.span.as_deref()));
    }

    /// When the machine has to be asked again, or there may be room for the line that was left out.
    pub(super) fn due(&self) -> Option<Instant> {
        let machine = self.machine();
        let line = machine.untold.as_ref().map(|untold| untold.due);
        machine.lifecycle.deadline().into_iter().chain(line).min()
    }

    /// Tells what was left out, if it is still the last that happened and there is room by now.
    fn write_untold(&self, now: Instant) {
        let (told, untold) = {
            let mut own = self.machine();
            if own.untold.as_ref().is_none_or(|untold| now < untold.due) {
                return;
            }
            let Some(mut untold) = own.untold.take() else { return };
            let room = if own.limiter.is_full(now) { None } else { self.gate.admit_line(now) };
            if room.is_none() && untold.cause.is_some() {
                // A success is one of many; a failure may be the reason of all.
                untold.due = add(now, LINE_WAIT);
                own.untold = Some(untold);
                return;
            }
            (room.map(|gate_suppressed| (own.limiter.write(now), gate_suppressed)), untold)
        };
        if let Some((suppressed, gate_suppressed)) = told {
            let (transition, cause) = (Transition { at: now, ..untold.transition }, untold.cause.as_ref());
            // It was counted itself.
            let suppressed = suppressed.saturating_sub(1);
            self.write_line(&Line { transition: &transition, cause, untold: None, suppressed, gate_suppressed });
        }
    }

    // What lies beside the mailbox.

    /// Tells the machine at once: it decides nothing. What a session says of another generation than its own is no
    /// news.
    pub(super) fn advise(&self, generation: u64, spread: Duration) {
        let at = self.clock.now();
        let mut machine = self.machine();
        let Machine { lifecycle, rng, .. } = &mut *machine;
        if lifecycle.generation() != generation {
            return;
        }
        let (_, wakes) = self.gate.call(|gate| lifecycle.on_event(at, Event::Advised(spread), gate, rng));
        drop(machine);
        wakes.ring(&self.mailbox);
    }

    /// The machine was suspended: after which wait the live connection is checked, from the supervisor's own generator,
    /// so that one seed repeats that too.
    pub(super) fn draw_check(&self) -> Duration {
        self.machine().rng.random_range(Duration::ZERO..=self.policy.recovery_spread)
    }

    /// The number of a dial that begins. Only whoever runs the shell begins one.
    pub(super) fn next_dial(&self) -> u64 {
        let number = self.dial.load(Ordering::Relaxed) / 2 + 1;
        self.dial.store(2 * number, Ordering::Relaxed);
        number
    }

    pub(super) fn reach(&self, dial: u64) {
        if self.dial.compare_exchange(2 * dial, 2 * dial + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.mailbox.post(Post::Reached);
        }
    }

    pub(super) fn has_reached(&self) -> bool {
        self.dial.load(Ordering::Relaxed) % 2 == 1
    }

    /// Of two reports that nobody has taken yet the younger generation's counts: only that one can be live.
    pub(super) fn report(&self, generation: u64, cause: Cause) {
        // Dropped after the lock is released: errors are the user's.
        let mut report = Some((generation, cause));
        let mut machine = self.machine();
        if machine.report.as_ref().is_none_or(|(other, _)| *other < generation) {
            std::mem::swap(&mut machine.report, &mut report);
        }
        drop(machine);
        if report.is_some() {
            self.board.ignore_report();
        }
        self.mailbox.post(Post::Report);
    }

    pub(super) fn take_report(&self) -> Option<(u64, Cause)> {
        self.machine().report.take()
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        unpoisoned(self.machine.lock())
    }
}

/// How long a line that was left out waits for room: the share of a connection is one a second.
const LINE_WAIT: Duration = Duration::from_secs(1);

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("endpoint", &self.endpoint).field("status", &self.board.status()).finish()
    }
}
