//! Whoever leaves during an outage leaves nothing behind.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use steadfast::{BoxError, Clock, Gate, Link, Policy, Supervisor};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::alive;
use crate::common::{Dialler, ENDPOINT, Server, secs};
use crate::measure::{Outage, still};

const FLEET: u64 = 10_000;

/// What keeps a supervisor alive.
enum Owner {
    Link(Link<Dialler>),
    Task(JoinHandle<()>),
}

impl Owner {
    fn leave(self) {
        match self {
            Self::Link(link) => drop(link),
            Self::Task(task) => task.abort(),
        }
    }
}

/// Ten thousand that never had a connection and go again, a hundred each second, in any order.
async fn come_and_go(outage: Outage) {
    let server = Server::new(move |_| outage.answer());
    let gate = Gate::builder(ENDPOINT).build().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reads);
    let now = move || {
        count.fetch_add(1, Ordering::Relaxed);
        Clock::system().now()
    };
    let builder =
        Supervisor::builder(server.connector()).policy(Policy::default()).clock(Clock::new(now, still)).gate(&gate);
    let mut owners: Vec<_> = (0..FLEET)
        .map(|seed| {
            let supervisor = builder.clone().seed(seed).build().unwrap();
            if seed % 2 == 0 {
                return Owner::Link(supervisor.keep().unwrap());
            }
            let session = |_, _| async { Ok::<_, BoxError>(ControlFlow::Break(())) };
            Owner::Task(tokio::spawn(async move { supervisor.run(session).await.expect("it is aborted before") }))
        })
        .collect();
    drop(builder);
    sleep(secs(60)).await;
    let status = gate.status();
    assert_eq!((status.members, alive()), (10_000, 10_001), "{status:?}");
    assert!((9_990..=10_000).contains(&(status.waiting + status.in_flight)), "{status:?}");

    owners.shuffle(&mut ChaCha8Rng::seed_from_u64(7));
    let before = reads.load(Ordering::Relaxed);
    for (left, owner) in (1..).zip(owners) {
        owner.leave();
        if left % 100 == 0 {
            sleep(secs(1)).await;
            assert_eq!(gate.status().members, 10_000 - left);
        }
    }
    // Leaving is one decision, and at most four others are told that their turn comes sooner. The rest is what they
    // did for as long as they stayed: a hundred seconds of looking in.
    let reads = reads.load(Ordering::Relaxed) - before;
    assert!(reads < 12 * 10_000, "the clock was read {reads} times");

    let dials = server.dial_count();
    // The watcher looks once more.
    sleep(secs(5)).await;
    let status = gate.status();
    assert_eq!((status.members, status.waiting, status.refused, status.in_flight), (0, 0, 0, 0), "{status:?}");
    assert_eq!(alive(), 0);
    assert_eq!(Arc::strong_count(&server), 1, "connectors and connections are gone");
    let parks = || Handle::current().metrics().worker_park_count(0);
    let before = parks();
    sleep(secs(3_600)).await;
    assert!(parks() - before < 10, "nothing is scheduled but the end of this hour: {}", parks() - before);
    assert_eq!(server.dial_count(), dials);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_that_leave_in_any_order_while_nobody_answers_leave_an_empty_gate() {
    come_and_go(Outage::Silent).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_that_leave_while_their_credential_is_refused_leave_an_empty_gate() {
    come_and_go(Outage::Unauthorized).await;
}
