//! The scripted server that the crate ships, with what our own tests ask of a connector on top: how a check and a close
//! go, and instants as seconds.
#![expect(dead_code, reason = "every test binary uses its own part")]

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use steadfast::testing::{self, ScriptedServer, Transport};
use steadfast::{Attempt, Backoff, BoxError, Connector, Ended, Endpoint, Failure, Growth, Jitter, Policy, classify};
use tokio::time::Instant;

pub(crate) const ENDPOINT: &str = "test://server:1";

/// What the server does with a dial.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Accepts after so many milliseconds.
    Accept(u64),
    /// Fails after so many milliseconds.
    Fail(u64, Failure),
    /// Panics in the client's code.
    Panic,
    /// Never answers.
    Silent,
    /// Never answers, but TCP stands after so many milliseconds.
    Reached(u64),
}

/// How a check or a close goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Fails,
    Fine,
    Hangs,
    Panics,
}

impl From<Answer> for testing::Answer {
    /// Only `Reached` marks its attempt, so that `Permanent` is our own configuration.
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Accept(after) => Self::accept().reached(false).after(ms(after)),
            Answer::Fail(after, failure) => Self::fail(failure).reached(false).after(ms(after)),
            Answer::Panic => Self::panic(),
            Answer::Reached(after) => Self::hang().reached(true).after(ms(after)),
            Answer::Silent => Self::hang(),
        }
    }
}

pub(crate) struct Server {
    scripted: ScriptedServer,
    start: Instant,
    /// Tokens of all connections that were closed politely.
    closed: Mutex<Vec<usize>>,
    pub(crate) close: Mutex<Manner>,
    pub(crate) check: Mutex<Manner>,
    pub(crate) checks: Mutex<Vec<Duration>>,
    pub(crate) endpoint: Endpoint,
}

/// A number now, and the highest that it was.
pub(crate) struct Peak<'a> {
    now: usize,
    most: usize,
    server: &'a ScriptedServer,
}

impl Peak<'_> {
    pub(crate) fn now(&self) -> usize {
        self.now
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Begins to look for the highest anew.
    pub(crate) fn reset(&self) {
        self.server.reset_peaks();
    }
}

impl Server {
    /// `script` is asked for every dial, by its number from 0.
    pub(crate) fn new(script: impl FnMut(usize) -> Answer + Send + 'static) -> Arc<Self> {
        let server = Self {
            scripted: ScriptedServer::new(),
            start: Instant::now(),
            closed: Mutex::default(),
            close: Mutex::new(Manner::Fine),
            check: Mutex::new(Manner::Fine),
            checks: Mutex::default(),
            endpoint: Endpoint::new(ENDPOINT),
        };
        server.turn(script);
        Arc::new(server)
    }

    /// Accepts everything at once.
    pub(crate) fn healthy() -> Arc<Self> {
        Self::new(|_| Answer::Accept(0))
    }

    /// Answers by this list, then accepts everything at once.
    pub(crate) fn answers(list: impl Into<Vec<Answer>>) -> Arc<Self> {
        let list = list.into();
        Self::new(move |n| list.get(n).copied().unwrap_or(Answer::Accept(0)))
    }

    /// From now on it answers otherwise; dials are counted on.
    pub(crate) fn turn(&self, mut script: impl FnMut(usize) -> Answer + Send + 'static) {
        self.scripted.script((self.dial_count()..).map(move |number| script(number).into()));
    }

    pub(crate) fn connector(self: &Arc<Self>) -> Dialler {
        Dialler { server: Arc::clone(self) }
    }

    /// When the dials began, in seconds since the server began.
    pub(crate) fn dials(&self) -> Vec<f64> {
        self.scripted.seen().dials.iter().map(Duration::as_secs_f64).collect()
    }

    pub(crate) fn dial_count(&self) -> usize {
        self.scripted.seen().dials.len()
    }

    pub(crate) fn now(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Connections that were not dropped yet.
    pub(crate) fn open(&self) -> Peak<'_> {
        let seen = self.scripted.seen();
        Peak { now: seen.open, most: seen.most_open, server: &self.scripted }
    }

    /// Dials under way.
    pub(crate) fn in_flight(&self) -> Peak<'_> {
        let seen = self.scripted.seen();
        Peak { now: seen.in_flight, most: seen.most_in_flight, server: &self.scripted }
    }

    pub(crate) fn closed(&self) -> Vec<usize> {
        lock(&self.closed).clone()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The client's side of the server.
pub(crate) struct Dialler {
    server: Arc<Server>,
}

/// A connection; its number is that of its dial.
pub(crate) struct Conn {
    pub(crate) number: usize,
    _transport: Transport,
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conn({})", self.number)
    }
}

impl Connector for Dialler {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, attempt: Attempt) -> Result<Conn, BoxError> {
        let transport = self.server.scripted.dial(&attempt).await?;
        Ok(Conn { number: transport.number(), _transport: transport })
    }

    fn endpoint(&self) -> Endpoint {
        self.server.endpoint.clone()
    }

    fn classify(&self, error: &(dyn Error + 'static), _ended: Ended) -> Failure {
        assert!(error.to_string() != "panic in classify", "as asked");
        classify(error)
    }

    async fn close(&self, connection: &Conn) {
        let manner = *lock(&self.server.close);
        match manner {
            Manner::Fails | Manner::Fine => lock(&self.server.closed).push(connection.number),
            Manner::Hangs => std::future::pending().await,
            Manner::Panics => panic!("in close"),
        }
    }

    async fn check(&self, _connection: &Conn) -> Result<(), BoxError> {
        lock(&self.server.checks).push(self.server.start.elapsed());
        let manner = *lock(&self.server.check);
        match manner {
            Manner::Fails => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
            Manner::Fine => Ok(()),
            Manner::Hangs => std::future::pending().await,
            Manner::Panics => panic!("in check"),
        }
    }
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const REFUSED: Answer = Answer::Fail(0, Failure::Unreachable);
pub(crate) const BROKEN: Answer = Answer::Fail(0, Failure::Transient);

/// Base 1 s, both curves to 30 s without growth, no jitter, no spread: dials at 0, 1, 3, 7, 15, 31, 61 s.
pub(crate) fn plain() -> Policy {
    let cap = secs(30);
    Policy::default()
        .quick(Backoff::new(secs(1), cap))
        .growing(Growth::fixed(cap))
        .jitter(Jitter::None)
        .recovery_spread(Duration::ZERO)
}
