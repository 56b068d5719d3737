//! The tokio shell: performs actions, feeds events, decides nothing.

mod connector;

#[cfg(all(test, feature = "websocket"))]
pub(crate) use connector::Reached;
pub use connector::{Attempt, BoxError, Connector, ConnectorFn, Ended, classify, connector_fn};
