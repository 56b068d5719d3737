//! The websocket connector and its connections, against a server that is scripted byte by byte.
#![cfg(feature = "websocket")]

mod connection;
mod contract;
mod dial;
mod liveness;
mod server;
mod supervised;
mod tls;
