//! The pure machine under virtual time: what it decides, case by case.

mod door;
mod harness;
#[path = "../statistics/mod.rs"]
mod statistics;

mod breaker;
mod crowd;
mod extremes;
mod forgiveness;
mod giving_up;
mod hints;
mod jitter;
mod laws;
mod neighbours;
mod reconnect;
mod refusals;
mod rules;
mod schedule;
mod spread;
mod state_table;
mod waiters;
