//! Keeps long-lived connections alive, and the server they come back to.
//!
//! # The problem
//!
//! After an outage every client retries at the same instants. Backoff alone spreads the load over time and leaves the
//! fleet in step, so the server that comes back is taken down by its own clients.
//!
//! # The model
//!
//! - A [`Connector`] says how to open one connection; [`connector_fn`] makes one from a closure.
//! - A [`Supervisor`] keeps one connection. [`Supervisor::run`] gives it to a session closure, again after every loss;
//!   [`Supervisor::keep`] shares whichever connection is live through a [`Link`].
//! - A [`Gate`] is shared by all who dial one server: while it is down exactly one of them asks, and when it answers the
//!   others follow slowly.
//! - A [`Policy`] holds every number, each with its reason; a [`Failure`] is the class of an error and decides what
//!   follows; a [`Cause`] is the error for people.
//! - A [`Handle`] is the operator's: [`Status`], `reconnect()`, `drain()`.
//!
//! # The promises
//!
//! The connection comes back, or there is a terminal state that says why: every waiter is woken with the cause. Attempts
//! are spread, bounded and admitted.
//!
//! ```
//! use std::ops::ControlFlow;
//! use steadfast::{Supervisor, connector_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let supervisor = Supervisor::new(connector_fn("memory", |attempt| async move {
//!     Ok::<_, std::io::Error>(attempt.generation()) // the "connection" here is a number
//! }));
//! let seen = supervisor
//!     .run(|connection, _session| async move {
//!         Ok::<_, std::io::Error>(if *connection < 2 {
//!             ControlFlow::Continue(()) // over: dial again
//!         } else {
//!             ControlFlow::Break(*connection) // done
//!         })
//!     })
//!     .await?;
//! assert_eq!(seen, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `websocket` | a websocket connector over tokio-tungstenite, TLS by rustls |
//! | `sim` | fleets of the same machines under virtual time |
//! | `testing` | what a test needs to show that a service survives: a scripted server, faulty connections, a manual clock |
//!
//! The guide, the design and the measured recovery stand in `docs/`.

// For the library alone: tests, unit tests too, examples and benches may read the clock and print.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout))]

mod adapter;
pub mod machine;
mod observe;
mod runtime;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "testing")]
pub mod testing;

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

/// The pages of `docs/` and the README, so that their examples are compiled.
#[cfg(all(doctest, feature = "testing", feature = "websocket"))]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/GUIDE.md")]
    mod guide {}
}
