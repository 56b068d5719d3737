//! The tokio shell: performs actions, feeds events, decides nothing.

mod connector;

pub use connector::{Attempt, BoxError, Connector, ConnectorFn, Ended, classify, connector_fn};
