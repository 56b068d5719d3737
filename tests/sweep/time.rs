//! Clocks that jump, stand still or are set back, in each state: nothing is dialled but what would have been, and
//! nobody spins.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use steadfast::testing::ManualClock;
use steadfast::{BoxError, Failure, Lease, Policy, Session, State, StopReason, Supervisor};
use tokio::time::{sleep, timeout};

use crate::clock::Clocks;
use crate::common::{Answer, Conn, REFUSED, Server, ms, plain, secs};
use crate::world::{Steps, in_paused_time};

/// What a clock does to somebody who relies on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freak {
    None,
    Suspend(Duration),
    Skip(Duration),
    SetBack(Duration),
    /// For so long.
    Still(Duration),
}

impl Freak {
    async fn happen(self, clocks: &Clocks) {
        match self {
            Self::None => {}
            Self::Suspend(gap) => clocks.suspend(gap),
            Self::Skip(gap) => clocks.skip(gap),
            Self::SetBack(gap) => clocks.set_back(gap),
            Self::Still(time) => {
                clocks.stop();
                sleep(time).await;
                clocks.go_on();
            }
        }
    }
}

/// A moment in which it happens.
#[derive(Clone, Debug)]
struct Moment {
    at: Duration,
    state: State,
    answers: Vec<Answer>,
    policy: Policy,
}

fn moments() -> Vec<Moment> {
    let moment = |at, state, answers: &[Answer]| Moment { at, state, answers: answers.to_vec(), policy: plain() };
    vec![
        Moment { policy: plain().startup_spread(secs(60)), ..moment(ms(500), State::Backoff, &[]) },
        moment(ms(5_500), State::Backoff, &[REFUSED; 4]),
        moment(ms(2_500), State::Connecting, &[Answer::Accept(8_000)]),
        moment(ms(2_500), State::Connecting, &[Answer::Fail(9_000, Failure::Transient), Answer::Accept(9_500)]),
        moment(ms(4_500), State::Connected, &[]),
        moment(ms(30_500), State::Connected, &[]),
        moment(ms(41_500), State::Draining, &[]),
    ]
}

/// What came of it.
#[derive(Debug)]
struct Seen {
    dials: Vec<f64>,
    polls: usize,
    generation: u64,
    state: State,
}

/// Drained at 41 s if it is to be draining when it happens, and not at all otherwise.
async fn live(moment: Moment, freak: Freak) -> Seen {
    let (server, clocks) = (Server::answers(moment.answers), Clocks::ahead(DAY));
    let builder = Supervisor::builder(Steps(server.connector())).policy(moment.policy).clock(clocks.clock());
    let supervisor = builder.seed(7).build().expect("valid settings");
    let (handle, polls) = (supervisor.handle(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&polls);
    let running = tokio::spawn(async move {
        let mut running = pin!(supervisor.run(until_drained));
        std::future::poll_fn(|cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            running.as_mut().poll(cx)
        })
        .await
    });
    if moment.state == State::Draining {
        sleep(secs(41)).await;
        drop(handle.drain());
    }
    sleep(moment.at.saturating_sub(server.elapsed())).await;
    assert_eq!(handle.status().state, moment.state);
    freak.happen(&clocks).await;
    let longer = if let Freak::SetBack(gap) = freak { gap } else { Duration::ZERO };
    sleep(secs(600) + longer).await;
    let (status, dials) = (handle.status(), server.dials());
    running.abort();
    let _ = running.await;
    Seen { dials, polls: polls.load(Ordering::Relaxed), generation: status.generation, state: status.state }
}

async fn until_drained(_: Lease<Conn>, session: Session) -> Result<ControlFlow<()>, BoxError> {
    session.draining().await;
    sleep(secs(3)).await;
    Ok(ControlFlow::Continue(()))
}

/// With the clock's freak and without it.
fn compare(freak: Freak, mut check: impl FnMut(&Moment, Seen, Seen)) {
    for moment in moments() {
        let usual = in_paused_time(live(moment.clone(), Freak::None));
        let seen = in_paused_time(live(moment.clone(), freak));
        check(&moment, usual, seen);
    }
}

const DAY: Duration = secs(86_400);

const GAPS: [Duration; 4] = [secs(11), secs(60), secs(3_600), DAY];

#[test]
fn a_suspend_costs_a_lent_connection_one_dial_and_nobody_else_any() {
    for gap in GAPS {
        compare(Freak::Suspend(gap), |moment, usual, seen| {
            let is_live = moment.state == State::Connected;
            assert_eq!(seen.dials.len(), usual.dials.len() + usize::from(is_live), "{gap:?}, {moment:?}: {seen:?}");
            assert_eq!(seen.dials[..usual.dials.len()], usual.dials, "{gap:?}, {moment:?}");
            assert_eq!((seen.generation, seen.state), (usual.generation + u64::from(is_live), usual.state));
            assert!(seen.polls <= usual.polls + 12, "{gap:?}, {moment:?}: {seen:?} {usual:?}");
        });
    }
}

#[test]
fn a_gap_of_ten_seconds_is_a_clock_that_was_corrected() {
    compare(Freak::Suspend(secs(10)), |moment, usual, seen| {
        assert_eq!((seen.dials, seen.polls), (usual.dials, usual.polls), "{moment:?}");
    });
}

#[test]
fn timers_that_are_long_overdue_when_they_fire_start_nothing_more() {
    for gap in GAPS {
        compare(Freak::Skip(gap), |moment, usual, seen| {
            assert_eq!(seen.dials, usual.dials, "{gap:?}, {moment:?}");
            assert_eq!((seen.generation, seen.state), (usual.generation, usual.state), "{gap:?}, {moment:?}");
            assert!(seen.polls <= usual.polls + 4, "{gap:?}, {moment:?}: {seen:?} {usual:?}");
        });
    }
}

#[test]
fn a_clock_that_is_set_back_makes_waits_longer_and_nothing_else() {
    for gap in [secs(1), secs(60), secs(3_600)] {
        compare(Freak::SetBack(gap), |moment, usual, seen| {
            assert_eq!(seen.dials.len(), usual.dials.len(), "{gap:?}, {moment:?}: {seen:?}");
            assert_eq!((seen.generation, seen.state), (usual.generation, usual.state), "{gap:?}, {moment:?}");
            let delays = seen.dials.iter().zip(&usual.dials).map(|(seen, usual)| seen - usual);
            assert!(delays.into_iter().all(|delay| (0.0..=gap.as_secs_f64() + 0.01).contains(&delay)), "{moment:?}");
            assert!(seen.polls <= usual.polls + 4, "{gap:?}, {moment:?}: {seen:?} {usual:?}");
        });
    }
}

#[test]
fn a_clock_that_stands_still_for_an_hour_is_looked_at_once_for_each_wait() {
    compare(Freak::Still(secs(3_600)), |moment, usual, seen| {
        assert_eq!(seen.dials.len(), usual.dials.len(), "{moment:?}: {seen:?}");
        assert_eq!((seen.generation, seen.state), (usual.generation, usual.state), "{moment:?}");
        // No wait is shorter than 1 s here.
        assert!(seen.polls <= usual.polls + 3_600, "{moment:?}: {seen:?} {usual:?}");
    });
}

#[test]
fn a_clock_that_stops_just_before_a_wait_is_over_is_looked_at_once_a_millisecond() {
    let moment = Moment { at: Duration::from_nanos(6_999_999_900), ..moments()[1].clone() };
    let usual = in_paused_time(live(moment.clone(), Freak::None));
    let seen = in_paused_time(live(moment, Freak::Still(secs(10))));
    assert_eq!(seen.dials.len(), usual.dials.len());
    assert!(seen.polls <= usual.polls + 10_010, "{seen:?}");
}

#[test]
fn a_doubt_about_a_connection_goes_with_it() {
    in_paused_time(async {
        let (server, clock) = (Server::healthy(), ManualClock::new());
        let policy = plain().recovery_spread(secs(20));
        let builder = Supervisor::builder(Steps(server.connector())).policy(policy).clock(clock.clock());
        let supervisor = builder.seed(7).build().expect("valid settings");
        let handle = supervisor.handle();
        let running = tokio::spawn(async move {
            supervisor
                .run(|_, session: Session| async move {
                    if session.generation() == 1 {
                        // Over just after the gap is noticed, and before the doubt is acted upon.
                        sleep(ms(35_001)).await;
                        return Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()));
                    }
                    session.draining().await;
                    Ok(ControlFlow::Continue(()))
                })
                .await
        });
        sleep(secs(33)).await;
        clock.suspend(secs(3_600));
        sleep(secs(60)).await;
        assert_eq!((handle.status().generation, server.dial_count()), (2, 2));
        timeout(secs(1), handle.drain()).await.expect("drained");
        assert_eq!(running.await.unwrap().unwrap_err().reason, StopReason::Drained);
    });
}
