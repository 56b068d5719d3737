//! What the crate ships for other people's tests does what it says.
#![cfg(test)]

use std::io;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast::machine::{Event, Gate, Lifecycle};
use steadfast::testing::{Answer, Fault, ManualClock, ScriptedConnector, ScriptedServer, Seen, Transport, duplex, rng};
use steadfast::{
    Attempt, Connector, Failure, Handle, Lease, Policy, Session, State, StopReason, Stopped, Supervisor, classify,
    connector_fn,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const HOUR: Duration = Duration::from_secs(3_600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// Connections and their faults.

async fn is_pending<F: Future>(work: F) -> bool {
    timeout(HOUR, work).await.is_err()
}

fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
    result.expect_err("an error").kind()
}

/// Reads until the end of the stream.
async fn rest(transport: &mut Transport) -> Vec<u8> {
    let mut bytes = Vec::new();
    transport.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_in_order_both_ways_and_a_drop_is_the_end_of_the_stream() {
    let (mut client, mut server) = duplex(10);
    let numbers: Vec<u8> = (0..=255).collect();
    let sent = numbers.clone();
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 7];
        loop {
            let count = server.read(&mut bytes).await.unwrap();
            if count == 0 {
                return;
            }
            server.write_all(&bytes[..count]).await.unwrap();
        }
    });
    let (mut read, mut write) = tokio::io::split(client);
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        assert_eq!(kind(write.write(b"x").await), io::ErrorKind::BrokenPipe);
        write
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, numbers);
    echo.await.unwrap();
    client = read.unsplit(writer.await.unwrap());
    assert_eq!(kind(client.write(b"x").await), io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_is_bounded_and_a_slow_reader_holds_the_writer_back() {
    let (mut client, mut server) = duplex(4);
    assert_eq!(client.write(b"123456").await.unwrap(), 4);
    assert!(is_pending(client.write(b"5")).await);
    let mut write = pin!(client.write_all(b"56"));
    assert!(timeout(secs(1), write.as_mut()).await.is_err());
    assert_eq!(server.read_u8().await.unwrap(), b'1');
    assert!(timeout(secs(1), write.as_mut()).await.is_err(), "room for one");
    assert_eq!(server.read_u8().await.unwrap(), b'2');
    timeout(secs(1), write).await.expect("room for both").unwrap();
    drop(client);
    assert_eq!(rest(&mut server).await, b"3456");
}

#[tokio::test(start_paused = true)]
async fn latency_delays_each_byte_and_the_end_of_the_stream_and_nothing_overtakes() {
    let (mut client, mut server) = duplex(64);
    let start = Instant::now();
    client.inject(Fault::Latency(ms(200)));
    server.write_all(b"a").await.unwrap();
    sleep(ms(50)).await;
    client.inject(Fault::Latency(ms(10)));
    server.write_all(b"b").await.unwrap();
    assert_eq!((client.read_u8().await.unwrap(), start.elapsed()), (b'a', ms(200)));
    assert_eq!((client.read_u8().await.unwrap(), start.elapsed()), (b'b', ms(200)));
    client.write_all(b"c").await.unwrap();
    assert_eq!((server.read_u8().await.unwrap(), start.elapsed()), (b'c', ms(210)));
    drop(server);
    assert_eq!((rest(&mut client).await.len(), start.elapsed()), (0, ms(220)));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_connection_is_half_open_until_it_is_healed() {
    let (mut client, mut server) = duplex(4);
    client.inject(Fault::Stall);
    server.write_all(b"1234").await.unwrap();
    assert!(is_pending(server.write(b"5")).await, "the buffer is full");
    assert!(is_pending(client.read_u8()).await);
    client.write_all(b"67").await.unwrap();
    drop(server);
    assert!(is_pending(client.read_u8()).await, "nobody is told");
    client.write_all(b"89").await.unwrap();
    let faults = client.faults();
    let reader = tokio::spawn(async move { (rest(&mut client).await, kind(client.write(b"x").await)) });
    sleep(secs(1)).await;
    faults.heal();
    assert_eq!(reader.await.unwrap(), (b"1234".to_vec(), io::ErrorKind::BrokenPipe));
}

#[tokio::test(start_paused = true)]
async fn a_cut_lets_so_many_bytes_through_and_then_all_is_over() {
    for bytes in [0, 1, 3, 4] {
        let (mut client, mut server) = duplex(64);
        server.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        server.inject(Fault::CutAfter(bytes));
        let torn = server.write_all(b"1234").await;
        assert_eq!(torn.is_err(), bytes == 0);
        // The other direction is free until then.
        assert_eq!(client.write_all(b"12345").await.is_err(), bytes == 0);
        assert_eq!(rest(&mut client).await, b"1234"[..bytes]);
        assert_eq!(kind(server.write(b"x").await), io::ErrorKind::BrokenPipe);
        assert_eq!(kind(client.write(b"x").await), io::ErrorKind::BrokenPipe);
        assert_eq!(rest(&mut server).await, b"");
        server.faults().heal();
        assert_eq!(rest(&mut client).await, b"", "what is over stays over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_has_not_happened_is_healed() {
    let (mut client, mut server) = duplex(64);
    server.inject(Fault::CutAfter(2));
    server.inject(Fault::Trickle);
    server.write_u8(1).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), 1);
    server.faults().heal();
    server.write_all(&[2, 3, 4]).await.unwrap();
    let mut bytes = [0; 3];
    assert_eq!(client.read(&mut bytes).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_reset_fails_whatever_waits_and_whatever_comes() {
    let (mut client, mut server) = duplex(2);
    server.write_all(b"12").await.unwrap();
    let faults = client.faults();
    let writer = tokio::spawn(async move { kind(server.write(b"3").await) });
    let (mut read, mut write) = tokio::io::split(duplex(1).0);
    assert_eq!(read.read(&mut [0]).await.unwrap(), 0, "its other end is gone");
    assert_eq!(kind(write.write(b"x").await), io::ErrorKind::BrokenPipe);
    sleep(secs(1)).await;
    faults.inject(Fault::Reset(io::ErrorKind::ConnectionAborted));
    assert_eq!(writer.await.unwrap(), io::ErrorKind::ConnectionAborted);
    assert_eq!(kind(client.read_u8().await), io::ErrorKind::ConnectionAborted, "what was under way is lost");
    assert_eq!(kind(client.write(b"x").await), io::ErrorKind::ConnectionAborted);
    assert_eq!(kind(client.flush().await), io::ErrorKind::ConnectionAborted);
    faults.heal();
    assert_eq!(kind(client.read_u8().await), io::ErrorKind::ConnectionAborted);
}

#[tokio::test(start_paused = true)]
async fn a_pending_read_sees_a_reset_a_cut_and_a_drop() {
    for fault in [Some(Fault::Reset(io::ErrorKind::ConnectionReset)), Some(Fault::CutAfter(0)), None] {
        let (mut client, server) = duplex(2);
        let reader = tokio::spawn(async move { client.read(&mut [0]).await.map_err(|error| error.kind()) });
        sleep(secs(1)).await;
        match fault {
            Some(fault) => server.inject(fault),
            None => drop(server),
        }
        let expected = if matches!(fault, Some(Fault::Reset(kind)) if kind == io::ErrorKind::ConnectionReset) {
            Err(io::ErrorKind::ConnectionReset)
        } else {
            Ok(0)
        };
        assert_eq!(timeout(secs(1), reader).await.expect("woken").unwrap(), expected, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_trickle_moves_one_byte_at_a_time() {
    let (mut client, mut server) = duplex(64);
    server.inject(Fault::Trickle);
    assert_eq!(server.write(b"123").await.unwrap(), 1);
    server.write_all(b"23").await.unwrap();
    let mut bytes = [0; 8];
    for _ in 0..3 {
        assert_eq!(client.read(&mut bytes).await.unwrap(), 1);
    }
}

#[test]
#[should_panic(expected = "a buffer of 0 bytes")]
fn a_connection_without_a_buffer_is_refused() {
    let _ = duplex(0);
}

// The scripted server.

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

fn attempt() -> Attempt {
    Attempt::first(Instant::now().into_std() + HOUR)
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
    handle.drain();
    server.wait_for(secs(10), |seen| seen.open == 0 && seen.closes.len() == 1).await;
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
    let dialled = server.clone();
    let hangs = tokio::spawn(async move { dialled.dial(&attempt()).await.map(drop).map_err(|error| error.kind()) });
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

/// How supervision fares after one dial with this answer, ten seconds later.
async fn after_one(answer: Answer) -> (State, Option<Failure>, usize) {
    let server = ScriptedServer::new();
    server.answer(answer);
    let supervisor = Supervisor::builder(server.connector());
    let policy = Policy::default().attempt_deadline(secs(2)).handshake_deadline(secs(9));
    let supervisor = supervisor.policy(policy).seed(7).build().unwrap();
    let handle = supervisor.handle();
    let running = tokio::spawn(async move { supervisor.run(read_all).await });
    sleep(ms(2_500)).await;
    running.abort();
    let status = handle.status();
    (status.state, status.last_failure.map(|cause| cause.failure()), server.seen().dials.len())
}

#[tokio::test(start_paused = true)]
async fn an_answer_tells_whether_the_server_was_reached() {
    // Not reached, `Permanent` is our own configuration: stop. Reached, the other side said so.
    let permanent = Answer::fail(Failure::Permanent);
    assert_eq!(after_one(permanent.reached(false)).await.0, State::Stopped);
    assert_eq!(after_one(permanent).await.0, State::Backoff);
}

// More below: counts, misuse, time, seeds.
