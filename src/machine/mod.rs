//! The decisions, pure: no async, no clock, no lock, no I/O.
//!
//! # The problem
//!
//! After an outage every client retries at the same instants. Whoever keeps a connection alive has to decide, at
//! every loss and every failed attempt, when to try again, so that the service comes back soon and the server is
//! not killed by its own fleet at the moment it recovers.
//!
//! # The model
//!
//! One [`Lifecycle`] is one supervised connection; one [`Gate`] is what all who dial the same endpoint share. A shell
//! (the tokio runtime, the simulator, a test) performs one [`Action`], waits for one [`Event`] and hands it in,
//! together with the time and a random generator:
//!
//! ```text
//!          Event, now, rng                     admit, settle, lost, …
//! shell ───────────────────▶ Lifecycle ───────────────────▶ Gate
//!       ◀───────────────────           ◀───────────────────
//!          Action, deadline()             Go | Wait, Settled
//! ```
//!
//! # The invariants
//!
//! - Every event in every state gives exactly one action; one that does not fit gives [`Action::Continue`].
//! - Every action but `Continue` replaces what the shell was doing, so news from an old socket cannot exist.
//! - [`Lifecycle::deadline`] is read again after each call; [`Event::TimedOut`] is a hint that the machine checks
//!   against its own deadline, so a timer that fires early or late changes nothing.
//! - Time is an argument, randomness is an argument, arithmetic saturates.
//!
//! This module is public for simulators and foreign event loops, and free to change before the rest of the crate.

mod backoff;
mod event;
mod failure;
mod gate;
mod lifecycle;
mod policy;
mod time;

pub use self::backoff::{Backoff, Growth, Jitter, Step};
pub use event::{Action, Event, State, StopReason, Transition, WaitCause};
pub use failure::{Classified, Failure};
pub use gate::{Admission, Gate, GateStatus, Member, Mode, Permit, Settled, Tenure, Wait};
pub use lifecycle::Lifecycle;
pub use policy::{HintLimit, InvalidPolicy, Policy};
pub use time::add;
