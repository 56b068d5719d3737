//! The futures that only wait: dropped at any time, they take nothing from anybody.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfast::{BoxError, Failure, Handle, Link, NotReady, Session, State, StopReason, Stopped};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Answer, REFUSED, ms, plain, secs};
use crate::cut::Cut;
use crate::world::{Steps, World, sweep};

fn world() -> World {
    World::new([REFUSED, Answer::Fail(100, Failure::Transient), Answer::Accept(50)])
}

/// Both are served alike and at the same time, whatever became of the one that was dropped.
async fn beside_another<T>(cut: Cut, wait: impl AsyncFnOnce(Cut, &Link<Steps>) -> Option<T>) -> bool {
    let world = world();
    let supervisor = world.supervisor(plain());
    let link = supervisor.keep().expect("it is idle");
    let other = link.clone();
    let waiting = tokio::spawn(async move { (other.ready().await.map(|live| live.generation()), Instant::now()) });
    let began = Instant::now();
    let ready = wait(cut, &link).await;
    assert_eq!(timeout(secs(60), link.ready()).await.expect("it is served").unwrap().generation(), 1);
    let (generation, at) = waiting.await.unwrap();
    assert_eq!(generation.unwrap(), 1);
    // 0, 1 and 3 s by the curve; the failed dial and the good one take 160 ms.
    assert_eq!((at - began).as_millis(), 3_160, "nobody is served later for it");
    assert_eq!(world.server.dial_count(), 3);
    drop(link);
    sleep(ms(1)).await;
    world.aftermath(supervisor, true).await;
    ready.is_some()
}

fn succeeded<T, E: std::fmt::Debug>(result: Result<T, E>) {
    drop(result.unwrap());
}

#[test]
fn ready_can_be_dropped_at_every_await() {
    sweep("ready", |cut| beside_another(cut, async |cut, link| cut.of(link.ready()).await.map(succeeded)));
}

#[test]
fn ready_by_can_be_dropped_at_every_await() {
    let polls = sweep("ready_by", |cut| {
        beside_another(cut, async |cut, link| {
            let deadline = (Instant::now() + secs(60)).into_std();
            cut.of(link.ready_by(deadline)).await.map(succeeded)
        })
    });
    assert!(polls > 4, "it looks at every status: {polls}");
    sweep("ready_by, too late", |cut| {
        beside_another(cut, async |cut, link| {
            let deadline = (Instant::now() + ms(1_050)).into_std();
            let failed = cut.of(link.ready_by(deadline)).await?.unwrap_err();
            assert!(matches!(failed, NotReady::Elapsed { .. } | NotReady::TooLate { .. }), "{failed:?}");
            Some(())
        })
    });
}

/// What a handle is told until the end.
async fn told(handle: &mut Handle, seen: &mut Vec<(State, u32, Instant)>) -> Stopped {
    loop {
        match handle.changed().await {
            Ok(status) => seen.push((status.state, status.attempt, status.since.into())),
            Err(stopped) => return stopped,
        }
    }
}

#[test]
fn no_status_is_lost_by_a_call_of_changed_that_is_dropped() {
    let polls = sweep("changed", |cut| async move {
        let world = world();
        let supervisor = world.supervisor(plain());
        let link = supervisor.keep().expect("it is idle");
        let (mut handle, mut other) = (link.handle(), link.handle());
        let watching = tokio::spawn(async move {
            let mut seen = Vec::new();
            let stopped = told(&mut other, &mut seen).await;
            (seen, stopped.reason)
        });
        let drained = link.handle();
        let draining = tokio::spawn(async move {
            sleep(secs(5)).await;
            drained.drain().await;
        });
        let mut seen = Vec::new();
        let ended = cut.of(told(&mut handle, &mut seen)).await;
        assert_eq!(told(&mut handle, &mut seen).await.reason, StopReason::Drained);
        assert_eq!(watching.await.unwrap(), (seen, StopReason::Drained));
        draining.await.unwrap();
        drop(link);
        world.aftermath(supervisor, true).await;
        ended.is_some()
    });
    assert!(polls > 7, "{polls}");
}

async fn until_drained(
    _: steadfast::Lease<crate::common::Conn>,
    session: Session,
) -> Result<ControlFlow<()>, BoxError> {
    session.draining().await;
    sleep(ms(300)).await;
    Ok(ControlFlow::Continue(()))
}

#[test]
fn a_drain_goes_on_when_its_future_is_dropped() {
    sweep("drain", |cut| async move {
        let world = World::new([]);
        let supervisor = Arc::new(world.supervisor(plain()));
        let (running, handle) = (Arc::clone(&supervisor), supervisor.handle());
        let running = tokio::spawn(async move { running.run(until_drained).await });
        sleep(secs(1)).await;
        let ended = cut.of(handle.drain()).await;
        let another = timeout(ms(301), handle.drain()).await;
        another.expect("another one is told of the end");
        assert_eq!(running.await.unwrap().unwrap_err().reason, StopReason::Drained);
        world.aftermath(Arc::into_inner(supervisor).unwrap(), true).await;
        ended.is_some()
    });
}

#[test]
fn a_session_is_told_of_a_drain_although_it_stopped_waiting_for_it_before() {
    sweep("draining", |cut| async move {
        let world = World::new([]);
        let supervisor = Arc::new(world.supervisor(plain()));
        let (running, handle) = (Arc::clone(&supervisor), supervisor.handle());
        let ready = Arc::new(AtomicBool::new(false));
        let was_ready = Arc::clone(&ready);
        let running = tokio::spawn(async move {
            let session = |_, session: Session| {
                let ready = Arc::clone(&ready);
                async move {
                    ready.store(cut.of(session.draining()).await.is_some(), Ordering::Relaxed);
                    session.draining().await;
                    assert!(session.is_draining());
                    Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()))
                }
            };
            running.run(session).await
        });
        sleep(secs(1)).await;
        timeout(ms(50), handle.drain()).await.expect("the session has ended");
        assert_eq!(running.await.unwrap().unwrap_err().reason, StopReason::Drained);
        world.aftermath(Arc::into_inner(supervisor).unwrap(), true).await;
        was_ready.load(Ordering::Relaxed)
    });
}
