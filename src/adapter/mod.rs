//! Connectors for third-party clients, one cargo feature each.

#[cfg(feature = "websocket")]
pub mod websocket;
