//! The one probe of a gate that is half open: who gets it, and what becomes of it.
#![cfg(test)]

mod common;

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant, SystemTime};

use common::{Answer, ENDPOINT, REFUSED, Server, lock, ms, plain, secs};
use steadfast::machine::{GateStatus, Mode};
use steadfast::{
    Attempt, BoxError, Clock, Connector, Failure, Gate, Lease, Policy, Session, State, Stopped, Supervisor, WaitCause,
    connector_fn,
};
use tokio::time::{advance, sleep, timeout};

type Running<'a> = Pin<Box<dyn Future<Output = Result<(), Stopped>> + Send + 'a>>;

async fn until_drained<T>(_conn: Lease<T>, session: Session) -> Result<ControlFlow<()>, BoxError> {
    session.draining().await;
    Ok(ControlFlow::Continue(()))
}

fn running<C: Connector>(supervisor: &Supervisor<C>) -> Running<'_> {
    Box::pin(supervisor.run(until_drained))
}

fn poll(running: &mut Running<'_>) {
    let polled = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
}

/// A clock that stands still between two steps, so that whoever asks in between asks at the same instant.
fn stepped() -> (Clock, impl Fn(u64)) {
    let (start, seconds) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let (now, wall) = (Arc::clone(&seconds), Arc::clone(&seconds));
    let clock = Clock::new(
        move || start + secs(now.load(Ordering::SeqCst)),
        move || SystemTime::UNIX_EPOCH + secs(wall.load(Ordering::SeqCst)),
    );
    let step = move |step| {
        seconds.fetch_add(step, Ordering::SeqCst);
    };
    (clock, step)
}

/// What a round showed: the gate, and how many of the hundred dial and how many wait for the breaker.
type Round = (GateStatus, usize, usize, usize);

const ASKERS: usize = 100;
const THREADS: usize = 16;
const ROUNDS: usize = 1_000;

#[test]
fn a_hundred_who_ask_on_sixteen_threads_at_one_instant_make_one_connect() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let (clock, step) = stepped();
    let gate = Gate::builder(ENDPOINT).policy(plain()).clock(clock.clone()).build().unwrap();
    let (down, dials) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_down, count) = (Arc::clone(&down), Arc::clone(&dials));
    let connector = connector_fn(ENDPOINT, move |_: Attempt| {
        count.fetch_add(1, Ordering::SeqCst);
        let refuses = is_down.load(Ordering::SeqCst);
        async move {
            if refuses {
                return Err::<(), _>(Failure::Unreachable.because("down"));
            }
            std::future::pending().await
        }
    });
    let builder = Supervisor::builder(connector).policy(plain()).gate(&gate).clock(clock);
    let supervisors: Vec<_> = (0..ASKERS as u64).map(|seed| builder.clone().seed(seed).build().unwrap()).collect();
    let barrier = Barrier::new(THREADS + 1);
    let mut rounds: Vec<Round> = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, supervisors, runtime) = (&barrier, &supervisors, runtime.handle());
            scope.spawn(move || {
                let _entered = runtime.enter();
                for _ in 0..ROUNDS {
                    let mut own: Vec<_> = supervisors.iter().skip(thread).step_by(THREADS).map(running).collect();
                    barrier.wait();
                    own.iter_mut().for_each(poll);
                    barrier.wait();
                    barrier.wait();
                    // The probe is dropped as well, so that its slot is free for the next round.
                    drop(own);
                    barrier.wait();
                }
            });
        }
        for _ in 0..ROUNDS {
            // Two different connections fail, and the gate opens; an hour later it is half open.
            step(3_600);
            down.store(true, Ordering::SeqCst);
            for supervisor in &[builder.clone().build().unwrap(), builder.clone().build().unwrap()] {
                step(60);
                poll(&mut running(supervisor));
            }
            let opened = gate.status().mode == Mode::Open;
            step(3_600);
            down.store(false, Ordering::SeqCst);
            let before = dials.load(Ordering::SeqCst);
            barrier.wait();
            barrier.wait();
            let states: Vec<_> = supervisors.iter().map(|supervisor| supervisor.handle().status()).collect();
            let dial = states.iter().filter(|status| status.state == State::Connecting).count();
            let wait = states.iter().filter(|status| status.wait == Some(WaitCause::BreakerOpen)).count();
            let connects = dials.load(Ordering::SeqCst) - before;
            rounds.push((gate.status(), dial, wait, if opened { connects } else { usize::MAX }));
            barrier.wait();
            barrier.wait();
        }
    });
    // Looked at here: a thread that waits at the barrier for one that panicked waits for ever.
    assert_eq!(rounds.len(), ROUNDS);
    for (status, dial, wait, connects) in rounds {
        assert_eq!((dial, wait, connects), (1, ASKERS - 1, 1), "one permit, and 99 refusals: {status:?}");
        assert_eq!((status.mode, status.in_flight, status.waiting), (Mode::HalfOpen, 1, ASKERS - 1));
    }
    assert_eq!(gate.status().in_flight, 0);
}

/// How a caller lets go of a probe that has made so many of its steps.
#[derive(Clone, Copy, Debug)]
enum LetGo {
    Abort,
    Drop,
    Select,
    Timeout,
}

const STEPS: u32 = 8;
const STEP: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_let_go_of_after_any_poll_frees_its_slot_at_once_and_is_charged_to_nobody() {
    let gate = Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let dials = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dials);
    let connector = connector_fn(ENDPOINT, move |_: Attempt| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            for _ in 0..STEPS {
                sleep(STEP).await;
            }
            Ok::<_, BoxError>(())
        }
    });
    let builder = Supervisor::builder(connector).policy(plain()).gate(&gate);
    let supervisor = Arc::new(builder.clone().seed(1).build().unwrap());
    let other = builder.seed(2).build().unwrap();
    let mut expected = 0;
    for steps in (0..STEPS).cycle().take(160) {
        for way in [LetGo::Abort, LetGo::Drop, LetGo::Select, LetGo::Timeout] {
            let case = format!("{way:?} after {steps} steps");
            let_go(way, steps, &supervisor).await;
            let status = gate.status();
            assert_eq!((status.mode, status.trips, status.in_flight), (Mode::HalfOpen, 0, 0), "{case}");
            assert_eq!(status.waiting, 0, "{case}");
            // The next one is let through, as soon as `base` has passed since the start of this one.
            advance(secs(1)).await;
            let mut next = running(&other);
            poll(&mut next);
            expected += 2;
            assert_eq!((dials.load(Ordering::Relaxed), gate.status().in_flight), (expected, 1), "{case}");
            drop(next);
            advance(secs(1)).await;
        }
    }
}

/// Dials, and lets go of it after `steps` of its steps.
async fn let_go<C: Connector<Connection = ()>>(way: LetGo, steps: u32, supervisor: &Arc<Supervisor<C>>) {
    let halfway = STEP * steps + STEP / 2;
    match way {
        LetGo::Abort => {
            let owned = Arc::clone(supervisor);
            let task = tokio::spawn(async move { owned.run(until_drained).await });
            sleep(halfway).await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
        LetGo::Drop => {
            let mut probe = running(supervisor);
            poll(&mut probe);
            for _ in 0..steps {
                advance(STEP).await;
                poll(&mut probe);
            }
        }
        LetGo::Select => tokio::select! {
            ended = running(supervisor) => panic!("{ended:?}"),
            () = sleep(halfway) => {}
        },
        LetGo::Timeout => assert!(timeout(halfway, running(supervisor)).await.is_err()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_is_refused_a_hundred_times_asks_once_for_each_wake_up() {
    let server = Server::new(|_| REFUSED);
    let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().unwrap();
    let builder = Supervisor::builder(server.connector()).policy(Policy::default()).gate(&gate);
    let _others: Vec<_> = (0..9).map(|seed| builder.clone().seed(seed).build().unwrap().keep().unwrap()).collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let own = builder.on_transition(move |t| lock(&record).push(*t)).seed(9).build().unwrap();
    let (mut polls, mut future) = (0, running(&own));
    let counted = poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx)
    });
    assert!(timeout(secs(3_600), counted).await.is_err());
    let seen = lock(&seen).clone();
    let refused: Vec<_> = seen.iter().filter(|t| t.wait == Some(WaitCause::BreakerOpen)).collect();
    assert!(refused.len() >= 100, "{}", refused.len());
    assert!(refused.iter().all(|t| t.until > Some(t.at)), "each names a later instant");
    // A wake-up is a poll, and a poll is a decision: to dial, to wait once more, or what became of a dial.
    assert!((refused.len()..=seen.len()).contains(&polls), "{polls} polls, {} refusals, {seen:?}", refused.len());
    assert!(refused.len() <= server.dial_count(), "asked more often than anybody dialled: {}", refused.len());
    assert_eq!(server.in_flight().most(), 1);
}

/// Looks every millisecond, for a minute.
async fn until(it_is_so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if it_is_so() {
            return;
        }
        sleep(ms(1)).await;
    }
    panic!("it never comes to that");
}

#[tokio::test(start_paused = true)]
async fn dials_in_flight_when_the_gate_narrows_again_are_not_killed() {
    let server = Server::new(|_| Answer::Accept(20));
    let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().unwrap();
    let builder = Supervisor::builder(server.connector()).policy(Policy::default()).gate(&gate);
    let links: Vec<_> = (0..64).map(|seed| builder.clone().seed(seed).build().unwrap().keep().unwrap()).collect();
    until(|| server.open().now() >= 10).await;
    // Four are slow, and while they are under way it refuses all others.
    server.turn(|_| Answer::Accept(9_000));
    until(|| server.in_flight().now() >= 4).await;
    server.turn(|_| Answer::Fail(5, Failure::Transient));
    until(|| gate.status().mode != Mode::Paced).await;
    let (slow, up, narrowed) = (server.in_flight().now(), server.open().now(), server.dial_count());
    assert!((4..8).contains(&slow), "{slow} are under way");
    assert_eq!((gate.status().mode, gate.status().trips), (Mode::Open, 1));
    sleep(secs(9)).await;
    assert_eq!(server.open().now(), up + slow, "they were let finish");
    // They began before the gate narrowed: what becomes of them ends no open time, and there is a lone prober.
    assert_ne!(gate.status().mode, Mode::Paced);
    server.in_flight().reset();
    sleep(secs(60)).await;
    assert_eq!(server.in_flight().most(), 1, "a lone prober");
    assert!(server.dial_count() > narrowed);
    server.turn(|_| Answer::Accept(20));
    for link in &links {
        link.ready().await.expect("all 64 in the end");
    }
    assert_eq!(server.open().now(), 64);
}
