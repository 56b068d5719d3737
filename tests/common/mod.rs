//! A server in paused time, scripted: it counts what it sees, so that tests need not believe the client.
#![expect(dead_code, reason = "every test binary uses its own part")]

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use steadfast::{Attempt, Backoff, BoxError, Connector, Ended, Endpoint, Failure, Growth, Jitter, Policy, classify};
use tokio::time::{Instant, sleep};

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

type Script = Box<dyn FnMut(usize) -> Answer + Send>;

pub(crate) struct Server {
    script: Mutex<Script>,
    start: Instant,
    dials: Mutex<Vec<Instant>>,
    /// Tokens of all connections that were closed politely.
    closed: Mutex<Vec<usize>>,
    pub(crate) close: Mutex<Manner>,
    pub(crate) check: Mutex<Manner>,
    pub(crate) checks: Mutex<Vec<Duration>>,
    open: Peak,
    in_flight: Peak,
    pub(crate) endpoint: Endpoint,
}

/// A number now, and the highest that it was.
#[derive(Default)]
pub(crate) struct Peak {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Peak {
    fn up(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn down(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// Begins to look for the highest anew.
    pub(crate) fn reset(&self) {
        self.most.store(self.now(), Ordering::SeqCst);
    }
}

impl Server {
    /// `script` is asked for every dial, by its number from 0.
    pub(crate) fn new(script: impl FnMut(usize) -> Answer + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            start: Instant::now(),
            dials: Mutex::default(),
            closed: Mutex::default(),
            close: Mutex::new(Manner::Fine),
            check: Mutex::new(Manner::Fine),
            checks: Mutex::default(),
            open: Peak::default(),
            in_flight: Peak::default(),
            endpoint: Endpoint::new(ENDPOINT),
        })
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
    pub(crate) fn turn(&self, script: impl FnMut(usize) -> Answer + Send + 'static) {
        *lock(&self.script) = Box::new(script);
    }

    pub(crate) fn connector(self: &Arc<Self>) -> Dialler {
        Dialler { server: Arc::clone(self) }
    }

    /// When the dials began, in seconds since the server began.
    pub(crate) fn dials(&self) -> Vec<f64> {
        lock(&self.dials).iter().map(|at| at.duration_since(self.start).as_secs_f64()).collect()
    }

    pub(crate) fn dial_count(&self) -> usize {
        lock(&self.dials).len()
    }

    pub(crate) fn now(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn open(&self) -> &Peak {
        &self.open
    }

    pub(crate) fn in_flight(&self) -> &Peak {
        &self.in_flight
    }

    pub(crate) fn closed(&self) -> Vec<usize> {
        lock(&self.closed).clone()
    }

    fn answer(&self) -> (usize, Answer) {
        let number = {
            let mut dials = lock(&self.dials);
            dials.push(Instant::now());
            dials.len() - 1
        };
        let answer = (lock(&self.script))(number);
        (number, answer)
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
    server: Arc<Server>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.server.open.down();
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conn({})", self.number)
    }
}

struct InFlight<'a>(&'a Peak);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.down();
    }
}

impl Connector for Dialler {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, attempt: Attempt) -> Result<Conn, BoxError> {
        let (number, answer) = self.server.answer();
        self.server.in_flight.up();
        let _in_flight = InFlight(&self.server.in_flight);
        match answer {
            Answer::Accept(after) => pass(after).await,
            Answer::Fail(after, failure) => {
                pass(after).await;
                return Err(failure.because(format!("dial {number}")).into());
            }
            Answer::Panic => panic!("dial {number}"),
            Answer::Reached(after) => {
                pass(after).await;
                attempt.reached();
                std::future::pending::<()>().await;
            }
            Answer::Silent => std::future::pending().await,
        }
        self.server.open.up();
        Ok(Conn { number, server: Arc::clone(&self.server) })
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

/// A dial that takes no time resolves in its first poll.
async fn pass(millis: u64) {
    if millis > 0 {
        sleep(ms(millis)).await;
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
