//! The runtime decides nothing: fed the same script, it logs what a bare loop over the machine logs, line for line.
#![cfg(test)]
#![cfg(feature = "sim")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use steadfast::machine::{Action, Event, Gate, Lifecycle};
use steadfast::sim::line;
use steadfast::{Attempt, Failure, Lease, Policy, Session, Supervisor, connector_fn};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What one dial meets: after `takes` it fails, or gives a session that fails after `lives`.
#[derive(Clone, Copy)]
struct Met {
    takes: u64,
    lives: Option<u64>,
    then: Failure,
}

const fn fails(takes: u64, then: Failure) -> Met {
    Met { takes, lives: None, then }
}

const fn lives(lives: u64, then: Failure) -> Met {
    Met { takes: 7, lives: Some(lives), then }
}

/// Every class, short and stable sessions, a dial that outlasts its deadline; then healthy for good.
const SCRIPT: &[Met] = &[
    fails(1, Failure::Unreachable),
    fails(3, Failure::Unreachable),
    fails(20, Failure::Transient),
    fails(3_600_000, Failure::Transient),
    lives(300, Failure::Planned),
    fails(5, Failure::Throttled { retry_after: Some(ms(20_000)) }),
    fails(5, Failure::Throttled { retry_after: Some(ms(20_000)) }),
    fails(5, Failure::Throttled { retry_after: None }),
    lives(30_000, Failure::Transient),
    fails(2, Failure::Unauthorized),
    fails(2, Failure::Unauthorized),
    lives(12_000, Failure::Unauthorized),
    lives(9_999, Failure::Timeout),
    lives(40_000, Failure::Throttled { retry_after: Some(ms(3_000)) }),
    lives(86_400_000, Failure::Transient),
];

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Drain,
    Reconnect,
}

/// What an operator does, and when.
const CALLS: &[(u64, Call)] =
    &[(200, Call::Reconnect), (1_500, Call::Reconnect), (60_000, Call::Reconnect), (3_600_000, Call::Drain)];

fn met(dial: usize) -> Met {
    SCRIPT[dial.min(SCRIPT.len() - 1)]
}

async fn by_the_runtime(seed: u64) -> Vec<String> {
    let origin = tokio::time::Instant::now().into_std();
    let log = Arc::new(Mutex::new(Vec::new()));
    let dials = AtomicUsize::new(0);
    let connector = connector_fn("script", move |_: Attempt| {
        let met = met(dials.fetch_add(1, Ordering::Relaxed));
        async move {
            tokio::time::sleep(ms(met.takes)).await;
            if met.lives.is_some() { Ok(met) } else { Err(met.then.because("as the script says")) }
        }
    });
    let supervisor = Supervisor::builder(connector)
        .policy(Policy::default())
        .seed(seed)
        .on_transition({
            let log = Arc::clone(&log);
            move |transition| log.lock().unwrap().push(line(transition, origin))
        })
        .build()
        .unwrap();
    let handle = supervisor.handle();
    let operator = tokio::spawn(async move {
        for (at, call) in CALLS {
            tokio::time::sleep_until(tokio::time::Instant::from_std(origin + ms(*at))).await;
            match call {
                Call::Drain => drop(handle.drain()),
                Call::Reconnect => drop(handle.reconnect()),
            }
        }
    });
    let session = |met: Lease<Met>, session: Session| async move {
        tokio::select! {
            () = tokio::time::sleep(ms(met.lives.unwrap())) => Err(met.then.because("as the script says")),
            () = session.draining() => Ok(std::ops::ControlFlow::Continue::<()>(())),
        }
    };
    supervisor.run(session).await.expect_err("drained in the end");
    operator.await.unwrap();
    let log = log.lock().unwrap();
    log.clone()
}

/// The bare loop: the machine, a clock that jumps to whatever comes next, and the script.
fn by_a_bare_loop(seed: u64) -> Vec<String> {
    let origin = Instant::now();
    let policy = Arc::new(Policy::default());
    let mut gate = Gate::new(Arc::clone(&policy));
    let mut life = Lifecycle::new(policy, gate.join(0));
    let mut rng = SmallRng::seed_from_u64(seed).fork();
    let (mut now, mut dials, mut log) = (origin, 0_usize, Vec::new());
    let mut calls = CALLS.iter().map(|(at, call)| (origin + ms(*at), *call)).peekable();
    // What user code does next, and how its present step ends.
    let mut work: Option<(Instant, Event)> = None;
    let mut event = Event::Start;
    loop {
        let transition = life.decide(now, event, &mut gate, &mut rng);
        log.extend(transition.map(|transition| line(&transition, origin)));
        let last = met(dials.saturating_sub(1));
        match transition.map_or(Action::Continue, |transition| transition.action) {
            Action::Continue => {}
            Action::Dial { .. } => {
                let met = met(dials);
                dials += 1;
                let end = if met.lives.is_some() { Event::Opened } else { Event::Failed(met.then) };
                work = Some((now + ms(met.takes), end));
            }
            Action::Serve { .. } => work = Some((now + ms(last.lives.unwrap()), Event::Lost(last.then))),
            Action::WindDown => work = Some((now, Event::Lost(Failure::Planned))),
            Action::Close => work = Some((now, Event::Closed)),
            Action::Stop(_) => return log,
            _ => work = None,
        }
        let timer = life.deadline().map(|at| (on_the_grid(at, origin), Event::TimedOut));
        let call =
            calls.peek().map(|(at, call)| (*at, if *call == Call::Drain { Event::Drain } else { Event::Reconnect }));
        // At one instant user code comes first, then calls, then the timer.
        let next = [work, call, timer].into_iter().flatten().min_by_key(|(at, _)| *at).expect("something is next");
        if Some(next) == call && Some(next) != work {
            calls.next();
        }
        now = next.0.max(now);
        event = next.1;
        if Some(next) == work {
            work = None;
        }
    }
}

/// Timers fire on whole milliseconds since the start.
fn on_the_grid(at: Instant, origin: Instant) -> Instant {
    let nanos = at.saturating_duration_since(origin).as_nanos();
    origin + ms(u64::try_from(nanos.div_ceil(1_000_000)).unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_runtime_and_a_bare_loop_over_the_machine_log_the_same() {
    for seed in 0..20 {
        let shell = by_the_runtime(seed).await;
        let bare = by_a_bare_loop(seed);
        assert!(shell.len() > 30, "the script is played: {shell:#?}");
        for (number, (shell, bare)) in shell.iter().zip(&bare).enumerate() {
            assert_eq!(shell, bare, "seed {seed}, line {number}");
        }
        assert_eq!(shell.len(), bare.len(), "seed {seed}");
    }
}
