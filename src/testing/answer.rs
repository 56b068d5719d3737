//! What a scripted server does with a dial.

use std::io;
use std::time::Duration;

use crate::machine::Failure;
use crate::runtime::classify;

/// What a [`ScriptedServer`](super::ScriptedServer) does with a dial; at once, unless [`after`](Self::after) says
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub(super) after: Duration,
    pub(super) reached: bool,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Accept,
    Error(io::ErrorKind),
    Fail(Failure),
    Hang,
    Panic,
}

impl Answer {
    /// Accepts.
    #[must_use]
    pub const fn accept() -> Self {
        Self::new(Kind::Accept, true)
    }

    /// Refuses: the host is up, nobody listens.
    #[must_use]
    pub const fn refuse() -> Self {
        Self::new(Kind::Error(io::ErrorKind::ConnectionRefused), false)
    }

    /// Fails with an error of this class. It is an answer, so the server counts as reached, unless the class is
    /// `Unreachable`.
    #[must_use]
    pub const fn fail(failure: Failure) -> Self {
        Self::new(Kind::Fail(failure), !matches!(failure, Failure::Unreachable))
    }

    /// Fails with an i/o error of this kind. The server counts as reached, unless the kind says that nobody answered.
    #[must_use]
    pub fn error(kind: io::ErrorKind) -> Self {
        let reached = !matches!(classify(&io::Error::from(kind)), Failure::Timeout | Failure::Unreachable);
        Self::new(Kind::Error(kind), reached)
    }

    /// Never answers: packets go nowhere. With `.reached(true)` TCP stands, and the handshake hangs.
    #[must_use]
    pub const fn hang() -> Self {
        Self::new(Kind::Hang, false)
    }

    /// Panics in the client's `connect`.
    #[must_use]
    pub const fn panic() -> Self {
        Self::new(Kind::Panic, false)
    }

    /// Sets how long it takes until the answer comes.
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Sets whether the answer comes from the server itself, so that the attempt is marked by
    /// [`Attempt::reached`](crate::Attempt::reached). A `Permanent` failure that was not reached is our own
    /// configuration, and supervision stops.
    #[must_use]
    pub const fn reached(mut self, reached: bool) -> Self {
        self.reached = reached;
        self
    }

    const fn new(kind: Kind, reached: bool) -> Self {
        Self { after: Duration::ZERO, reached, kind }
    }
}
