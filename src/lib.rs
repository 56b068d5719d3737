//! Keeps long-lived connections alive, and the server they come back to.

pub mod machine;
mod observe;
mod runtime;

pub use machine::{
    Backoff, Classified, Failure, Growth, HintLimit, InvalidPolicy, Jitter, Policy, State, StopReason, WaitCause,
};
pub use observe::{Cause, Endpoint, Status};
pub use runtime::{
    Attempt, BoxError, BuildError, CachedLink, Clock, Connector, ConnectorFn, Ended, Gate, GateBuilder, Handle, Lease,
    Link, Live, NotReady, Session, Stopped, Supervisor, SupervisorBuilder, classify, connector_fn,
};
