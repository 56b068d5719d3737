//! The future of `run`, dropped at every await.

use steadfast::{Failure, StopReason};
use tokio::time::sleep;

use crate::common::{Answer, Manner, REFUSED, lock, ms, plain, secs};
use crate::cut::Cut;
use crate::world::{World, live_for, sweep};

/// Everything that can happen to a connection that nobody else waits with.
async fn a_life(cut: Cut) -> bool {
    let world = World::new([REFUSED, Answer::Fail(100, Failure::Transient), Answer::Silent, Answer::Accept(50)]);
    *lock(&world.server.close) = Manner::Hangs;
    let supervisor = world.supervisor(plain().startup_spread(secs(2)).recovery_spread(secs(1)));
    let handle = supervisor.handle();
    let draining = tokio::spawn({
        let handle = handle.clone();
        async move {
            sleep(secs(60)).await;
            drop(handle.drain());
        }
    });
    // A young session, a stable one, and one that is drained.
    let mut lives = [ms(200), secs(15), secs(600)].into_iter();
    let session = move |connection, session| live_for(lives.next().expect("three sessions"), connection, session);
    let ended = cut.of(supervisor.run(session)).await;
    draining.abort();
    if let Some(ended) = &ended {
        assert_eq!(ended.as_ref().unwrap_err().reason, StopReason::Drained);
        assert_eq!((handle.status().generation, world.server.dial_count()), (3, 6), "the whole life was lived");
    }
    world.aftermath(supervisor, cut.polls > 0).await;
    ended.is_some()
}

#[test]
fn run_can_be_dropped_at_every_await_of_a_whole_life() {
    let polls = sweep("run", a_life);
    assert!(polls > 30, "{polls}");
}
