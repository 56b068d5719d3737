//! The shipped machine under virtual time: many [`Lifecycle`](crate::machine::Lifecycle)s on one or several
//! [`Gate`](crate::machine::Gate)s, against a scripted server.
//!
//! # The model
//!
//! A [`Fleet`] is a number of clients with one policy, so many behind each gate. A [`Scenario`] says what happens to
//! them and when: how the [`Server`] behaves from some instant on, whose session ends, who is cancelled, who is never
//! polled again, who calls `reconnect()`. [`Fleet::run`] plays it and returns a [`Report`]: every dial, who was back
//! when, the log of chosen clients, and what the checkers found.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use steadfast::Policy;
//! use steadfast::sim::{Fleet, Scenario, Server};
//!
//! # fn main() -> Result<(), steadfast::machine::InvalidPolicy> {
//! let outage = Scenario::outage(Server::refusing(), Duration::from_secs(5), Server::healthy());
//! let report = Fleet::new(Policy::default(), 200)?.seed(7).run(Instant::now(), &outage);
//! assert!(report.dials_in_outage() < 10, "one asks, the others wait");
//! assert!(report.back(1.0).is_some_and(|all| all < Duration::from_secs(30)));
//! assert!(report.violations().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # The invariant
//!
//! One seed repeats a run exactly. Events are taken in the order (instant, sequence); each client draws from a
//! generator of its own, forked from the seed's; the origin that is handed in moves nothing, because all records are
//! durations since it. Timers fire on a grid of one millisecond, as tokio's do, so that the runtime under paused time
//! and the simulator agree.
//!
//! # What the model leaves out
//!
//! Packets, addresses and the cost of a connection that stays up. An answer takes a fixed time, and a client's own
//! work takes none.

mod checker;
mod fleet;
mod line;
mod queue;
mod report;
mod run;
mod scenario;
mod server;

pub use fleet::Fleet;
pub use line::line;
pub use report::{Dial, Report};
pub use scenario::{Scenario, Step};
pub use server::{Overload, Server};
