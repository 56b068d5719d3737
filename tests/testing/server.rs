//! The scripted server answers as its script says, and its counts are right.

use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use steadfast::testing::{Answer, Fault, ScriptedServer, Seen, Transport};
use steadfast::{
    Connector, Failure, Handle, Lease, Session, State, StopReason, Stopped, Supervisor, classify, connector_fn,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::{attempt, is_pending, kind, ms, secs};

type Service = JoinHandle<Result<(), Stopped>>;

/// A session that ends with its stream.
async fn read_all(mut transport: Lease<Transport>, _session: Session) -> io::Result<ControlFlow<()>> {
    while transport.read(&mut [0; 64]).await? > 0 {}
    Ok(ControlFlow::Continue(()))
}

fn service<C: Connector<Connection = Transport>>(connector: C) -> (Service, Handle) {
    let supervisor = Supervisor::builder(connector).seed(7).build().unwrap();
    let handle = supervisor.handle();
    (tokio::spawn(async move { supervisor.run(read_all).await }), handle)
}

#[tokio::test(start_paused = true)]
async fn a_service_lives_through_an_outage_and_the_server_counts_it() {
    let server = ScriptedServer::new();
    let (service, handle) = service(server.connector());
    server.wait_for(secs(1), |seen| seen.open == 1).await;
    sleep(secs(60)).await;
    server.go_down();
    let down = server.wait_for(secs(1), |seen| seen.open == 0).await;
    assert_eq!((down.dials.len(), down.closes.len()), (1, 0), "the server ended it");
    sleep(secs(60)).await;
    assert_ne!(handle.status().state, State::Connected);
    server.come_back();
    let back = server.wait_for(secs(10), |seen| seen.open == 1).await;
    assert!((10..=30).contains(&back.dials.len()), "{back:?}");
    assert!(back.shortest_gap() >= Some(ms(500)), "at least base apart: {back:?}");
    assert_eq!((back.most_open, back.most_in_flight), (1, 1));
    handle.drain().await;
    assert_eq!((server.seen().open, server.seen().closes.len()), (0, 1));
    assert_eq!(service.await.unwrap().unwrap_err().reason, StopReason::Drained);
}

#[tokio::test(start_paused = true)]
async fn a_partition_stalls_connections_and_hangs_dials_until_it_is_over() {
    let server = ScriptedServer::with_handler(|mut transport| async move {
        loop {
            transport.write_u8(1).await?;
            sleep(secs(1)).await;
        }
    });
    let mut before = server.dial(&attempt()).await.unwrap();
    assert_eq!(before.read_u8().await.unwrap(), 1);
    server.partition();
    assert!(timeout(secs(30), before.read_u8()).await.is_err());
    let dial = server.dial(&attempt());
    let hangs = tokio::spawn(async move { dial.await.map(drop).map_err(|error| error.kind()) });
    sleep(secs(30)).await;
    assert_eq!(server.seen().in_flight, 1);
    server.come_back();
    for _ in 0..60 {
        assert_eq!(timeout(ms(1), before.read_u8()).await.expect("held back").unwrap(), 1);
    }
    server.dial(&attempt()).await.unwrap();
    assert!(!hangs.is_finished());
    server.go_down();
    assert_eq!(hangs.await.unwrap(), Err(io::ErrorKind::ConnectionReset));
    assert_eq!(kind(before.read_u8().await), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(server.dial(&attempt()).await), io::ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
async fn each_answer_takes_its_time_and_means_what_it_says() {
    let server = ScriptedServer::new();
    let throttled = Failure::Throttled { retry_after: Some(secs(60)) };
    server.answer(Answer::accept());
    server.script([
        Answer::refuse().after(ms(1)),
        Answer::error(io::ErrorKind::ConnectionReset).after(ms(2)),
        Answer::fail(throttled).after(ms(3)),
        Answer::accept().after(ms(4)),
    ]);
    for (took, expected) in [
        (ms(1), Some(Failure::Unreachable)),
        (ms(2), Some(Failure::Transient)),
        (ms(3), Some(throttled)),
        (ms(4), None),
        (ms(0), None),
    ] {
        let start = Instant::now();
        let failure = server.dial(&attempt()).await.err().map(|error| classify(&error));
        assert_eq!((start.elapsed(), failure), (took, expected));
    }
    server.script((0..).map(|n| if n % 2 == 0 { Answer::refuse() } else { Answer::accept() }));
    for n in 0..10 {
        assert_eq!(server.dial(&attempt()).await.is_err(), n % 2 == 0);
    }
    server.answer(Answer::accept());
    assert!(server.dial(&attempt()).await.is_ok(), "the script is forgotten");
    assert_eq!(server.seen().dials[..5], [ms(0), ms(1), ms(3), ms(6), ms(10)]);
    server.answer(Answer::hang());
    assert!(is_pending(server.dial(&attempt())).await);
    assert_eq!(server.seen().in_flight, 0, "given up");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_is_no_mistake_of_ours_unless_it_was_not_reached() {
    for (answer, state) in [
        (Answer::fail(Failure::Permanent), State::Backoff),
        (Answer::fail(Failure::Permanent).reached(false), State::Stopped),
    ] {
        let server = ScriptedServer::new();
        server.answer(answer);
        let (service, handle) = service(server.connector());
        server.wait_for(secs(1), |seen| seen.dials.len() == 1).await;
        sleep(ms(1)).await;
        assert_eq!(handle.status().state, state);
        service.abort();
    }
}

/// What is seen after the second of two dials with this answer has taken a little more than the attempt's deadline.
async fn after_two(answer: Answer) -> Seen {
    let server = ScriptedServer::new();
    server.answer(answer);
    let (service, _handle) = service(server.connector());
    server.wait_for(secs(60), |seen| seen.dials.len() == 2).await;
    sleep(ms(10_500)).await;
    service.abort();
    server.seen()
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_hangs_gets_more_time_than_a_dial_that_does() {
    assert_eq!(after_two(Answer::hang()).await.in_flight, 0);
    assert_eq!(after_two(Answer::hang().reached(true)).await.in_flight, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_panics_is_a_failed_attempt() {
    let server = ScriptedServer::new();
    server.script([Answer::panic()]);
    let (service, handle) = service(server.connector());
    server.wait_for(secs(60), |seen| seen.open == 1).await;
    assert_eq!(handle.status().last_failure.unwrap().failure(), Failure::Transient);
    assert_eq!(server.seen().dials.len(), 2);
    service.abort();
}

#[tokio::test(start_paused = true)]
async fn peaks_and_closes_are_counted() {
    let server = ScriptedServer::new();
    server.script([ms(100), ms(100), ms(200)].map(|after| Answer::accept().after(after)));
    let (first, second) = tokio::join!(server.dial(&attempt()), server.dial(&attempt()));
    let seen = server.seen();
    assert_eq!((seen.in_flight, seen.most_in_flight, seen.open, seen.most_open), (0, 2, 2, 2));
    assert_eq!((first.as_ref().unwrap().number(), second.as_ref().unwrap().number()), (0, 1));
    drop(first);
    server.reset_peaks();
    let seen = server.seen();
    assert_eq!((seen.most_in_flight, seen.open, seen.most_open), (0, 1, 1));
    let third = server.dial(&attempt()).await.unwrap();
    let seen = server.seen();
    assert_eq!((seen.most_in_flight, seen.open, seen.most_open), (1, 2, 2));
    assert_eq!(seen.closes, [ms(100)], "the one that was dropped");
    assert_eq!(seen.dials, [ms(0), ms(0), ms(100)]);
    assert_eq!(seen.shortest_gap(), Some(Duration::ZERO));
    server.inject(Fault::Reset(io::ErrorKind::ConnectionReset));
    drop((second, third));
    let seen = server.seen();
    assert_eq!((seen.open, seen.closes.len()), (0, 1), "what a fault ended, no client closed");
}

#[tokio::test(start_paused = true)]
async fn a_handler_serves_every_connection_and_ends_it_by_returning() {
    let server = ScriptedServer::with_handler(|mut transport| async move {
        let number = u8::try_from(transport.number()).unwrap();
        transport.write_u8(number).await?;
        if number > 0 {
            transport.inject(Fault::CutAfter(2));
            transport.write_all(&[1, 2, 3, 4]).await?;
            transport.read_u8().await?;
        }
        Ok(())
    });
    let mut bytes = Vec::new();
    server.dial(&attempt()).await.unwrap().read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, [0]);
    bytes.clear();
    server.dial(&attempt()).await.unwrap().read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes.len(), 2, "cut in the middle");
    assert_eq!(server.seen().closes.len(), 0, "the server ended both");
}

#[tokio::test(start_paused = true)]
async fn a_connector_of_ones_own_dials_it_and_logs_in() {
    let server = ScriptedServer::with_handler(|mut transport| async move {
        if transport.number() == 1 {
            transport.inject(Fault::Stall);
        }
        assert_eq!(transport.read_u8().await?, 7);
        transport.write_u8(8).await?;
        while transport.read(&mut [0]).await? > 0 {}
        Ok(())
    });
    let dialled = server.clone();
    let connector = connector_fn("mine", move |attempt| {
        let transport = dialled.dial(&attempt);
        async move {
            let mut transport = transport.await?;
            transport.write_u8(7).await?;
            assert_eq!(transport.read_u8().await?, 8);
            Ok::<_, io::Error>(transport)
        }
    });
    let (service, handle) = service(connector);
    server.wait_for(secs(1), |seen| seen.open == 1).await;
    sleep(ms(1)).await;
    assert_eq!(handle.status().state, State::Connected);
    // A login that stalls is given up at the attempt's deadline.
    server.go_down();
    server.come_back();
    let seen = server.wait_for(secs(60), |seen| seen.closes.len() == 1).await;
    assert_eq!(seen.closes[0] - seen.dials[1], secs(10));
    server.wait_for(secs(60), |seen| seen.open == 1).await;
    service.abort();
}

#[tokio::test]
async fn all_of_it_works_in_real_time_too() {
    let server = ScriptedServer::new();
    server.script([Answer::refuse().after(ms(1))]);
    let (service, _) = service(server.connector());
    let seen = server.wait_for(secs(60), |seen| seen.open == 1).await;
    assert!(seen.dials.len() == 2 && seen.shortest_gap() > Some(ms(100)), "{seen:?}");
    service.abort();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is injected into no connection")]
async fn a_fault_for_nobody_is_refused() {
    ScriptedServer::new().inject(Fault::Stall);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "did not see within 60s what it waits for, but Seen { dials: [0ns]")]
async fn waiting_for_what_never_comes_has_an_end_and_tells_what_was_seen() {
    let server = ScriptedServer::new();
    let _connection = server.dial(&attempt()).await;
    server.wait_for(secs(60), |seen| seen.open == 2).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_what_never_comes_tells_which_wait_of_the_test_it_was() {
    let late = async { ScriptedServer::new().wait_for(secs(1), |seen| seen.open == 1).await };
    let said = tokio::spawn(late).await.unwrap_err().into_panic().downcast::<String>().unwrap();
    assert!(said.starts_with(&format!("{}:", file!())), "{said}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "is injected into no connection")]
async fn a_fault_for_a_connection_that_a_fault_has_ended_is_refused() {
    let server = ScriptedServer::new();
    let _connection = server.dial(&attempt()).await.unwrap();
    server.go_down();
    server.inject(Fault::Stall);
}

#[tokio::test(start_paused = true)]
async fn a_dial_under_way_hangs_once_the_network_is_cut() {
    for answer in [Answer::accept(), Answer::refuse()] {
        let server = ScriptedServer::new();
        server.answer(answer.after(secs(3)));
        let dial = tokio::spawn(server.dial(&attempt()));
        sleep(secs(1)).await;
        server.partition();
        sleep(secs(60)).await;
        server.come_back();
        sleep(secs(60)).await;
        assert!(!dial.is_finished(), "{answer:?}");
        server.go_down();
        assert_eq!(kind(dial.await.unwrap()), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_may_change_the_server_it_is_for() {
    let server = ScriptedServer::new();
    let same = server.clone();
    server.script((0..).map(move |_| {
        same.go_down();
        Answer::accept()
    }));
    assert_eq!(kind(server.dial(&attempt()).await), io::ErrorKind::ConnectionReset);
    assert_eq!(kind(server.dial(&attempt()).await), io::ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "or its script: what it said stands above")]
async fn a_script_that_panics_fails_the_test() {
    let server = ScriptedServer::new();
    server.script(std::iter::once_with(|| panic!("as a test asks")));
    let dial = tokio::spawn(server.dial(&attempt()));
    assert!(dial.await.is_err());
    drop(server);
}

/// A client of a server whose handler panics; it does not mind.
async fn with_a_handler_that_panics() -> ScriptedServer {
    let server = ScriptedServer::with_handler(|mut transport| async move {
        assert_eq!(transport.read_u8().await?, 7, "as a test asks");
        Ok(())
    });
    let mut connection = server.dial(&attempt()).await.unwrap();
    connection.write_u8(6).await.unwrap();
    assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    server
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a handler of the scripted server panicked")]
async fn a_handler_that_panics_fails_the_test_at_its_end() {
    drop(with_a_handler_that_panics().await);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a handler of the scripted server panicked")]
async fn a_handler_that_panics_fails_the_test_at_the_next_look() {
    let server = std::mem::ManuallyDrop::new(with_a_handler_that_panics().await);
    let _ = server.seen();
}
