//! What an idle connection holds of the heap: counted in bytes, the same on every run.
#![cfg(test)]

use std::alloc::System;
use std::io;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use steadfast::{Attempt, Gate, Supervisor, connector_fn};
use tokio::time::sleep;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ENDPOINT: &str = "test://server:1";
const COUNT: usize = 1_000;

/// Live bytes and blocks.
fn heap() -> (usize, usize) {
    let stats = HEAP.stats();
    (stats.bytes_allocated - stats.bytes_deallocated, stats.allocations - stats.deallocations)
}

async fn dial(_attempt: Attempt) -> Result<(), io::Error> {
    Ok(())
}

/// Of each of a thousand kept connections that have been stable for a while.
async fn weigh(gate: Option<&Gate>) -> (usize, usize) {
    let mut builder = Supervisor::builder(connector_fn(ENDPOINT, dial));
    if let Some(gate) = gate {
        builder = builder.gate(gate);
    }
    let before = heap();
    let links: Vec<_> = (0..COUNT).map(|_| builder.clone().build().unwrap().keep().unwrap()).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    let now = heap();
    drop(links);
    ((now.0 - before.0) / COUNT, (now.1 - before.1) / COUNT)
}

/// One test, because another one beside it would be counted too. Whoever has waited for the connection and whatever
/// timed its attempts is gone by then.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_holds_a_kibibyte_and_nothing_that_it_does_not_use() {
    let gate = Gate::builder(ENDPOINT).build().unwrap();
    let (bytes, blocks) = weigh(Some(&gate)).await;
    assert!(bytes <= 1_024, "{bytes} bytes behind a shared gate");
    assert_eq!(blocks, 5, "control, task, slot, owner and what is lent");
    let (bytes, blocks) = weigh(None).await;
    assert!(bytes <= 1_536, "{bytes} bytes with a gate of its own");
    assert!(blocks <= 8, "{blocks} blocks with a gate of its own");
}
