//! `run`: the connection is lent to a session closure.

mod common;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Answer, BROKEN, Conn, Dialler, Manner, REFUSED, Server, lock, ms, plain, secs};
use steadfast::{BoxError, Failure, Lease, Session, State, StopReason, Stopped, Supervisor, WaitCause};
use tokio::time::{sleep, timeout};

type Outcome<R> = Result<ControlFlow<R>, BoxError>;

fn supervisor(server: &Arc<Server>) -> Supervisor<Dialler> {
    Supervisor::builder(server.connector()).policy(plain()).seed(7).build().expect("valid settings")
}

/// A session that goes on until it is told to end.
async fn until_drained(_conn: Lease<Conn>, session: Session) -> Outcome<()> {
    session.draining().await;
    Ok(ControlFlow::Continue(()))
}

/// Runs `supervisor` in a task with sessions that go on until they are told to end.
fn spawn(supervisor: Supervisor<Dialler>) -> tokio::task::JoinHandle<Result<(), Stopped>> {
    tokio::spawn(async move { supervisor.run(until_drained).await })
}

#[tokio::test(start_paused = true)]
async fn dials_follow_the_curve_and_the_session_gets_the_connection() {
    let server = Server::answers([REFUSED, BROKEN, REFUSED]);
    let got = supervisor(&server)
        .run(|conn: Lease<Conn>, session: Session| async move {
            Ok::<_, BoxError>(ControlFlow::Break((conn.number, session.generation())))
        })
        .await
        .unwrap();
    assert_eq!(got, (3, 1));
    assert_eq!(server.dials(), [0.0, 1.0, 3.0, 7.0]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_breaks_ends_run_after_the_close() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let got = supervisor.run(|_conn, _| async { Ok::<_, BoxError>(ControlFlow::Break(42)) }).await.unwrap();
    assert_eq!(got, 42);
    assert_eq!(server.closed(), [0]);
    assert_eq!(supervisor.handle().status().stopped, Some(StopReason::Finished));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_continues_is_dialled_again_and_each_generation_is_new() {
    let server = Server::healthy();
    let mut generations = Vec::new();
    supervisor(&server)
        .run(|_conn, session: Session| {
            generations.push(session.generation());
            let last = generations.len() == 3;
            async move {
                sleep(secs(20)).await;
                Ok::<_, BoxError>(if last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            }
        })
        .await
        .unwrap();
    assert_eq!(generations, [1, 2, 3]);
    assert_eq!(server.closed(), [0, 1, 2]);
    assert_eq!(server.open().most(), 1);
}

#[tokio::test(start_paused = true)]
async fn short_sessions_grow_the_curve_even_if_they_end_as_planned() {
    let server = Server::healthy();
    let supervisor =
        Supervisor::builder(server.connector()).policy(plain().give_up_after(secs(60))).seed(7).build().unwrap();
    let stopped = supervisor
        .run(|_conn, _| async {
            sleep(ms(100)).await;
            Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()))
        })
        .await
        .unwrap_err();
    assert_eq!(stopped.reason, StopReason::GaveUp);
    assert_eq!(stopped.cause.unwrap().failure(), Failure::Planned);
    let rounded: Vec<_> = server.dials().iter().map(|at| at.floor()).collect();
    assert_eq!(rounded, [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]);
    assert!((server.now() - 60.1).abs() < 0.01, "{}", server.now());
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_attempts_is_on_attempts_in_a_row() {
    // Each outage is cured by the second attempt.
    let server = Server::new(|n| if n % 2 == 0 { REFUSED } else { Answer::Accept(0) });
    let policy = plain().max_attempts(std::num::NonZeroU32::new(5).unwrap());
    let supervisor = Supervisor::builder(server.connector()).policy(policy).build().unwrap();
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let (handle, seen, mut sessions) = (supervisor.handle(), Arc::clone(&attempts), 0);
    supervisor
        .run(move |_conn, _| {
            sessions += 1;
            lock(&seen).push(handle.status().attempt);
            let last = sessions == 10;
            async move {
                sleep(secs(3_600)).await;
                if last { Ok(ControlFlow::Break(())) } else { Err(Failure::Transient.because("lost")) }
            }
        })
        .await
        .unwrap();
    assert_eq!(*lock(&attempts), [2; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_or_timed_out_error_is_no_stop() {
    let server = Server::healthy();
    let mut sessions = 0;
    supervisor(&server)
        .run(|_conn, _| {
            sessions += 1;
            let number = sessions;
            async move {
                match number {
                    1 => {
                        let task = tokio::spawn(std::future::pending::<()>());
                        task.abort();
                        Err(Box::new(task.await.unwrap_err()) as BoxError)
                    }
                    2 => Err(timeout(ms(1), std::future::pending::<()>()).await.unwrap_err().into()),
                    _ => Ok(ControlFlow::Break(())),
                }
            }
        })
        .await
        .unwrap();
    assert_eq!(server.dial_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_session_is_a_lost_session() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let mut sessions = 0;
    supervisor
        .run(|conn: Lease<Conn>, _| {
            sessions += 1;
            let number = sessions;
            assert!(number != 1, "at the call");
            async move {
                assert!(number != 2, "at the poll of {conn:?}");
                Ok::<_, BoxError>(ControlFlow::Break(()))
            }
        })
        .await
        .unwrap();
    assert_eq!(server.closed(), [0, 1, 2], "the connections came home from the unwound closures");
    let cause = supervisor.handle().status().last_failure.unwrap();
    assert_eq!((cause.step(), cause.failure()), ("session", Failure::Transient));
    assert!(cause.to_string().contains("panicked: at the poll of Lease(Conn(1))"), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_connector_is_a_failed_attempt() {
    let server = Server::answers([Answer::Panic]);
    let supervisor = supervisor(&server);
    let handle = supervisor.handle();
    let running = spawn(supervisor);
    sleep(ms(500)).await;
    let status = handle.status();
    assert_eq!(status.state, State::Backoff);
    assert!(status.last_failure.unwrap().to_string().contains("panicked: dial 0"));
    sleep(secs(1)).await;
    assert_eq!(handle.status().state, State::Connected);
    handle.drain().await;
    assert_eq!(running.await.unwrap().unwrap_err().reason, StopReason::Drained);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_classify_is_transient() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    let mut sessions = 0;
    supervisor
        .run(|_conn, _| {
            sessions += 1;
            let first = sessions == 1;
            async move { if first { Err("panic in classify") } else { Ok(ControlFlow::Break(())) } }
        })
        .await
        .unwrap();
    let cause = supervisor.handle().status().last_failure.unwrap();
    assert_eq!(cause.failure(), Failure::Transient);
    assert!(cause.to_string().contains("panic in classify (classify panicked"), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_close_ends_nothing() {
    let server = Server::healthy();
    *lock(&server.close) = Manner::Panics;
    let supervisor = supervisor(&server);
    supervisor.run(|_conn, _| async { Ok::<_, BoxError>(ControlFlow::Break(())) }).await.unwrap();
    assert_eq!(server.open().now(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_kept_is_not_closed_by_the_supervisor() {
    let server = Server::healthy();
    let conn = supervisor(&server)
        .run(|conn: Lease<Conn>, _| async { Ok::<_, BoxError>(ControlFlow::Break(conn.into_inner())) })
        .await
        .unwrap();
    assert_eq!(conn.number, 0);
    assert_eq!(server.open().now(), 1);
    assert!(server.closed().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_second_run_is_busy_and_the_first_goes_on() {
    let server = Server::healthy();
    let supervisor = Arc::new(supervisor(&server));
    let first = tokio::spawn({
        let supervisor = Arc::clone(&supervisor);
        async move { supervisor.run(until_drained).await }
    });
    sleep(ms(1)).await;
    let busy = supervisor.run(until_drained).await.unwrap_err();
    assert_eq!(busy.reason, StopReason::Busy);
    assert!(busy.to_string().contains("end that first, or build another"), "{busy}");
    assert_eq!(supervisor.keep().unwrap_err().reason, StopReason::Busy);
    assert_eq!(supervisor.handle().status().state, State::Connected);
    supervisor.handle().drain().await;
    assert_eq!(first.await.unwrap().unwrap_err().reason, StopReason::Drained);
}

#[tokio::test(start_paused = true)]
async fn after_a_terminal_state_calling_again_works_and_generations_go_on() {
    let server = Server::healthy();
    let supervisor = supervisor(&server);
    for generation in 1..=3 {
        let got = supervisor
            .run(|_conn, session: Session| async move {
                Ok::<_, BoxError>(ControlFlow::Break((session.generation(), session.is_draining())))
            })
            .await
            .unwrap();
        assert_eq!(got, (generation, false));
    }
    // A dropped run is one more terminal state.
    assert!(timeout(secs(5), supervisor.run(until_drained)).await.is_err());
    assert_eq!(supervisor.handle().status().stopped, Some(StopReason::Dropped));
    let got = supervisor
        .run(|_conn, session: Session| async move { Ok::<_, BoxError>(ControlFlow::Break(session.generation())) })
        .await
        .unwrap();
    assert_eq!(got, 5);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_was_got_over_is_told_and_decides_nothing() {
    let server = Server::answers([REFUSED, BROKEN]);
    let supervisor = supervisor(&server);
    let handle = supervisor.handle();
    let running = spawn(supervisor);
    sleep(secs(60)).await;
    let status = handle.status();
    assert_eq!((status.state, status.generation, status.attempt), (State::Connected, 1, 0));
    assert_eq!(status.last_failure.unwrap().failure(), Failure::Transient);
    assert!(!running.is_finished());
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn advice_of_the_server_sets_the_spread_of_the_next_first_attempt() {
    let server = Server::healthy();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let supervisor = Supervisor::builder(server.connector())
        .policy(plain())
        .seed(7)
        .on_transition(move |t| {
            if t.wait == Some(WaitCause::Spread) {
                lock(&record).push(t.until.map(|until| until.duration_since(t.at)));
            }
        })
        .build()
        .unwrap();
    let mut sessions = 0;
    supervisor
        .run(|_conn, session: Session| {
            sessions += 1;
            let number = sessions;
            async move {
                sleep(secs(20)).await;
                if number == 1 {
                    // Advised and over in one step: the advice counts all the same.
                    session.advise(secs(3_600));
                }
                Ok::<_, BoxError>(if number == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            }
        })
        .await
        .unwrap();
    // The policy's own spread is zero, so that each of these waits comes from the advice, the first one included.
    let waits: Vec<Duration> = lock(&seen)[..19].iter().map(|wait| wait.unwrap()).collect();
    assert!(waits.iter().all(|wait| *wait <= secs(60)), "clamped: {waits:?}");
    assert!(waits.iter().any(|wait| *wait > secs(20)), "the last advice is kept: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn advice_of_a_session_that_is_over_sets_nothing() {
    let (server, first) = (Server::healthy(), Arc::new(Mutex::new(None::<Session>)));
    supervisor(&server)
        .run(|_conn, session: Session| {
            let generation = session.generation();
            lock(&first).get_or_insert(session).advise(if generation == 1 { secs(0) } else { secs(60) });
            async move {
                sleep(secs(20)).await;
                Ok::<_, BoxError>(if generation == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            }
        })
        .await
        .unwrap();
    assert_eq!(server.dials(), [0.0, 20.0, 40.0]);
}

#[tokio::test(start_paused = true)]
async fn reached_replaces_the_dial_deadline_and_only_its_own() {
    // The first handshake times out, so the second may take three times as long.
    let server = Server::answers([Answer::Reached(9_000), Answer::Reached(5_000)]);
    let running = spawn(supervisor(&server));
    sleep(secs(60)).await;
    let dials = server.dials();
    assert_eq!(dials.len(), 3);
    assert!((dials[1] - 11.0).abs() < 0.01, "deadline 10 s, wait 1 s: {dials:?}");
    assert!((dials[2] - 43.0).abs() < 0.01, "deadline 30 s, wait 2 s: {dials:?}");
    running.abort();
}

/// Says no in the very poll in which it reached the other side.
#[tokio::test(start_paused = true)]
async fn what_the_other_side_said_at_once_is_not_our_own_mistake() {
    let connector = steadfast::connector_fn("test://server:1", |attempt: steadfast::Attempt| async move {
        attempt.reached();
        Err::<(), _>(Failure::Permanent.because("no such database"))
    });
    let supervisor = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    sleep(secs(1)).await;
    let status = link.handle().status();
    assert_eq!((status.state, status.wait, status.stopped), (State::Backoff, Some(WaitCause::Refused), None));
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "in drop");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_connection_or_of_a_dial_does_not_end_supervision() {
    let connector = steadfast::connector_fn("test://server:1", |attempt: steadfast::Attempt| async move {
        let bomb = Bomb;
        if attempt.number() > 1 {
            std::future::pending::<()>().await;
        }
        Ok::<_, std::io::Error>(bomb)
    });
    let supervisor = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    let live = link.ready().await.unwrap();
    live.report("broken");
    drop(live);
    // The second dial ends at its deadline, and its future panics in its drop.
    sleep(secs(60)).await;
    let status = link.handle().status();
    assert_eq!((status.stopped, status.generation), (None, 1), "{status:?}");
    assert!(status.attempt > 2, "{status:?}");
    link.handle().drain().await;
}
