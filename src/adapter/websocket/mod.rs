//! Websockets, by `tokio-tungstenite`, with TLS by rustls.
//!
//! [`WebSocketConnector`] dials, [`Connection`] is what it gives, [`Error`] says why not or why no longer. In a
//! [`Supervisor`](crate::Supervisor), a session is a loop over [`Connection::next`], whose error says what follows:
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use steadfast::websocket::{Connection, Error, WebSocketConnector};
//! use steadfast::{Lease, Session, Supervisor};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let connector = WebSocketConnector::builder("wss://example.com/feed").header("Authorization", "Bearer …").build()?;
//! let supervisor = Supervisor::new(connector);
//! supervisor
//!     .run(|connection: Lease<Connection>, session: Session| async move {
//!         connection.send("subscribe".into()).await?;
//!         loop {
//!             tokio::select! {
//!                 message = connection.next() => println!("{}", message?),
//!                 () = session.draining() => return Ok::<_, Error>(ControlFlow::<()>::Continue(())),
//!             }
//!         }
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! By itself, for one connection:
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use steadfast::websocket::WebSocketConnector;
//! use steadfast::{Attempt, Connector};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let connector = WebSocketConnector::new("wss://example.com/feed")?;
//! let limit = Duration::from_secs(10);
//! let connection = tokio::time::timeout(limit, connector.connect(Attempt::first(Instant::now() + limit))).await??;
//! println!("{}", connection.next().await?);
//! # Ok(())
//! # }
//! ```
//!
//! # Dialling
//!
//! An attempt resolves the name afresh, races its addresses (the next after 250 ms, the families in turn), sets up
//! keepalive, and does one TLS handshake and one upgrade on the winner. It has no time limit of its own: whoever calls
//! it drops the future when the attempt's deadline is over, and that closes everything it opened. Redirects are not
//! followed.
//!
//! # What failures mean
//!
//! Each row can be overridden with [`Builder::classify`].
//!
//! | what came | class |
//! |---|---|
//! | no address for the name; refused; no route | [`Unreachable`](Failure::Unreachable) |
//! | no answer to the TCP dial until the system's own limit | [`Timeout`](Failure::Timeout) |
//! | certificate of an unknown issuer, for another name, or wrong otherwise | [`Permanent`](Failure::Permanent) |
//! | certificate expired or not yet valid: perhaps it is our clock | [`Transient`](Failure::Transient) |
//! | reset, end of stream or nonsense in the TLS handshake or the upgrade | [`Transient`](Failure::Transient) |
//! | 401, 403, 407 | [`Unauthorized`](Failure::Unauthorized) |
//! | 429; 503 with a `Retry-After` that means something | [`Throttled`](Failure::Throttled), not before it |
//! | 302, 303, 307: a login page or a captive portal | [`Transient`](Failure::Transient) |
//! | other 3xx | [`Permanent`](Failure::Permanent), with the location in the text |
//! | any other status, 200 and HTTP/1.0 error pages included | [`Transient`](Failure::Transient), or as above |
//! | close 1000, 1001, 1012 | [`Planned`](Failure::Planned) |
//! | close 1013 | [`Throttled`](Failure::Throttled), 30 s |
//! | close 3000, 3003 | [`Unauthorized`](Failure::Unauthorized) |
//! | any other close code, or none | [`Transient`](Failure::Transient) |
//! | end of stream or reset without a close frame | [`Transient`](Failure::Transient) |
//! | frame that breaks the protocol, message over the limit | [`Transient`](Failure::Transient) |
//! | no byte in time, a write that is stuck | [`Transient`](Failure::Transient) |
//! | closed by this side | [`Planned`](Failure::Planned) |
//!
//! # Secrets
//!
//! Headers, query and URL credentials are in no error, log or `Debug` of this crate, and where the server repeats one
//! of them it is hidden. `tungstenite` itself writes whole requests to the `log` crate at trace level: keep its target
//! above that.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::HeaderMap;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};

use crate::machine::Failure;
use crate::observe::Endpoint;
use crate::runtime::{Attempt, BoxError, Connector, Ended};

use builder::ByUser;
use connection::Limits;
use dial::Resolver;
use request::{Secrets, Target};
use wire::{Transport, Wire};

mod builder;
mod classify;
mod connection;
mod dial;
mod error;
mod heartbeat;
mod refusal;
mod request;
mod socket;
mod wire;

pub use builder::{Builder, InvalidSetting};
pub use connection::Connection;
pub use error::{Error, SendError};
pub use refusal::Refusal;
pub use tokio_rustls::rustls;
pub use tokio_tungstenite::tungstenite;
pub use tokio_tungstenite::tungstenite::Message;

/// Opens websockets. Cheap to clone: one connector serves as many supervisors as one likes.
#[derive(Clone)]
pub struct WebSocketConnector(Arc<Settings>);

struct Settings {
    target: Target,
    headers: HeaderMap,
    secrets: Arc<Secrets>,
    credential: u64,
    tls: Option<Tls>,
    config: WebSocketConfig,
    limits: Limits,
    resolver: Resolver,
    classify: Option<ByUser>,
}

struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl WebSocketConnector {
    /// A connector with default settings.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`] if the URL cannot be dialled.
    pub fn new(url: impl Into<String>) -> Result<Self, InvalidSetting> {
        Self::builder(url).build()
    }

    /// A connector with settings of one's own.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder::new(url.into())
    }
}

impl From<Settings> for WebSocketConnector {
    fn from(settings: Settings) -> Self {
        Self(Arc::new(settings))
    }
}

impl Connector for WebSocketConnector {
    type Connection = Connection;
    type Error = Error;

    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<Connection, Error>> + Send {
        let settings = Arc::clone(&self.0);
        async move {
            let target = &settings.target;
            let patience = settings.limits.patience();
            let stream = dial::dial(&target.host, target.port, &settings.resolver, patience).await?;
            attempt.reached();
            settings.upgrade(stream).await
        }
    }

    fn endpoint(&self) -> Endpoint {
        self.0.target.endpoint.clone()
    }

    /// A number for headers and query, which hold the credential.
    fn credential(&self) -> u64 {
        self.0.credential
    }

    fn classify(&self, error: &(dyn StdError + 'static), _: Ended) -> Failure {
        classify::in_chain(error, self.0.classify.as_ref())
    }

    /// Sends a close frame (1000), unless the connection has ended already.
    async fn close(&self, connection: &Connection) {
        let frame = CloseFrame { code: CloseCode::Normal, reason: tungstenite::Utf8Bytes::default() };
        connection.close(Some(frame)).await;
    }

    /// Sends a ping at once. The verdict comes from [`Connection::next`], within the pong timeout.
    async fn check(&self, connection: &Connection) -> Result<(), BoxError> {
        Ok(connection.hurry()?)
    }
}

impl Settings {
    async fn upgrade(&self, stream: TcpStream) -> Result<Connection, Error> {
        let peer = stream.peer_addr().ok();
        let transport = match &self.tls {
            None => Transport::Plain(stream),
            Some(tls) => {
                let handshake = tls.connector.connect(tls.name.clone(), stream);
                Transport::Tls(Box::new(handshake.await.map_err(Error::tls)?))
            }
        };
        let request = self.target.request(&self.headers).map_err(Error::upgrade)?;
        let (stream, answer) = client_async_with_config(request, Wire::new(transport), Some(self.config))
            .await
            .map_err(|error| self.refused(error))?;
        if stream.get_ref().is_http_1_0() {
            return Err(Error::upgrade(ProtocolError::WrongHttpVersion.into()));
        }
        let secrets = Arc::clone(&self.secrets);
        Ok(Connection::new(stream, self.limits, peer, answer.into_parts().0.headers, secrets))
    }

    fn refused(&self, error: tungstenite::Error) -> Error {
        match error {
            tungstenite::Error::Http(response) => Error::Refused(Arc::new(Refusal::received(*response, &self.secrets))),
            error => Error::upgrade(error),
        }
    }
}

/// Without values of headers, path and query.
impl fmt::Debug for WebSocketConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.0.headers.keys().collect();
        f.debug_struct("WebSocketConnector")
            .field("endpoint", &self.0.target.endpoint)
            .field("headers", &headers)
            .field("limits", &self.0.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use tokio::time::timeout;

    use super::WebSocketConnector;
    use super::dial::tests::listen;
    use crate::runtime::{Attempt, Connector};

    #[tokio::test]
    async fn an_attempt_is_marked_as_soon_as_tcp_stands_and_not_before() {
        let (listener, port) = listen().await;
        let connector = WebSocketConnector::new(format!("ws://127.0.0.1:{port}/")).unwrap();
        let reached = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&reached);
        let attempt = Attempt::first(Instant::now()).on_reached(move || mark.store(true, Ordering::Relaxed));
        // The listener never answers, so this ends in the upgrade.
        let dialled = connector.connect(attempt.clone());
        assert!(!reached.load(Ordering::Relaxed));
        assert!(timeout(Duration::from_millis(500), dialled).await.is_err());
        assert!(reached.load(Ordering::Relaxed));

        drop(listener);
        reached.store(false, Ordering::Relaxed);
        assert!(connector.connect(attempt).await.is_err());
        assert!(!reached.load(Ordering::Relaxed), "refused");
    }
}
