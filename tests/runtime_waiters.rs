//! Waiters, halves and panics: whatever user code does, nobody is stranded.
#![cfg(test)]

mod common;

use std::error::Error;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use common::{Answer, Dialler, ENDPOINT, REFUSED, Server, lock, ms, plain, secs};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use steadfast::{
    Attempt, BoxError, Connector, Ended, Endpoint, Failure, Link, State, StopReason, Supervisor, WaitCause,
    connector_fn,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

#[tokio::test(start_paused = true)]
async fn ten_calls_spread_over_a_dial_that_takes_a_second_are_one_attempt() {
    for spread in [secs(0), ms(50), secs(1)] {
        let server = Server::new(|_| Answer::Fail(1_000, Failure::Unreachable));
        let policy = plain().recovery_spread(spread);
        let link = Supervisor::builder(server.connector()).policy(policy).seed(7).build().unwrap().keep().unwrap();
        sleep(secs(40)).await;
        assert_eq!((server.dial_count(), link.handle().status().attempt), (6, 6));
        for _ in 0..10 {
            assert!(link.handle().reconnect());
            sleep(ms(10)).await;
        }
        sleep(secs(4)).await;
        let status = link.handle().status();
        assert_eq!((server.dial_count(), status.attempt, status.state), (7, 7, State::Backoff), "spread {spread:?}");
        assert_eq!(status.wait, Some(WaitCause::Backoff));
        assert!(status.until.unwrap() > tokio::time::Instant::now().into_std() + secs(20), "the curve goes on");
        assert_eq!(server.in_flight().most(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_who_wait_and_are_told_to_reconnect_at_one_instant_fill_the_spread() {
    let server = Server::new(|_| REFUSED);
    let builder = Supervisor::builder(server.connector()).policy(plain().recovery_spread(secs(10)));
    let links: Vec<_> = (0..1_000).map(|n| builder.clone().seed(n).build().unwrap().keep().unwrap()).collect();
    // No jitter: all are in the wait from 31 to 61 s.
    sleep(secs(40)).await;
    let (before, began) = (server.dial_count(), server.now());
    assert_eq!(before, 6_000);
    for link in &links {
        assert!(link.handle().reconnect());
    }
    sleep(secs(11)).await;
    let mut bins = [0; 10];
    for dial in &server.dials()[before..] {
        bins[(1_u8..10).take_while(|edge| dial - began >= f64::from(*edge)).count()] += 1;
    }
    assert_eq!(bins.iter().sum::<usize>(), 1_000, "one attempt each");
    assert!(bins.iter().all(|bin| (60..=140).contains(bin)), "{bins:?}");
    for link in &links {
        assert_eq!(link.handle().status().attempt, 7);
    }
}

type Halves = (tokio::sync::Mutex<ReadHalf<DuplexStream>>, tokio::sync::Mutex<WriteHalf<DuplexStream>>);

#[tokio::test(start_paused = true)]
async fn whoever_holds_a_half_of_a_split_stream_gets_the_next_one_with_all_the_others() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let accept = Arc::clone(&peers);
    let connector = connector_fn(ENDPOINT, move |_: Attempt| {
        let accept = Arc::clone(&accept);
        async move {
            sleep(ms(100)).await;
            let (ours, theirs) = tokio::io::duplex(64);
            lock(&accept).push(theirs);
            let (read, write) = tokio::io::split(ours);
            Ok::<Halves, std::io::Error>((read.into(), write.into()))
        }
    });
    let link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    let mut tasks = Vec::new();
    for n in 0..40 {
        let link = link.clone();
        tasks.push(tokio::spawn(async move {
            let first = link.ready().await.unwrap();
            let error = loop {
                let outcome = if n % 2 == 0 {
                    match first.0.lock().await.read_u8().await {
                        Ok(_) => Ok(()),
                        Err(error) => Err(error),
                    }
                } else {
                    sleep(secs(1)).await;
                    first.1.lock().await.write_all(b"x").await
                };
                if let Err(error) = outcome {
                    break error;
                }
            };
            first.report(error);
            let next = link.ready().await.unwrap();
            (first.generation(), next.generation())
        }));
    }
    sleep(secs(30)).await;
    // The server goes; readers see the end, writers a broken pipe.
    lock(&peers).clear();
    for task in tasks {
        assert_eq!(timeout(secs(60), task).await.expect("nobody is stranded").unwrap(), (1, 2));
    }
    assert_eq!(lock(&peers).len(), 1, "one dial for them all");
    assert_eq!(link.handle().status().ignored_reports, 39);
}

#[tokio::test(start_paused = true)]
async fn a_drain_anywhere_around_a_connect_leaves_nothing_behind() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut sessions = 0;
    for round in 0..10_000 {
        let (connects_after, drained_after) = (rng.random_range(0..8), rng.random_range(0..12));
        let closed = Arc::new(AtomicUsize::new(0));
        let connector = Yielding { polls: connects_after, opened: AtomicUsize::new(0), closed: Arc::clone(&closed) };
        let supervisor = Supervisor::builder(connector).policy(plain()).seed(round).build().unwrap();
        let handle = supervisor.handle();
        let announced = AtomicUsize::new(0);
        let running = supervisor.run(|_conn, session: steadfast::Session| {
            announced.fetch_add(1, Ordering::Relaxed);
            async move {
                session.draining().await;
                Ok::<ControlFlow<()>, BoxError>(ControlFlow::Continue(()))
            }
        });
        let draining = async {
            // What is not running has nothing to drain.
            while handle.status().state == State::Idle {
                yield_now().await;
            }
            for _ in 0..drained_after {
                yield_now().await;
            }
            let announced_before = announced.load(Ordering::Relaxed);
            handle.drain().await;
            announced_before
        };
        let began = tokio::time::Instant::now();
        let (ended, announced_before) = if round % 2 == 0 {
            tokio::join!(running, draining)
        } else {
            let (before, ended) = tokio::join!(draining, running);
            (ended, before)
        };
        assert!(began.elapsed() <= ms(50), "{connects_after} {drained_after}");
        assert_eq!(ended.unwrap_err().reason, StopReason::Drained);
        assert_eq!(announced.load(Ordering::Relaxed), announced_before, "announced after the drain");
        sessions += announced_before;
        let connector = (connects_after, drained_after);
        let opened = supervisor.handle().status().generation;
        assert_eq!(closed.load(Ordering::Relaxed) as u64, opened, "closed politely: {connector:?}");
    }
    assert!((1_000..9_000).contains(&sessions), "both orders were met: {sessions}");
}

/// Connects after so many polls.
struct Yielding {
    polls: usize,
    opened: AtomicUsize,
    closed: Arc<AtomicUsize>,
}

impl Connector for Yielding {
    type Connection = ();
    type Error = BoxError;

    async fn connect(&self, _attempt: Attempt) -> Result<(), BoxError> {
        for _ in 0..self.polls {
            yield_now().await;
        }
        assert_eq!(self.opened.fetch_add(1, Ordering::Relaxed), 0, "one dial");
        Ok(())
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(ENDPOINT)
    }

    async fn close(&self, _connection: &()) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_drain_from_another_thread_in_the_instant_of_the_connect_leaves_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    for round in 0..300_u32 {
        let (open, opens) = tokio::sync::oneshot::channel::<()>();
        let opens = Mutex::new(Some(opens));
        let (dials, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let connector = Gated { opens, dials: Arc::clone(&dials), closed: Arc::clone(&closed) };
        let _guard = runtime.enter();
        let link = Supervisor::builder(connector).policy(plain()).build().unwrap().keep().unwrap();
        let handle = link.handle();
        let draining = std::thread::spawn(move || {
            for _ in 0..(round % 50) * 20 {
                std::hint::spin_loop();
            }
            handle.drain()
        });
        let _ = open.send(());
        let drained = draining.join().unwrap();
        runtime.block_on(async { timeout(secs(10), drained).await.expect("the drain ends") });
        assert_eq!(runtime.block_on(link.ready()).unwrap_err().reason, StopReason::Drained);
        assert!(dials.load(Ordering::Relaxed) <= 1);
        assert_eq!(closed.load(Ordering::Relaxed) as u64, link.handle().status().generation);
    }
}

/// Connects when it is told to.
struct Gated {
    opens: Mutex<Option<tokio::sync::oneshot::Receiver<()>>>,
    dials: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Connector for Gated {
    type Connection = ();
    type Error = BoxError;

    async fn connect(&self, _attempt: Attempt) -> Result<(), BoxError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        let opens = lock(&self.opens).take().ok_or("a second dial")?;
        Ok(opens.await?)
    }

    async fn close(&self, _connection: &()) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Panics where it is told to.
struct Panicky {
    inner: Dialler,
    connects: AtomicUsize,
    at_the_call: bool,
    in_classify: bool,
}

impl Connector for Panicky {
    type Connection = common::Conn;
    type Error = BoxError;

    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<common::Conn, BoxError>> + Send {
        let first = self.connects.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!(first && self.at_the_call), "at the call of connect");
        self.inner.connect(attempt)
    }

    fn classify(&self, error: &(dyn Error + 'static), _ended: Ended) -> Failure {
        assert!(!self.in_classify, "over {error}");
        steadfast::classify(error)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_at_the_call_of_connect_or_over_the_error_of_a_dial_or_a_report_is_transient() {
    for at_the_call in [false, true] {
        let server = Server::answers(if at_the_call { vec![] } else { vec![REFUSED] });
        let inner = server.connector();
        let panicky = Panicky { inner, connects: AtomicUsize::new(0), at_the_call, in_classify: true };
        let link = Supervisor::builder(panicky).policy(plain()).seed(7).build().unwrap().keep().unwrap();
        sleep(ms(1)).await;
        let status = link.handle().status();
        let cause = status.last_failure.unwrap();
        assert_eq!((status.state, cause.step(), cause.failure()), (State::Backoff, "connect", Failure::Transient));
        let said =
            if at_the_call { "panicked: at the call of connect" } else { "dial 0 (classify panicked: over dial 0)" };
        assert!(cause.to_string().contains(said), "{cause}");
        let live = link.ready().await.unwrap();
        sleep(secs(20)).await;
        live.report("broken pipe");
        let next = timeout(secs(60), link.ready()).await.expect("it is replaced").unwrap();
        assert_eq!(next.generation(), 2);
        let cause = link.handle().status().last_failure.unwrap();
        assert_eq!((cause.step(), cause.failure()), ("report", Failure::Transient));
        assert!(cause.to_string().contains("broken pipe (classify panicked"), "{cause}");
    }
}

/// A connection whose drop panics.
struct Grenade(bool);

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(!self.0 || std::thread::panicking(), "in the drop of the connection");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_connection_strands_nobody() {
    let dials = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dials);
    let connector = connector_fn(ENDPOINT, move |_: Attempt| {
        let first = count.fetch_add(1, Ordering::Relaxed) == 0;
        std::future::ready(Ok::<_, BoxError>(Grenade(first)))
    });
    let supervisor = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    link.ready().await.unwrap().report("gone");
    // Either the next connection or the end, but nobody waits for ever.
    let ended = timeout(secs(60), link.ready()).await.expect("nobody is stranded");
    if ended.is_err() {
        timeout(secs(60), supervisor.keep().unwrap().ready()).await.expect("and there is a way back").unwrap();
    }
}

/// Takes its time over the first report.
struct Slow {
    inner: Dialler,
    reports: AtomicUsize,
    entered: mpsc::SyncSender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Connector for Slow {
    type Connection = common::Conn;
    type Error = BoxError;

    fn connect(&self, attempt: Attempt) -> impl Future<Output = Result<common::Conn, BoxError>> + Send {
        self.inner.connect(attempt)
    }

    fn classify(&self, error: &(dyn Error + 'static), ended: Ended) -> Failure {
        if ended == Ended::Report && self.reports.fetch_add(1, Ordering::SeqCst) == 0 {
            self.entered.send(()).unwrap();
            lock(&self.goes_on).recv().unwrap();
        }
        steadfast::classify(error)
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_of_an_older_generation_that_took_long_neither_ends_the_live_one_nor_hides_its_report() {
    for breaks_as_well in [false, true] {
        let server = Server::healthy();
        let (entered, has_entered) = mpsc::sync_channel(1);
        let (go_on, goes_on) = mpsc::channel();
        let slow = Slow { inner: server.connector(), reports: AtomicUsize::new(0), entered, goes_on: goes_on.into() };
        let link: Link<Slow> = Supervisor::builder(slow).policy(plain()).seed(7).build().unwrap().keep().unwrap();
        let first = link.ready().await.unwrap();
        let reporting = std::thread::spawn(move || first.report("broken, and hard to tell why"));
        has_entered.recv().unwrap();
        sleep(secs(20)).await;
        assert!(link.handle().reconnect());
        let second = link.ready().await.unwrap();
        assert_eq!(second.generation(), 2);
        // Where there are two reports, both are in before the supervisor looks.
        if breaks_as_well {
            second.report("broken as well");
        }
        go_on.send(()).unwrap();
        reporting.join().unwrap();
        sleep(secs(60)).await;
        let live = timeout(secs(3_600), link.ready()).await.expect("the live one is replaced").unwrap();
        assert_eq!(live.generation(), if breaks_as_well { 3 } else { 2 });
        assert_eq!(link.handle().status().ignored_reports, 1);
    }
}

/// A dial that never ends and panics when it is dropped.
struct Trap;

impl Drop for Trap {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "in the drop of the dial");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_drop_of_a_dial_frees_its_place_in_the_gate() {
    let gate = steadfast::Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let trapped = connector_fn(ENDPOINT, |_: Attempt| async {
        let _trap = Trap;
        std::future::pending::<Result<(), BoxError>>().await
    });
    let trapped = Supervisor::builder(trapped).policy(plain()).gate(&gate).seed(1).build().unwrap();
    let link = trapped.keep().unwrap();
    sleep(ms(1)).await;
    let server = Server::healthy();
    let builder = Supervisor::builder(server.connector()).policy(plain()).gate(&gate);
    let other = builder.seed(2).build().unwrap().keep().unwrap();
    sleep(secs(5)).await;
    assert_eq!((gate.status().in_flight, server.dial_count()), (1, 0));
    timeout(secs(60), other.ready()).await.expect("the place is free after the deadline").unwrap();
    assert_eq!(link.handle().status().stopped, None, "and it goes on itself");
    timeout(secs(60), link.handle().drain()).await.expect("it can still be drained");
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Drained);
    assert_eq!(gate.status().in_flight, 0);
}
