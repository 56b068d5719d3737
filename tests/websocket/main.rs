//! The websocket connector and its connections, against a server that is scripted byte by byte.
#![cfg(feature = "websocket")]

mod cancellation;
mod connection;
mod contract;
#[path = "../sweep/cut.rs"]
mod cut;
mod dial;
mod liveness;
mod server;
mod supervised;
mod tls;
