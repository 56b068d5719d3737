//! Every future of the public API, dropped after each number of polls that it has, and a panic at every place where
//! code of the user runs: after each, nothing is held, the next one is served, and whoever goes on goes on by the rules.
//!
//! Time is paused, and each run has a runtime of its own, so that what it leaves behind can be counted.

#![cfg(test)]

mod clock;
#[path = "../common/mod.rs"]
mod common;
mod cut;
mod formats;
mod fuse;
mod keep;
mod panics;
mod run;
mod shared;
mod time;
mod waits;
mod world;
