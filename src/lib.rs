//! Keeps long-lived connections alive, and the server they come back to.

// For the library alone: tests, unit tests too, examples and benches may read the clock and print.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout))]

mod adapter;
pub mod machine;
mod observe;
mod runtime;
#[cfg(feature = "sim")]
pub mod sim;

#[cfg(feature = "websocket")]
pub use adapter::websocket;
pub use machine::{
    Backoff, Classified, Failure, Growth, HintLimit, InvalidPolicy, Jitter, Policy, State, StopReason, WaitCause,
};
pub use observe::{Cause, Endpoint, Status};
pub use runtime::{
    Attempt, BoxError, BuildError, CachedLink, Clock, Connector, ConnectorFn, Ended, Gate, GateBuilder, Handle, Lease,
    Link, Live, NotReady, Session, Stopped, Supervisor, SupervisorBuilder, classify, connector_fn,
};
