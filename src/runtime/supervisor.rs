//! What the user builds for one connection.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{ControlFlow, Deref};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::caught::Boxed;
use super::clock::Clock;
use super::connector::{BoxError, Connector};
use super::control::{Control, Observer, Parts};
use super::error::{BuildError, Stopped};
use super::gate::{Gate, Seat};
use super::handle::Handle;
use super::kept::Kept;
use super::link::{Link, Slot};
use super::session::{Lease, Session, Sessions};
use super::shell::Shell;
use super::sync::Ordering;
use crate::machine::{Policy, Transition};

/// Keeps one connection alive: dials, serves, and dials again after every loss, as its policy and its gate allow.
///
/// Used in one of two ways: [`run`](Self::run) lends the connection to a closure, [`keep`](Self::keep) shares it.
/// Either ends in a terminal state that says why; calling again is the way back.
pub struct Supervisor<C: Connector> {
    connector: Arc<C>,
    control: Membership,
    /// A `Slot<C>`, once `keep` was called: a connection that is not `Sync` cannot have one.
    slot: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Holds the place in the gate, which is given up when the supervisor and its links are gone.
pub(super) struct Membership(Arc<Control>);

impl Membership {
    fn new(control: Arc<Control>) -> Self {
        control.holders.fetch_add(1, Ordering::Relaxed);
        Self(control)
    }
}

impl Clone for Membership {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Deref for Membership {
    type Target = Arc<Control>;

    fn deref(&self) -> &Arc<Control> {
        &self.0
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.part();
        }
    }
}

impl<C: Connector> Supervisor<C> {
    /// A supervisor with the default policy and a gate of its own.
    #[must_use]
    pub fn new(connector: C) -> Self {
        Self::builder(connector).assemble()
    }

    /// Begins a supervisor with settings.
    pub fn builder(connector: C) -> SupervisorBuilder<C> {
        SupervisorBuilder {
            connector: Arc::new(connector),
            policy: default_policy(),
            gate: None,
            name: None,
            seed: None,
            clock: Clock::system(),
            observer: None,
        }
    }

    /// Dials, runs `session` with the connection, and again, until the session breaks or supervision ends.
    ///
    /// `Ok(Continue(()))` means that this session is over: dial again. `Ok(Break(value))` closes the connection and
    /// ends `run` with `value`. `Err` is a lost session; [`Connector::classify`] decides what follows. A panic is a lost
    /// session too.
    ///
    /// ```no_run
    /// # use std::ops::{ControlFlow, Deref};
    /// # use steadfast::{Connector, Lease, Session, Stopped, Supervisor};
    /// # async fn example<C: Connector<Connection = Vec<u8>>>(supervisor: Supervisor<C>) -> Result<(), Stopped> {
    /// let count = supervisor
    ///     .run(|connection: Lease<Vec<u8>>, session: Session| async move {
    ///         if connection.is_empty() {
    ///             return Err(std::io::Error::other("nothing to read"));
    ///         }
    ///         session.draining().await;
    ///         Ok(ControlFlow::Break(connection.len()))
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Stopped`] says why supervision ended; with `Busy` it is active elsewhere, and goes on there.
    ///
    /// # Panics
    ///
    /// When polled outside of a tokio runtime with a timer.
    ///
    /// # Cancel safety
    ///
    /// The future owns the connection: dropped, it drops dial, session and connection, and what it held of the gate
    /// passes on at once. `run` may be called again.
    pub async fn run<R, E, F, Fut>(&self, session: F) -> Result<R, Stopped>
    where
        F: FnMut(Lease<C::Connection>, Session) -> Fut + Send,
        Fut: Future<Output = Result<ControlFlow<R>, E>> + Send,
        E: Into<BoxError>,
        R: Send,
    {
        self.control.begin_run()?;
        let sessions = Sessions::new(Arc::clone(&self.control), Arc::clone(&self.connector), session);
        let mut shell = Shell::start(Arc::clone(&self.control), Arc::clone(&self.connector), sessions);
        let stopped = poll_fn(|cx| shell.poll_drive(cx)).await;
        shell.tenant.broke.take().ok_or(stopped)
    }

    /// Starts a task that keeps the connection, and gives a link to it; while it lives, another link to the same one.
    ///
    /// # Errors
    ///
    /// [`Stopped`] with `Busy` while [`run`](Self::run) is active.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with a timer.
    #[track_caller]
    pub fn keep(&self) -> Result<Link<C>, Stopped>
    where
        C::Connection: Sync,
    {
        let runtime = tokio::runtime::Handle::current();
        // A runtime without a timer panics here, where it is seen, and not in the task.
        drop(tokio::time::sleep(Duration::ZERO));
        let (link, task) = self.start_keep()?;
        if let Some(task) = task {
            runtime.spawn(task);
        }
        Ok(link)
    }

    /// The link, and the task behind it unless one runs already.
    pub(super) fn start_keep(&self) -> Result<(Link<C>, Option<impl Future<Output = Stopped> + Send + use<C>>), Stopped>
    where
        C::Connection: Sync,
    {
        let slot = self.slot();
        let (owner, begun) = self.control.begin_keep()?;
        let task = begun.then(|| {
            let kept = Kept {
                slot: Arc::clone(&slot),
                live: None,
                checking: Boxed::none(),
                looking: None,
                _membership: self.control.clone(),
            };
            let mut shell = Shell::start(Arc::clone(&self.control), Arc::clone(&self.connector), kept);
            poll_fn(move |cx| shell.poll_drive(cx))
        });
        Ok((Link::new(slot, owner), task))
    }

    /// Control and view. It owns nothing.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.control))
    }

    fn slot(&self) -> Arc<Slot<C>>
    where
        C::Connection: Sync,
    {
        let fresh = || Arc::new(Slot::new(Arc::clone(&self.control), Arc::clone(&self.connector)));
        let slot = Arc::clone(self.slot.get_or_init(|| fresh()));
        slot.downcast().unwrap_or_else(|_| fresh())
    }
}

/// One for all who set nothing.
fn default_policy() -> Arc<Policy> {
    static POLICY: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);
    Arc::clone(&POLICY)
}

impl<C: Connector> fmt::Debug for Supervisor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("control", &**self.control).finish_non_exhaustive()
    }
}

/// Settings of a [`Supervisor`]. A clone builds another one with the same connector and a generator of its own.
///
/// | setting | default |
/// |---|---|
/// | `policy` | [`Policy::default`] |
/// | `gate` | one of its own, with the curves of the policy |
/// | `name` | none |
/// | `seed` | from the operating system |
/// | `clock` | [`Clock::system`] |
/// | `on_transition` | nobody is told |
#[must_use = "nothing is dialled before build and then run or keep"]
pub struct SupervisorBuilder<C> {
    connector: Arc<C>,
    policy: Arc<Policy>,
    gate: Option<Gate>,
    name: Option<Arc<str>>,
    seed: Option<u64>,
    clock: Clock,
    observer: Option<Observer>,
}

impl<C> Clone for SupervisorBuilder<C> {
    fn clone(&self) -> Self {
        Self {
            connector: Arc::clone(&self.connector),
            policy: Arc::clone(&self.policy),
            gate: self.gate.clone(),
            name: self.name.clone(),
            seed: self.seed,
            clock: self.clock.clone(),
            observer: self.observer.clone(),
        }
    }
}

impl<C: Connector> SupervisorBuilder<C> {
    /// Sets every number.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Shares a gate with all the others that dial the same endpoint: while it is down, one of them probes.
    pub fn gate(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Sets the name in the `tracing` span.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Makes the random draws repeatable, for tests: the first run draws from a fork of
    /// `SmallRng::seed_from_u64(seed)`, each later one from a fork of what the last one left, and nothing else does. When
    /// a connection is checked after a suspend is one of these draws. Two supervisors with one seed draw alike: never for
    /// a fleet.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Tells `observer` every decision, in order and outside of any lock, on the task of the supervisor (the first one
    /// on the caller's of `keep`). It must not block; a panic in it is ignored.
    pub fn on_transition(mut self, observer: impl Fn(&Transition) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Makes the supervisor. It dials nothing yet.
    ///
    /// # Errors
    ///
    /// [`BuildError`]: a setting that cannot work, or a gate for another endpoint.
    pub fn build(self) -> Result<Supervisor<C>, BuildError> {
        self.policy.validate()?;
        if let Some(gate) = &self.gate {
            let connector = self.connector.endpoint();
            if !gate.serves(&connector) {
                return Err(BuildError::Endpoint { gate: gate.endpoint().clone(), connector });
            }
        }
        Ok(self.assemble())
    }

    fn assemble(self) -> Supervisor<C> {
        let Self { connector, policy, gate, name, seed, clock, observer } = self;
        let endpoint = connector.endpoint();
        let control = Control::new(Parts {
            gate: gate.map_or_else(|| Seat::own(Arc::clone(&policy)), Seat::Shared),
            policy,
            clock,
            credential: connector.credential(),
            span: tracing::info_span!("supervisor", name = name.as_deref(), endpoint = %endpoint),
            endpoint,
            observer,
            rng: seed.map_or_else(rand::make_rng, SmallRng::seed_from_u64),
        });
        Supervisor { connector, control: Membership::new(control), slot: OnceLock::new() }
    }
}

impl<C> fmt::Debug for SupervisorBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisorBuilder")
            .field("policy", &self.policy)
            .field("gate", &self.gate)
            .field("name", &self.name)
            .field("seed", &self.seed)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
