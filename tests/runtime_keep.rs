//! `keep`: whichever connection is live, shared through links.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Answer, BROKEN, Dialler, Manner, REFUSED, Server, lock, ms, plain, secs};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use steadfast::{Failure, Link, NotReady, Policy, State, StopReason, Supervisor, WaitCause};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

fn supervisor_with(server: &Arc<Server>, policy: Policy) -> Supervisor<Dialler> {
    Supervisor::builder(server.connector()).policy(policy).seed(7).build().expect("valid settings")
}

fn supervisor(server: &Arc<Server>) -> Supervisor<Dialler> {
    supervisor_with(server, plain())
}

fn keep(server: &Arc<Server>) -> Link<Dialler> {
    supervisor(server).keep().expect("it is idle")
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[tokio::test(start_paused = true)]
async fn a_link_lends_the_live_connection() {
    let server = Server::answers([REFUSED]);
    let link = keep(&server);
    assert!(link.current().is_none());
    let live = link.ready().await.unwrap();
    assert_eq!((live.generation(), live.number), (1, 1));
    assert_eq!(link.current().unwrap().generation(), 1);
    assert_eq!(server.dials(), [0.0, 1.0]);
}

#[tokio::test(start_paused = true)]
async fn every_waiter_wakes_with_the_same_generation_however_many_were_cancelled() {
    let server = Server::answers([Answer::Accept(100)]);
    let link = keep(&server);
    let waiters: Vec<_> = (0..1_000)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { link.ready().await.map(|live| live.generation()) })
        })
        .collect();
    sleep(ms(50)).await;
    let mut rng = SmallRng::seed_from_u64(7);
    let remaining: Vec<_> = waiters
        .into_iter()
        .filter(|waiter| {
            rng.random_bool(0.5) || {
                waiter.abort();
                false
            }
        })
        .collect();
    assert!((400..600).contains(&remaining.len()));
    for waiter in remaining {
        assert_eq!(waiter.await.unwrap().unwrap(), 1);
    }
    assert!(server.now() < 0.102);
    assert_eq!(server.dial_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_connect_is_nobodys_answer_afterwards() {
    let server = Server::answers([BROKEN]);
    let link = keep(&server);
    let callers: Vec<_> = (0..10)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { link.ready().await.map(|live| live.number) })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap(), 1);
    }
    assert_eq!(link.ready().await.unwrap().number, 1);
    assert_eq!(server.dial_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_terminal_state_wakes_every_waiter_with_the_cause() {
    let server = Server::answers([Answer::Fail(100, Failure::Permanent)]);
    let link = keep(&server);
    let waiters: Vec<_> = (0..100)
        .map(|n| {
            let (link, mut handle) = (link.clone(), link.handle());
            tokio::spawn(async move {
                match n % 3 {
                    0 => link.ready().await.unwrap_err().cause,
                    1 => link.ready_by(now() + secs(60)).await.unwrap_err().cause().cloned(),
                    _ => loop {
                        if let Err(stopped) = handle.changed().await {
                            break stopped.cause;
                        }
                    },
                }
            })
        })
        .collect();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap().failure(), Failure::Permanent);
    }
    assert!(server.now() <= 0.110, "{}", server.now());
}

#[tokio::test(start_paused = true)]
async fn after_a_terminal_state_new_calls_end_at_once() {
    let server = Server::answers([Answer::Fail(0, Failure::Permanent)]);
    let link = keep(&server);
    let stopped = link.ready().await.unwrap_err();
    assert_eq!(stopped.reason, StopReason::Permanent);
    assert_eq!(stopped.cause.unwrap().to_string(), "connect test://server:1 failed (permanent): dial 0");
    let began = server.elapsed();
    assert!(link.current().is_none());
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Permanent);
    assert!(matches!(link.ready_by(now() + secs(9)).await, Err(NotReady::Stopped(_))));
    assert_eq!(link.handle().changed().await.unwrap_err().reason, StopReason::Permanent);
    link.handle().drain().await;
    assert!(!link.handle().reconnect());
    assert_eq!(server.elapsed(), began);
    assert_eq!(server.dial_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn keeping_again_after_a_terminal_state_revives_the_old_links_too() {
    let server = Server::answers([Answer::Accept(0), Answer::Fail(0, Failure::Permanent)]);
    let supervisor = supervisor(&server);
    let old = supervisor.keep().unwrap();
    old.ready().await.unwrap();
    sleep(secs(20)).await;
    old.handle().reconnect();
    sleep(secs(1)).await;
    assert_eq!(old.ready().await.unwrap_err().reason, StopReason::Permanent);
    let new = supervisor.keep().unwrap();
    assert_eq!(old.ready().await.unwrap().generation(), 2);
    drop(new);
    sleep(secs(1)).await;
    assert!(old.current().is_some(), "the old link owns it as well");
}

#[tokio::test(start_paused = true)]
async fn twenty_callers_of_a_silent_server_learn_of_one_dial() {
    let server = Server::new(|_| Answer::Silent);
    let link = supervisor_with(&server, plain().attempt_deadline(secs(1))).keep().unwrap();
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { link.ready_by(now() + ms(1_500)).await.unwrap_err() })
        })
        .collect();
    for caller in callers {
        let error = caller.await.unwrap();
        assert_eq!(error.cause().unwrap().failure(), Failure::Timeout);
    }
    assert_eq!(server.dial_count(), 1);
    assert!(server.now() < 1.01, "{}", server.now());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_before_the_next_attempt_fails_when_the_wait_is_chosen() {
    let server = Server::answers([Answer::Fail(1_000, Failure::Transient); 4]);
    let link = keep(&server);
    // Attempts at 0, 2, 5, 10: the wait of 4 s, chosen at 6, does not fit.
    let error = link.ready_by(now() + secs(8)).await.unwrap_err();
    let NotReady::TooLate { cause, wait, why } = error else { panic!("{error:?}") };
    assert!((server.now() - 6.0).abs() < 0.01, "{}", server.now());
    assert_eq!((wait, why), (secs(4), Some(WaitCause::Backoff)));
    assert_eq!(cause.unwrap().to_string(), "connect test://server:1 failed (transient): dial 2");
    assert_eq!(link.ready().await.unwrap().number, 4, "the connection goes on for others");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_server_named_does_not_fit_either() {
    let server = Server::answers([Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(60)) })]);
    let link = keep(&server);
    let error = link.ready_by(now() + secs(5)).await.unwrap_err();
    let NotReady::TooLate { wait, why, .. } = error else { panic!("{error:?}") };
    assert!(server.now() < 0.01);
    assert!((60..=62).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(why, Some(WaitCause::Throttled));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_passes_during_a_dial() {
    let server = Server::new(|_| Answer::Silent);
    let link = keep(&server);
    assert!(matches!(link.ready_by(now() + secs(5)).await, Err(NotReady::Elapsed { cause: None })));
    assert!((server.now() - 5.0).abs() < 0.01);
}

#[tokio::test(start_paused = true)]
async fn a_reported_connection_is_lent_to_nobody_any_more() {
    let server = Server::healthy();
    let link = keep(&server);
    let live = link.ready().await.unwrap();
    live.report(Failure::Transient.because("broken pipe"));
    assert!(link.current().is_none());
    assert!(!live.is_live());
    let next = link.ready().await.unwrap();
    assert_eq!((next.generation(), next.number), (2, 1));
    sleep(ms(1)).await;
    assert_eq!(server.closed(), [0]);
    let cause = link.handle().status().last_failure.unwrap();
    assert_eq!(cause.to_string(), "report test://server:1 failed (transient): broken pipe");
}

#[tokio::test(start_paused = true)]
async fn late_reports_are_ignored_and_counted() {
    let server = Server::healthy();
    let link = supervisor_with(&server, plain().stable_after(ms(1))).keep().unwrap();
    let mut old = Vec::new();
    for round in 1..=10_000 {
        let live = link.ready().await.unwrap();
        assert_eq!(live.generation(), round);
        sleep(secs(2)).await;
        assert!(link.handle().reconnect());
        sleep(ms(1)).await;
        // Neither a report of the one before, nor dropping it late, touches the one that is live.
        let next = link.ready().await.unwrap();
        live.report("late");
        old.push(live);
        if old.len() > 3 {
            old.remove(0);
        }
        yield_now().await;
        assert_eq!(link.current().unwrap().generation(), next.generation());
    }
    assert_eq!(link.handle().status().ignored_reports, 10_000);
    assert_eq!(server.dial_count(), 10_001);
    assert_eq!(server.closed().len(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn many_reports_of_one_generation_are_one_loss() {
    let server = Server::healthy();
    let link = keep(&server);
    let live = link.ready().await.unwrap();
    for _ in 0..10 {
        live.clone().report("gone");
    }
    assert_eq!(link.ready().await.unwrap().generation(), 2);
    sleep(secs(60)).await;
    assert_eq!(server.dial_count(), 2);
    assert_eq!(link.handle().status().ignored_reports, 9);
}

#[tokio::test(start_paused = true)]
async fn a_cached_link_never_gives_an_ended_generation() {
    let server = Server::healthy();
    let link = keep(&server);
    let mut cached = link.cached();
    assert!(cached.current().is_none());
    link.ready().await.unwrap();
    assert_eq!(cached.current().unwrap().generation(), 1);
    cached.current().unwrap().report("gone");
    assert!(cached.current().is_none());
    link.ready().await.unwrap();
    assert_eq!(cached.current().unwrap().generation(), 2);
    assert_eq!(cached.link().current().unwrap().generation(), 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_holds_a_connection_keeps_it_through_later_ones() {
    let server = Server::healthy();
    let link = keep(&server);
    let mut cached = link.cached();
    let mut held = Vec::new();
    for generation in 1..=3 {
        held.push(link.ready().await.unwrap());
        held.push(cached.current().unwrap().clone());
        held.extend((0..10).map(|_| link.current().unwrap()));
        assert!(held.iter().all(|live| live.is_live() == (live.generation() == generation)));
        link.current().unwrap().report("gone");
        assert!(link.current().is_none() && cached.current().is_none());
    }
    for (nth, live) in held.iter().enumerate() {
        assert_eq!((live.generation(), live.number), (nth as u64 / 12 + 1, nth / 12));
    }
    let last = link.ready().await.unwrap();
    assert_eq!((last.generation(), server.open().now()), (4, 4), "all four are still in memory");
    drop((held, last));
    assert_eq!(server.open().now(), 1, "the others are not");
}

#[tokio::test(start_paused = true)]
async fn keeping_again_gives_another_link_to_the_same_connection() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let one = supervisor.keep().unwrap();
    one.ready().await.unwrap();
    let other = supervisor.keep().unwrap();
    assert_eq!(other.current().unwrap().number, 0);
    drop(one);
    drop(supervisor);
    sleep(secs(60)).await;
    assert_eq!(other.current().unwrap().number, 0);
    assert_eq!(server.dial_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_link_ends_it_politely() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let link = supervisor.keep().unwrap();
    link.ready().await.unwrap();
    let handle = link.handle();
    drop(link);
    sleep(ms(1)).await;
    assert_eq!(handle.status().stopped, Some(StopReason::Dropped));
    assert_eq!(server.closed(), [0]);
    assert_eq!(server.open().now(), 0);
    sleep(secs(600)).await;
    assert_eq!(server.dial_count(), 1);
    assert_eq!(supervisor.keep().unwrap().ready().await.unwrap().generation(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_link_asked_for_right_after_the_last_one_went_takes_over() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    drop(supervisor.keep().unwrap());
    let link = supervisor.keep().unwrap();
    assert_eq!(link.ready().await.unwrap().generation(), 1);
    drop(link);
    let link = supervisor.keep().unwrap();
    sleep(secs(60)).await;
    assert_eq!(link.current().unwrap().generation(), 1);
    assert_eq!(server.dial_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handle_owns_nothing() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let link = supervisor.keep().unwrap();
    link.ready().await.unwrap();
    drop(link.handle());
    sleep(secs(1)).await;
    assert!(link.current().is_some());
    let mut handle = link.handle();
    assert_eq!(handle.changed().await.unwrap().state, State::Connected);
    drop((link, supervisor));
    assert_eq!(handle.changed().await.unwrap_err().reason, StopReason::Dropped);
    assert_eq!(handle.status().state, State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_was_never_started_reads_dropped_when_it_goes() {
    let supervisor = supervisor(&Server::healthy());
    let mut handle = supervisor.handle();
    assert_eq!(handle.status().state, State::Idle);
    assert!(!handle.reconnect());
    timeout(ms(1), handle.drain()).await.expect("there is nothing to drain");
    drop(supervisor);
    assert_eq!(handle.changed().await.unwrap_err().reason, StopReason::Dropped);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_runtime_strands_nobody() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let link = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async move {
            let link = supervisor.keep().unwrap();
            link.ready().await.unwrap();
            link
        })
    })
    .join()
    .unwrap();
    assert!(link.current().is_none());
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Dropped);
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_those_finish_who_hold_the_connection() {
    let server = Server::healthy();
    let link = keep(&server);
    let live = link.ready().await.unwrap();
    let drained = link.handle().drain();
    sleep(secs(1)).await;
    assert_eq!(link.handle().status().state, State::Draining);
    assert!(link.current().is_none(), "nobody new gets it");
    assert!(server.closed().is_empty());
    drop(live);
    drained.await;
    assert!(server.now() < 1.05, "{}", server.now());
    assert_eq!(server.closed(), [0]);
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Drained);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_everybody_who_holds_the_connection() {
    // The first few that a thread lends are borrowed, the others counted.
    for last in [0, 7, 8, 19, 20] {
        let server = Server::healthy();
        let link = keep(&server);
        let mut lent = vec![link.ready().await.unwrap()];
        lent.resize_with(20, || link.current().unwrap());
        lent.push(lent[0].clone());
        let drained = link.handle().drain();
        sleep(secs(1)).await;
        let held = lent.swap_remove(last);
        drop(lent);
        sleep(secs(1)).await;
        assert_eq!(link.handle().status().state, State::Draining, "number {last} is still held");
        let finished = tokio::spawn(async move {
            sleep(secs(1)).await;
            assert_eq!((held.number, held.is_live()), (0, false));
        });
        drained.await;
        finished.await.unwrap();
        assert!((3.0..3.05).contains(&server.now()), "number {last} went at 3 s: {}", server.now());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_its_bound_even_if_the_connection_is_held() {
    let server = Server::healthy();
    *lock(&server.close) = Manner::Hangs;
    let link = keep(&server);
    let _live = link.ready().await.unwrap();
    link.handle().drain().await;
    // Drain 5 s, close 2 s.
    assert!((server.now() - 7.0).abs() < 0.05, "{}", server.now());
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_nobody_awaits_goes_on() {
    let server = Server::healthy();
    let link = keep(&server);
    link.ready().await.unwrap();
    drop(link.handle().drain());
    sleep(ms(50)).await;
    assert_eq!(link.handle().status().stopped, Some(StopReason::Drained));
}

#[tokio::test(start_paused = true)]
async fn what_the_status_says_is_what_is_slept() {
    let unit = Duration::from_nanos(1);
    let answers = [
        REFUSED,
        BROKEN,
        Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(7)) }),
        Answer::Fail(0, Failure::Unauthorized),
        Answer::Fail(0, Failure::Unauthorized),
        BROKEN,
    ];
    let server = Server::answers(answers);
    let policy = Policy::default().startup_spread(secs(1));
    let link = supervisor_with(&server, policy).keep().unwrap();
    let began = now();
    let mut handle = link.handle();
    let mut waits = Vec::new();
    while let Ok(status) = handle.changed().await {
        match status.state {
            State::Backoff => waits.push((status.wait.unwrap(), status.until.unwrap())),
            State::Connected => break,
            _ => {}
        }
    }
    // A wait may be cut into several; the last before each dial is what was slept, rounded up to the timer's millisecond.
    let dials = server.dials();
    assert_eq!(dials.len(), 7);
    for dial in dials {
        let at = began + Duration::from_secs_f64(dial);
        assert!(
            waits.iter().any(|(_, until)| *until <= at + unit && at.duration_since(*until) <= ms(1)),
            "{dial} in {waits:?} from {began:?}"
        );
    }
    for cause in [WaitCause::Spread, WaitCause::Backoff, WaitCause::Throttled, WaitCause::Refused] {
        assert!(waits.iter().any(|(wait, _)| *wait == cause), "{cause:?} in {waits:?}");
    }
}

#[test]
#[should_panic(expected = "timers are disabled")]
fn a_runtime_without_a_timer_is_refused_by_keep_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { drop(keep(&Server::healthy())) });
}
