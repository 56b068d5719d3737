//! How to open one connection.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::machine::{Classified, Failure};
use crate::observe::{Cause, Endpoint};

/// A boxed error, as connectors and sessions hand them in.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// How to open one connection of a kind, what its errors mean, and how to end it.
///
/// Only [`connect`](Self::connect) has to be written; [`connector_fn`] makes one from a closure.
pub trait Connector: Send + Sync + 'static {
    /// What a dial gives: usable at once. `Sync` is needed for `Supervisor::keep` only.
    type Connection: Send + 'static;
    /// Why a dial failed.
    type Error: Into<BoxError> + Send;

    /// Dials, logs in and restores whatever a session needs (subscriptions, declarations): when it resolves, the
    /// connection is usable.
    ///
    /// # Cancel safety
    ///
    /// Dropped at the deadline, on a drain and when the supervisor is dropped: a partly opened connection must close
    /// by its own drop.
    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;

    /// What is dialled, for logs, and to keep a gate to one endpoint.
    fn endpoint(&self) -> Endpoint {
        Endpoint::unnamed()
    }

    /// Which credential is presented: refusals are counted per credential and gate. Any number will do that is the
    /// same for the same credential (a hash of the user's name, say; not of the secret). Default: one for all.
    fn credential(&self) -> u64 {
        0
    }

    /// What an error means. The default is [`classify`].
    fn classify(&self, error: &(dyn Error + 'static), ended: Ended) -> Failure {
        let _ = ended;
        classify(error)
    }

    /// Says goodbye to the other side; bounded by the policy's `close`. The connection is dropped afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropped at the bound.
    fn close(&self, connection: &Self::Connection) -> impl Future<Output = ()> + Send {
        let _ = connection;
        async {}
    }

    /// Asks the other side whether it is still there; called after the machine was suspended. Default: it is.
    ///
    /// # Cancel safety
    ///
    /// Dropped at the attempt deadline, which counts as [`Failure::Timeout`].
    fn check(&self, connection: &Self::Connection) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = connection;
        async { Ok(()) }
    }
}

/// What it was that an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// An attempt: [`Connector::connect`] failed.
    Dial,
    /// Somebody reported it: `Live::report`, or a failed [`Connector::check`].
    Report,
    /// The session closure returned it.
    Session,
}

/// One try.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(crate) number: u32,
    pub(crate) generation: u64,
    pub(crate) deadline: Instant,
    pub(crate) previous: Option<Cause>,
    pub(crate) reached: Reached,
}

impl Attempt {
    /// The first attempt of a connector that is used without a supervisor. Nobody enforces the deadline but the
    /// caller.
    #[must_use]
    pub fn first(deadline: Instant) -> Self {
        Self { number: 1, generation: 1, deadline, previous: None, reached: Reached(Arc::new(|| {})) }
    }

    /// The same, with somebody who is told when the other side was reached.
    #[cfg(all(test, feature = "websocket"))]
    pub(crate) fn on_reached(mut self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        self.reached = Reached(Arc::new(tell));
        self
    }

    /// Its number since the last stable session, from 1 (the first is no retry).
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The generation that the connection would get.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// When the supervisor drops this attempt, unless [`reached`](Self::reached) is called before.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Why the previous attempt or session ended, if one did.
    #[must_use]
    pub const fn previous(&self) -> Option<&Cause> {
        self.previous.as_ref()
    }

    /// Tells that the other side was reached (TCP stands). From here on the handshake deadline holds, which grows
    /// when handshakes time out, and [`Failure::Permanent`] is what the other side said, not our configuration.
    pub fn reached(&self) {
        (self.reached.0)();
    }
}

/// Where `reached` goes.
#[derive(Clone)]
pub(crate) struct Reached(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reached")
    }
}

/// Makes a connector from what is dialled (for logs: scheme, host and port) and how.
pub fn connector_fn<F, Fut, T, E>(endpoint: impl Into<Endpoint>, connect: F) -> ConnectorFn<F>
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send,
    T: Send + 'static,
    E: Into<BoxError> + Send,
{
    ConnectorFn { endpoint: endpoint.into(), connect }
}

/// A connector made from a closure: see [`connector_fn`].
pub struct ConnectorFn<F> {
    endpoint: Endpoint,
    connect: F,
}

impl<F> fmt::Debug for ConnectorFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectorFn").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl<F, Fut, T, E> Connector for ConnectorFn<F>
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send,
    T: Send + 'static,
    E: Into<BoxError> + Send,
{
    type Connection = T;
    type Error = E;

    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<T, E>> + Send {
        (self.connect)(attempt)
    }

    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }
}

/// The default classification: the class that the error carries ([`Failure::because`]), else what an
/// [`io::Error`](std::io::Error) or an elapsed timeout anywhere in the chain of sources says, else
/// [`Failure::Transient`]. A name that does not resolve is that too: the standard library gives it no kind of its own.
#[must_use]
pub fn classify(error: &(dyn Error + 'static)) -> Failure {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(classified) = error.downcast_ref::<Classified>() {
            return classified.failure();
        }
        if let Some(failure) = error.downcast_ref::<io::Error>().and_then(by_kind) {
            return failure;
        }
        if error.is::<tokio::time::error::Elapsed>() {
            return Failure::Timeout;
        }
        next = error.source();
    }
    Failure::Transient
}

fn by_kind(error: &io::Error) -> Option<Failure> {
    match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::NetworkUnreachable => Some(Failure::Unreachable),
        io::ErrorKind::TimedOut => Some(Failure::Timeout),
        // `source` of an io error skips the error that it wraps.
        io::ErrorKind::Other => error.get_ref().map(|inner| classify(inner)),
        _ => None,
    }
}
