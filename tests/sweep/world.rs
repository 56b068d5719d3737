//! What every run of a sweep begins with, and what has to hold after it.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::machine::{Action, GateStatus};
use steadfast::{
    Attempt, BoxError, Connector, Ended, Endpoint, Failure, Gate, Lease, Link, Policy, Session, StopReason, Supervisor,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Answer, Conn, Dialler, ENDPOINT, Manner, Server, lock, ms, plain, secs};
use crate::cut::{Cut, for_each_cut};

/// Sweeps a scenario, each run in a paused runtime of its own; after each, no task is left.
pub(crate) fn sweep<Fut: Future<Output = bool>>(name: &str, scenario: impl Fn(Cut) -> Fut) -> usize {
    for_each_cut(name, |cut| in_paused_time(scenario(cut)))
}

/// Runs `scenario` and asserts that it leaves no task behind.
pub(crate) fn in_paused_time<T>(scenario: impl Future<Output = T>) -> T {
    paused().block_on(async {
        let outcome = scenario.await;
        // The watcher of suspends is one task for the whole runtime; it looks every 5 s whether anybody is left.
        sleep(secs(6)).await;
        let tasks = Handle::current().metrics().num_alive_tasks();
        assert_eq!(tasks, 0, "tasks are left behind");
        outcome
    })
}

pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime of one thread")
}

/// A gate, the server of those under test, and that of whoever comes after them.
pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) next: Arc<Server>,
    pub(crate) gate: Gate,
    ended: Arc<Mutex<Option<StopReason>>>,
    /// When the last dial of those under test was begun.
    begun: Arc<Mutex<Option<Instant>>>,
}

impl World {
    pub(crate) fn new(answers: impl Into<Vec<Answer>>) -> Self {
        let gate = Gate::builder(ENDPOINT).policy(plain()).build().expect("a valid policy");
        Self {
            server: Server::answers(answers),
            next: Server::healthy(),
            gate,
            ended: Arc::default(),
            begun: Arc::default(),
        }
    }

    /// The one whose futures are dropped.
    pub(crate) fn supervisor(&self, policy: Policy) -> Supervisor<Steps> {
        let (ended, begun) = (Arc::clone(&self.ended), Arc::clone(&self.begun));
        Supervisor::builder(Steps(self.server.connector()))
            .policy(policy)
            .gate(&self.gate)
            .seed(7)
            .on_transition(move |transition| {
                if let Action::Dial { .. } = transition.action {
                    *lock(&begun) = Some(transition.at.into());
                }
                *lock(&ended) = if let Action::Stop(reason) = transition.action { Some(reason) } else { None };
            })
            .build()
            .expect("valid settings")
    }

    /// Another one behind the same gate.
    pub(crate) fn other(&self, server: &Arc<Server>, seed: u64) -> Link<Dialler> {
        Self::other_of(&self.gate, server, seed)
    }

    pub(crate) fn other_of(gate: &Gate, server: &Arc<Server>, seed: u64) -> Link<Dialler> {
        let builder = Supervisor::builder(server.connector()).policy(plain()).gate(gate).seed(seed);
        builder.build().expect("valid settings").keep().expect("it is idle")
    }

    /// The future that `supervisor` was run by is gone, once it was begun: nothing of it is left, nothing happens any
    /// more, the next one is served at once, as far as the gate is not shut for a reason, and so is the same one again.
    pub(crate) async fn aftermath(&self, supervisor: Supervisor<Steps>, begun: bool) {
        let (handle, told) = (supervisor.handle(), *lock(&self.ended));
        let expected = begun.then(|| told.unwrap_or(StopReason::Dropped));
        assert_eq!(handle.status().stopped, expected, "the status of what is gone");
        self.holds_nothing(usize::from(expected != Some(StopReason::Dropped)));
        let dials = self.server.dial_count();

        let link = self.other(&self.next, 99);
        served_by(opens_at(&self.gate.status()), &link).await;
        drop(link);

        sleep(secs(600)).await;
        assert_eq!(self.server.dial_count(), dials, "dialled after the end");
        assert_eq!(handle.status().stopped, expected);

        self.server.turn(|_| Answer::Accept(0));
        *lock(&self.server.close) = Manner::Fine;
        let generation = handle.status().generation;
        let again =
            timeout(secs(5), supervisor.run(|_, session| async move { broken_off(session.generation()) })).await;
        assert_eq!(again.expect("served again").expect("not stopped"), generation + 1);
        drop(supervisor);
        self.holds_nothing(0);
        assert_eq!(handle.status().stopped, Some(StopReason::Finished));
    }

    /// When the gate lets the next one through, while it is narrow: a `base` after the last dial of anybody.
    pub(crate) fn opening(&self) -> Instant {
        let began = Instant::now() - self.server.elapsed();
        let last = self.server.dials().into_iter().chain(self.next.dials()).fold(-1.0, f64::max);
        let until = self.gate.status().until.map_or(began, Instant::from);
        let begun = lock(&self.begun).map_or(began, |begun| begun + secs(1));
        until.max(begun).max(began + Duration::from_secs_f64(last + 1.0))
    }

    /// With so many members in the gate.
    pub(crate) fn holds_nothing(&self, members: usize) {
        let status = self.gate.status();
        assert_eq!((status.in_flight, status.waiting, status.members), (0, 0, members), "{status:?}");
        assert_eq!((self.server.open().now(), self.server.in_flight().now()), (0, 0), "open and half open");
        assert_eq!(self.next.open().now(), 0);
    }
}

fn broken_off<T>(value: T) -> Result<ControlFlow<T>, BoxError> {
    Ok(ControlFlow::Break(value))
}

/// When the next dial may start: at the gate's opening, a `base` after the last one.
pub(crate) fn opens_at(status: &GateStatus) -> Instant {
    let now = Instant::now();
    status.until.map_or(now, |until| now.max(until.into())) + secs(1)
}

/// Asserts that `link` is connected by then, or a moment later.
pub(crate) async fn served_by<C: Connector>(instant: Instant, link: &Link<C>) -> u64 {
    let within = instant.saturating_duration_since(Instant::now()) + ms(100);
    let live = timeout(within, link.ready()).await.expect("served in time").expect("not stopped");
    live.generation()
}

/// Dials with awaits before and after the connection stands.
pub(crate) struct Steps(pub(crate) Dialler);

impl Connector for Steps {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, attempt: Attempt) -> Result<Conn, BoxError> {
        yield_now().await;
        let connection = self.0.connect(attempt.clone()).await?;
        attempt.reached();
        yield_now().await;
        sleep(ms(10)).await;
        Ok(connection)
    }

    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }

    fn classify(&self, error: &(dyn std::error::Error + 'static), ended: Ended) -> Failure {
        self.0.classify(error, ended)
    }

    async fn close(&self, connection: &Conn) {
        yield_now().await;
        self.0.close(connection).await;
    }

    async fn check(&self, connection: &Conn) -> Result<(), BoxError> {
        yield_now().await;
        self.0.check(connection).await
    }
}

pub(crate) type Outcome = Result<ControlFlow<()>, BoxError>;

/// Lives for a while; told to end, it takes another while.
pub(crate) async fn live_for(lifetime: Duration, connection: Lease<Conn>, session: Session) -> Outcome {
    if timeout(lifetime, session.draining()).await.is_ok() {
        sleep(ms(300)).await;
        return Ok(ControlFlow::Continue(()));
    }
    drop(connection);
    Err("the session is over".into())
}
