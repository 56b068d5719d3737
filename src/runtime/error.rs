//! Why something could not be built, was stopped, or was not ready in time.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::machine::{InvalidPolicy, StopReason, WaitCause};
use crate::observe::{Cause, Endpoint};

/// A supervisor or a gate that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The connector dials something else than the gate is for: one would wait for the outage of the other.
    Endpoint {
        /// What the gate is for.
        gate: Endpoint,
        /// What the connector dials.
        connector: Endpoint,
    },
    /// A setting of the policy.
    Policy(InvalidPolicy),
}

impl From<InvalidPolicy> for BuildError {
    fn from(invalid: InvalidPolicy) -> Self {
        Self::Policy(invalid)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint { gate, connector } if connector.is_unnamed() => write!(
                f,
                "gate: it is for {gate}, and the connector does not say what it dials; implement Connector::endpoint"
            ),
            Self::Endpoint { gate, connector } => write!(
                f,
                "gate: it is for {gate}, the connector dials {connector}; if they are the same server, name it with \
                 Gate::builder(..).also_serves(\"{connector}\")"
            ),
            Self::Policy(invalid) => invalid.fmt(f),
        }
    }
}

impl Error for BuildError {}

/// Supervision has ended, and this is why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stopped {
    /// Which way it ended.
    pub reason: StopReason,
    /// The failure behind it, where there is one.
    pub cause: Option<Cause>,
}

impl Stopped {
    /// `last_failure` is the cause only of an end that is a failure.
    pub(super) fn new(reason: StopReason, last_failure: Option<Cause>) -> Self {
        Self { reason, cause: last_failure.filter(|_| reason.is_failure()) }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            StopReason::Busy => {
                "the supervisor is already active: one run, or the links of one keep, at a time; end that first, or \
                 build another"
            }
            StopReason::Drained => "drained",
            StopReason::Dropped => "the owner of the connection is gone",
            StopReason::Finished => "the session finished",
            StopReason::GaveUp => "gave up",
            StopReason::Permanent => "another attempt cannot succeed",
        })?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl Error for Stopped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as &(dyn Error + 'static))
    }
}

/// There is no connection, and there will be none in time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotReady {
    /// The deadline has passed.
    Elapsed {
        /// The last failure, if there was one.
        cause: Option<Cause>,
    },
    /// Supervision has ended.
    Stopped(Stopped),
    /// The next attempt cannot start before the deadline, so waiting for it is pointless.
    TooLate {
        /// The last failure, if there was one.
        cause: Option<Cause>,
        /// The wait that does not fit.
        wait: Duration,
        /// Why it has to be waited out.
        why: Option<WaitCause>,
    },
}

impl NotReady {
    /// The failure behind it, where there is one.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Elapsed { cause } | Self::TooLate { cause, .. } => cause.as_ref(),
            Self::Stopped(stopped) => stopped.cause.as_ref(),
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed { .. } => f.write_str("no connection before the deadline")?,
            Self::Stopped(stopped) => return stopped.fmt(f),
            Self::TooLate { wait, .. } => write!(f, "the next attempt is {wait:?} away, beyond the deadline")?,
        }
        match self.cause() {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl Error for NotReady {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause().map(|cause| cause as &(dyn Error + 'static))
    }
}
