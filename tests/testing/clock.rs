//! The manual clock and the seeds.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use steadfast::machine::{Action, Event, Gate, Lifecycle};
use steadfast::testing::{Answer, ManualClock, ScriptedConnector, ScriptedServer, Transport, rng};
use steadfast::{Attempt, BoxError, Connector, Endpoint, Lease, Policy, Session, State, Supervisor};
use tokio::time::{Instant, sleep};

use crate::{HOUR, ms, secs};

type Outcome = io::Result<ControlFlow<()>>;

async fn until_drained(_transport: Lease<Transport>, session: Session) -> Outcome {
    session.draining().await;
    Ok(ControlFlow::Continue(()))
}

#[tokio::test(start_paused = true)]
async fn a_live_supervisor_notices_a_suspend_and_not_a_clock_that_is_set_back() {
    let (server, clock) = (ScriptedServer::new(), ManualClock::new());
    let supervisor = Supervisor::builder(server.connector()).clock(clock.clock()).seed(7).build().unwrap();
    let handle = supervisor.handle();
    let service = tokio::spawn(async move { supervisor.run(until_drained).await });
    sleep(secs(60)).await;
    clock.set_back(HOUR);
    clock.suspend(secs(10));
    sleep(secs(60)).await;
    assert_eq!((handle.status().generation, server.seen().dials.len()), (1, 1));
    clock.suspend(HOUR);
    sleep(secs(10)).await;
    assert_eq!((handle.status().generation, handle.status().state), (2, State::Connected));
    assert!(handle.status().last_failure.is_none(), "charged to nobody");
    assert_eq!(server.seen().closes.len(), 1);
    service.abort();
}

/// Counts the checks.
struct Checked(ScriptedConnector, Arc<AtomicUsize>);

impl Connector for Checked {
    type Connection = Transport;
    type Error = io::Error;

    async fn connect(&self, attempt: Attempt) -> io::Result<Transport> {
        self.0.connect(attempt).await
    }

    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }

    async fn check(&self, _transport: &Transport) -> Result<(), BoxError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_is_checked_after_a_suspend() {
    let (server, clock, checks) = (ScriptedServer::new(), ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let connector = Checked(server.connector(), Arc::clone(&checks));
    let supervisor = Supervisor::builder(connector).clock(clock.clock()).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    link.ready().await.unwrap();
    sleep(secs(1)).await;
    clock.suspend(HOUR);
    sleep(secs(10)).await;
    assert_eq!((checks.load(Ordering::Relaxed), server.seen().dials.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn its_wall_time_goes_along_and_moves_apart_only_when_told() {
    let manual = ManualClock::new();
    let clock = manual.clock();
    let (now, wall) = (clock.now(), clock.wall());
    assert_eq!(wall, SystemTime::UNIX_EPOCH + secs(1_000_000_000), "the same in every run");
    sleep(secs(5)).await;
    assert_eq!((clock.now() - now, manual.clock().wall()), (secs(5), wall + secs(5)));
    manual.suspend(HOUR);
    manual.set_back(secs(60));
    assert_eq!((clock.now() - now, clock.wall()), (secs(5), wall + HOUR - secs(55)));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "`suspend`, but nobody looks at this clock")]
async fn a_suspend_that_nobody_would_notice_is_refused() {
    let (server, clock) = (ScriptedServer::new(), ManualClock::new());
    let supervisor = Supervisor::new(server.connector());
    let service = tokio::spawn(async move { supervisor.run(until_drained).await });
    sleep(secs(60)).await;
    service.abort();
    clock.suspend(HOUR);
}

#[test]
#[should_panic(expected = "use it inside of a tokio runtime")]
fn a_manual_clock_without_a_runtime_is_refused() {
    let _ = ManualClock::new();
}

#[test]
#[should_panic(expected = "`set_back` on another runtime than this clock was made on")]
fn a_manual_clock_of_another_runtime_is_refused() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let clock = one.block_on(async { ManualClock::new() });
    other.block_on(async { clock.set_back(HOUR) });
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "beyond what a wall clock can say")]
async fn a_wall_clock_does_not_overflow() {
    let clock = ManualClock::new();
    let _ = clock.clock().wall();
    clock.suspend(Duration::MAX);
}

/// An hour with outages and suspends: every decision, by instants since the start.
async fn log(seed: u64) -> Vec<String> {
    let (server, clock, log) = (ScriptedServer::new(), ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
    server.answer(Answer::accept().after(ms(3)));
    let (origin, lines) = (Instant::now().into_std(), Arc::clone(&log));
    let supervisor = Supervisor::builder(server.connector())
        .policy(Policy::default().recovery_spread(secs(20)))
        .clock(clock.clock())
        .seed(seed)
        .on_transition(move |transition| {
            let at = transition.at - origin;
            let line = format!("{at:?} {:?} {:?} {:?}", transition.event, transition.to, transition.action);
            lines.lock().unwrap().push(line);
        })
        .build()
        .unwrap();
    let service = tokio::spawn(async move {
        supervisor
            .run(|mut transport: Lease<Transport>, session: Session| async move {
                let read = async { tokio::io::AsyncReadExt::read_u8(&mut *transport).await };
                tokio::select! {
                    read = read => read.map(|_| ControlFlow::<()>::Continue(())),
                    () = session.draining() => Ok(ControlFlow::Continue(())),
                }
            })
            .await
    });
    for _ in 0..5 {
        sleep(secs(100)).await;
        server.go_down();
        sleep(secs(100)).await;
        server.come_back();
        sleep(secs(100)).await;
        clock.suspend(HOUR);
    }
    service.abort();
    let log = log.lock().unwrap();
    log.clone()
}

#[tokio::test(start_paused = true)]
async fn one_seed_is_one_log_suspends_included() {
    let (one, again, other) = (log(7).await, log(7).await, log(8).await);
    assert!(one.len() > 100, "{one:#?}");
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[tokio::test(start_paused = true)]
async fn the_generator_of_a_seed_draws_what_the_supervisor_draws() {
    let server = ScriptedServer::new();
    server.answer(Answer::refuse());
    let supervisor = Supervisor::builder(server.connector()).seed(9).build().unwrap();
    let service = tokio::spawn(async move { supervisor.run(until_drained).await });
    let seen = server.wait_for(HOUR, |seen| seen.dials.len() == 50).await;
    service.abort();

    let (policy, origin) = (Arc::new(Policy::default()), Instant::now().into_std());
    let mut gate = Gate::new(Arc::clone(&policy));
    let mut life = Lifecycle::new(policy, gate.join(0));
    let (mut rng, mut now, mut event, mut dials) = (rng(9), origin, Event::Start, Vec::new());
    while dials.len() < 50 {
        let action = life.on_event(now, event, &mut gate, &mut rng);
        if let Action::Dial { .. } = action {
            dials.push(now - origin);
            event = Event::Failed(steadfast::Failure::Unreachable);
        } else {
            let wait = life.deadline().unwrap() - origin;
            // Timers fire on whole milliseconds.
            now = origin + ms(u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap());
            event = Event::TimedOut;
        }
    }
    assert_eq!(seen.dials, dials);
}
