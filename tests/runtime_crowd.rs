//! A crowd of real supervisors: in which order they are served, and how they are spread.
#![cfg(test)]

mod common;
mod statistics;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ENDPOINT, REFUSED, Server, lock, ms, secs};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use statistics::{assert_shuffled, chance, correlation, count};
use steadfast::{Attempt, Backoff, BoxError, Connector, Endpoint, Failure, Gate, Link, Policy, Supervisor};
use tokio::time::{Instant, sleep};

const WAITERS: usize = 1_000;
const LATENCY: Duration = Duration::from_millis(20);

/// A dial as the server sees it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    who: usize,
    at: Instant,
    /// Dials per second that the gate lets through when it comes.
    pace: Option<f64>,
}

/// Down until it is healed; it knows who dials.
struct Site {
    gate: Gate,
    healed: Instant,
    /// Since it is healed.
    seen: Mutex<Vec<Seen>>,
}

/// One client of the site.
struct Client {
    who: usize,
    site: Arc<Site>,
}

impl Connector for Client {
    type Connection = ();
    type Error = BoxError;

    fn connect(&self, _: Attempt) -> impl Future<Output = Result<(), BoxError>> + Send {
        let at = Instant::now();
        let is_healed = at >= self.site.healed;
        if is_healed {
            lock(&self.site.seen).push(Seen { who: self.who, at, pace: self.site.gate.status().pace });
        }
        async move {
            if !is_healed {
                return Err(Failure::Unreachable.because("down").into());
            }
            sleep(LATENCY).await;
            Ok(())
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::new(ENDPOINT)
    }
}

impl Site {
    fn down_for(downtime: Duration) -> Arc<Self> {
        let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().expect("a valid policy");
        Arc::new(Self { gate, healed: Instant::now() + downtime, seen: Mutex::default() })
    }

    fn keep(self: &Arc<Self>, who: usize) -> Link<Client> {
        let client = Client { who, site: Arc::clone(self) };
        let builder = Supervisor::builder(client).policy(Policy::default()).gate(&self.gate).seed(who as u64);
        builder.build().expect("valid settings").keep().expect("it is idle")
    }

    fn seen(&self) -> Vec<Seen> {
        lock(&self.seen).clone()
    }

    fn served(&self) -> Vec<usize> {
        self.seen().iter().map(|seen| seen.who).collect()
    }

    async fn until(&self, served: usize) {
        while lock(&self.seen).len() < served {
            assert!(self.healed.elapsed() < secs(30), "{} of {served} have dialled", lock(&self.seen).len());
            sleep(ms(1)).await;
        }
    }

    /// Two starts are two slots apart at most, unless every slot is taken: then an answer frees one. A timer is up to
    /// a millisecond late, and so is whoever it wakes.
    fn assert_no_gap(&self) {
        let seen = self.seen();
        for two in seen.windows(2) {
            let Some(pace) = two[0].pace else { continue };
            let most = Duration::from_secs_f64(2.0 / pace) + LATENCY + ms(3);
            assert!(two[1].at - two[0].at <= most, "{two:?}: {most:?} at most");
        }
        assert!(seen[1..].iter().all(|seen| seen.pace.is_some()), "all but the probe came at a pace");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_supervisors_behind_one_gate_are_served_once_each_in_one_shuffled_order() {
    let site = Site::down_for(secs(30));
    let links: Vec<_> = (0..WAITERS).map(|who| site.keep(who)).collect();
    for link in &links {
        link.ready().await.expect("everybody is served");
    }
    assert!(site.healed.elapsed() < secs(10), "the longest wait was {:?}", site.healed.elapsed());
    assert_eq!(site.seen().len(), WAITERS, "one dial each");
    assert_shuffled(&site.served());
    site.assert_no_gap();
}

#[tokio::test(start_paused = true)]
async fn supervisors_that_go_leave_no_gap_and_those_that_come_queue_behind() {
    const LATECOMERS: usize = 50;
    let site = Site::down_for(secs(30));
    let mut links: Vec<_> = (0..WAITERS).map(|who| Some(site.keep(who))).collect();
    site.until(WAITERS / 4).await;
    let served = site.served();
    let mut waiting: Vec<_> = (0..WAITERS).filter(|who| !served.contains(who)).collect();
    waiting.shuffle(&mut SmallRng::seed_from_u64(3));
    let gone = &waiting[..waiting.len() / 3];
    for who in gone {
        links[*who] = None;
    }
    let late: Vec<_> = (WAITERS..WAITERS + LATECOMERS).map(|who| site.keep(who)).collect();
    for link in links.iter().flatten().chain(&late) {
        link.ready().await.expect("everybody else is served");
    }
    let order = site.served();
    let stayed = WAITERS - gone.len();
    assert_eq!(order.len(), stayed + LATECOMERS, "one dial each");
    assert!(order[served.len()..].iter().all(|who| !gone.contains(who)), "who is gone dials no more");
    assert!(order[..stayed].iter().all(|who| *who < WAITERS), "nobody jumps the queue: {order:?}");
    site.assert_no_gap();
    assert_eq!((site.gate.status().waiting, site.gate.status().members), (0, order.len()));
}

/// The waits of so many supervisors, as the server sees them: whole milliseconds, rounded up.
async fn waits<const DRAWS: usize>(supervisors: u64) -> Vec<[f64; DRAWS]> {
    let policy = Policy::default().quick(Backoff::new(secs(1), secs(30)));
    let mut all = Vec::new();
    for seed in 0..supervisors {
        let server = Server::new(|_| REFUSED);
        let builder = Supervisor::builder(server.connector()).policy(policy.clone()).seed(seed);
        let link = builder.build().expect("valid settings").keep().expect("it is idle");
        while server.dial_count() <= DRAWS {
            sleep(secs(30)).await;
        }
        drop(link);
        let mut waits = [0.0; DRAWS];
        for (wait, two) in waits.iter_mut().zip(server.dials().windows(2)) {
            *wait = two[1] - two[0];
        }
        all.push(waits);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn what_supervisors_sleep_is_what_the_law_draws() {
    let waits = waits::<60>(300).await;
    let (mut bins, mut late) = ([0.0; 20], Vec::new());
    for waits in &waits {
        assert!(waits.iter().all(|wait| (1.0..30.002).contains(wait)), "{waits:?}");
        for wait in &waits[19..] {
            let bin = (1..20_u8).filter(|edge| *wait >= 10.0 + f64::from(*edge)).count();
            bins[bin] += 1.0;
            late.push(*wait);
        }
    }
    // Draws are uniform over [10, 30) from the 20th on. A bin holds 5 % of 12,300, four standard deviations are 0.8 %.
    let n = count(late.len());
    assert!(bins.iter().all(|bin: &f64| (bin / n - 0.05).abs() < 0.008), "{bins:?}");
    assert!((late.iter().sum::<f64>() / n - 20.0).abs() < 4.5 * 20.0 / (12.0 * n).sqrt() + 0.001);
    for (draw, mean) in [2.0, 4.0, 8.0].into_iter().enumerate() {
        let found = waits.iter().map(|waits| waits[draw]).sum::<f64>() / count(waits.len());
        assert!((found - mean).abs() < mean * 0.15, "draw {draw}: {found}");
    }
    // Neither the next wait of one nor the same one of its neighbour is told by it.
    let along: Vec<_> = waits.iter().flat_map(|w| (19..59).map(|i| (w[i], w[i + 1]))).collect();
    let across: Vec<_> = waits.windows(2).flat_map(|two| (19..60).map(|i| (two[0][i], two[1][i]))).collect();
    for pairs in [along, across] {
        let found = correlation(&pairs);
        assert!(found.abs() < chance(pairs.len()), "{found}");
    }
}
