//! Drop and drain, at each await.

mod common;

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use common::{Answer, Conn, Dialler, ENDPOINT, Manner, REFUSED, Server, lock, ms, plain, secs};
use steadfast::{BoxError, Failure, Gate, Handle, Lease, Policy, Session, State, StopReason, Stopped, Supervisor};
use tokio::time::{sleep, timeout};

type Running = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send>>;

fn gate() -> Gate {
    Gate::builder(ENDPOINT).policy(plain()).build().expect("a valid policy")
}

fn supervisor(server: &Arc<Server>, gate: &Gate, policy: Policy) -> Supervisor<Dialler> {
    Supervisor::builder(server.connector()).policy(policy).gate(gate).seed(7).build().expect("valid settings")
}

async fn until_drained(_conn: Lease<Conn>, session: Session) -> Result<ControlFlow<()>, BoxError> {
    session.draining().await;
    Ok(ControlFlow::Continue(()))
}

fn run(server: &Arc<Server>, gate: &Gate, policy: Policy) -> (Running, Handle) {
    let supervisor = supervisor(server, gate, policy);
    let handle = supervisor.handle();
    (Box::pin(async move { supervisor.run(until_drained).await }), handle)
}

/// An await of the shell, and how to get there.
struct Await {
    name: &'static str,
    answers: Vec<Answer>,
    policy: Policy,
    /// When it is there, in milliseconds.
    at: u64,
    state: State,
    dials: usize,
}

fn awaits() -> Vec<Await> {
    let at = |name, answers: &[Answer], at, state, dials| Await {
        name,
        answers: answers.to_vec(),
        policy: plain(),
        at,
        state,
        dials,
    };
    vec![
        Await { policy: plain().startup_spread(secs(60)), ..at("start-up spread", &[], 100, State::Backoff, 0) },
        at("own curve", &[REFUSED; 9], 5_000, State::Backoff, 3),
        at("dialling", &[Answer::Silent], 5_000, State::Connecting, 1),
        at("logging in", &[Answer::Reached(100)], 5_000, State::Connecting, 1),
        at("in a session", &[Answer::Accept(0)], 5_000, State::Connected, 1),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_every_await_and_nothing_is_dialled_any_more() {
    for row in awaits() {
        let (server, gate) = (Server::answers(row.answers), gate());
        let (running, handle) = run(&server, &gate, row.policy);
        let running = tokio::spawn(running);
        sleep(ms(row.at)).await;
        assert_eq!((handle.status().state, server.dial_count()), (row.state, row.dials), "{}", row.name);
        let began = server.elapsed();
        handle.drain().await;
        let took = server.elapsed() - began;
        assert!(took <= ms(50), "{}: {took:?}", row.name);
        assert_eq!(running.await.unwrap().unwrap_err().reason, StopReason::Drained, "{}", row.name);
        sleep(secs(600)).await;
        assert_eq!(server.dial_count(), row.dials, "{}", row.name);
        assert_eq!(server.open().now(), 0, "{}", row.name);
        assert_eq!(server.in_flight().now(), 0, "{}", row.name);
        let status = gate.status();
        assert_eq!((status.in_flight, status.waiting, status.members), (0, 0, 0), "{}", row.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drop_at_every_await_gives_back_whatever_was_held() {
    for row in awaits() {
        let (server, gate) = (Server::answers(row.answers), gate());
        // The supervisor stays: it is the future of `run` that holds what is given back.
        let supervisor = supervisor(&server, &gate, row.policy);
        let handle = supervisor.handle();
        let mut running = Box::pin(supervisor.run(until_drained));
        assert!(timeout(ms(row.at), &mut running).await.is_err());
        assert_eq!((handle.status().state, server.dial_count()), (row.state, row.dials), "{}", row.name);
        let trips = gate.status().trips;
        drop(running);
        let status = gate.status();
        assert_eq!((status.in_flight, status.waiting, status.members), (0, 0, 0), "{}", row.name);
        assert_eq!(status.trips, trips, "{}: a cancelled attempt is neutral", row.name);
        assert_eq!(handle.status().stopped, Some(StopReason::Dropped), "{}", row.name);
        assert_eq!((server.open().now(), server.in_flight().now()), (0, 0), "{}", row.name);
        // The next one is not kept waiting by the one that is gone.
        server.turn(|_| Answer::Accept(0));
        let next = Supervisor::builder(server.connector()).gate(&gate).build().unwrap().keep().unwrap();
        timeout(secs(5), next.ready()).await.expect(row.name).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_or_drained_leaves_the_queue() {
    for drains in [false, true] {
        let (server, gate) = (Server::new(|_| Answer::Silent), gate());
        let (probe, _) = run(&server, &gate, plain());
        let probe = tokio::spawn(probe);
        sleep(ms(1)).await;
        let (mut waiting, handle) = run(&server, &gate, plain());
        assert!(timeout(ms(100), &mut waiting).await.is_err());
        assert_eq!((gate.status().waiting, gate.status().in_flight), (1, 1));
        if drains {
            let drained = handle.drain();
            assert_eq!(waiting.await.unwrap_err().reason, StopReason::Drained);
            drained.await;
        } else {
            drop(waiting);
        }
        assert_eq!((gate.status().waiting, gate.status().in_flight), (0, 1));
        assert_eq!(server.dial_count(), 1);
        probe.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_nobody_takes_passes_on_in_the_same_step() {
    let (server, gate) = (Server::new(|_| Answer::Silent), gate());
    let (probe, _) = run(&server, &gate, plain());
    let probe = tokio::spawn(probe);
    sleep(ms(1)).await;
    // The first in line is polled once and never again.
    let (mut first, _) = run(&server, &gate, plain());
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (second, _) = run(&server, &gate, plain());
    let second = tokio::spawn(second);
    sleep(secs(2)).await;
    assert_eq!(gate.status().waiting, 2);
    // The probe goes, and the turn is the first one's; it goes too, and the turn is the second one's.
    probe.abort();
    sleep(ms(1)).await;
    assert_eq!(server.dial_count(), 1);
    drop(first);
    sleep(ms(1)).await;
    assert_eq!(server.dial_count(), 2, "dials at {:?}", server.dials());
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_never_polled_loses_its_turn() {
    let (server, gate) = (Server::answers([REFUSED]), gate());
    let (probe, _) = run(&server, &gate, plain());
    let probe = tokio::spawn(probe);
    let (mut asleep, _) = run(&server, &gate, plain());
    assert!(asleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    sleep(secs(10)).await;
    assert_eq!(gate.status().waiting, 0, "the other is back, and the queue has passed over who does not come");
    assert_eq!(server.open().now(), 1);
    probe.abort();
}

#[tokio::test(start_paused = true)]
async fn a_drain_in_the_poll_in_which_the_dial_resolves_wins() {
    let server = Server::healthy();
    let transitions = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&transitions);
    let supervisor = Supervisor::builder(server.connector())
        .policy(plain())
        .on_transition(move |t| lock(&record).push((t.from, t.to)))
        .build()
        .unwrap();
    let handle = supervisor.handle();
    server.turn(move |_| {
        drop(handle.drain());
        Answer::Accept(0)
    });
    let announced = AtomicBool::new(false);
    let ended = supervisor
        .run(|_conn, _| {
            announced.store(true, Ordering::Relaxed);
            async { Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(())) }
        })
        .await;
    assert_eq!(ended.unwrap_err().reason, StopReason::Drained);
    assert!(!announced.load(Ordering::Relaxed), "never announced");
    assert_eq!(server.closed(), [0], "closed politely");
    assert!(server.now() <= 0.05);
    use State::{Connected, Connecting, Draining, Idle, Stopped};
    let expected =
        [(Idle, Connecting), (Connecting, Connected), (Connected, Draining), (Draining, Draining), (Draining, Stopped)];
    assert_eq!(*lock(&transitions), expected, "the outcome is settled first, then comes the drain");
}

#[tokio::test(start_paused = true)]
async fn a_drain_around_the_instant_of_the_connect_leaves_nothing_behind() {
    for at in 90..=110 {
        for drain_first in [false, true] {
            let server = Server::answers([Answer::Accept(100)]);
            let link =
                Supervisor::builder(server.connector()).policy(plain()).seed(at).build().unwrap().keep().unwrap();
            let handle = link.handle();
            let mut watch = link.handle();
            let drain = async {
                sleep(ms(at)).await;
                handle.drain().await;
            };
            let connected = tokio::spawn(async move {
                let mut connected = false;
                while let Ok(status) = watch.changed().await {
                    connected |= status.state == State::Connected;
                }
                connected
            });
            if !drain_first {
                tokio::task::yield_now().await;
            }
            drain.await;
            assert!(server.elapsed() <= ms(at + 50), "{at}: {:?}", server.elapsed());
            let connected = connected.await.unwrap();
            assert!(!connected || at >= 100, "{at}: announced after the drain");
            sleep(secs(60)).await;
            assert_eq!((server.dial_count(), server.open().now()), (1, 0), "{at}");
            assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Drained);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_failed_in_the_poll_of_the_drain_is_settled_first() {
    let (server, gate) = (Server::healthy(), gate());
    let supervisor = supervisor(&server, &gate, plain());
    let handle = supervisor.handle();
    server.turn(move |_| {
        drop(handle.drain());
        REFUSED
    });
    assert_eq!(supervisor.run(until_drained).await.unwrap_err().reason, StopReason::Drained);
    assert_eq!(gate.status().trips, 1, "the gate has learnt that nobody answers");
    assert_eq!(supervisor.handle().status().last_failure.unwrap().failure(), Failure::Unreachable);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_told_and_dropped_at_the_bound() {
    let (server, gate) = (Server::healthy(), gate());
    let supervisor = supervisor(&server, &gate, plain());
    let handle = supervisor.handle();
    let told = AtomicBool::new(false);
    let running = supervisor.run(|conn: Lease<Conn>, session: Session| {
        let told = &told;
        async move {
            session.draining().await;
            told.store(session.is_draining(), Ordering::Relaxed);
            let _held = conn;
            std::future::pending::<Result<ControlFlow<()>, BoxError>>().await
        }
    });
    let drained = async {
        sleep(secs(20)).await;
        handle.drain().await;
    };
    let (ended, ()) = tokio::join!(running, drained);
    assert_eq!(ended.unwrap_err().reason, StopReason::Drained);
    assert!(told.load(Ordering::Relaxed));
    assert_eq!(server.closed(), [0], "the lease came home from the dropped session");
    assert!((server.now() - 25.0).abs() < 0.05, "{}", server.now());
}

#[tokio::test(start_paused = true)]
async fn a_value_that_the_session_breaks_with_while_draining_is_returned() {
    let (server, gate) = (Server::healthy(), gate());
    let supervisor = supervisor(&server, &gate, plain());
    let handle = supervisor.handle();
    let running = supervisor.run(|_conn, session: Session| async move {
        session.draining().await;
        sleep(secs(1)).await;
        Ok::<_, BoxError>(ControlFlow::Break("flushed"))
    });
    let (ended, ()) = tokio::join!(running, async {
        sleep(secs(1)).await;
        handle.drain().await;
    });
    assert_eq!(ended.unwrap(), "flushed");
}

#[tokio::test(start_paused = true)]
async fn closing_is_bounded_and_goes_on_beside_the_wait_and_the_next_dial() {
    let (server, gate) = (Server::healthy(), gate());
    *lock(&server.close) = Manner::Hangs;
    let supervisor = supervisor(&server, &gate, plain());
    let mut sessions = 0;
    let ended = supervisor
        .run(|_conn, _| {
            sessions += 1;
            let last = sessions == 2;
            async move {
                sleep(secs(20)).await;
                Ok::<_, BoxError>(if last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            }
        })
        .await;
    ended.unwrap();
    let dials = server.dials();
    assert!(dials[1] < 20.01, "the second dial does not wait for the goodbye: {dials:?}");
    assert_eq!(server.open().most(), 2, "the old one and the new one");
    // The last goodbye takes its two seconds as well, and then nothing is left.
    assert!((server.now() - 42.0).abs() < 0.05, "{}", server.now());
    assert_eq!(server.open().now(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_goodbye_at_a_time() {
    let (server, gate) = (Server::healthy(), gate());
    *lock(&server.close) = Manner::Hangs;
    let policy = plain().close(secs(3_600));
    let link = supervisor(&server, &gate, policy).keep().unwrap();
    for _ in 0..10 {
        link.ready().await.unwrap();
        sleep(secs(20)).await;
        link.handle().reconnect();
        sleep(secs(1)).await;
    }
    assert_eq!(server.open().most(), 2, "the live one, and the one in its goodbye");
}

#[tokio::test(start_paused = true)]
async fn a_drain_while_the_old_connection_is_still_closing_is_quick() {
    let (server, gate) = (Server::answers([Answer::Accept(0), REFUSED, REFUSED, REFUSED]), gate());
    *lock(&server.close) = Manner::Hangs;
    let link = supervisor(&server, &gate, plain()).keep().unwrap();
    link.ready().await.unwrap().report("gone");
    sleep(ms(500)).await;
    assert_eq!(link.handle().status().state, State::Backoff);
    let began = server.now();
    link.handle().drain().await;
    assert!(server.now() - began <= 0.05);
    sleep(secs(2)).await;
    assert_eq!(server.open().now(), 0, "and the goodbye has kept its own bound");
}

#[test]
fn keep_in_a_runtime_that_has_shut_down_ends_and_harms_no_other() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
        let supervisor = || supervisor(&Server::healthy(), &gate(), plain());
        let gone = runtime();
        let handle = gone.handle().clone();
        drop(gone);
        let ended = {
            let _entered = handle.enter();
            supervisor().keep().expect("it is idle").handle().status().stopped
        };
        let up = runtime().block_on(async {
            let link = supervisor().keep().expect("it is idle");
            link.ready().await.is_ok()
        });
        let _ = done.send((ended, up));
    });
    // The watcher that such a runtime drops takes the list of the watched: nobody may hold it then.
    assert_eq!(wait.recv_timeout(secs(10)), Ok((Some(StopReason::Dropped), true)));
}
