//! Why a websocket could not be opened, or ended.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_tungstenite::tungstenite::{self, Message};

use super::classify;
use super::refusal::Refusal;
use crate::machine::Failure;

/// Why a websocket could not be opened, or why it ended.
///
/// Cheap to clone: whatever is asked of a connection after its end gives the same error again. The text names the step
/// and what came back; what caused it is in the chain of sources. Neither contains a header, a query or a credential
/// of ours.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The name has no address, or nobody could say.
    Resolve {
        /// The name.
        host: Arc<str>,
        /// What the resolver said.
        source: Arc<io::Error>,
    },
    /// No address accepted a TCP connection.
    Connect {
        /// Every address that was tried, with its error; the first is the one that decided the class.
        tried: Arc<[(SocketAddr, io::Error)]>,
    },
    /// The TLS handshake failed; the inner error of `source` is a `rustls::Error` where the other side is at fault.
    Tls {
        /// What rustls said.
        source: Arc<io::Error>,
    },
    /// The server answered the upgrade with something else than 101.
    Refused(Arc<Refusal>),
    /// The upgrade broke off: end of the stream, a reset, or an answer that is none.
    Upgrade {
        /// What the websocket crate said.
        source: Arc<tungstenite::Error>,
    },
    /// The server sent a close frame.
    Closed {
        /// Its code, 1005 where it sent none. 1002 may stand for a code that must not be sent (1006, 1015, 1014 …).
        code: u16,
        /// Its text.
        reason: Arc<str>,
        /// How long the connection was open.
        lived: Duration,
    },
    /// The stream ended, or was reset, without a close frame.
    Lost {
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// The server broke the protocol, or sent more than the limits allow.
    Protocol {
        /// What the websocket crate said.
        source: Arc<tungstenite::Error>,
    },
    /// Not one byte came for ping interval and pong timeout, although a ping was sent.
    Silent {
        /// How long nothing came.
        waited: Duration,
    },
    /// A message could not be written in time: the peer does not read, or is gone.
    Stuck {
        /// The send timeout.
        waited: Duration,
    },
    /// The message is longer than this side sends; the connection is as good as before.
    TooLong {
        /// Its length in bytes.
        size: usize,
        /// What is allowed.
        limit: usize,
    },
    /// This side has closed the connection.
    ClosedHere,
}

impl Error {
    /// What it means by default: the table in the [module's documentation](super).
    #[must_use]
    pub fn failure(&self) -> Failure {
        classify::failure(self)
    }

    pub(super) fn resolve(host: &str, source: io::Error) -> Self {
        Self::Resolve { host: host.into(), source: Arc::new(source) }
    }

    /// The address whose error is not "nobody is there" speaks for all, because somebody may be there.
    pub(super) fn connect(mut tried: Vec<(SocketAddr, io::Error)>) -> Self {
        tried.sort_by_key(|(_, error)| classify::by_kind(error) == Failure::Unreachable);
        Self::Connect { tried: tried.into() }
    }

    pub(super) fn tls(source: io::Error) -> Self {
        Self::Tls { source: Arc::new(source) }
    }

    pub(super) fn upgrade(source: tungstenite::Error) -> Self {
        Self::Upgrade { source: Arc::new(source) }
    }

    pub(super) fn lost(source: io::Error) -> Self {
        Self::Lost { source: Arc::new(source) }
    }

    /// What the websocket crate says of an open connection.
    pub(super) fn broken(error: tungstenite::Error) -> Self {
        use tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
        match error {
            tungstenite::Error::Io(error) => Self::lost(error),
            tungstenite::Error::Protocol(ResetWithoutClosingHandshake)
            | tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed => {
                Self::lost(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended without a close frame"))
            }
            error => Self::Protocol { source: Arc::new(error) },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { host, .. } => write!(f, "no address for `{host}`"),
            Self::Connect { tried } => write_tried(f, tried),
            Self::Tls { .. } => f.write_str("TLS handshake failed"),
            Self::Refused(refusal) => write!(f, "upgrade refused: {refusal}"),
            Self::Upgrade { .. } => f.write_str("upgrade broke off"),
            Self::Closed { code, reason, lived } => {
                write!(f, "closed by the server after {lived:.1?}: {code}")?;
                if reason.is_empty() { Ok(()) } else { write!(f, " {reason:?}") }
            }
            Self::Lost { .. } => f.write_str("connection lost"),
            Self::Protocol { .. } => f.write_str("the server broke the protocol or a limit"),
            Self::Silent { waited } => write!(f, "no byte for {waited:.1?}, and no answer to a ping"),
            Self::Stuck { waited } => write!(f, "a message could not be written within {waited:?}"),
            Self::TooLong { size, limit } => write!(f, "the message has {size} bytes, allowed are {limit}"),
            Self::ClosedHere => f.write_str("closed by this side"),
        }
    }
}

fn write_tried(f: &mut fmt::Formatter<'_>, tried: &[(SocketAddr, io::Error)]) -> fmt::Result {
    f.write_str("no TCP connection to ")?;
    for (index, (address, error)) in tried.iter().enumerate() {
        match index {
            // Its error is the source.
            0 => write!(f, "{address}")?,
            _ => write!(f, ", nor to {address} ({error})")?,
        }
    }
    Ok(())
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Resolve { source, .. } | Self::Tls { source } | Self::Lost { source } => Some(&**source),
            Self::Connect { tried } => tried.first().map(|(_, error)| error as &(dyn StdError + 'static)),
            // Its text is that of its own source with a few words before it.
            Self::Upgrade { source } | Self::Protocol { source } => Some(source.source().unwrap_or(&**source)),
            Self::Refused(_)
            | Self::Closed { .. }
            | Self::Silent { .. }
            | Self::Stuck { .. }
            | Self::TooLong { .. }
            | Self::ClosedHere => None,
        }
    }
}

/// A message that was not sent, or may not have been: see [`Connection::send`](super::Connection::send).
pub struct SendError {
    pub(super) message: Option<Message>,
    pub(super) error: Error,
}

impl SendError {
    /// The message, where it is certain that no byte of it was written; `None` where the outcome is unknown.
    #[must_use]
    pub fn into_unsent(self) -> Option<Message> {
        self.message
    }

    /// Whether it is certain that no byte of the message was written.
    #[must_use]
    pub const fn is_unsent(&self) -> bool {
        self.message.is_some()
    }

    /// Why.
    #[must_use]
    pub const fn error(&self) -> &Error {
        &self.error
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        error.error
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_unsent() {
            "message not sent"
        } else {
            "message sent in part or whole, outcome unknown"
        })
    }
}

/// Without the message, which may be secret.
impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("unsent", &self.is_unsent()).field("error", &self.error).finish()
    }
}

impl StdError for SendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}
