//! What a supervisor over the connector promises at every step of a dial, and what nothing may show.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast::websocket::{Builder, Connection, Error, Message, WebSocketConnector};
use steadfast::{
    Backoff, Failure, Gate, Growth, Jitter, Lease, Link, Policy, Session, State, StopReason, Supervisor, WaitCause,
};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::server::{HANG, Peer, WsServer, close, pair};

fn quick() -> Policy {
    let base = Duration::from_millis(50);
    Policy::default()
        .quick(Backoff::new(base, Duration::from_millis(500)))
        .growing(Growth::fixed(Duration::from_millis(500)))
        .recovery_spread(Duration::ZERO)
        .jitter(Jitter::None)
        .attempt_deadline(Duration::from_millis(300))
}

fn keep(builder: Builder, policy: Policy) -> Link<WebSocketConnector> {
    let connector = builder.build().expect("valid settings");
    Supervisor::builder(connector).policy(policy).build().expect("a valid policy").keep().expect("it is idle")
}

async fn first_failure(link: &Link<WebSocketConnector>) -> steadfast::Cause {
    timeout(HANG, async {
        loop {
            if let Some(cause) = link.handle().status().last_failure {
                return cause;
            }
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("the deadline ends it")
}

/// Accepts and reads; writes the answer to the upgrade byte by byte, never to its end.
async fn trickle(server: WsServer) {
    let mut peer = server.accept().await;
    peer.read_request().await;
    let answer = peer.switching();
    for byte in &answer.as_bytes()[..answer.len() - 1] {
        sleep(Duration::from_millis(20)).await;
        if peer.stream.write_all(&[*byte]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn one_deadline_covers_name_tls_and_upgrade_each_of_them_hanging() {
    for step in ["name", "TLS", "upgrade", "trickle"] {
        let server = WsServer::start().await;
        let (url, port) = (server.url(), server.port);
        let builder = match step {
            "name" => WebSocketConnector::builder(format!("ws://name.test:{port}/"))
                .resolver(|_, _| std::future::pending::<std::io::Result<Vec<SocketAddr>>>()),
            "TLS" => WebSocketConnector::builder(url.replace("ws://", "wss://")),
            _ => WebSocketConnector::builder(url),
        };
        let began = Instant::now();
        let link = keep(builder, quick().growing(Growth::fixed(Duration::from_secs(60))));
        let serving = tokio::spawn(async move {
            match step {
                "trickle" => trickle(server).await,
                "name" => std::future::pending().await,
                _ => {
                    server.accept().await.gone().await;
                }
            }
        });
        let cause = first_failure(&link).await;
        let took = began.elapsed();
        assert_eq!((cause.step(), cause.failure()), ("connect", Failure::Timeout), "{step}: {cause}");
        assert!(took >= Duration::from_millis(290), "{step}: {took:?}");
        assert!(took < Duration::from_secs(5), "{step}: {took:?}");
        if step != "name" {
            timeout(HANG, serving).await.expect("the socket is closed").unwrap();
        }
    }
}

#[tokio::test]
async fn a_server_too_late_for_one_deadline_gets_three_times_as_long() {
    let server = WsServer::start().await;
    let link = keep(WebSocketConnector::builder(server.url()), quick());
    let mut lived = Vec::new();
    for _ in 0..2 {
        let peer = server.accept().await;
        let began = Instant::now();
        let mut peer: Peer = peer;
        peer.gone().await;
        lived.push(began.elapsed());
    }
    assert!(lived[0] < Duration::from_millis(850), "{lived:?}");
    assert!(lived[1] >= Duration::from_millis(850), "three times 300 ms: {lived:?}");
    // The third may take 2.7 s: a server that needs one second gains a connection.
    let mut peer = server.accept().await;
    sleep(Duration::from_secs(1)).await;
    peer.upgrade().await;
    timeout(HANG, link.ready()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_young_session_is_charged_however_politely_the_server_ends_it() {
    for code in [1000, 1001, 1012] {
        let server = WsServer::start().await;
        let connector = WebSocketConnector::new(server.url()).unwrap();
        let supervisor = Supervisor::builder(connector)
            .policy(quick().attempt_deadline(HANG).handshake_limit(HANG))
            .build()
            .unwrap();
        let handle = supervisor.handle();
        let running = tokio::spawn(async move {
            supervisor
                .run(|connection: Lease<Connection>, _: Session| async move {
                    loop {
                        connection.next().await?;
                    }
                    #[expect(unreachable_code, reason = "it names the type")]
                    Ok::<_, Error>(ControlFlow::<()>::Continue(()))
                })
                .await
        });
        let mut gaps = Vec::new();
        let mut ended = Instant::now();
        for attempt in 1..=4 {
            let mut peer = server.open().await;
            gaps.push(ended.elapsed());
            peer.write(close(code, "deploy")).await;
            peer.gone().await;
            ended = Instant::now();
            let status = handle.status();
            assert_eq!(status.attempt, attempt, "{code}");
        }
        // 50, 100, 200 ms.
        assert!(gaps[3] >= Duration::from_millis(190), "the curve grows: {code}: {gaps:?}");
        assert_eq!(handle.status().last_failure.unwrap().failure(), Failure::Planned);
        running.abort();
    }
}

/// Some who limit rates answer a connection before they have read a byte of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_before_the_request_was_read_is_the_servers_and_stops_nothing() {
    for _ in 0..30 {
        let server = WsServer::start().await;
        let url = server.url();
        let serving = tokio::spawn(async move {
            let mut peer = server.accept().await;
            let answer = "HTTP/1.1 301 Moved Permanently\r\nLocation: wss://new.example/\r\n\r\n";
            let _ = peer.stream.write_all(answer.as_bytes()).await;
            peer.gone().await;
        });
        let link = keep(WebSocketConnector::builder(url), quick().attempt_deadline(HANG).handshake_limit(HANG));
        let cause = first_failure(&link).await;
        timeout(HANG, serving).await.unwrap().unwrap();
        if cause.failure() == Failure::Permanent {
            let status = link.handle().status();
            assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Refused)), "{cause}");
        }
    }
}

#[tokio::test]
async fn what_the_request_and_the_answer_hold_is_in_no_debug_of_anything() {
    let server = WsServer::start().await;
    let builder = WebSocketConnector::builder(format!("ws://127.0.0.1:{}/hunter2-path?key=hunter2-query", server.port))
        .header("Authorization", "Bearer hunter2-header")
        .header("Cookie", "session=hunter2-cookie");
    let mut said = vec![format!("{builder:?}")];
    let connector = builder.build().unwrap();
    said.push(format!("{connector:?}"));
    let gate = Gate::builder(server.url()).policy(quick()).build().unwrap();
    let supervisor = Arc::new(
        Supervisor::builder(connector)
            .policy(quick().attempt_deadline(HANG).handshake_limit(HANG).base(Duration::from_millis(50)))
            .gate(&gate)
            .build()
            .unwrap(),
    );
    let link = supervisor.keep().unwrap();
    // Refused once, with everything repeated; then accepted, with a secret of the server's own.
    let mut peer = server.accept().await;
    peer.read_request().await;
    let body = "no: hunter2-header, hunter2-cookie, /feed?key=hunter2-query";
    peer.write(format!("HTTP/1.1 401 No\r\nWWW-Authenticate: hunter2-header\r\n\r\n{body}")).await;
    peer.gone().await;
    let refused = first_failure(&link).await;
    assert_eq!(refused.failure(), Failure::Unauthorized);
    said.extend([format!("{refused:?}"), format!("{refused}"), format!("{:?}", std::error::Error::source(&refused))]);
    let mut peer = server.accept().await;
    peer.read_request().await;
    let answer = peer.switching().replace("Upgrade: ", "Set-Cookie: id=hunter2-set\r\nUpgrade: ");
    peer.write(answer).await;
    let live = timeout(HANG, link.ready()).await.unwrap().unwrap();
    said.extend([format!("{live:?}"), format!("{:?}", *live), format!("{:?}", link.cached())]);
    peer.write(close(4001, "expired: hunter2-header")).await;
    let error = timeout(HANG, live.next()).await.unwrap().unwrap_err();
    said.extend([format!("{error:?}"), error.to_string(), format!("{:?}", *live)]);
    live.report(error);
    sleep(Duration::from_millis(20)).await;
    let status = link.handle().status();
    said.extend([format!("{status:?} {supervisor:?} {link:?} {gate:?} {:?}", link.handle())]);
    link.handle().drain().await;
    let stopped = link.ready().await.unwrap_err();
    assert_eq!(stopped.reason, StopReason::Drained);
    said.push(format!("{stopped:?} {stopped}"));
    for text in &said {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(said.iter().any(|text| text.contains("expired: [hidden]")), "{said:?}");
}

#[tokio::test]
async fn a_reader_that_waits_already_sends_on_what_a_cancelled_send_left() {
    // No ping would wake it.
    let (connection, mut peer) = pair(|builder| builder.ping_interval(Duration::MAX)).await;
    let connection = Arc::new(connection);
    let reader = tokio::spawn({
        let connection = Arc::clone(&connection);
        async move { connection.next().await }
    });
    sleep(Duration::from_millis(50)).await;
    let message = Message::binary(vec![b'x'; 12 << 20]);
    assert!(timeout(Duration::from_millis(200), connection.send(message)).await.is_err(), "the peer does not read");
    let (_, payload) = peer.frame().await.expect("it goes out whole");
    assert_eq!(payload.len(), 12 << 20);
    reader.abort();
}
