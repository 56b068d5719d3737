//! Settings of the policy, as the shell obeys them.
#![cfg(test)]

mod common;

use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Answer, Dialler, ENDPOINT, REFUSED, Server, lock, ms, plain, secs};
use steadfast::{
    Attempt, BoxError, Failure, Gate, HintLimit, Link, NotReady, Policy, State, StopReason, Supervisor, WaitCause,
    connector_fn,
};
use tokio::time::{sleep, timeout};

const FOUR_YEARS: Duration = Duration::from_secs(4 * 365 * 86_400);
const TOO_LONG: Failure = Failure::Throttled { retry_after: Some(FOUR_YEARS) };

fn keep(server: &Arc<Server>, policy: Policy, seed: u64) -> Link<Dialler> {
    let supervisor = Supervisor::builder(server.connector()).policy(policy).seed(seed).build().expect("valid settings");
    supervisor.keep().expect("it is idle")
}

/// The second of the ten that an instant falls into.
fn bin(at: f64) -> usize {
    (1_u8..10).take_while(|edge| at >= f64::from(*edge)).count()
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_limit_is_obeyed_clamped_or_the_end_for_every_seed_alike() {
    for seed in 0..50 {
        for beyond in [HintLimit::Obey, HintLimit::Clamp, HintLimit::GiveUp] {
            let server = Server::answers([Answer::Fail(0, TOO_LONG)]);
            let link = keep(&server, plain().hint_limit(secs(30), beyond), seed);
            sleep(ms(1)).await;
            let status = link.handle().status();
            assert_eq!(status.last_failure.as_ref().unwrap().failure(), TOO_LONG, "it is seen as it came");
            let wait = status.until.map(|until| until.duration_since(now()) + ms(1));
            match beyond {
                HintLimit::GiveUp => {
                    let stopped = link.ready().await.unwrap_err();
                    assert_eq!((stopped.reason, stopped.cause.unwrap().failure()), (StopReason::GaveUp, TOO_LONG));
                    assert_eq!((wait, server.dial_count()), (None, 1));
                }
                HintLimit::Obey => {
                    assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Throttled)));
                    let wait = wait.unwrap();
                    assert!(wait > FOUR_YEARS && wait <= FOUR_YEARS + secs(3), "{wait:?}");
                }
                _ => {
                    assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Throttled)));
                    link.ready().await.unwrap();
                    let dial = server.dials()[1];
                    assert!(dial > 30.0 && dial <= 32.01, "{dial}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_limit_at_the_end_of_a_session_ends_it_too() {
    let server = Server::healthy();
    let link = keep(&server, plain().hint_limit(secs(30), HintLimit::GiveUp), 7);
    let live = link.ready().await.unwrap();
    sleep(secs(60)).await;
    live.report(TOO_LONG.because("maintenance"));
    assert_eq!(link.ready().await.unwrap_err().reason, StopReason::GaveUp);
    assert_eq!((server.dial_count(), server.closed()), (1, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn those_who_start_together_fill_the_startup_spread() {
    let server = Server::healthy();
    let links: Vec<_> = (0..1_000).map(|seed| keep(&server, plain().startup_spread(secs(10)), seed)).collect();
    sleep(secs(11)).await;
    let mut bins = [0; 10];
    for dial in server.dials() {
        // A wake comes up to a millisecond later.
        bins[bin(dial)] += 1;
        assert!(dial <= 10.002, "{dial}");
    }
    assert_eq!(bins.iter().sum::<usize>(), 1_000);
    assert!(bins.iter().all(|bin| (60..=140).contains(bin)), "{bins:?}");
    drop(links);

    let server = Server::healthy();
    let _links: Vec<_> = (0..100).map(|seed| keep(&server, plain(), seed)).collect();
    sleep(ms(1)).await;
    assert_eq!(server.dials(), [0.0; 100], "without one, at once");
}

/// A server whose answer to the login is `Permanent`, after TCP stands or before it was tried.
fn impossible(reaches: bool, later: bool) -> impl steadfast::Connector<Connection = (), Error = BoxError> {
    connector_fn(ENDPOINT, move |attempt: Attempt| async move {
        if reaches {
            attempt.reached();
        }
        if later {
            sleep(ms(1)).await;
        }
        Err::<(), BoxError>(Failure::Permanent.because("no such database").into())
    })
}

#[tokio::test(start_paused = true)]
async fn what_the_other_side_calls_impossible_stops_only_if_asked_to_and_our_own_mistake_always() {
    for later in [false, true] {
        for (reaches, stops, stopped) in
            [(false, false, true), (false, true, true), (true, true, true), (true, false, false)]
        {
            let case = format!("reached {reaches}, stop_on_permanent {stops}, resolved in a later poll {later}");
            let supervisor = Supervisor::builder(impossible(reaches, later))
                .policy(plain().stop_on_permanent(stops))
                .seed(7)
                .build()
                .unwrap();
            let link = supervisor.keep().unwrap();
            sleep(ms(10)).await;
            let status = link.handle().status();
            assert_eq!(status.last_failure.unwrap().failure(), Failure::Permanent, "{case}");
            if stopped {
                assert_eq!(status.stopped, Some(StopReason::Permanent), "{case}");
                let stopped = timeout(ms(10), link.ready()).await.expect(&case).unwrap_err();
                assert!(stopped.to_string().contains("no such database"), "{case}: {stopped}");
            } else {
                assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Refused)), "{case}");
                let wait = status.until.unwrap().duration_since(now());
                assert!(wait > secs(59) && wait <= secs(600), "minutes, {case}: {wait:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_begins_anew_reaches_the_other_side_at_its_first_dial() {
    let supervisor = Supervisor::builder(impossible(true, false)).policy(plain()).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    sleep(secs(3_600)).await;
    assert!(link.handle().status().attempt > 2);
    link.handle().drain().await;
    let link = supervisor.keep().unwrap();
    sleep(ms(10)).await;
    let status = link.handle().status();
    assert_eq!((status.attempt, status.state, status.wait), (1, State::Backoff, Some(WaitCause::Refused)));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_as_impossible_stops_only_if_asked_to() {
    for stops in [false, true] {
        let server = Server::healthy();
        let supervisor =
            Supervisor::builder(server.connector()).policy(plain().stop_on_permanent(stops)).seed(7).build().unwrap();
        let handle = supervisor.handle();
        let running = supervisor.run(|_conn, _| async {
            sleep(secs(60)).await;
            Err::<ControlFlow<()>, _>(Failure::Permanent.because("the database was dropped"))
        });
        let ended = timeout(secs(65), running).await;
        if stops {
            let stopped = ended.unwrap().unwrap_err();
            assert_eq!((stopped.reason, stopped.cause.unwrap().step()), (StopReason::Permanent, "session"));
            assert_eq!(handle.status().stopped, Some(StopReason::Permanent));
        } else {
            assert!(ended.is_err(), "it goes on");
        }
        assert_eq!(server.dial_count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn giving_up_is_due_also_while_another_one_probes() {
    let server = Server::new(|_| Answer::Silent);
    let gate = Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let builder = Supervisor::builder(server.connector()).gate(&gate);
    let _probe = builder.clone().policy(plain().attempt_deadline(secs(600)).handshake_limit(secs(600)));
    let _probe = _probe.seed(1).build().unwrap().keep().unwrap();
    sleep(ms(1)).await;
    let began = server.now();
    let waiting = builder.policy(plain().give_up_after(secs(5))).seed(2).build().unwrap().keep().unwrap();
    let (ready, by) = tokio::join!(waiting.ready(), waiting.ready_by(now() + secs(60)));
    assert_eq!(ready.unwrap_err().reason, StopReason::GaveUp);
    assert!(matches!(by, Err(NotReady::Stopped(_))), "{by:?}");
    assert!((server.now() - began - 5.0).abs() < 0.01, "{}", server.now() - began);
    assert_eq!((server.dial_count(), gate.status().waiting), (1, 0), "it has never dialled, and its place is free");
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_is_replaced_before_its_greatest_age_and_nobody_is_charged() {
    let mut ages = Vec::new();
    for seed in 0..10 {
        let server = Server::healthy();
        let link = keep(&server, plain().stable_after(secs(1)).max_age(secs(100)), seed);
        for generation in 1..=3 {
            let live = link.ready().await.unwrap();
            assert_eq!(live.generation(), generation);
            let opened = server.now();
            while live.is_live() {
                sleep(ms(100)).await;
            }
            let age = server.now() - opened;
            assert!((89.9..=100.15).contains(&age), "drawn from the last tenth: {age}");
            ages.push(age);
            link.ready().await.unwrap();
            let status = link.handle().status();
            assert_eq!(status.attempt, 1);
            assert!(status.last_failure.is_none());
        }
        sleep(ms(1)).await;
        assert_eq!(server.closed(), [0, 1, 2], "said goodbye to");
    }
    let (least, most) = ages.iter().fold((f64::MAX, 0.0_f64), |(a, b), age| (a.min(*age), b.max(*age)));
    assert!(least < 92.5 && most > 97.5, "{least} to {most}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_knows_its_number_its_deadline_and_why_the_last_one_ended() {
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&attempts);
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        let previous = attempt.previous().map(|cause| (cause.step(), cause.failure()));
        let left = attempt.deadline().duration_since(now());
        let mut seen = lock(&record);
        seen.push((attempt.number(), attempt.generation(), previous, left));
        let number = seen.len();
        async move {
            match number {
                1 => Err(Failure::Unreachable.because("refused")),
                2 => {
                    std::future::pending::<()>().await;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    });
    let supervisor = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap();
    let mut sessions = 0;
    supervisor
        .run(|_, _| {
            sessions += 1;
            let number = sessions;
            async move {
                // The second session is stable.
                sleep(if number == 2 { secs(60) } else { ms(1) }).await;
                match number {
                    3 => Ok(ControlFlow::Break(())),
                    _ => Err(Failure::Unauthorized.because("expired")),
                }
            }
        })
        .await
        .unwrap();
    let expected = [
        (1, 1, None, secs(10)),
        (2, 1, Some(("connect", Failure::Unreachable)), secs(10)),
        (3, 1, Some(("connect", Failure::Timeout)), secs(10)),
        (4, 2, Some(("session", Failure::Unauthorized)), secs(10)),
        (1, 3, Some(("session", Failure::Unauthorized)), secs(10)),
    ];
    assert_eq!(*lock(&attempts), expected);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_while_logging_in_says_nothing_about_the_credential() {
    for by_itself in [false, true] {
        let connector = connector_fn(ENDPOINT, move |attempt: Attempt| async move {
            attempt.reached();
            // The password is sent, and nothing comes back.
            let login = std::future::pending::<Result<(), BoxError>>();
            if by_itself { timeout(secs(5), login).await? } else { login.await }
        });
        let link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
        sleep(ms(10_500)).await;
        for _ in 0..100 {
            let status = link.handle().status();
            assert_eq!(status.last_failure.unwrap().failure(), Failure::Timeout);
            assert_ne!(status.wait, Some(WaitCause::Refused));
            sleep(secs(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_attempts_ends_a_refused_credential_and_calling_again_is_the_way_back() {
    let server = Server::new(|_| Answer::Fail(1, Failure::Unauthorized));
    let policy = plain().max_attempts(NonZeroU32::new(4).unwrap());
    let supervisor = Supervisor::builder(server.connector()).policy(policy).seed(7).build().unwrap();
    let link = supervisor.keep().unwrap();
    let stopped = link.ready().await.unwrap_err();
    assert_eq!((stopped.reason, server.dial_count()), (StopReason::GaveUp, 4));
    assert_eq!(stopped.cause.unwrap().failure(), Failure::Unauthorized);
    sleep(secs(86_400)).await;
    assert_eq!((server.dial_count(), link.handle().status().state), (4, State::Stopped), "it claims no retries");
    server.turn(|_| Answer::Accept(0));
    let again = supervisor.keep().unwrap();
    timeout(secs(700), again.ready()).await.expect("within one slow step").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_works_again_is_found_at_the_next_slow_step_or_within_the_spread() {
    for hurried in [false, true] {
        let server = Server::new(|_| Answer::Fail(1, Failure::Unauthorized));
        let link = keep(&server, plain().recovery_spread(secs(2)), 7);
        sleep(secs(3_600)).await;
        let asked = server.dial_count();
        assert!((2..=20).contains(&asked), "{asked}");
        server.turn(|_| Answer::Accept(0));
        let healed = server.now();
        if hurried {
            assert!(link.handle().reconnect());
        }
        link.ready().await.unwrap();
        let took = server.now() - healed;
        assert!(took <= if hurried { 2.01 } else { 600.1 }, "{took}");
        assert_eq!(server.dial_count(), asked + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn giving_up_ends_a_wait_and_never_an_attempt_that_succeeds() {
    // Refused at 0; the second dial begins at 1 s and takes until 9 s.
    let server = Server::answers([REFUSED, Answer::Accept(8_000)]);
    let link = keep(&server, plain().give_up_after(secs(5)), 7);
    assert_eq!(link.ready().await.unwrap().generation(), 1);
    assert!((server.now() - 9.0).abs() < 0.01, "{}", server.now());
    sleep(secs(60)).await;
    assert_eq!(link.handle().status().state, State::Connected);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_gate_is_slept_as_it_is_reported() {
    let server = Server::new(|_| REFUSED);
    let gate = Gate::builder(ENDPOINT).policy(Policy::default()).build().unwrap();
    let seen: Vec<_> = (0..4).map(|_| Arc::new(Mutex::new(Vec::new()))).collect();
    let keep = |n: usize| {
        let record = Arc::clone(&seen[n]);
        let builder = Supervisor::builder(server.connector()).policy(Policy::default()).gate(&gate).seed(n as u64);
        builder
            .on_transition(move |t| lock(&record).push((t.at, t.to, t.wait, t.until)))
            .build()
            .unwrap()
            .keep()
            .unwrap()
    };
    let _links: Vec<_> = (0..4).map(keep).collect();
    sleep(secs(300)).await;
    let mut slept = Vec::new();
    for seen in &seen {
        for pair in lock(seen).windows(2) {
            let ((_, State::Backoff, Some(wait), Some(until)), (at, State::Connecting, ..)) = (pair[0], pair[1]) else {
                continue;
            };
            assert!(at >= until && at - until <= ms(1), "{wait:?}: {:?} late", at.saturating_duration_since(until));
            slept.push(wait);
        }
    }
    assert!(slept.iter().filter(|wait| **wait == WaitCause::BreakerOpen).count() > 20, "{slept:?}");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_over_reaches_nothing_for_the_next_one() {
    let (kept, dials) = (Arc::new(Mutex::new(None::<Attempt>)), Arc::new(Mutex::new(Vec::new())));
    let (keep, record) = (Arc::clone(&kept), Arc::clone(&dials));
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        let number = attempt.number();
        lock(&record).push(tokio::time::Instant::now());
        if number == 1 {
            // Its handshake times out, so that the next one may take 30 s.
            attempt.reached();
            *lock(&keep) = Some(attempt);
        }
        std::future::pending::<Result<(), BoxError>>()
    });
    let _link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    // Dials at 0 and 11 s; the second is under way, and TCP does not stand.
    sleep(secs(13)).await;
    lock(&kept).take().expect("the first attempt").reached();
    sleep(secs(20)).await;
    let dials = lock(&dials).clone();
    assert_eq!((dials[2] - dials[1]).as_secs(), 12, "deadline 10 s, wait 2 s");
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_reaches_and_fails_in_the_poll_of_the_drain_is_settled_and_then_drained() {
    let slot = Arc::new(Mutex::new(None::<steadfast::Handle>));
    let given = Arc::clone(&slot);
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        attempt.reached();
        drop(lock(&given).take().map(|handle| handle.drain()));
        std::future::ready(Err::<(), BoxError>(Failure::Transient.because("cut in the handshake").into()))
    });
    let gate = Gate::builder(ENDPOINT).policy(plain()).build().unwrap();
    let supervisor = Supervisor::builder(connector).policy(plain()).gate(&gate).seed(7).build().unwrap();
    *lock(&slot) = Some(supervisor.handle());
    let link = supervisor.keep().unwrap();
    let ended = timeout(ms(50), link.ready()).await.expect("the drain is quick");
    assert_eq!(ended.unwrap_err().reason, StopReason::Drained);
    let status = link.handle().status();
    assert_eq!(status.last_failure.expect("it is settled first").failure(), Failure::Transient);
    assert_eq!((gate.status().trips, gate.status().in_flight), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_was_got_over_is_not_why_a_connection_was_replaced() {
    let previous = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&previous);
    let connector = connector_fn(ENDPOINT, move |attempt: Attempt| {
        let mut seen = lock(&record);
        seen.push(attempt.previous().map(steadfast::Cause::failure));
        let first = seen.len() == 1;
        async move { if first { Err(Failure::Unreachable.because("refused")) } else { Ok(()) } }
    });
    let link = Supervisor::builder(connector).policy(plain()).seed(7).build().unwrap().keep().unwrap();
    link.ready().await.unwrap();
    sleep(secs(3_600)).await;
    assert!(link.handle().reconnect());
    sleep(secs(60)).await;
    assert_eq!(*lock(&previous), [None, Some(Failure::Unreachable), None]);
    drop(link.handle().drain());
    assert!(!link.handle().reconnect(), "the drain wins, also before anybody has looked");
}
