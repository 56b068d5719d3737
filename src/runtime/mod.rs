//! The tokio shell: performs actions, feeds events, decides nothing.

mod board;
mod caught;
mod clock;
mod connector;
mod control;
mod error;
mod gate;
mod handle;
mod kept;
mod link;
#[cfg(test)]
#[cfg(steadfast_loom)]
mod loom_tests;
mod mailbox;
mod session;
mod shell;
mod supervisor;
mod suspend;
mod sync;

pub use clock::Clock;
pub use connector::{Attempt, BoxError, Connector, ConnectorFn, Ended, classify, connector_fn};
pub use error::{BuildError, NotReady, Stopped};
pub use gate::{Gate, GateBuilder};
pub use handle::Handle;
pub use link::{CachedLink, Link, Live};
pub use session::{Lease, Session};
pub use supervisor::{Supervisor, SupervisorBuilder};
