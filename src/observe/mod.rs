//! What happened, for people and dashboards.

mod cause;
mod log;
mod status;

pub use cause::{Cause, Endpoint};
pub(crate) use log::{Limiter, Line};
pub use status::Status;
