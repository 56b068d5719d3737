//! Many supervisors on one gate.

mod common;

use std::collections::BTreeSet;
use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use common::{Answer, BROKEN, Dialler, ENDPOINT, REFUSED, Server, lock, ms, plain, secs};
use steadfast::machine::Mode;
use steadfast::{
    BoxError, BuildError, Endpoint, Failure, Gate, Link, Policy, State, StopReason, Supervisor, WaitCause,
};
use tokio::time::{sleep, timeout};

const FLEET: usize = 200;

fn gate(policy: Policy) -> Gate {
    Gate::builder(ENDPOINT).policy(policy).build().expect("a valid policy")
}

fn fleet(server: &Arc<Server>, gate: &Gate, policy: &Policy, count: usize) -> Vec<Link<Dialler>> {
    let builder = Supervisor::builder(server.connector()).policy(policy.clone()).gate(gate);
    let keep = |seed| builder.clone().seed(seed).build().expect("valid settings").keep().expect("it is idle");
    (0..count as u64).map(keep).collect()
}

/// A fleet that is up and stable, on a gate that is closed.
async fn stable_fleet(server: &Arc<Server>) -> (Gate, Vec<Link<Dialler>>) {
    let policy = Policy::default();
    let gate = gate(policy.clone());
    let links = fleet(server, &gate, &policy, FLEET);
    for link in &links {
        link.ready().await.expect("a healthy server");
    }
    sleep(secs(60)).await;
    assert_eq!((server.open().now(), gate.status().mode), (FLEET, Mode::Closed));
    server.in_flight().reset();
    (gate, links)
}

fn lose_all(links: &[Link<Dialler>]) {
    for link in links {
        link.current().expect("all are up").report(Failure::Transient.because("reset"));
    }
}

async fn all_back(server: &Server, links: &[Link<Dialler>]) {
    for link in links {
        timeout(secs(3_600), link.ready()).await.expect("everybody comes back").expect("nobody gives up");
    }
    assert_eq!(server.open().now(), links.len());
}

#[tokio::test(start_paused = true)]
async fn two_hundred_lost_to_a_server_that_refuses_send_one_probe_at_a_time() {
    let server = Server::healthy();
    let (gate, links) = stable_fleet(&server).await;
    let before = server.dial_count();
    server.turn(|_| REFUSED);
    lose_all(&links);
    sleep(secs(120)).await;
    assert_eq!(server.in_flight().most(), 1);
    let dials = &server.dials()[before..];
    assert!(dials.windows(2).all(|pair| pair[1] - pair[0] >= 0.5), "at least base apart: {dials:?}");
    assert!(dials.len() > 120 / 6, "and it goes on asking: {dials:?}");
    assert_eq!(gate.status().mode, Mode::Open);
    assert!(gate.status().waiting >= FLEET - 1);
    server.turn(|_| Answer::Accept(20));
    all_back(&server, &links).await;
    assert_eq!(gate.status().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_lost_to_a_silent_server_are_one_hanging_dial() {
    let server = Server::healthy();
    let (_gate, links) = stable_fleet(&server).await;
    server.turn(|_| Answer::Silent);
    lose_all(&links);
    sleep(secs(300)).await;
    assert_eq!(server.in_flight().most(), 1);
    server.turn(|_| Answer::Accept(20));
    all_back(&server, &links).await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_lost_to_a_healthy_server_come_back_at_its_pace() {
    let server = Server::healthy();
    let (gate, links) = stable_fleet(&server).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    server.turn(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Answer::Accept(20)
    });
    let began = server.now();
    lose_all(&links);
    let mut paced = false;
    sleep(ms(1)).await;
    assert_eq!(server.open().now(), 0);
    while server.open().now() < FLEET {
        sleep(ms(1)).await;
        let status = gate.status();
        paced |= status.mode == Mode::Paced;
        let succeeded = server.dial_count() - FLEET - server.in_flight().now();
        // One before the first answer, then two at first and one more with every success.
        let room = if succeeded == 0 { 1 } else { 2 + succeeded };
        assert!(server.in_flight().now() <= room, "{} in flight after {succeeded}", server.in_flight().now());
        assert!(server.now() - began < 60.0, "{} are back", server.open().now());
    }
    assert!(paced);
    assert_eq!(answered.load(Ordering::Relaxed), FLEET, "nobody dials twice");
    all_back(&server, &links).await;
}

#[tokio::test(start_paused = true)]
async fn one_poisoned_connection_delays_nobody_else() {
    let server = Server::healthy();
    let gate = gate(Policy::default());
    let healthy = fleet(&server, &gate, &Policy::default(), FLEET - 1);
    for link in &healthy {
        link.ready().await.unwrap();
    }
    // Its own vhost is wrong: the server answers each of its dials with an error.
    let elsewhere = Server::new(|_| BROKEN);
    let poisoned = fleet(&elsewhere, &gate, &Policy::default(), 1).remove(0);
    sleep(secs(300)).await;
    assert!(elsewhere.dial_count() > 3, "{}", elsewhere.dial_count());
    assert_eq!(server.open().now(), FLEET - 1);
    for link in &healthy {
        let began = server.now();
        link.current().unwrap().report("gone");
        link.ready().await.unwrap();
        let took = server.now() - began;
        assert!(took < 2.5, "the draw of a second, and the poisoned one's window: {took}");
        sleep(secs(7)).await;
    }
    assert_eq!(poisoned.handle().status().state, State::Backoff);
}

#[tokio::test(start_paused = true)]
async fn sixty_four_return_one_after_the_other_and_survive_a_relapse() {
    let server = Server::new(|_| REFUSED);
    let policy = Policy::default();
    let gate = gate(policy.clone());
    let links = fleet(&server, &gate, &policy, 64);
    sleep(secs(60)).await;
    server.turn(|_| Answer::Accept(200));
    while server.open().now() < 10 {
        sleep(ms(10)).await;
    }
    // It falls over again with several in flight; those are not killed.
    server.turn(|_| Answer::Fail(200, Failure::Transient));
    sleep(secs(60)).await;
    assert!(server.open().now() >= 10);
    assert!(server.in_flight().now() <= 1);
    server.turn(|_| Answer::Accept(200));
    all_back(&server, &links).await;
}

#[tokio::test(start_paused = true)]
async fn the_bulkhead_holds_in_every_mode() {
    let server = Server::new(|_| Answer::Accept(500));
    let policy = Policy::default();
    let gate =
        Gate::builder(ENDPOINT).policy(policy.clone()).max_in_flight(NonZeroUsize::new(3).unwrap()).build().unwrap();
    let links = fleet(&server, &gate, &policy, 100);
    all_back(&server, &links).await;
    assert!(server.in_flight().most() <= 3);
    sleep(secs(60)).await;
    assert!(gate.is_closed());
    lose_all(&links);
    all_back(&server, &links).await;
    assert!(server.in_flight().most() <= 3);
}

#[tokio::test(start_paused = true)]
async fn five_thousand_supervisors_of_one_builder_wait_differently() {
    let server = Server::healthy();
    // Seeds come from the operating system: that two of 5,000 draw the same nanosecond of a day happens once in seven
    // million runs.
    let builder = Supervisor::builder(server.connector()).policy(Policy::default().startup_spread(secs(86_400)));
    let links: Vec<_> = (0..5_000).map(|_| builder.clone().build().unwrap().keep().unwrap()).collect();
    let waits: BTreeSet<_> = links.iter().map(|link| link.handle().status().until.unwrap()).collect();
    assert_eq!(waits.len(), 5_000);
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_waits_the_same() {
    let server = Server::healthy();
    let builder = Supervisor::builder(server.connector()).policy(Policy::default().startup_spread(secs(60))).seed(7);
    let [one, other] = [(); 2].map(|()| builder.clone().build().unwrap().keep().unwrap());
    assert_eq!(one.handle().status().until, other.handle().status().until);
}

/// Counts how often a future is polled.
struct Counted<F> {
    future: Pin<Box<F>>,
    polls: Arc<AtomicUsize>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_gate_is_polled_once_for_each_wait() {
    let server = Server::new(|_| Answer::Silent);
    let gate = gate(plain());
    let probe = fleet(&server, &gate, &plain().attempt_deadline(secs(60)), 1).remove(0);
    sleep(ms(1)).await;
    let waits = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&waits);
    let waiting = Supervisor::builder(server.connector())
        .policy(plain())
        .gate(&gate)
        .on_transition(move |t| lock(&record).push((t.at, t.until.unwrap(), t.wait)))
        .build()
        .unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let running = waiting.run(|_conn, _| async { Ok::<ControlFlow<()>, BoxError>(ControlFlow::Break(())) });
    let counted = Counted { future: Box::pin(running), polls: Arc::clone(&polls) };
    assert!(timeout(secs(50), pin!(counted)).await.is_err());
    let waits = lock(&waits).clone();
    assert!(waits.iter().all(|(at, until, wait)| until > at && *wait == Some(WaitCause::BreakerOpen)), "{waits:?}");
    // Each wait is one wake-up: the first poll, one for each end of a wait, and those of the timeout around it.
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= waits.len() + 2, "{polls} polls for {} waits", waits.len());
    assert_eq!(server.dial_count(), 1);
    drop(probe);
}

#[tokio::test(start_paused = true)]
async fn whether_a_gate_is_closed_is_one_load_that_agrees_with_its_status() {
    let server = Server::healthy();
    let (gate, links) = stable_fleet(&server).await;
    assert!(gate.is_closed());
    server.turn(|_| REFUSED);
    lose_all(&links);
    sleep(secs(5)).await;
    assert!(!gate.is_closed());
    assert_eq!(gate.status().mode, Mode::Open);
    server.turn(|_| Answer::Accept(0));
    all_back(&server, &links).await;
    sleep(secs(60)).await;
    assert!(gate.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_gate_is_for_one_endpoint_unless_asked_by_name() {
    let server = Server::healthy();
    let build = |gate: &Gate| Supervisor::builder(server.connector()).gate(gate).build();
    let other = Gate::builder("test://other:1").build().unwrap();
    let refused = build(&other).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "gate: it is for test://other:1, the connector dials test://server:1; if they are the same server, name it with \
         Gate::builder(..).also_serves(\"test://server:1\")"
    );
    assert!(matches!(refused, BuildError::Endpoint { .. }));
    build(&Gate::builder("test://other:1").also_serves(ENDPOINT).build().unwrap()).unwrap();
    build(&Gate::builder(ENDPOINT).build().unwrap()).unwrap();
    let mut anonymous = Server::healthy();
    Arc::get_mut(&mut anonymous).unwrap().endpoint = Endpoint::unnamed();
    for gate in [other, Gate::builder("").build().unwrap()] {
        let refused = Supervisor::builder(anonymous.connector()).gate(&gate).build().unwrap_err();
        assert!(refused.to_string().contains("implement Connector::endpoint"), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_work_is_refused_with_its_field() {
    let invalid = Policy::default().drain(secs(0));
    let refused = Supervisor::builder(Server::healthy().connector()).policy(invalid.clone()).build().unwrap_err();
    assert_eq!(refused.to_string(), "policy: drain is 0ns, allowed is above zero");
    assert!(matches!(Gate::builder(ENDPOINT).policy(invalid).build(), Err(BuildError::Policy(_))));
}

#[tokio::test(start_paused = true)]
async fn members_of_a_gate_are_those_who_are_there() {
    let server = Server::healthy();
    let gate = gate(plain());
    let links = fleet(&server, &gate, &plain(), 3);
    assert_eq!(gate.status().members, 3);
    let live = links[0].ready().await.unwrap();
    drop(links);
    sleep(secs(1)).await;
    assert_eq!(gate.status().members, 0, "what is held of an old connection holds no place");
    assert_eq!(live.generation(), 1);
    let supervisor = Supervisor::builder(server.connector()).gate(&gate).build().unwrap();
    for _ in 0..3 {
        let link = supervisor.keep().unwrap();
        link.ready().await.unwrap();
        assert_eq!(gate.status().members, 1);
        link.handle().drain().await;
        assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Drained);
    }
    drop(supervisor);
    assert_eq!(gate.status().members, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pace_that_is_over_is_not_told_of_although_nobody_calls() {
    let server = Server::healthy();
    let gate = gate(Policy::default());
    let _good = fleet(&server, &gate, &Policy::default(), 1);
    sleep(secs(5)).await;
    // It dials once and then waits for minutes.
    let elsewhere = Server::new(|_| Answer::Fail(0, Failure::Unauthorized));
    let _refused = fleet(&elsewhere, &gate, &Policy::default(), 1);
    sleep(secs(6)).await;
    assert_eq!(gate.status().mode, Mode::Paced);
    while elsewhere.dial_count() < 2 {
        sleep(secs(1)).await;
    }
    sleep(secs(11)).await;
    let status = gate.status();
    assert_eq!((status.mode, status.pace, gate.is_closed()), (Mode::Closed, None, true), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_whose_credential_works_again_after_minutes_come_back_at_a_pace() {
    let server = Server::healthy();
    let (gate, links) = stable_fleet(&server).await;
    server.turn(|_| Answer::Fail(20, Failure::Unauthorized));
    lose_all(&links);
    sleep(secs(300)).await;
    assert_eq!(gate.status().waiting, FLEET);
    let before = server.dial_count();
    server.turn(|_| Answer::Accept(20));
    all_back(&server, &links).await;
    let dials = &server.dials()[before..];
    assert_eq!(dials.len(), FLEET, "nobody dials twice");
    let most = dials.iter().map(|at| dials.iter().filter(|other| (0.0..0.05).contains(&(*other - at))).count()).max();
    assert!(most <= Some(FLEET / 2), "{most:?} within 50 ms");
    assert!(dials[10] - dials[1] >= 0.1, "slowly at first: {dials:?}");
    sleep(secs(60)).await;
    assert_eq!(gate.status().mode, Mode::Closed);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_behind_a_gate_knows_why_although_it_never_dialled() {
    let server = Server::new(|_| REFUSED);
    let gate = gate(Policy::default());
    let links = fleet(&server, &gate, &Policy::default().give_up_after(secs(30)), 50);
    sleep(secs(20)).await;
    let waiting = links.iter().find(|link| link.handle().status().attempt == 0).expect("few of them dialled");
    let late = waiting.ready_by((tokio::time::Instant::now() + ms(1)).into_std()).await.expect_err("it is down");
    assert!(late.to_string().contains("unreachable"), "{late}");
    assert_eq!(gate.last_failure().map(|cause| cause.failure()), Some(Failure::Unreachable));
    for link in &links {
        let stopped = link.ready().await.expect_err("it is down");
        assert_eq!(stopped.reason, StopReason::GaveUp);
        assert_eq!(stopped.cause.map(|cause| cause.failure()), Some(Failure::Unreachable));
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_twice_leaves_the_gate_once() {
    let server = Server::healthy();
    let gate = Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let build = || Supervisor::builder(server.connector()).policy(plain()).gate(&gate).seed(7).build().unwrap();
    let (stays, goes) = (build(), build());
    let link = goes.keep().unwrap();
    link.ready().await.unwrap();
    drop(link);
    sleep(secs(1)).await;
    drop(goes);
    assert_eq!(gate.status().members, 1);
    drop(stays);
    assert_eq!(gate.status().members, 0);
}
