//! The futures of connector and connection, dropped after each number of polls that they have.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steadfast::websocket::{Error, Message, WebSocketConnector};
use steadfast::{Attempt, Connector};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::cut::{Cut, for_each_cut};
use crate::server::{CLOSE, HANG, PING, PONG, Peer, TEXT, WsServer, close, frame, pair, text};

fn sweep<Fut: Future<Output = bool>>(name: &str, scenario: impl Fn(Cut) -> Fut) -> usize {
    for_each_cut(name, |cut| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { timeout(HANG, scenario(cut)).await.expect("it hangs") })
    })
}

/// A server that answers haltingly, and counts the connections that are open.
struct Halting {
    port: u16,
    open: Arc<AtomicUsize>,
}

impl Halting {
    async fn start() -> Self {
        let server = WsServer::start().await;
        let (port, open) = (server.port, Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&open);
        tokio::spawn(async move {
            loop {
                let (mut peer, count) = (server.accept().await, Arc::clone(&count));
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let _ = Self::serve(&mut peer).await;
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { port, open }
    }

    /// Until the client is gone.
    async fn serve(peer: &mut Peer) -> std::io::Result<()> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while !peer.request.ends_with("\r\n\r\n") {
            peer.request.push(char::from(peer.stream.read_u8().await?));
        }
        for part in peer.switching().as_bytes().chunks(40) {
            peer.stream.write_all(part).await?;
            sleep(Duration::from_millis(2)).await;
        }
        peer.gone().await;
        Ok(())
    }

    async fn has_open(&self, number: usize) {
        while self.open.load(Ordering::SeqCst) != number {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[test]
fn a_dropped_connect_closes_what_it_opened_and_the_next_one_works() {
    let polls = sweep("connect", |cut| async move {
        let server = Halting::start().await;
        let resolve = |_, port| async move {
            yield_now().await;
            Ok(vec![([127, 0, 0, 1], port).into()])
        };
        let url = format!("ws://feed.test:{}/", server.port);
        let connector = WebSocketConnector::builder(url).resolver(resolve).build().expect("valid settings");
        let attempt = || Attempt::first(Instant::now() + HANG);
        let dialled = cut.of(connector.connect(attempt())).await;
        let ready = dialled.is_some();
        drop(dialled.transpose().expect("a healthy server"));
        // Also what the kernel had accepted before the server knew.
        let live = connector.connect(attempt()).await.expect("the next one is served");
        server.has_open(1).await;
        assert!(live.peer_addr().is_some());
        ready
    });
    assert!(polls > 5, "{polls}");
}

#[test]
fn no_message_is_lost_by_a_dropped_next() {
    let polls = sweep("next", |cut| async move {
        let (connection, mut peer) = pair(|builder| builder).await;
        let server = tokio::spawn(async move {
            for number in 0..5 {
                let bytes = [frame(PING, &[number]), text(&number.to_string())].concat();
                for half in bytes.chunks(bytes.len() / 2) {
                    peer.write(half).await;
                    sleep(Duration::from_millis(2)).await;
                }
            }
            let mut pongs = Vec::new();
            while pongs.len() < 5 {
                let (opcode, payload) = peer.frame().await.expect("a pong");
                assert_eq!(opcode, PONG);
                pongs.extend(payload);
            }
            (pongs, peer)
        });
        let (mut got, mut whole) = (Vec::new(), true);
        for _ in 0..5 {
            let first = cut.of(connection.next()).await;
            whole &= first.is_some();
            got.push(match first {
                Some(message) => message.expect("a message"),
                None => connection.next().await.expect("a message"),
            });
        }
        assert_eq!(got, ["0", "1", "2", "3", "4"].map(Message::text));
        tokio::select! {
            ended = connection.next() => panic!("{ended:?}"),
            served = server => assert_eq!(served.unwrap().0, [0, 1, 2, 3, 4], "each ping is answered"),
        }
        whole
    });
    assert!(polls > 1, "{polls}");
}

#[test]
fn what_a_dropped_send_began_is_finished_by_whoever_reads() {
    let polls = sweep("send, then next", |cut| async move {
        let (connection, mut peer) = pair(|builder| builder).await;
        let server = tokio::spawn(async move {
            sleep(Duration::from_millis(20)).await;
            assert_eq!(peer.frame().await.map(|(_, payload)| payload.len()), Some(LONG));
            peer.write(text("got it")).await;
            peer
        });
        let long = || Message::binary(vec![7; LONG]);
        let sent = cut.of(connection.send(long())).await;
        if cut.polls == 0 {
            connection.send(long()).await.expect("nothing has happened");
        }
        assert_eq!(connection.next().await.expect("it was sent"), Message::text("got it"));
        server.await.unwrap();
        sent.is_some()
    });
    assert!(polls > 2, "{polls}");
}

/// More than the kernel's buffers hold.
const LONG: usize = 6 << 20;

#[test]
fn a_dropped_send_leaves_whole_messages_in_order() {
    let polls = sweep("send", |cut| async move {
        let (connection, mut peer) = pair(|builder| builder).await;
        // It begins to read when the buffers are full.
        let server = tokio::spawn(async move {
            sleep(Duration::from_millis(20)).await;
            let mut frames = Vec::new();
            while frames.last() != Some(&(TEXT, 5)) {
                let (opcode, payload) = peer.frame().await.expect("whole frames");
                frames.push((opcode, payload.len()));
            }
            frames
        });
        let sent = cut.of(connection.send(Message::binary(vec![7; LONG]))).await;
        connection.send("after".into()).await.expect("the connection lives");
        let frames = server.await.unwrap();
        let expected: &[_] = if cut.polls == 0 { &[(TEXT, 5)] } else { &[(2, LONG), (TEXT, 5)] };
        assert_eq!(frames, expected);
        sent.is_some()
    });
    assert!(polls > 2, "{polls}");
}

#[test]
fn a_dropped_close_ends_the_connection_all_the_same() {
    let polls = sweep("close", |cut| async move {
        let (connection, mut peer) = pair(|builder| builder).await;
        let server = tokio::spawn(async move {
            let first = peer.frame().await;
            sleep(Duration::from_millis(2)).await;
            if first.as_ref().is_some_and(|(opcode, _)| *opcode == CLOSE) {
                // The client may be gone by now.
                use tokio::io::AsyncWriteExt;
                let _ = peer.stream.write_all(&close(1000, "")).await;
            }
            peer.gone().await;
            first.map(|(opcode, _)| opcode)
        });
        let closed = cut.of(connection.close(None)).await;
        if cut.polls == 0 {
            connection.send("still open".into()).await.expect("nothing has happened");
            drop(connection);
            assert_eq!(server.await.unwrap(), Some(TEXT));
        } else {
            assert!(matches!(connection.next().await, Err(Error::ClosedHere)));
            // Not before: what holds the socket is the future, not the connection.
            assert_eq!(server.await.unwrap(), Some(CLOSE));
        }
        closed.is_some()
    });
    assert!(polls > 1, "{polls}");
}
