//! Keeps long-lived connections alive, and the server they come back to.

// For the library alone: tests, unit tests too, examples and benches may read the clock and print.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout))]

pub mod machine;
mod observe;
mod runtime;

pub use machine::{
    Backoff, Classified, Failure, Growth, HintLimit, InvalidPolicy, Jitter, Policy, State, StopReason, WaitCause,
};
pub use observe::{Cause, Endpoint};
pub use runtime::{Attempt, BoxError, Connector, ConnectorFn, Ended, classify, connector_fn};
