//! What is there during an outage stays as much as it was: tasks, waiters, places at the gate, lines.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfast::{Clock, Gate, NotReady, Policy, State, Supervisor, WaitCause};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::alive;
use crate::common::{Dialler, ENDPOINT, Server, secs};
use crate::measure::{Bell, Counted, Lines, Outage, still};

const CONNECTIONS: usize = 5;
const DAY: u64 = 86_400;
/// A thousand times a day somebody asks for a connection who goes away without one.
const ASK: u64 = 86;

type Link = steadfast::Link<Dialler>;

#[tokio::test(start_paused = true)]
async fn a_day_down_with_a_nervous_operator_leaves_nothing_behind() {
    let lines = Arc::new(AtomicUsize::new(0));
    let _reader = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let server = Server::healthy();
    let gate = Gate::builder(ENDPOINT).build().unwrap();
    let builder = Supervisor::builder(server.connector())
        .policy(Policy::default())
        .clock(Clock::new(|| Clock::system().now(), still))
        .gate(&gate);
    let links: Vec<Link> =
        (0..CONNECTIONS as u64).map(|seed| builder.clone().seed(seed).build().unwrap().keep().unwrap()).collect();
    for link in &links {
        link.ready().await.unwrap();
    }
    sleep(secs(60)).await;
    assert_eq!(alive(), 2 * CONNECTIONS + 1, "one each, the server's end of each, and the watcher of suspends");

    // Each hour it is down in another way.
    let began = Instant::now();
    let hour = move || usize::try_from(began.elapsed().as_secs() / 3_600).expect("a day");
    server.turn(move |_| Outage::ALL[hour() % Outage::ALL.len()].answer());
    let (attempts_before, lines_before) = (server.dial_count(), lines.load(Ordering::Relaxed));
    for link in &links {
        link.current().unwrap().report("reset");
    }
    let mut asked = Vec::new();
    for second in 0..DAY {
        sleep(secs(1)).await;
        let states: Vec<_> = links.iter().map(|link| link.handle().status()).collect();
        assert!(states.iter().all(|status| matches!(status.state, State::Backoff | State::Connecting)), "{states:?}");
        if second % (35 * 60) == 0 {
            assert!(links.iter().all(|link| link.handle().reconnect()));
        }
        match second % ASK {
            0 => asked.push(ask(&links[asked.len() % CONNECTIONS])),
            // By now those who asked have gone.
            60 => {
                assert_eq!(alive(), CONNECTIONS + 1, "after {second} s");
                assert_everybody_has_one_place(&gate, &links);
            }
            _ => {}
        }
    }
    assert_eq!(asked.len(), 1_005);
    for [by, without_bound] in asked {
        let (late, cancelled) = (by.await.unwrap(), without_bound.await.unwrap());
        assert!(late.elapsed, "it is told that there will be none");
        assert!(cancelled.elapsed);
        assert_eq!([late.wakers, cancelled.wakers], [1, 1], "nobody keeps the waker of who has gone");
    }
    let attempts = server.dial_count() - attempts_before;
    let lines = lines.load(Ordering::Relaxed) - lines_before;
    assert!(attempts > 24 * 100, "it is asked all day long: {attempts}");
    assert!(lines <= attempts + CONNECTIONS, "{lines} lines about {attempts} attempts");
}

/// Who waits for the gate is in its queue once, who waits on its own or dials is not.
fn assert_everybody_has_one_place(gate: &Gate, links: &[Link]) {
    let waits: Vec<_> = links.iter().map(|link| link.handle().status().wait).collect();
    let of = |causes: &[Option<WaitCause>]| waits.iter().filter(|wait| causes.contains(wait)).count();
    let queued = of(&[Some(WaitCause::BreakerOpen), Some(WaitCause::Paced), Some(WaitCause::Refused)]);
    // A hint is waited for by who was told, outside, and by the rest in the queue.
    let told = of(&[Some(WaitCause::Throttled)]);
    let status = gate.status();
    assert_eq!(status.members, CONNECTIONS);
    assert!((queued..=queued + told).contains(&status.waiting), "{waits:?} {status:?}");
    assert!(status.in_flight <= 1 && status.waiting + status.in_flight <= CONNECTIONS, "{waits:?} {status:?}");
}

/// How it went for who asked for a connection, and who holds its waker afterwards.
struct Asked {
    elapsed: bool,
    wakers: usize,
}

/// One with a deadline, which fails, and one without, which is cancelled.
fn ask(link: &Link) -> [JoinHandle<Asked>; 2] {
    let by = link.clone();
    let deadline = (Instant::now() + secs(20)).into_std();
    let late =
        async move { matches!(by.ready_by(deadline).await, Err(NotReady::Elapsed { .. } | NotReady::TooLate { .. })) };
    let without_bound = link.clone();
    let cancelled = async move { timeout(secs(30), without_bound.ready()).await.is_err() };
    [tokio::spawn(with_waker_of_its_own(late)), tokio::spawn(with_waker_of_its_own(cancelled))]
}

async fn with_waker_of_its_own(asking: impl Future<Output = bool>) -> Asked {
    let bell = Arc::new(Bell::default());
    let elapsed = Counted::new(asking, &bell).await;
    Asked { elapsed, wakers: Arc::strong_count(&bell) }
}
