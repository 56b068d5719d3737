//! The settings of a websocket connector.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio_tungstenite::tungstenite::http::HeaderMap;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::connection::Limits;
use super::dial::Resolver;
use super::error::Error;
use super::request::{self, Target};
use super::{Settings, Tls, WebSocketConnector};
use crate::machine::Failure;

/// Makes a [`WebSocketConnector`]; everything is checked in [`build`](Self::build).
#[must_use]
pub struct Builder {
    url: String,
    headers: Vec<(String, String)>,
    roots: Option<RootCertStore>,
    limits: Limits,
    max_frame_size: usize,
    resolver: Resolver,
    classify: Option<ByUser>,
}

/// What a user's closure says of an error.
pub(super) type ByUser = Arc<dyn Fn(&Error) -> Option<Failure> + Send + Sync>;

impl Builder {
    /// A proxy's idle cut-off is 60 s more often than not, 50 s sometimes: 25 s is below half of both.
    const PING_INTERVAL: Duration = Duration::from_secs(25);
    const PONG_TIMEOUT: Duration = Duration::from_secs(10);
    const SEND_TIMEOUT: Duration = Duration::from_secs(10);
    /// The websocket crate's own defaults.
    const MAX_MESSAGE_SIZE: usize = 64 << 20;
    const MAX_FRAME_SIZE: usize = 16 << 20;

    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            headers: Vec::new(),
            roots: None,
            limits: Limits {
                ping_interval: Self::PING_INTERVAL,
                pong_timeout: Self::PONG_TIMEOUT,
                send_timeout: Self::SEND_TIMEOUT,
                max_message_size: Self::MAX_MESSAGE_SIZE,
            },
            max_frame_size: Self::MAX_FRAME_SIZE,
            resolver: Resolver::system(),
            classify: None,
        }
    }

    /// Adds a header to the upgrade request: `Authorization`, `Cookie`, `Origin`, `Sec-WebSocket-Protocol`.
    ///
    /// A `Host` replaces the one of the URL. Values are treated as secrets: no error, log or `Debug` of this crate
    /// contains one.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Trusts these certificate authorities in place of the public ones (`webpki-roots`), for `wss://` only.
    pub fn roots(mut self, roots: RootCertStore) -> Self {
        self.roots = Some(roots);
        self
    }

    /// How often a ping is sent. Default 25 s; every connection draws a factor between 0.8 and 1, so that a fleet does
    /// not ping in step. Shorter than the shortest idle cut-off on the way; [`Duration::MAX`] sends none.
    pub const fn ping_interval(mut self, interval: Duration) -> Self {
        self.limits.ping_interval = interval;
        self
    }

    /// How long an answer may take once the ping interval is over. Default 10 s. Any byte counts as an answer: a
    /// connection ends as [`Error::Silent`] when nothing at all came for ping interval plus pong timeout.
    pub const fn pong_timeout(mut self, timeout: Duration) -> Self {
        self.limits.pong_timeout = timeout;
        self
    }

    /// How long [`send`](super::Connection::send) may take. Default 10 s: kernel buffers hide a peer that does not read
    /// until they are full, and from then on a write waits for ever.
    pub const fn send_timeout(mut self, timeout: Duration) -> Self {
        self.limits.send_timeout = timeout;
        self
    }

    /// The longest message in bytes, in either direction. Default 64 MiB.
    pub const fn max_message_size(mut self, bytes: usize) -> Self {
        self.limits.max_message_size = bytes;
        self
    }

    /// The longest incoming frame in bytes. Default 16 MiB.
    pub const fn max_frame_size(mut self, bytes: usize) -> Self {
        self.max_frame_size = bytes;
        self
    }

    /// Finds the addresses of host and port, in place of the operating system: for service discovery, or a resolver
    /// of one's own. Asked once for each attempt, never for a URL with an IP address.
    pub fn resolver<F, Fut>(mut self, resolve: F) -> Self
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        self.resolver = Resolver::new(resolve);
        self
    }

    /// Overrides the table of failures where the closure has an opinion: for application close codes, say.
    ///
    /// ```
    /// use steadfast::Failure;
    /// use steadfast::websocket::{Error, WebSocketConnector};
    ///
    /// let connector = WebSocketConnector::builder("wss://example.com/feed")
    ///     .classify(|error| match error {
    ///         Error::Closed { code: 4401, .. } => Some(Failure::Unauthorized),
    ///         Error::Closed { code: 4000..=4099, .. } => Some(Failure::Permanent),
    ///         _ => None,
    ///     })
    ///     .build();
    /// assert!(connector.is_ok());
    /// ```
    pub fn classify(mut self, classify: impl Fn(&Error) -> Option<Failure> + Send + Sync + 'static) -> Self {
        self.classify = Some(Arc::new(classify));
        self
    }

    /// Checks the settings and makes the connector. Nothing is dialled.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`] names the first setting that cannot work, its value as far as it is no secret, and what is
    /// allowed.
    pub fn build(self) -> Result<WebSocketConnector, InvalidSetting> {
        let target = Target::parse(&self.url)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let (name, value) = request::header(name, value)?;
            headers.append(name, value);
        }
        not_zero("ping_interval", self.limits.ping_interval)?;
        not_zero("pong_timeout", self.limits.pong_timeout)?;
        not_zero("send_timeout", self.limits.send_timeout)?;
        not_zero("max_message_size", self.limits.max_message_size)?;
        not_zero("max_frame_size", self.max_frame_size)?;
        let tls = if target.tls { Some(tls(&target.host, self.roots)?) } else { None };
        Ok(WebSocketConnector::from(Settings {
            secrets: Arc::new(target.secrets(&headers)),
            credential: target.credential(&headers),
            target,
            headers,
            tls,
            config: WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER)
                .max_write_buffer_size(self.limits.max_message_size.saturating_add(CONTROL_BUFFER))
                .max_message_size(Some(self.limits.max_message_size))
                .max_frame_size(Some(self.max_frame_size)),
            limits: self.limits,
            resolver: self.resolver,
            classify: self.classify,
        }))
    }
}

/// A buffer for each connection; the websocket crate's own default would be 128 KiB, for a million messages a second.
const READ_BUFFER: usize = 16 << 10;

/// How many bytes of answers to pings may wait beside a message, for a server that pings and does not read; the rest of
/// them is left out. The websocket crate's own default is no bound.
const CONTROL_BUFFER: usize = 1 << 20;

/// Never uses or sets the provider of the process: an application may have another one, or two.
fn tls(host: &str, roots: Option<RootCertStore>) -> Result<Tls, InvalidSetting> {
    if roots.as_ref().is_some_and(RootCertStore::is_empty) {
        return Err(InvalidSetting::new("roots", "empty".to_owned(), "at least one certificate, or not set at all"));
    }
    let roots = roots.unwrap_or_else(|| webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| InvalidSetting::new("url", host.to_owned(), "a host that a certificate can name"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| InvalidSetting::new("url", "wss://".to_owned(), "ws://: TLS is not available"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
}

fn not_zero<T: Default + PartialEq + fmt::Debug>(setting: &'static str, value: T) -> Result<(), InvalidSetting> {
    if value == T::default() {
        return Err(InvalidSetting::new(setting, format!("{value:?}"), "more than zero"));
    }
    Ok(())
}

/// Without values of headers and query.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Builder").field("headers", &headers).finish_non_exhaustive()
    }
}

/// A setting that cannot work.
#[derive(Clone, Debug)]
pub struct InvalidSetting {
    setting: &'static str,
    value: String,
    allowed: &'static str,
}

impl InvalidSetting {
    pub(super) const fn new(setting: &'static str, value: String, allowed: &'static str) -> Self {
        Self { setting, value, allowed }
    }

    /// The setting, as the setters name it; `url` for the URL.
    #[must_use]
    pub const fn setting(&self) -> &'static str {
        self.setting
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "websocket: {} is `{}`, allowed is {}", self.setting, self.value, self.allowed)
    }
}

impl StdError for InvalidSetting {}
