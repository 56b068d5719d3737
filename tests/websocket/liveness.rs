//! Who is taken for dead, and who is not. The exact times are tested on the heartbeat itself, in paused time; here
//! real sockets show that it is connected to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast::testing::{Fault, Faults, duplex};
use steadfast::websocket::{Builder, Connection, Error, Message, WebSocketConnector};
use steadfast::{Connector, Failure};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::server::{HANG, PING, PONG, Peer, WsServer, dial, frame, listen, pair, text};

const INTERVAL: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_millis(400);

fn impatient(builder: Builder) -> Builder {
    builder.ping_interval(INTERVAL).pong_timeout(TIMEOUT)
}

async fn next(connection: &Connection) -> Result<Message, Error> {
    timeout(HANG, connection.next()).await.expect("`next` hangs")
}

#[tokio::test]
async fn a_silent_peer_is_found_by_whoever_waits_for_a_message() {
    let (connection, mut peer) = pair(impatient).await;
    let started = Instant::now();
    let error = next(&connection).await.unwrap_err();
    let Error::Silent { waited } = error else { panic!("{error:?}") };
    assert!(waited >= INTERVAL + TIMEOUT && started.elapsed() >= INTERVAL, "{waited:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(error.failure(), Failure::Transient);
    // It was asked, and gets no close frame: nothing waits for a dead peer.
    let mut asked = 0;
    while let Some((opcode, _)) = peer.frame().await {
        assert_eq!(opcode, PING);
        asked += 1;
    }
    assert!(asked >= 1);
    assert!(matches!(next(&connection).await, Err(Error::Silent { .. })));
}

#[tokio::test]
async fn a_silent_peer_with_full_buffers_is_found_and_ends_the_senders() {
    let (connection, _peer) = pair(|builder| impatient(builder).send_timeout(Duration::from_secs(60))).await;
    let connection = Arc::new(connection);
    let sender = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move {
            loop {
                if let Err(error) = connection.send(Message::binary(vec![0; 256 << 10])).await {
                    return error;
                }
            }
        }
    });
    assert!(matches!(next(&connection).await, Err(Error::Silent { .. })));
    let refused = timeout(HANG, sender).await.expect("the sender hangs").unwrap();
    assert!(matches!(refused.error(), Error::Silent { .. }), "{refused:?}");
    let started = Instant::now();
    connection.close(None).await;
    assert!(started.elapsed() < Duration::from_secs(1), "there is nobody to close it with");
}

#[tokio::test]
async fn a_peer_that_answers_lives() {
    let (connection, peer) = pair(impatient).await;
    let server = tokio::spawn(answer_pings(peer, 12));
    let message = next(&connection).await.unwrap();
    assert_eq!(message, Message::text("done"));
    drop(connection);
    server.await.unwrap();
}

/// A way to `server` on which faults can be injected: its port, and what injects them.
async fn faulty_way(server: u16) -> (u16, Faults) {
    let (listener, port) = listen("127.0.0.1").await;
    let (mut near, mut far) = duplex(64 << 10);
    let faults = near.faults();
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        let mut server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
        tokio::join!(copy_bidirectional(&mut client, &mut near), copy_bidirectional(&mut far, &mut server))
    });
    (port, faults)
}

#[tokio::test]
async fn a_half_open_connection_is_found_though_the_peer_answers_every_ping() {
    let server = WsServer::start().await;
    let (port, faults) = faulty_way(server.port).await;
    let url = format!("ws://127.0.0.1:{port}/");
    let connector = impatient(WebSocketConnector::builder(url)).build().unwrap();
    let (connection, peer) = tokio::join!(dial(&connector), server.open());
    let connection = connection.unwrap();
    let peer = tokio::spawn(answer_pings(peer, u32::MAX));
    let alive = timeout((INTERVAL + TIMEOUT) * 3, connection.next()).await;
    assert!(alive.is_err(), "the way carries both directions: {alive:?}");
    faults.inject(Fault::Stall);
    let error = next(&connection).await.unwrap_err();
    assert!(matches!(error, Error::Silent { .. }), "{error:?}");
    assert!(!peer.is_finished(), "it has not noticed");
    peer.abort();
}

/// Answers so many pings, each of which came within the interval, then says so.
async fn answer_pings(mut peer: Peer, pings: u32) {
    let mut last = Instant::now();
    for _ in 0..pings {
        let (opcode, payload) = peer.frame().await.expect("a ping");
        assert_eq!(opcode, PING);
        assert!(last.elapsed() < INTERVAL + Duration::from_secs(2), "an idle cut-off would have struck");
        last = Instant::now();
        peer.write(frame(PONG, &payload)).await;
    }
    peer.write(text("done")).await;
    peer.gone().await;
}

#[tokio::test]
async fn received_data_is_life_without_a_single_pong() {
    let (connection, mut peer) = pair(impatient).await;
    let server = tokio::spawn(async move {
        for number in 0..40 {
            peer.write(text(&number.to_string())).await;
            sleep(Duration::from_millis(50)).await;
        }
        peer
    });
    for number in 0..40 {
        assert_eq!(next(&connection).await.unwrap(), Message::text(number.to_string()));
    }
    server.await.unwrap();
}

#[tokio::test]
async fn a_message_that_takes_long_to_arrive_is_life_all_the_while() {
    let (connection, mut peer) = pair(impatient).await;
    let server = tokio::spawn(async move {
        for chunk in text(&"x".repeat(1 << 20)).chunks(32 << 10) {
            peer.write(chunk).await;
            sleep(Duration::from_millis(75)).await;
        }
        peer
    });
    assert_eq!(next(&connection).await.unwrap().len(), 1 << 20);
    server.await.unwrap();
}

#[tokio::test]
async fn pings_go_out_while_data_keeps_coming() {
    let (connection, mut peer) = pair(impatient).await;
    let (mut reading, mut writing) = peer.stream.split();
    let flood = async {
        loop {
            tokio::io::AsyncWriteExt::write_all(&mut writing, &text("tick")).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        loop {
            next(&connection).await.unwrap();
        }
    };
    let mut first = [0; 1];
    let ping = tokio::io::AsyncReadExt::read_exact(&mut reading, &mut first);
    tokio::select! {
        () = async { tokio::join!(flood, read); } => {}
        _ = timeout(HANG, ping) => {}
    }
    assert_eq!(first[0], 0x80 | PING);
}

#[tokio::test]
async fn a_connection_that_is_checked_asks_at_once() {
    let (connection, mut peer) = pair(|builder| builder.pong_timeout(TIMEOUT)).await;
    let connector = WebSocketConnector::new("ws://127.0.0.1:1/").unwrap();
    let connection = Arc::new(connection);
    let reader = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { next(&connection).await }
    });
    sleep(Duration::from_millis(50)).await;
    assert!(connector.check(&connection).await.is_ok());
    assert_eq!(timeout(Duration::from_secs(10), peer.frame()).await.unwrap(), Some((PING, Vec::new())));
    peer.write(text("here")).await;
    assert_eq!(reader.await.unwrap().unwrap(), Message::text("here"));
    drop(peer);
    assert!(next(&connection).await.is_err());
    assert!(connector.check(&connection).await.is_err(), "and one that has ended fails the check");
}

#[tokio::test]
async fn limits_at_the_far_end_work() {
    let far =
        |builder: Builder| builder.ping_interval(Duration::MAX).pong_timeout(Duration::MAX).send_timeout(Duration::MAX);
    let (connection, mut peer) = pair(far).await;
    connection.send("x".into()).await.unwrap();
    peer.write(text("y")).await;
    assert_eq!(next(&connection).await.unwrap(), Message::text("y"));
}

/// A ping that is due meanwhile must not take the writer's place at the socket.
#[tokio::test]
async fn a_send_that_waits_for_a_slow_peer_goes_on_when_the_peer_does() {
    let settings = |builder: Builder| builder.ping_interval(Duration::from_millis(100)).send_timeout(HANG * 10);
    let (connection, mut peer) = pair(settings).await;
    let connection = Arc::new(connection);
    let reader = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { next(&connection).await }
    });
    let sender = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { connection.send(Message::binary(vec![0; 16 << 20])).await }
    });
    sleep(Duration::from_millis(500)).await;
    assert!(!sender.is_finished(), "16 MiB fit into the kernel");
    while let Some((PING, _)) = peer.frame().await {}
    timeout(HANG, sender).await.expect("the sender hangs").unwrap().unwrap();
    peer.write(text("thanks")).await;
    assert_eq!(reader.await.unwrap().unwrap(), Message::text("thanks"));
}
