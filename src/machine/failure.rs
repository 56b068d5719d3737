//! What an error means for the next attempt.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// How an error steers what follows.
///
/// The class answers one question: what would another attempt cost, and whom? It is chosen by
/// [`Connector::classify`](crate::Connector::classify) and decides curve, breaker and credential rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// Trying again as things stand cannot succeed.
    ///
    /// Before the other side was reached it is our own configuration (URL, scheme, header): supervision stops.
    /// After it, the other side said so (no such database, unknown certificate) and may be healed there: the slow
    /// curve, unless the policy says to stop.
    Permanent,
    /// The server said that it is moving or restarting: a draw of the recovery spread, nothing charged, unless the
    /// session was too short to be forgiven.
    Planned,
    /// Alive, and asking for less: not before `retry_after`; without one, the growing curve. Never charged to a
    /// breaker.
    Throttled {
        /// The shortest wait that the server asked for, where it named one.
        retry_after: Option<Duration>,
    },
    /// No answer in time, so for a call the outcome is unknown. Counts three times towards the growing curve.
    Timeout,
    /// It answered and failed, or nobody knows: the growing curve.
    Transient,
    /// The credential was refused: one fresh try for the whole credential, then the slow curve.
    Unauthorized,
    /// Nobody answered (refused, no route; no such name, where the connector tells): asking again costs the server
    /// nothing, so the quick curve.
    Unreachable,
}

impl Failure {
    /// Wraps `source` in an error that carries this class, for connectors and sessions that know it already.
    ///
    /// The default [`Connector::classify`](crate::Connector::classify) finds the class anywhere in the chain of
    /// sources.
    ///
    /// ```
    /// use steadfast::Failure;
    ///
    /// let error = Failure::Unauthorized.because("token expired");
    /// assert_eq!(error.failure(), Failure::Unauthorized);
    /// assert_eq!(error.to_string(), "token expired");
    /// ```
    pub fn because(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Classified {
        Classified { failure: self, source: source.into() }
    }

    /// The server's wait, where it named one.
    #[must_use]
    pub const fn retry_after(self) -> Option<Duration> {
        if let Self::Throttled { retry_after } = self { retry_after } else { None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permanent => f.write_str("permanent"),
            Self::Planned => f.write_str("planned"),
            Self::Throttled { retry_after: None } => f.write_str("throttled"),
            Self::Throttled { retry_after: Some(wait) } => write!(f, "throttled, retry after {wait:?}"),
            Self::Timeout => f.write_str("timeout"),
            Self::Transient => f.write_str("transient"),
            Self::Unauthorized => f.write_str("unauthorized"),
            Self::Unreachable => f.write_str("unreachable"),
        }
    }
}

/// An error whose class is known: see [`Failure::because`].
#[derive(Debug)]
pub struct Classified {
    failure: Failure,
    source: Box<dyn Error + Send + Sync>,
}

impl Classified {
    /// The class that it was given.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        self.failure
    }
}

impl fmt::Display for Classified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for Classified {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}
