//! A server in memory that does what a test says, and counts what it sees.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::sleep;

use super::answer::Answer;
use super::fault::{Fault, Faults};
use super::seen::Seen;
use super::shared::{Shared, first};
use super::transport::Transport;
use crate::observe::Endpoint;
use crate::runtime::{Attempt, Connector};

/// A server in memory: answers each dial as its script says, changes at will, and counts what it sees, so that a test
/// need not believe the client.
///
/// It is dialled by [`connector`](Self::connector), or by a connector of one's own that calls [`dial`](Self::dial) where
/// the real one calls `TcpStream::connect`. Clones are the same server.
///
/// Dropping it fails the test if one of its handlers panicked, or a script: an `assert!` in them counts.
#[derive(Clone)]
pub struct ScriptedServer(Arc<Shared>);

impl ScriptedServer {
    /// A server that accepts everyone at once, reads away what it is sent, and says nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_handler(read_away)
    }

    /// A server that accepts everyone at once and hands its end of each connection to `handler`, in a task of its own.
    /// When the handler returns, the connection ends; an error it returns is no more than that.
    pub fn with_handler<H, Fut>(handler: H) -> Self
    where
        H: Fn(Transport) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<()>> + Send + 'static,
    {
        Self(Shared::new(Box::new(move |transport| Box::pin(handler(transport)))))
    }

    /// What it is called, for a gate: `test://server`.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(ENDPOINT)
    }

    /// Gives a connector whose connections are the bare [`Transport`]s.
    #[must_use]
    pub fn connector(&self) -> ScriptedConnector {
        ScriptedConnector(Arc::clone(&self.0))
    }

    /// Dials, for a connector of one's own: the script answers. Marks `attempt` as reached if the server was. The future
    /// borrows nothing, so a closure will do: `move |attempt| server.dial(&attempt)`.
    ///
    /// # Errors
    ///
    /// What the script says; [`ConnectionReset`](io::ErrorKind::ConnectionReset) if the server goes down meanwhile.
    ///
    /// # Panics
    ///
    /// If the script says so, or outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the dial is over; the record keeps it.
    pub fn dial(&self, attempt: &Attempt) -> impl Future<Output = io::Result<Transport>> + Send + use<> {
        let (shared, attempt) = (Arc::clone(&self.0), attempt.clone());
        async move { shared.dial(&attempt).await }
    }

    // What it does.

    /// Answers every dial from now on like this; what is left of a script is forgotten. Dials under way have their answer
    /// already.
    pub fn answer(&self, answer: Answer) {
        self.0.answer(answer);
    }

    /// Answers the next dials with these, one each; then again as before. An iterator without end will do:
    ///
    /// ```
    /// # use steadfast::testing::{Answer, ScriptedServer};
    /// let server = ScriptedServer::new();
    /// server.script((0..).map(|n| if n % 3 == 0 { Answer::accept() } else { Answer::refuse() }));
    /// ```
    pub fn script<I>(&self, answers: I)
    where
        I: IntoIterator<Item = Answer>,
        I::IntoIter: Send + 'static,
    {
        self.0.script(Box::new(answers.into_iter()));
    }

    /// The process dies: resets every connection and every dial under way, and refuses new ones.
    pub fn go_down(&self) {
        self.answer(Answer::refuse());
        self.0.reset_dials();
        self.0.inject(Fault::Reset(io::ErrorKind::ConnectionReset));
    }

    /// The network is cut: connections are half-open ([`Fault::Stall`]) and dials hang, those under way too.
    pub fn partition(&self) {
        self.answer(Answer::hang());
        self.0.cut_dials();
        self.0.inject(Fault::Stall);
    }

    /// Accepts everyone at once, and heals the connections that can be ([`Faults::heal`]). A dial that hangs goes on
    /// hanging.
    pub fn come_back(&self) {
        self.answer(Answer::accept());
        self.0.open().iter().for_each(Faults::heal);
    }

    /// Injects a fault into every open connection. For one of them, use [`Transport::inject`] in its handler.
    ///
    /// # Panics
    ///
    /// If none is open, or all that are were ended by an earlier fault: a test that injects nothing shows nothing.
    #[track_caller]
    pub fn inject(&self, fault: Fault) {
        assert!(self.0.inject(fault) > 0, "{fault:?} is injected into no connection: {:?}", self.seen());
    }

    // What it saw.

    /// What it saw until now.
    ///
    /// # Panics
    ///
    /// If a handler or a script panicked.
    #[must_use]
    #[track_caller]
    pub fn seen(&self) -> Seen {
        self.0.hold_handlers();
        self.0.record().seen.clone()
    }

    /// Begins to look for the most in flight and the most open anew.
    pub fn reset_peaks(&self) {
        let seen = &mut self.0.record().seen;
        (seen.most_in_flight, seen.most_open) = (seen.in_flight, seen.open);
    }

    /// Waits until what was seen fulfils `condition`, and gives it.
    ///
    /// # Panics
    ///
    /// If that takes longer than `limit`, with where it was called and what was seen; or if a handler or a script panicked.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    #[track_caller]
    pub fn wait_for(&self, limit: Duration, condition: impl Fn(&Seen) -> bool) -> impl Future<Output = Seen> {
        // A test waits more than once, and a panic in here would not say for what.
        let caller = Location::caller();
        async move {
            let mut late = pin!(sleep(limit));
            loop {
                // Made before the look: what changes in between is not missed.
                let changed = self.0.changed();
                let seen = self.seen();
                if condition(&seen) {
                    return seen;
                }
                let is_late = first(changed, late.as_mut()).await.is_err();
                assert!(!is_late, "{caller}: the server did not see within {limit:?} what it waits for, but {seen:?}");
            }
        }
    }
}

impl Default for ScriptedServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.hold_handlers();
        }
    }
}

impl fmt::Debug for ScriptedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScriptedServer").field(&self.0.record().seen).finish()
    }
}

/// Dials a [`ScriptedServer`]: see [`ScriptedServer::connector`].
#[derive(Clone)]
pub struct ScriptedConnector(Arc<Shared>);

impl Connector for ScriptedConnector {
    type Connection = Transport;
    type Error = io::Error;

    async fn connect(&self, attempt: Attempt) -> io::Result<Transport> {
        self.0.dial(&attempt).await
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(ENDPOINT)
    }
}

impl fmt::Debug for ScriptedConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScriptedConnector").field(&ENDPOINT).finish()
    }
}

const ENDPOINT: &str = "test://server";

/// Reads until the other side has ended the stream.
async fn read_away(mut transport: Transport) -> io::Result<()> {
    poll_fn(|cx| {
        loop {
            let mut bytes = [0; 1024];
            let mut buf = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut transport).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await
}
