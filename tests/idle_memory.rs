//! What connections hold of the heap while they are idle, and after outages: counted in bytes, the same on every run.
#![cfg(test)]

use std::alloc::System;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use steadfast::{Attempt, Gate, Supervisor, connector_fn};
use tokio::runtime::Builder;
use tokio::time::sleep;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ENDPOINT: &str = "test://server:1";
const COUNT: usize = 1_000;

/// Runs one test at a time, with a runtime of its own: what another one holds would be counted too.
fn alone(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(test);
}

/// Live bytes and blocks.
fn heap() -> (usize, usize) {
    let stats = HEAP.stats();
    (stats.bytes_allocated - stats.bytes_deallocated, stats.allocations - stats.deallocations)
}

static DOWN: AtomicBool = AtomicBool::new(false);

async fn dial(_attempt: Attempt) -> Result<(), io::Error> {
    if DOWN.load(Ordering::Relaxed) { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(()) }
}

/// Of each of a thousand kept connections that have been stable for a while.
async fn weigh(gate: Option<&Gate>) -> (usize, usize) {
    let mut builder = Supervisor::builder(connector_fn(ENDPOINT, dial));
    if let Some(gate) = gate {
        builder = builder.gate(gate);
    }
    // The list of links is the test's own.
    let mut links = Vec::with_capacity(COUNT);
    let before = heap();
    links.extend((0..COUNT as u64).map(|seed| builder.clone().seed(seed).build().unwrap().keep().unwrap()));
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    let now = heap();
    drop(links);
    ((now.0 - before.0) / COUNT, (now.1 - before.1) / COUNT)
}

/// Whoever has waited for the connection and whatever timed its attempts is gone by then.
#[test]
fn an_idle_connection_holds_a_kibibyte_and_nothing_that_it_does_not_use() {
    alone(async {
        let gate = Gate::builder(ENDPOINT).build().unwrap();
        let (bytes, blocks) = weigh(Some(&gate)).await;
        assert!(bytes <= 1_024, "{bytes} bytes behind a shared gate");
        assert_eq!(blocks, 5, "control, task, slot, owner and what is lent");
        let (bytes, blocks) = weigh(None).await;
        assert!(bytes <= 1_536, "{bytes} bytes with a gate of its own");
        assert!(blocks <= 8, "{blocks} blocks with a gate of its own");
    });
}

#[test]
fn outages_leave_nothing_behind_on_the_heap() {
    alone(async {
        let gate = Gate::builder(ENDPOINT).build().unwrap();
        let builder = Supervisor::builder(connector_fn(ENDPOINT, dial));
        let shared = builder.clone().gate(&gate);
        let both = [(&shared, COUNT), (&builder, 100)];
        let links: Vec<_> = both.iter().flat_map(|(builder, count)| vec![*builder; *count]).collect();
        let links: Vec<_> = links.into_iter().map(|builder| builder.clone().build().unwrap().keep().unwrap()).collect();
        let mut after = Vec::new();
        for _ in 0..12 {
            for link in &links {
                link.ready().await.unwrap().report(io::Error::from(io::ErrorKind::ConnectionReset));
            }
            DOWN.store(true, Ordering::Relaxed);
            sleep(Duration::from_secs(90)).await;
            DOWN.store(false, Ordering::Relaxed);
            sleep(Duration::from_secs(300)).await;
            assert!(links.iter().all(|link| link.current().is_some()));
            after.push(heap());
        }
        // The first leaves with each why it was lost, and the list of whoever stands at the gate has grown.
        let (bytes, blocks) = after[1];
        let held = after.iter().skip(2).all(|now| now.0 <= bytes + bytes / 50 && now.1 <= blocks + 20);
        assert!(held, "bytes and blocks after each outage: {after:?}");
    });
}
