//! Three behind one gate: one of them is dropped or drained at every await, the two others are served.

use std::ops::ControlFlow;

use futures_util::future::select_all;
use steadfast::{BoxError, Failure, Link, State, StopReason};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Answer, Dialler, REFUSED, ms, plain, secs};
use crate::cut::Cut;
use crate::world::{World, opens_at, served_by, sweep};

/// How one of three behind a gate ends.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Its place in the queue.
    place: u64,
    answers: &'static [Answer],
    /// Whether the others meet the same server.
    shared: bool,
    /// Whether it is drained in place of dropped.
    drained: bool,
}

async fn three(cut: Cut, case: Case) -> bool {
    let world = World::new(case.answers);
    // A permit that it took along would be missed for longer than the others may take.
    let supervisor = world.supervisor(plain().attempt_deadline(secs(60)));
    let server = if case.shared { world.server.clone() } else { world.next.clone() };
    let mut others: Vec<_> = (0..case.place).map(|seed| world.other(&server, seed)).collect();
    let gate = world.gate.clone();
    let behind = tokio::spawn(async move {
        let other = |seed| World::other_of(&gate, &server, seed);
        (case.place..2).map(other).collect::<Vec<_>>()
    });
    let mut running = Box::pin(supervisor.run(|_, _| async {
        sleep(secs(3)).await;
        Ok::<_, BoxError>(ControlFlow::Break(()))
    }));
    let ended = cut.of(&mut running).await;
    if ended.is_none() && case.drained && cut.polls > 0 {
        // Those behind ask after its first poll, and this may be the first.
        yield_now().await;
        drop(supervisor.handle().drain());
        // A session may say `Break` while it is drained.
        let reason = running.as_mut().await.map_or_else(|stopped| stopped.reason, |()| StopReason::Finished);
        assert!(matches!(reason, StopReason::Drained | StopReason::Finished), "{reason:?}");
    }
    drop(running);
    others.extend(behind.await.unwrap());
    world.server.turn(|_| Answer::Accept(0));
    the_next_comes_at_once(&world, &others).await;
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

/// If the gate is narrow and all others wait, one of them dials when it opens, or at the end of its own wait: the turn
/// of the one that is gone passed on.
async fn the_next_comes_at_once(world: &World, others: &[Link<Dialler>]) {
    let statuses: Vec<_> = others.iter().map(|link| link.handle().status()).collect();
    let is_narrow = world.gate.status().pace.is_none();
    if !is_narrow || statuses.iter().any(|status| status.state != State::Backoff) {
        return;
    }
    let own = statuses.iter().filter_map(|status| status.earliest).min().expect("they wait");
    let opening = world.opening().max(own.into());
    let ready = others.iter().map(|link| Box::pin(link.ready()));
    let within = opening.saturating_duration_since(Instant::now()) + ms(5);
    let (first, _, _) = timeout(within, select_all(ready)).await.expect("the next one comes at once");
    first.expect("not stopped");
}

const REFUSES: [Answer; 3] = [REFUSED, Answer::Fail(100, Failure::Transient), REFUSED];
const HANGS: [Answer; 1] = [Answer::Silent];
const SLOW: [Answer; 3] = [Answer::Accept(3_000); 3];

#[test]
fn whoever_is_dropped_or_drained_behind_a_shared_gate_the_two_others_connect() {
    for drained in [false, true] {
        for place in 0..3 {
            for (answers, shared) in [(&REFUSES[..], true), (&HANGS, false), (&SLOW, true)] {
                let case = Case { place, answers, shared, drained };
                let polls = sweep(&format!("{case:?}"), |cut| three(cut, case));
                assert!(polls > 4, "{polls}");
            }
        }
    }
}
