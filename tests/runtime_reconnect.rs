//! `reconnect()`, code that calls back, and a suspended machine.

mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Answer, Conn, Dialler, ENDPOINT, Manner, REFUSED, Server, lock, ms, plain, secs};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use steadfast::testing::ManualClock;
use steadfast::{
    Attempt, BoxError, Clock, Connector, Ended, Failure, Gate, Handle, Lease, Link, Policy, Session, State, StopReason,
    Supervisor, WaitCause,
};
use tokio::time::sleep;

fn keep(server: &Arc<Server>, policy: Policy) -> Link<Dialler> {
    let supervisor = Supervisor::builder(server.connector()).policy(policy).seed(7).build().expect("valid settings");
    supervisor.keep().expect("it is idle")
}

#[tokio::test(start_paused = true)]
async fn reconnecting_a_live_connection_is_charged_to_nobody() {
    let server = Server::healthy();
    let link = keep(&server, plain());
    link.ready().await.unwrap();
    sleep(secs(60)).await;
    assert!(link.handle().reconnect());
    sleep(ms(1)).await;
    assert_eq!(server.closed(), [0]);
    assert_eq!(link.current().unwrap().generation(), 2);
    let status = link.handle().status();
    assert_eq!(status.attempt, 1);
    assert!(status.last_failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn ten_calls_in_a_wait_are_one_attempt_and_forgive_nothing() {
    // The sixth wait is 30 s, and an attempt takes a second.
    let server = Server::new(|_| Answer::Fail(1_000, Failure::Unreachable));
    let link = keep(&server, plain());
    sleep(secs(40)).await;
    assert_eq!((server.dial_count(), link.handle().status().attempt), (6, 6));
    for _ in 0..10 {
        assert!(link.handle().reconnect());
    }
    sleep(ms(1)).await;
    assert_eq!(server.dial_count(), 7);
    sleep(secs(2)).await;
    let status = link.handle().status();
    assert_eq!((server.dial_count(), status.attempt, status.state), (7, 7, State::Backoff));
    assert!(status.until.unwrap() > tokio::time::Instant::now().into_std() + secs(20), "the curve goes on");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_server_named_is_not_skipped() {
    let server = Server::answers([Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(60)) })]);
    let link = keep(&server, plain());
    sleep(secs(1)).await;
    assert!(link.handle().reconnect());
    sleep(secs(58)).await;
    assert_eq!((server.dial_count(), link.handle().status().wait), (1, Some(WaitCause::Throttled)));
    link.ready().await.unwrap();
    assert!(server.dials()[1] >= 60.0);
}

#[tokio::test(start_paused = true)]
async fn reconnecting_while_connecting_skips_the_curve_if_the_dial_fails() {
    let server = Server::answers([REFUSED, REFUSED, REFUSED, Answer::Fail(1_000, Failure::Unreachable)]);
    let link = keep(&server, plain());
    sleep(ms(7_500)).await;
    assert_eq!((server.dial_count(), link.handle().status().state), (4, State::Connecting));
    assert!(link.handle().reconnect());
    link.ready().await.unwrap();
    let dials = server.dials();
    assert!(dials[4] < 9.0, "not 8 s after the fourth: {dials:?}");
}

#[tokio::test(start_paused = true)]
async fn a_site_that_reconnects_at_once_is_spread() {
    let server = Server::healthy();
    let policy = plain().recovery_spread(secs(10));
    let gate = Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let builder = Supervisor::builder(server.connector()).policy(policy).gate(&gate);
    let links: Vec<_> = (0..50).map(|n| builder.clone().seed(n).build().unwrap().keep().unwrap()).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(secs(60)).await;
    let began = server.now();
    for link in &links {
        assert!(link.handle().reconnect());
    }
    sleep(secs(60)).await;
    let dials: Vec<_> = server.dials()[50..].iter().map(|at| at - began).collect();
    assert_eq!(dials.len(), 50);
    for half in [0.0..5.0, 5.0..10.1] {
        assert!(dials.iter().filter(|at| half.contains(*at)).count() > 12, "{dials:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_with_a_nervous_operator_has_one_loop() {
    let server = Server::new(|_| REFUSED);
    let link = keep(&server, plain());
    for _ in 0..124 {
        sleep(secs(35 * 60)).await;
        assert!(link.handle().reconnect());
    }
    // Three days: one dial every 30 s, and at most one more for each call.
    let curve = 3 * 86_400 / 30;
    assert!(server.dial_count() <= curve + 124 + 10, "{}", server.dial_count());
    assert!(server.dial_count() >= curve - 10, "{}", server.dial_count());
    assert_eq!(server.in_flight().most(), 1);
}

/// A connector that is given its handle, and calls it from everywhere.
struct Meddler {
    inner: Dialler,
    handle: Arc<Mutex<Option<Handle>>>,
    rng: Mutex<SmallRng>,
}

impl Meddler {
    fn meddle(&self) {
        let roll = lock(&self.rng).random_range(0..40_u32);
        let mut handle = lock(&self.handle);
        match (roll, &*handle) {
            (0, _) => *handle = None,
            (1, Some(handle)) => drop(handle.drain()),
            (2..10, Some(handle)) => drop(handle.reconnect()),
            (_, Some(handle)) => drop(handle.status()),
            (_, None) => {}
        }
    }
}

impl Connector for Meddler {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, attempt: Attempt) -> Result<Conn, BoxError> {
        self.meddle();
        self.inner.connect(attempt).await
    }

    fn classify(&self, error: &(dyn std::error::Error + 'static), ended: Ended) -> Failure {
        self.meddle();
        self.inner.classify(error, ended)
    }

    async fn close(&self, connection: &Conn) {
        self.meddle();
        self.inner.close(connection).await;
    }
}

#[tokio::test(start_paused = true)]
async fn user_code_may_call_back_from_everywhere() {
    for seed in 0..1_000 {
        let mut answers = SmallRng::seed_from_u64(seed);
        let server = Server::new(move |_| if answers.random_bool(0.5) { REFUSED } else { Answer::Accept(0) });
        let slot = Arc::new(Mutex::new(None));
        let rng = Mutex::new(SmallRng::seed_from_u64(seed));
        let meddler = Meddler { inner: server.connector(), handle: Arc::clone(&slot), rng };
        let observed = Arc::clone(&slot);
        let rolls = Mutex::new(SmallRng::seed_from_u64(seed + 1_000_000));
        let supervisor = Supervisor::builder(meddler)
            .policy(plain().give_up_after(secs(3_600)))
            .seed(seed)
            .on_transition(move |_| {
                if let Some(handle) = &*lock(&observed) {
                    match lock(&rolls).random_range(0..60_u32) {
                        0 => drop(handle.drain()),
                        1..8 => drop(handle.reconnect()),
                        _ => drop(handle.status()),
                    }
                    assert!(!seed.is_multiple_of(3), "a panic of the observer ends nothing");
                }
            })
            .build()
            .unwrap();
        let handle = supervisor.handle();
        *lock(&slot) = Some(handle.clone());
        let mut rounds = 0;
        let ended = supervisor
            .run(|conn: Lease<Conn>, session: Session| {
                rounds += 1;
                let (last, handle) = (rounds >= 30, handle.clone());
                async move {
                    let _ = handle.status();
                    if session.generation().is_multiple_of(3) {
                        handle.reconnect();
                    }
                    sleep(secs(15)).await;
                    drop(conn);
                    if last { Ok(ControlFlow::Break(())) } else { Err(BoxError::from("lost")) }
                }
            })
            .await;
        let ended = ended.map_or_else(|stopped| stopped.reason, |()| StopReason::Finished);
        assert!(matches!(ended, StopReason::Drained | StopReason::Finished), "{ended:?}");
        assert_eq!(server.open().now(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_dialled_before_somebody_asked_for_another_connection_is_closed() {
    let server = Server::new(|_| Answer::Accept(1_000));
    let link = keep(&server, plain());
    sleep(ms(500)).await;
    assert!(link.handle().reconnect());
    link.ready().await.unwrap();
    sleep(ms(1)).await;
    assert_eq!((server.closed(), server.open().now()), (vec![0], 1));
}

#[tokio::test(start_paused = true)]
async fn a_clock_may_ask_whoever_asks_it() {
    let slot = Arc::new(Mutex::new(None::<(Gate, Handle)>));
    let (asked, answers) = (Arc::clone(&slot), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&answers);
    let clock = Clock::new(
        move || {
            // Not while it asks already: what it asks reads it again.
            let taken = lock(&asked).take();
            if let Some((gate, handle)) = taken {
                let _ = (gate.status(), gate.last_failure(), handle.status());
                count.fetch_add(1, Ordering::Relaxed);
                *lock(&asked) = Some((gate, handle));
            }
            Clock::system().now()
        },
        || Clock::system().wall(),
    );
    let server = Server::answers([REFUSED]);
    let gate = Gate::builder(ENDPOINT).policy(plain()).clock(clock.clone()).build().unwrap();
    let supervisor = Supervisor::builder(server.connector()).policy(plain()).gate(&gate).clock(clock).seed(7);
    let supervisor = supervisor.build().unwrap();
    *lock(&slot) = Some((gate.clone(), supervisor.handle()));
    let _ = gate.status();
    supervisor
        .run(|_conn, session: Session| async move {
            session.advise(secs(1));
            Ok::<_, BoxError>(ControlFlow::Break(()))
        })
        .await
        .unwrap();
    drop(supervisor);
    assert!(answers.load(Ordering::Relaxed) > 10);
    *lock(&slot) = None;
}

fn keep_with_clock(server: &Arc<Server>, clock: &ManualClock, seed: u64) -> Link<Dialler> {
    let policy = plain().recovery_spread(secs(20));
    let builder = Supervisor::builder(server.connector()).policy(policy).clock(clock.clock()).seed(seed);
    builder.build().expect("valid settings").keep().expect("it is idle")
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_each_live_connection_is_checked_after_a_draw() {
    let server = Server::healthy();
    let clock = ManualClock::new();
    let links: Vec<_> = (0..100).map(|seed| keep_with_clock(&server, &clock, seed)).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(secs(30)).await;
    clock.suspend(secs(3_600));
    let woken = server.now();
    sleep(secs(60)).await;
    let checks: Vec<f64> = lock(&server.checks).iter().map(|at| at.as_secs_f64() - woken).collect();
    assert_eq!(checks.len(), 100, "once each");
    assert!(checks.iter().all(|at| *at < 25.01), "noticed within 5 s, spread over 20 s: {checks:?}");
    assert!(checks.iter().filter(|at| **at > 10.0).count() > 20, "{checks:?}");
    assert_eq!(server.dial_count(), 100, "they were all fine");
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_each_of_thousands_is_checked_once_although_others_have_gone() {
    let server = Server::healthy();
    let clock = ManualClock::new();
    let mut links: Vec<_> = (0..2_500).map(|seed| keep_with_clock(&server, &clock, seed)).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    for look in 0..7 {
        links.truncate(2_500 - 100 * look);
        sleep(secs(5)).await;
    }
    links.swap(0, 1_899);
    links.drain(..400);
    clock.suspend(secs(3_600));
    sleep(secs(60)).await;
    assert_eq!(lock(&server.checks).len(), links.len());
}

#[tokio::test(start_paused = true)]
async fn a_check_that_fails_hangs_or_panics_ends_the_generation() {
    for (manner, failure) in
        [(Manner::Fails, Failure::Transient), (Manner::Hangs, Failure::Timeout), (Manner::Panics, Failure::Transient)]
    {
        let server = Server::healthy();
        *lock(&server.check) = manner;
        let clock = ManualClock::new();
        let link = keep_with_clock(&server, &clock, 7);
        link.ready().await.unwrap();
        sleep(secs(30)).await;
        clock.suspend(secs(11));
        sleep(secs(60)).await;
        assert_eq!(link.current().unwrap().generation(), 2, "{manner:?}");
        let cause = link.handle().status().last_failure.unwrap();
        assert_eq!((cause.step(), cause.failure()), ("check", failure), "{manner:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_of_an_ended_generation_says_nothing_about_the_next_one() {
    let server = Server::healthy();
    *lock(&server.check) = Manner::Hangs;
    let clock = ManualClock::new();
    let link = keep_with_clock(&server, &clock, 7);
    link.ready().await.unwrap();
    sleep(secs(30)).await;
    clock.suspend(secs(11));
    while lock(&server.checks).is_empty() {
        sleep(ms(10)).await;
    }
    link.current().unwrap().report("gone");
    assert_eq!(link.ready().await.unwrap().generation(), 2);
    sleep(secs(60)).await;
    assert_eq!(link.current().unwrap().generation(), 2);
    assert_eq!(link.handle().status().last_failure.unwrap().step(), "report");
}

#[tokio::test(start_paused = true)]
async fn small_corrections_and_clocks_set_back_do_nothing() {
    let server = Server::healthy();
    let clock = ManualClock::new();
    let link = keep_with_clock(&server, &clock, 7);
    link.ready().await.unwrap();
    for gap in [Duration::ZERO, secs(5), secs(9)] {
        clock.suspend(gap);
        sleep(secs(60)).await;
        clock.set_back(secs(3_600));
        sleep(secs(60)).await;
    }
    assert!(lock(&server.checks).is_empty());
    assert_eq!(link.current().unwrap().generation(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_suspend_a_lent_connection_is_replaced() {
    let server = Server::healthy();
    let clock = ManualClock::new();
    let supervisor =
        Supervisor::builder(server.connector()).policy(plain()).clock(clock.clock()).seed(7).build().unwrap();
    let handle = supervisor.handle();
    let running = tokio::spawn(async move {
        supervisor
            .run(|_conn, session: Session| async move {
                session.draining().await;
                Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()))
            })
            .await
    });
    sleep(secs(30)).await;
    clock.suspend(secs(3_600));
    sleep(secs(30)).await;
    assert_eq!((handle.status().generation, handle.status().state), (2, State::Connected));
    assert!(handle.status().last_failure.is_none(), "charged to nobody");
    running.abort();
}

#[test]
fn a_supervisor_that_moves_to_another_runtime_is_watched_there() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (before, after) = (runtime(), runtime());
    let (server, clock) = after.block_on(async { (Server::healthy(), ManualClock::new()) });
    let supervisor =
        Supervisor::builder(server.connector()).policy(plain()).clock(clock.clock()).seed(7).build().unwrap();
    let handle = supervisor.handle();
    let supervisor = before.block_on(run_for(secs(3), supervisor));
    after.block_on(async {
        let running = tokio::spawn(run_for(secs(90), supervisor));
        sleep(secs(30)).await;
        before.shutdown_background();
        clock.suspend(secs(3_600));
        sleep(secs(30)).await;
        assert_eq!(handle.status().generation, 3, "one on each runtime, and another after the suspend");
        running.abort();
    });
}

/// Gives it back, to be run elsewhere.
async fn run_for(time: Duration, supervisor: Supervisor<Dialler>) -> Supervisor<Dialler> {
    let session = |_conn, session: Session| async move {
        session.draining().await;
        Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()))
    };
    let _elapsed = tokio::time::timeout(time, supervisor.run(session)).await;
    supervisor
}

#[tokio::test(start_paused = true)]
async fn waits_do_not_move_with_the_wall_clock() {
    let server = Server::new(|_| REFUSED);
    let clock = ManualClock::new();
    let policy = plain().give_up_after(secs(100));
    let link = Supervisor::builder(server.connector())
        .policy(policy)
        .clock(clock.clock())
        .seed(7)
        .build()
        .unwrap()
        .keep()
        .unwrap();
    for step in 0..10 {
        sleep(secs(7)).await;
        if step % 2 == 0 { clock.suspend(secs(3_600)) } else { clock.set_back(secs(7_200)) }
    }
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::GaveUp);
    assert_eq!(server.dials(), [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]);
    assert!((server.now() - 100.0).abs() < 0.01);
}
