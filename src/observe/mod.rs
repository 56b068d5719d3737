//! What happened, for people and dashboards.

mod cause;

pub use cause::{Cause, Endpoint};
