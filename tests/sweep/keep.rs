//! The task behind `keep`, which nobody can abort: its last link is dropped at every moment, or its runtime ends.

use std::collections::BTreeSet;

use steadfast::{Failure, Link, State, StopReason};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::common::{Answer, Manner, REFUSED, lock, ms, plain, secs};
use crate::world::{Steps, World, in_paused_time, paused};

/// A moment of a life: so many steps of time, then so many turns of the runtime.
#[derive(Clone, Copy, Debug)]
struct Moment {
    steps: u32,
    turns: u32,
}

/// Every moment of a life, those within one instant too.
fn moments() -> impl Iterator<Item = Moment> {
    (0..STEPS).flat_map(|steps| (0..4).map(move |turns| Moment { steps, turns }))
}

const STEPS: u32 = 250;
const STEP: std::time::Duration = ms(50);

impl Moment {
    /// Refused, failed, connected, lost, back, and drained while it is held: the life of a kept connection until here.
    async fn come(self, link: &Link<Steps>) {
        let (handle, held) = (link.handle(), std::cell::Cell::new(None));
        for step in 0..self.steps {
            match step * 50 {
                5_000 => link.current().expect("it is live").report("broken"),
                11_000 => held.set(link.current()),
                11_500 => drop(handle.drain()),
                12_000 => drop(held.take()),
                _ => {}
            }
            sleep(STEP).await;
        }
        for _ in 0..self.turns {
            yield_now().await;
        }
    }
}

fn world() -> World {
    let world = World::new([REFUSED, Answer::Fail(100, Failure::Transient), Answer::Accept(500)]);
    *lock(&world.server.close) = Manner::Hangs;
    world
}

fn policy() -> steadfast::Policy {
    plain().startup_spread(ms(500)).recovery_spread(ms(500)).close(ms(210))
}

fn assert_all_met(seen: &BTreeSet<String>) {
    let all = [State::Backoff, State::Connecting, State::Connected, State::Draining, State::Stopped];
    assert_eq!(*seen, all.map(|state| format!("{state:?}")).into(), "each state was ended");
}

#[test]
fn the_last_link_can_be_dropped_at_every_moment() {
    let mut seen = BTreeSet::new();
    for moment in moments() {
        in_paused_time(async {
            let world = world();
            let supervisor = world.supervisor(policy());
            let link = supervisor.keep().expect("it is idle");
            moment.come(&link).await;
            let handle = link.handle();
            seen.insert(format!("{:?}", handle.status().state));
            let ends_by = handle.status().stopped.unwrap_or(StopReason::Dropped);
            drop(link);
            for _ in 0..3 {
                yield_now().await;
            }
            assert_eq!(handle.status().stopped, Some(ends_by), "{moment:?}");
            let status = world.gate.status();
            let members = usize::from(ends_by != StopReason::Dropped);
            assert_eq!((status.in_flight, status.waiting, status.members), (0, 0, members), "{moment:?}");
            // Closing has its bound.
            sleep(ms(211)).await;
            world.aftermath(supervisor, true).await;
        });
    }
    assert_all_met(&seen);
}

#[test]
fn the_runtime_can_end_at_every_moment() {
    let mut seen = BTreeSet::new();
    for moment in moments() {
        let runtime = paused();
        let (world, supervisor, link) = runtime.block_on(async {
            let world = world();
            let supervisor = world.supervisor(policy());
            let link = supervisor.keep().expect("it is idle");
            moment.come(&link).await;
            (world, supervisor, link)
        });
        let handle = link.handle();
        seen.insert(format!("{:?}", handle.status().state));
        let ends_by = handle.status().stopped.unwrap_or(StopReason::Dropped);
        drop(runtime);
        assert_eq!(handle.status().stopped, Some(ends_by), "{moment:?}");
        world.holds_nothing(usize::from(ends_by != StopReason::Dropped));
        in_paused_time(async move {
            assert_eq!(link.ready().await.unwrap_err().reason, ends_by, "whoever waits is told");
            drop(link);
            // The other runtime's paused clock may have run ahead of this one.
            let other = world.other(&world.next, 99);
            timeout(secs(120), other.ready()).await.expect("the next one is served").unwrap();
            world.server.turn(|_| Answer::Accept(0));
            let again = supervisor.keep().expect("it is idle");
            timeout(secs(120), again.ready()).await.expect("and so is the same one again").unwrap();
        });
    }
    assert_all_met(&seen);
}
