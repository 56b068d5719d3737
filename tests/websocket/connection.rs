//! An open websocket: messages, closes, ends.

use std::sync::Arc;
use std::time::Duration;

use steadfast::websocket::tungstenite::Bytes;
use steadfast::websocket::tungstenite::protocol::CloseFrame;
use steadfast::websocket::tungstenite::protocol::frame::coding::CloseCode;
use steadfast::websocket::{Connection, Error, Message, SendError, WebSocketConnector};
use steadfast::{Connector, Ended, Failure};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::server::{CLOSE, HANG, PING, PONG, Peer, TEXT, close, frame, pair, text};

async fn next(connection: &Connection) -> Result<Message, Error> {
    timeout(HANG, connection.next()).await.expect("`next` hangs")
}

fn binary(bytes: usize) -> Message {
    Message::binary(vec![7; bytes])
}

/// Fills the buffers of the kernel: the peer does not read.
async fn fill(connection: &Connection) -> SendError {
    loop {
        if let Err(error) = timeout(HANG, connection.send(binary(256 << 10))).await.expect("`send` hangs") {
            return error;
        }
    }
}

#[test]
fn a_connection_can_be_shared() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Connection>();
    shared::<Error>();
    shared::<WebSocketConnector>();
}

#[tokio::test]
async fn messages_go_both_ways() {
    let (connection, mut peer) = pair(|builder| builder).await;
    connection.send("hello".into()).await.unwrap();
    assert_eq!(peer.frame().await.unwrap(), (TEXT, b"hello".to_vec()));
    peer.write([text("a"), frame(PONG, b"unasked"), frame(2, &[1, 2]), text(&"b".repeat(70_000))].concat()).await;
    assert_eq!(next(&connection).await.unwrap(), Message::text("a"));
    assert_eq!(next(&connection).await.unwrap(), Message::binary(vec![1, 2]));
    assert_eq!(next(&connection).await.unwrap(), Message::text("b".repeat(70_000)));
}

#[tokio::test]
async fn a_ping_of_the_server_is_answered_while_somebody_is_in_next() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let serve = async {
        peer.write(frame(PING, b"42")).await;
        assert_eq!(peer.frame().await.unwrap(), (PONG, b"42".to_vec()));
        peer.write(text("done")).await;
    };
    let (message, ()) = tokio::join!(next(&connection), serve);
    assert_eq!(message.unwrap(), Message::text("done"));
}

#[tokio::test]
async fn a_server_that_pings_without_reading_gets_fewer_answers_and_no_error() {
    let (connection, mut peer) = pair(|builder| builder.max_message_size(1000)).await;
    let flood = async {
        for _ in 0..120 {
            peer.write(frame(PING, &[1; 125]).repeat(1000)).await;
        }
        peer.write([frame(PING, b"last"), text("done")].concat()).await;
    };
    let (message, ()) = tokio::join!(next(&connection), flood);
    assert_eq!(message.unwrap(), Message::text("done"));
    let serve = async {
        let mut answers = 0;
        while peer.frame().await.unwrap() != (PONG, b"last".to_vec()) {
            answers += 1;
        }
        answers
    };
    let answers = tokio::select! {
        answers = serve => answers,
        message = next(&connection) => panic!("{message:?}"),
    };
    assert!((1..120_000).contains(&answers), "{answers}");
    connection.send(binary(1000)).await.unwrap();
}

#[tokio::test]
async fn a_waiting_reader_keeps_nobody_from_sending() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let connection = Arc::new(connection);
    let reader = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { next(&connection).await }
    });
    let senders: Vec<_> = (0..8u8)
        .map(|sender| {
            let connection = Arc::clone(&connection);
            tokio::spawn(async move {
                for number in 0..50u8 {
                    let size = if number % 10 == 0 { 300_000 } else { 2 };
                    let mut bytes = vec![number; size];
                    bytes[0] = sender;
                    connection.send(Message::binary(bytes)).await.unwrap();
                }
            })
        })
        .collect();
    let mut expected = [0u8; 8];
    for _ in 0..400 {
        let (opcode, payload) = peer.frame().await.unwrap();
        assert_eq!(opcode, 2);
        let sender = usize::from(payload[0]);
        assert!(payload[1..].iter().all(|&byte| byte == expected[sender]), "whole, and in its sender's order");
        expected[sender] += 1;
    }
    for sender in senders {
        sender.await.unwrap();
    }
    peer.write(text("done")).await;
    assert_eq!(reader.await.unwrap().unwrap(), Message::text("done"));
}

#[tokio::test]
async fn a_cancelled_next_loses_nothing() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let server = tokio::spawn(async move {
        for number in 0..60 {
            peer.write(text(&format!("{number} {}", "x".repeat(100_000)))).await;
        }
        peer
    });
    let mut received = 0;
    while received < 60 {
        if let Ok(message) = timeout(Duration::from_micros(100), connection.next()).await {
            let message = message.unwrap().into_text().unwrap();
            assert!(message.starts_with(&format!("{received} x")) && message.len() >= 100_002);
            received += 1;
        }
    }
    server.await.unwrap();
}

#[tokio::test]
async fn a_send_cancelled_half_way_still_goes_out_whole_and_in_order() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let cancelled = timeout(Duration::from_millis(100), connection.send(binary(16 << 20))).await;
    assert!(cancelled.is_err(), "16 MiB fit into the kernel");
    let serve = async {
        let first = peer.frame().await.unwrap().1.len();
        peer.write(text("got it")).await;
        first
    };
    // Nobody sends any more: the reader has to bring the rest out.
    let (message, first) = tokio::join!(next(&connection), serve);
    assert_eq!((message.unwrap(), first), (Message::text("got it"), 16 << 20));
    connection.send("second".into()).await.unwrap();
    assert_eq!(peer.frame().await.unwrap(), (TEXT, b"second".to_vec()));
}

#[tokio::test]
async fn a_close_frame_is_an_error_that_says_why_and_stays() {
    for (code, failure) in [
        (1000, Failure::Planned),
        (1001, Failure::Planned),
        (1012, Failure::Planned),
        (1013, Failure::Throttled { retry_after: Some(Duration::from_secs(30)) }),
        (1008, Failure::Transient),
        (1011, Failure::Transient),
        (3000, Failure::Unauthorized),
        (4321, Failure::Transient),
    ] {
        let (connection, mut peer) = pair(|builder| builder).await;
        peer.write([text("last words"), close(code, "so long")].concat()).await;
        assert_eq!(next(&connection).await.unwrap(), Message::text("last words"));
        let error = next(&connection).await.unwrap_err();
        let Error::Closed { code: seen, reason, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*seen, &**reason), (code, "so long"));
        assert_eq!(error.failure(), failure, "{code}");
        assert!(error.to_string().contains(&format!("{code} \"so long\"")), "{error}");
        // The server leaves TCP open: it sees our echo, and then our end.
        assert_eq!(peer.frame().await.unwrap(), (CLOSE, [&code.to_be_bytes(), &b"so long"[..]].concat()));
        assert_eq!(peer.frame().await, None);
        for _ in 0..2 {
            assert!(matches!(next(&connection).await, Err(Error::Closed { code: same, .. }) if same == code));
        }
        let refused = connection.send("too late".into()).await.unwrap_err();
        assert!(matches!(refused.error(), Error::Closed { .. }));
        assert_eq!(refused.into_unsent(), Some("too late".into()));
    }
}

#[tokio::test]
async fn a_close_without_a_code_is_1005_and_one_that_must_not_be_sent_is_1002() {
    let (connection, mut peer) = pair(|builder| builder).await;
    peer.write(frame(CLOSE, b"")).await;
    assert!(matches!(next(&connection).await, Err(Error::Closed { code: 1005, .. })));
    for forbidden in [1014, 1005, 1006, 1015, 999, 5000] {
        let (connection, mut peer) = pair(|builder| builder).await;
        peer.write(close(forbidden, "")).await;
        let error = next(&connection).await.unwrap_err();
        assert!(matches!(error, Error::Closed { code: 1002, .. }), "{forbidden}: {error:?}");
        assert_eq!(error.failure(), Failure::Transient);
    }
}

#[tokio::test]
async fn a_close_to_a_client_with_full_buffers_ends_it_all_the_same() {
    let (connection, mut peer) = pair(|builder| builder.send_timeout(Duration::from_secs(60))).await;
    let connection = Arc::new(connection);
    let sender = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { fill(&connection).await }
    });
    sleep(Duration::from_millis(200)).await;
    peer.write(close(1012, "")).await;
    // Our echo is behind what the peer does not read.
    assert!(matches!(next(&connection).await, Err(Error::Closed { code: 1012, .. })));
    let refused = timeout(HANG, sender).await.expect("the sender hangs").unwrap();
    assert!(matches!(refused.error(), Error::Closed { .. }), "{refused:?}");
}

#[tokio::test]
async fn an_end_without_a_close_frame_is_a_lost_connection() {
    for reset in [false, true] {
        let (connection, mut peer) = pair(|builder| builder).await;
        peer.write(text("last words")).await;
        assert_eq!(next(&connection).await.unwrap(), Message::text("last words"));
        if reset {
            peer.reset();
        } else {
            drop(peer);
        }
        let error = next(&connection).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        assert_eq!(error.failure(), Failure::Transient);
        assert!(matches!(next(&connection).await, Err(Error::Lost { .. })), "and it stays lost");
    }
}

#[tokio::test]
async fn bytes_that_are_no_websocket_are_a_protocol_error_which_the_server_is_told() {
    let (connection, mut peer) = pair(|builder| builder).await;
    peer.write(frame(3, b"reserved")).await;
    assert!(matches!(next(&connection).await, Err(Error::Protocol { .. })));
    assert_eq!(peer.frame().await.unwrap(), (CLOSE, 1002u16.to_be_bytes().to_vec()));
    assert_eq!(peer.frame().await, None);
}

#[tokio::test]
async fn a_message_over_the_limit_ends_the_connection_and_names_both_sizes() {
    let (connection, mut peer) = pair(|builder| builder.max_message_size(1000)).await;
    peer.write([text(&"x".repeat(1000)), text(&"x".repeat(1001))].concat()).await;
    assert_eq!(next(&connection).await.unwrap().len(), 1000);
    let error = next(&connection).await.unwrap_err();
    let Error::Protocol { source } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("1001") && source.to_string().contains("1000"), "{source}");
    assert_eq!(error.failure(), Failure::Transient);
    assert_eq!(peer.frame().await.unwrap(), (CLOSE, 1009u16.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn a_message_that_is_too_long_to_send_comes_back_and_harms_nothing() {
    let (connection, mut peer) = pair(|builder| builder.max_message_size(1000)).await;
    let refused = connection.send(binary(1001)).await.unwrap_err();
    assert!(matches!(refused.error(), Error::TooLong { size: 1001, limit: 1000 }));
    assert_eq!(refused.into_unsent(), Some(binary(1001)));
    let refused = connection.send(Message::Ping(Bytes::from(vec![0; 126]))).await.unwrap_err();
    assert!(matches!(refused.error(), Error::TooLong { size: 126, limit: 125 }));
    connection.send(binary(1000)).await.unwrap();
    assert_eq!(peer.frame().await.unwrap().1.len(), 1000);
}

#[tokio::test]
async fn a_write_that_is_stuck_ends_the_connection_with_an_unknown_outcome() {
    let (connection, _peer) = pair(|builder| builder.send_timeout(Duration::from_millis(300))).await;
    let connection = Arc::new(connection);
    let reader = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { next(&connection).await }
    });
    let stuck = fill(&connection).await;
    assert!(!stuck.is_unsent());
    assert!(stuck.to_string().contains("unknown"), "{stuck}");
    assert!(matches!(stuck.error(), Error::Stuck { .. }));
    assert_eq!(stuck.error().failure(), Failure::Transient);
    let read = timeout(HANG, reader).await.expect("the reader hangs").unwrap();
    assert!(matches!(read, Err(Error::Stuck { .. })), "{read:?}");
}

#[tokio::test]
async fn a_message_behind_a_stuck_one_is_known_not_to_be_sent() {
    let (connection, _peer) = pair(|builder| builder.send_timeout(Duration::from_millis(500))).await;
    let (stuck, behind) = tokio::join!(fill(&connection), async {
        sleep(Duration::from_millis(200)).await;
        let _ = timeout(Duration::from_millis(50), connection.send(binary(256 << 10))).await;
        connection.send("behind".into()).await.unwrap_err()
    });
    assert!(!stuck.is_unsent());
    assert_eq!(behind.into_unsent(), Some("behind".into()));
}

#[tokio::test]
async fn close_puts_a_close_frame_on_the_wire_and_waits_for_the_servers() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let connector = WebSocketConnector::new("ws://127.0.0.1:1/").unwrap();
    connection.send("before".into()).await.unwrap();
    let serve = async {
        assert_eq!(peer.frame().await.unwrap(), (TEXT, b"before".to_vec()));
        assert_eq!(peer.frame().await.unwrap(), (CLOSE, 1000u16.to_be_bytes().to_vec()));
        peer.write(close(1000, "")).await;
        peer.gone().await;
    };
    let parked = next(&connection);
    let (parked, (), ()) = tokio::join!(parked, connector.close(&connection), serve);
    assert!(matches!(parked, Err(Error::ClosedHere)), "whoever reads learns it: {parked:?}");
    assert!(connection.send("after".into()).await.unwrap_err().is_unsent());
    connector.close(&connection).await;
}

#[tokio::test]
async fn close_is_bounded_whatever_the_server_does() {
    #[derive(Clone, Copy)]
    enum Script {
        Ignores,
        KeepsTcp,
        TalksOn,
        DoesNotRead,
    }
    async fn play(script: Script) {
        let (connection, mut peer) = pair(|builder| builder).await;
        if matches!(script, Script::DoesNotRead) {
            let _ = timeout(Duration::from_millis(50), connection.send(binary(16 << 20))).await;
        }
        let serve = async {
            match script {
                Script::Ignores => peer.gone().await,
                Script::KeepsTcp => {
                    peer.frame().await;
                    peer.write(close(1000, "")).await;
                    peer.gone().await;
                }
                Script::TalksOn => while peer.stream.write_all(&text("and another thing")).await.is_ok() {},
                Script::DoesNotRead => sleep(Duration::from_millis(2500)).await,
            }
        };
        tokio::join!(connection.close(None), serve);
    }
    let scripts = [Script::Ignores, Script::KeepsTcp, Script::TalksOn, Script::DoesNotRead];
    let all = scripts.map(|script| tokio::spawn(play(script)));
    for played in all {
        timeout(Duration::from_secs(10), played).await.expect("the close hangs").unwrap();
    }
}

#[tokio::test]
async fn a_close_frame_can_be_sent_like_a_message_with_a_code_of_ones_own() {
    let (connection, mut peer) = pair(|builder| builder).await;
    let frame = CloseFrame { code: CloseCode::Library(4000), reason: "ü".repeat(100).into() };
    let serve = async {
        let (opcode, payload) = peer.frame().await.unwrap();
        assert_eq!(opcode, CLOSE);
        assert_eq!(payload, [&4000u16.to_be_bytes(), "ü".repeat(61).as_bytes()].concat(), "as much as fits");
        peer.write(close(4000, "")).await;
    };
    let (sent, ()) = tokio::join!(connection.send(Message::Close(Some(frame))), serve);
    sent.unwrap();
    assert!(matches!(next(&connection).await, Err(Error::ClosedHere)));
}

#[tokio::test]
async fn a_dropped_connection_closes_its_socket() {
    let (connection, mut peer) = pair(|builder| builder).await;
    drop(connection);
    assert_eq!(peer.frame().await, None);
}

#[tokio::test]
async fn a_reason_that_repeats_a_credential_is_hidden() {
    let (connection, mut peer) = pair(|builder| builder.header("Authorization", "Bearer sesame-open")).await;
    peer.write(close(1008, "token sesame-open expired")).await;
    let error = next(&connection).await.unwrap_err();
    assert!(error.to_string().contains("token [hidden] expired"), "{error}");
    assert!(!format!("{error:?} {connection:?}").contains("sesame"));
}

#[tokio::test]
async fn the_connector_classifies_what_its_connections_give() {
    let connector = WebSocketConnector::builder("ws://127.0.0.1:1/").classify(|error| match error {
        Error::Closed { code: 4000..=4099, reason, lived } if reason.contains("gone") && *lived < HANG => {
            Some(Failure::Permanent)
        }
        _ => None,
    });
    let connector = connector.build().unwrap();
    for (code, failure) in [(4001, Failure::Permanent), (4101, Failure::Transient), (1012, Failure::Planned)] {
        let (connection, mut peer) = pair(|builder| builder).await;
        peer.write(close(code, "gone for good")).await;
        let read = next(&connection).await.unwrap_err();
        assert_eq!(connector.classify(&read, Ended::Session), failure);
        let refused: Box<dyn std::error::Error> = connection.send("x".into()).await.unwrap_err().into();
        assert_eq!(connector.classify(&*refused, Ended::Report), failure, "a failed send says the same");
    }
}

#[tokio::test]
async fn a_ping_can_be_sent_by_hand() {
    let (connection, mut peer): (_, Peer) = pair(|builder| builder).await;
    connection.send(Message::Ping(Bytes::from_static(b"x"))).await.unwrap();
    assert_eq!(peer.frame().await.unwrap(), (PING, b"x".to_vec()));
    connection.send(Message::Pong(Bytes::from_static(b"y"))).await.unwrap();
    assert_eq!(peer.frame().await.unwrap(), (PONG, b"y".to_vec()));
}
