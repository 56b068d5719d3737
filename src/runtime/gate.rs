//! The gate that supervisors share.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::clock::Clock;
use super::control::Control;
use super::error::BuildError;
use super::mailbox::{Mailbox, Post};
use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, unpoisoned};
use crate::machine::{self, GateStatus, Lifecycle, Member, Mode, Policy};
use crate::observe::{Cause, Endpoint, Limiter};

/// What all who dial one endpoint share: breaker and pacer of dials in one window. Cheap to clone.
///
/// While the endpoint is down, one supervisor of the gate probes it and the others wait; when it is back, they return
/// one after the other. A supervisor without a gate gets one of its own, which does the same for it alone.
///
/// Its curves (and so how long it stays shut) come from the policy given here; spreads, deadlines and give-up from the
/// policy of each supervisor.
///
/// ```
/// use std::num::NonZeroUsize;
/// use steadfast::{Gate, Policy};
///
/// let gate = Gate::builder("wss://feed.example:443")
///     .policy(Policy::default())
///     .max_in_flight(NonZeroUsize::new(16).unwrap())
///     .build()?;
/// assert!(!gate.is_closed(), "a new gate lets one through and looks how it fares");
/// # Ok::<(), steadfast::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    /// What the gate was built for comes first.
    endpoints: Vec<Endpoint>,
    clock: Clock,
    /// Whether the mode is `Closed`, for those who only want to know that.
    closed: AtomicBool,
    state: Mutex<State>,
    log: Mutex<Limiter<10>>,
    /// Why the last of its attempts failed that did.
    last_failure: Mutex<Option<Cause>>,
}

struct State {
    machine: machine::Gate,
    members: HashMap<u64, Weak<Control>>,
}

impl Gate {
    /// Begins a gate for `endpoint`, as configured: scheme, host list, port.
    pub fn builder(endpoint: impl Into<Endpoint>) -> GateBuilder {
        GateBuilder {
            endpoints: vec![endpoint.into()],
            policy: Policy::default(),
            max_in_flight: None,
            clock: Clock::system(),
        }
    }

    /// The policy is valid.
    fn new(endpoints: Vec<Endpoint>, policy: Arc<Policy>, max_in_flight: Option<NonZeroUsize>, clock: Clock) -> Self {
        let mut machine = machine::Gate::new(policy);
        if let Some(limit) = max_in_flight {
            machine.set_max_in_flight(limit);
        }
        Self(Arc::new(Inner {
            endpoints,
            clock,
            closed: AtomicBool::new(false),
            state: Mutex::new(State { machine, members: HashMap::new() }),
            log: Mutex::new(Limiter::new()),
            last_failure: Mutex::new(None),
        }))
    }

    /// What it is a gate for.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoints[0]
    }

    /// What an operator wants to see: mode, until when, why, waiters, pace, epoch.
    #[must_use]
    pub fn status(&self) -> GateStatus {
        // Before the lock: a clock is code of the user.
        let now = self.0.clock.now();
        let guard = self.state();
        let status = guard.machine.status(now);
        self.0.closed.store(status.mode == Mode::Closed, Ordering::Release);
        status
    }

    /// Why the last attempt failed that any of its connections made, also if the outage is over: those who wait for the
    /// gate have no failure of their own.
    #[must_use]
    pub fn last_failure(&self) -> Option<Cause> {
        self.failure().clone()
    }

    fn failure(&self) -> MutexGuard<'_, Option<Cause>> {
        unpoisoned(self.0.last_failure.lock())
    }

    /// Whether it is closed, that is, whether everybody may dial: one load. It is as of the last call to the gate.
    #[must_use]
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    pub(super) fn serves(&self, endpoint: &Endpoint) -> bool {
        // Of two connectors that do not say what they dial nobody knows whether it is the same.
        !endpoint.is_unnamed() && self.0.endpoints.contains(endpoint)
    }

    /// Every call that may wake somebody or change the mode goes through here.
    fn call<T>(&self, call: impl FnOnce(&mut machine::Gate) -> T) -> (T, Wakes) {
        let mut guard = self.state();
        let State { machine, members } = &mut *guard;
        let result = call(machine);
        let others = machine.wakes().filter_map(|id| members.get(&id)?.upgrade()).collect();
        self.0.closed.store(machine.is_closed(), Ordering::Release);
        (result, Wakes { others, own: false })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.0.state.lock())
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("endpoint", self.endpoint()).field("status", &self.status()).finish()
    }
}

/// Where one connection asks for leave to dial: a gate that is shared, or one of its own, which has nobody to know, to
/// wake or to limit but the connection itself.
pub(super) enum Seat {
    Own(Box<Mutex<machine::Gate>>),
    Shared(Gate),
}

impl Seat {
    pub(super) fn own(policy: Arc<Policy>) -> Self {
        Self::Own(Box::new(Mutex::new(machine::Gate::new(policy))))
    }

    /// Attaches a connection, which `register` makes known afterwards.
    pub(super) fn join(&self, credential: u64) -> Member {
        match self {
            Self::Own(gate) => unpoisoned(gate.lock()).join(credential),
            Self::Shared(gate) => gate.state().machine.join(credential),
        }
    }

    pub(super) fn register(&self, member: Member, control: &Arc<Control>) {
        if let Self::Shared(gate) = self {
            gate.state().members.insert(member.id, Arc::downgrade(control));
        }
    }

    /// Gives back whatever a connection holds, and detaches it.
    pub(super) fn part(&self, now: Instant, lifecycle: &mut Lifecycle) -> Wakes {
        if let Self::Shared(gate) = self {
            gate.state().members.remove(&lifecycle.member().id);
        }
        self.call(|gate| lifecycle.abandon(now, gate)).1
    }

    /// Calls the machine. Whom that wakes is drained under the same lock, and rung by the caller after every lock is
    /// released.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut machine::Gate) -> T) -> (T, Wakes) {
        match self {
            Self::Own(gate) => {
                let mut gate = unpoisoned(gate.lock());
                let result = call(&mut gate);
                let own = gate.wakes().count() > 0;
                (result, Wakes { others: Vec::new(), own })
            }
            Self::Shared(gate) => gate.call(call),
        }
    }

    /// Room in the gate's share of the log; how many lines were left out before this one. A connection alone writes
    /// less than that in any case.
    pub(super) fn admit_line(&self, now: Instant) -> Option<u64> {
        let Self::Shared(gate) = self else { return Some(0) };
        let mut log = unpoisoned(gate.0.log.lock());
        if log.is_full(now) {
            log.suppress();
            return None;
        }
        Some(log.write(now))
    }

    pub(super) fn note_failure(&self, cause: &Cause) {
        if let Self::Shared(gate) = self {
            // Dropped after the lock is released: errors are the user's.
            let _older = gate.failure().replace(cause.clone());
        }
    }

    pub(super) fn last_failure(&self) -> Option<Cause> {
        match self {
            Self::Own(_) => None,
            Self::Shared(gate) => gate.last_failure(),
        }
    }
}

/// Who is to ask the gate again.
#[derive(Default)]
#[must_use = "whoever is not woken waits until its deadline"]
pub(super) struct Wakes {
    others: Vec<Arc<Control>>,
    /// Whoever called is alone with its gate.
    own: bool,
}

impl Wakes {
    pub(super) fn ring(self, own: &Mailbox) {
        if self.own {
            own.post(Post::Turned);
        }
        for control in self.others {
            control.mailbox.post(Post::Turned);
        }
    }
}

/// Settings of a [`Gate`].
#[derive(Clone, Debug)]
pub struct GateBuilder {
    endpoints: Vec<Endpoint>,
    policy: Policy,
    max_in_flight: Option<NonZeroUsize>,
    clock: Clock,
}

impl GateBuilder {
    /// Sets the curves of the gate. Default: [`Policy::default`].
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets how many attempts may be under way at once, in every mode. Default: no bound of its own; a healthy server
    /// is asked by everybody who lost a connection, after a draw.
    #[must_use]
    pub const fn max_in_flight(mut self, limit: NonZeroUsize) -> Self {
        self.max_in_flight = Some(limit);
        self
    }

    /// Lets supervisors of another endpoint share the gate: for names that lead to the same server.
    #[must_use]
    pub fn also_serves(mut self, endpoint: impl Into<Endpoint>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Sets the clock. Default: [`Clock::system`]. It has to be that of the supervisors.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the gate.
    ///
    /// # Errors
    ///
    /// [`BuildError::Policy`] names the setting that cannot work.
    pub fn build(self) -> Result<Gate, BuildError> {
        self.policy.validate()?;
        Ok(Gate::new(self.endpoints, Arc::new(self.policy), self.max_in_flight, self.clock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::connector::connector_fn;
    use crate::{Attempt, BoxError, Supervisor};

    #[test]
    fn a_gate_knows_nobody_who_is_gone() {
        let gate = Gate::builder("test://server:1").build().unwrap();
        let connector = || connector_fn("test://server:1", |_: Attempt| async { Err::<(), BoxError>("down".into()) });
        let all: Vec<_> = (0..10).map(|_| Supervisor::builder(connector()).gate(&gate).build().unwrap()).collect();
        assert_eq!(gate.state().members.len(), 10);
        drop(all);
        assert_eq!(gate.state().members.len(), 0);
    }
}
