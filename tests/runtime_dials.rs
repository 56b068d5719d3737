//! What an attempt is, what it asks, and what it leaves behind.
#![cfg(test)]

mod common;

use std::sync::{Arc, Mutex};

use common::{Answer, BROKEN, ENDPOINT, Server, lock, ms, plain, secs};
use steadfast::machine::Mode;
use steadfast::testing::ManualClock;
use steadfast::{Attempt, BoxError, Failure, Gate, State, StopReason, Supervisor, WaitCause, connector_fn};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_walk_over_three_addresses_that_refuse_is_one_attempt_and_one_wait() {
    let (start, tried) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let record = Arc::clone(&tried);
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        let tried = Arc::clone(&record);
        async move {
            for address in ["[::1]:1", "127.0.0.1:1", "192.0.2.1:1"] {
                lock(&tried).push((start.elapsed().as_secs(), attempt.number(), address));
            }
            Err::<(), _>(Failure::Unreachable.because("all three refuse"))
        }
    });
    let link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    sleep(secs(20)).await;
    let tried = lock(&tried).clone();
    let walks: Vec<_> = tried.chunks(3).map(|walk| (walk[0].0, walk[2].0, walk[0].1, walk[2].1)).collect();
    assert_eq!(walks, [(0, 0, 1, 1), (1, 1, 2, 2), (3, 3, 3, 3), (7, 7, 4, 4), (15, 15, 5, 5)]);
    assert_eq!(link.handle().status().attempt, 5);
}

#[tokio::test(start_paused = true)]
async fn the_source_of_a_credential_is_asked_before_each_attempt() {
    // A secret that is mounted as a file, say; and a server that knows the new one only.
    let secret = Arc::new(Mutex::new("old"));
    let (source, presented) = (Arc::clone(&secret), Arc::new(Mutex::new(Vec::new())));
    let record = Arc::clone(&presented);
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        attempt.reached();
        let presents = *lock(&source);
        lock(&record).push(presents);
        std::future::ready(match presents {
            "new" => Ok(()),
            _ => Err(Failure::Unauthorized.because("unknown password")),
        })
    });
    let link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    sleep(secs(3_600)).await;
    let status = link.handle().status();
    assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Refused)));
    let before = lock(&presented).len();
    *lock(&secret) = "new";
    let rotated = Instant::now();
    link.ready().await.expect("with the new one");
    assert!(rotated.elapsed() <= secs(600) + ms(1), "one slow step: {:?}", rotated.elapsed());
    assert_eq!(lock(&presented)[before..], ["new"], "on the first attempt with it");
    // It expires in the session of an hour; the source has a fresh one by then.
    sleep(secs(3_600)).await;
    link.current().expect("it is up").report(Failure::Unauthorized.because("token expired"));
    let expired = Instant::now();
    assert_eq!(link.ready().await.expect("at once").generation(), 2);
    assert!(expired.elapsed() <= secs(1), "no slow curve: {:?}", expired.elapsed());
    assert_eq!(lock(&presented)[before..], ["new", "new"]);
}

#[tokio::test(start_paused = true)]
async fn neither_an_attempt_nor_an_open_breaker_nor_a_servers_wait_moves_with_the_wall_clock() {
    let run = |moves: bool| async move {
        let clock = ManualClock::new();
        // Two silent servers' worth of dials that end by their deadline, two failures that open the gate, a number.
        let server = Server::new(|n| match n {
            0 | 1 => Answer::Silent,
            5 => Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(20)) }),
            _ => BROKEN,
        });
        let gate = Gate::builder(ENDPOINT).policy(plain()).clock(clock.clock()).build().unwrap();
        let builder = Supervisor::builder(server.connector()).policy(plain()).gate(&gate).clock(clock.clock());
        let links: Vec<_> = (0..2).map(|seed| builder.clone().seed(seed).build().unwrap().keep().unwrap()).collect();
        let mut modes = Vec::new();
        for step in 0..300 {
            sleep(ms(500)).await;
            match step % 2 {
                _ if !moves => {}
                0 => clock.suspend(secs(3_600)),
                _ => clock.set_back(secs(7_200)),
            }
            modes.push(gate.status().mode);
        }
        assert!(modes.contains(&Mode::Open) && modes.contains(&Mode::HalfOpen), "{modes:?}");
        drop(links);
        (server.dials(), modes)
    };
    let (steady, unsteady) = (run(false).await, run(true).await);
    assert!(steady.0.len() > 8, "{steady:?}");
    assert_eq!(steady.1, unsteady.1);
    let apart: Vec<_> = steady.0.iter().zip(&unsteady.0).map(|(one, other)| (one - other).abs()).collect();
    assert!(steady.0.len() == unsteady.0.len() && apart.iter().all(|apart| *apart < 0.002), "{steady:?} {unsteady:?}");
}

/// Tasks of this runtime, this one included.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(start_paused = true)]
async fn errors_reported_twice_and_a_nervous_operator_leave_one_loop_and_one_task() {
    // Three days: it comes up for a moment and breaks, and both of its users tell so; every 35 minutes somebody
    // reconnects.
    let server = Server::new(|_| Answer::Accept(1));
    let link = Supervisor::builder(server.connector()).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    let user = |link: steadfast::Link<common::Dialler>| async move {
        while let Ok(live) = link.ready().await {
            live.report("broken pipe");
            live.report("connection closed");
        }
    };
    let users = [tokio::spawn(user(link.clone())), tokio::spawn(user(link.clone()))];
    sleep(secs(60)).await;
    let alive = tasks();
    let calls = 3 * 24 * 60 / 35 + 1;
    for _ in 0..calls {
        sleep(secs(35 * 60)).await;
        link.handle().reconnect();
        sleep(ms(1)).await;
        assert_eq!(tasks(), alive, "tasks do not pile up");
    }
    // The curve without jitter ends at 30 s, and a call is one attempt more at most.
    let elapsed = usize::try_from(server.elapsed().as_secs()).unwrap();
    assert!(server.dial_count() <= elapsed / 30 + calls + 6, "{}", server.dial_count());
    assert!(server.dial_count() >= elapsed / 31, "{}", server.dial_count());
    assert_eq!((server.in_flight().most(), server.open().most()), (1, 1));
    link.handle().drain().await;
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::Drained);
    for user in users {
        user.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_inner_timeout_or_a_cancelled_task_in_a_dial_is_no_stop() {
    let connector = connector_fn(ENDPOINT, |attempt: Attempt| async move {
        match attempt.number() {
            1 => {
                tokio::time::timeout(ms(1), std::future::pending::<()>()).await?;
                Ok(())
            }
            2 => {
                let task = tokio::spawn(std::future::pending::<()>());
                task.abort();
                task.await?;
                Ok(())
            }
            _ => Ok::<(), BoxError>(()),
        }
    });
    let failures = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&failures);
    let supervisor = Supervisor::builder(connector)
        .policy(plain())
        .seed(7)
        .on_transition(move |t| {
            if let steadfast::machine::Event::Failed(failure) = t.event {
                lock(&record).push((failure, t.wait));
            }
        })
        .build()
        .unwrap();
    assert_eq!(supervisor.keep().unwrap().ready().await.unwrap().generation(), 1);
    let curve = Some(WaitCause::Backoff);
    assert_eq!(*lock(&failures), [(Failure::Timeout, curve), (Failure::Transient, curve)]);
}
