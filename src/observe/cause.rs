//! Why something failed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::machine::Failure;

/// What is dialled, as configured: scheme, host list and port. Never a user, a password, a path or a query.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Endpoint(Arc<str>);

impl Endpoint {
    /// Keeps `scheme://hosts:port` of a URL and drops user, password, path, query and fragment; text that is no URL
    /// (a host and port, a name of one's own) is kept up to the first `/`, `?`, `#`. A scheme is kept in lower case,
    /// hosts as they are; a default port is not added. Of settings (`host=db port=5432 password=…`, or with `;`) only those
    /// that say where are kept.
    #[must_use]
    pub fn new(address: &str) -> Self {
        let first = address.split(['/', '?', '#', ':']).next().unwrap_or_default();
        if first.contains('=') {
            return Self(where_of(address).into());
        }
        let (scheme, rest) = address.split_once("://").map_or((None, address), |(scheme, rest)| (Some(scheme), rest));
        let authority = |text: &str| text.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
        let mut hosts = authority(rest);
        let port_is_none = hosts.rsplit_once(':').is_some_and(|(_, port)| port.contains(|c: char| !c.is_ascii_digit()));
        if let Some((_, after)) = rest.rsplit_once('@')
            && (hosts.contains('@') || (port_is_none && !hosts.ends_with(']')))
        {
            // A password may contain what ends an authority: what stands before the last `@` is never shown.
            hosts = authority(after);
        }
        Self(scheme.map_or_else(
            || hosts.as_str().into(),
            |scheme| format!("{}://{hosts}", scheme.to_ascii_lowercase()).into(),
        ))
    }

    /// For connectors that do not say what they dial.
    #[must_use]
    pub fn unnamed() -> Self {
        Self(Arc::from(""))
    }

    /// Whether it has no name.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.0.is_empty()
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a string of settings says of the place: everything else may be secret.
fn where_of(settings: &str) -> String {
    let is_place = |key: &str| ["host", "hostaddr", "port", "server"].iter().any(|name| key.eq_ignore_ascii_case(name));
    let places = settings.split(|c: char| c == ';' || c.is_whitespace());
    let places = places.filter(|pair| pair.split_once('=').is_some_and(|(key, _)| is_place(key)));
    places.collect::<Vec<_>>().join(" ")
}

impl From<&str> for Endpoint {
    fn from(address: &str) -> Self {
        Self::new(address)
    }
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self::new(&address)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_unnamed() { "(unnamed endpoint)" } else { &self.0 })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why something failed: which step, what was dialled, which class, when, and the error itself.
///
/// Cheap to clone; the error stays reachable through [`Error::source`].
#[derive(Clone)]
pub struct Cause(Arc<Inner>);

struct Inner {
    step: &'static str,
    endpoint: Endpoint,
    failure: Failure,
    at: Instant,
    source: Box<dyn Error + Send + Sync>,
}

impl Cause {
    pub(crate) fn new(
        step: &'static str,
        endpoint: Endpoint,
        failure: Failure,
        at: Instant,
        source: Box<dyn Error + Send + Sync>,
    ) -> Self {
        Self(Arc::new(Inner { step, endpoint, failure, at, source }))
    }

    /// What was being done: `connect`, `session`, `report`, `check`.
    #[must_use]
    pub fn step(&self) -> &'static str {
        self.0.step
    }

    /// What was dialled.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// The class that decided what followed.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.0.failure
    }

    /// When it failed.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.0.at
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} failed ({}): {}", self.0.step, self.0.endpoint, self.0.failure, self.0.source)?;
        let mut source = self.0.source.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_keeps_scheme_hosts_and_port_only() {
        for (address, kept) in [
            ("ws://h:80/path?token=secret#x", "ws://h:80"),
            ("wss://user:secret@h/path@x", "wss://x"),
            ("ws://h/path@x", "ws://h"),
            ("ws://[::1]:80/x@y", "ws://[::1]:80"),
            ("ws://[fe80::a]/x@y", "ws://[fe80::a]"),
            ("postgres://u:se/cr@et@a:1,b:2/db", "postgres://a:1,b:2"),
            ("ws://u:se/cret@h:1", "ws://h:1"),
            ("ws://u:se?cr#et@h:1/x", "ws://h:1"),
            ("WSS://Host:1", "wss://Host:1"),
            ("host=a,b port=5432 user=u password=se@cret dbname=d", "host=a,b port=5432"),
            ("Server=h;Password=secret", "Server=h"),
            ("password=secret", ""),
            ("u:secret@h:1?sslmode=require", "h:1"),
            ("h/db?sslmode=require", "h"),
            ("password=a://b", ""),
            ("host:7000", "host:7000"),
            ("memory", "memory"),
        ] {
            assert_eq!(Endpoint::new(address).as_str(), kept, "of {address}");
        }
    }
}
