//! Three behind one gate: one of them is dropped at every await, the two others are served.

use std::ops::ControlFlow;

use steadfast::{BoxError, Failure};
use tokio::time::{Instant, sleep};

use crate::common::{Answer, REFUSED, plain, secs};
use crate::cut::Cut;
use crate::world::{World, opens_at, served_by, sweep};

/// The one that is dropped comes `place` in the queue. The others meet the same server if `all` do.
async fn three(cut: Cut, place: u64, answers: &[Answer], all: bool) -> bool {
    let world = World::new(answers);
    // A permit that it took along would be missed for longer than the others may take.
    let supervisor = world.supervisor(plain().attempt_deadline(secs(60)));
    let (server, gate) = (if all { world.server.clone() } else { world.next.clone() }, world.gate.clone());
    let mut others: Vec<_> = (0..place).map(|seed| world.other(&server, seed)).collect();
    let behind = tokio::spawn(async move {
        let other = |seed| World::other_of(&gate, &server, seed);
        (place..2).map(other).collect::<Vec<_>>()
    });
    let session = |_, _| async {
        sleep(secs(3)).await;
        Ok::<_, BoxError>(ControlFlow::Break(()))
    };
    let ended = cut.of(supervisor.run(session)).await;
    // Those behind ask after its first poll.
    others.extend(behind.await.unwrap());

    world.server.turn(|_| Answer::Accept(0));
    let by = opens_at(&world.gate.status()).max(Instant::now() + secs(4)) + secs(4);
    for link in &others {
        served_by(by, link).await;
    }
    assert_eq!(world.gate.status().waiting, 0);
    drop(others);
    sleep(secs(3)).await;
    world.aftermath(supervisor, cut.polls > 0).await;
    ended.is_some()
}

#[test]
fn whoever_is_dropped_behind_a_shared_gate_the_two_others_connect() {
    let refuses = [REFUSED, Answer::Fail(100, Failure::Transient), REFUSED];
    let hangs = [Answer::Silent];
    let slow = [Answer::Accept(3_000), Answer::Accept(3_000), Answer::Accept(3_000)];
    for place in 0..3 {
        for (answers, all) in [(&refuses[..], true), (&hangs, false), (&slow, true)] {
            let polls = sweep(&format!("place {place}, {answers:?}"), |cut| three(cut, place, answers, all));
            assert!(polls > 4, "{polls}");
        }
    }
}
