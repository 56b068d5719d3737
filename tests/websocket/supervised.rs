//! A supervisor over the websocket connector: what the server sees.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use steadfast::websocket::{Connection, Error, Message, WebSocketConnector};
use steadfast::{
    Backoff, Cause, Failure, Growth, Handle, Lease, Policy, Session, State, Status, Stopped, Supervisor, WaitCause,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::server::{CLOSE, HANG, PING, Peer, TEXT, WsServer, close, text};

/// A tenth of the usual times, so that the tests need not wait.
fn quick() -> Policy {
    let base = Duration::from_millis(50);
    Policy::default()
        .base(base)
        .quick(Backoff::new(base, Duration::from_millis(500)))
        .growing(Growth::fixed(Duration::from_millis(500)))
        .recovery_spread(Duration::from_millis(100))
        .stable_after(Duration::from_millis(300))
        .attempt_deadline(Duration::from_secs(2))
}

fn supervisor(connector: WebSocketConnector, policy: Policy) -> Supervisor<WebSocketConnector> {
    Supervisor::builder(connector).policy(policy).build().expect("a valid policy")
}

type Messages = mpsc::Receiver<(u64, Message)>;
type Running = JoinHandle<Result<(), Stopped>>;

/// Runs a session that passes messages on, until the text `stop`.
fn forward(supervisor: Supervisor<WebSocketConnector>) -> (Handle, Messages, Running) {
    let handle = supervisor.handle();
    let (sender, receiver) = mpsc::channel(100);
    let session = move |connection: Lease<Connection>, session: Session| {
        let sender = sender.clone();
        async move {
            loop {
                let message = tokio::select! {
                    () = session.draining() => return Ok::<_, Error>(ControlFlow::Continue(())),
                    message = connection.next() => message?,
                };
                if message == Message::text("stop") {
                    return Ok(ControlFlow::Break(()));
                }
                let _ = sender.send((session.generation(), message)).await;
            }
        }
    };
    (handle, receiver, tokio::spawn(async move { supervisor.run(session).await }))
}

async fn received(receiver: &mut Messages) -> (u64, Message) {
    timeout(HANG, receiver.recv()).await.expect("no message").expect("a session")
}

async fn ended<T>(task: JoinHandle<T>) -> T {
    timeout(HANG, task).await.expect("it hangs").expect("no panic")
}

/// Answers, waits for the client to go, and tells when it began to answer.
async fn refuse(mut peer: Peer, answer: &str) -> Instant {
    peer.read_request().await;
    let answered = Instant::now();
    peer.write(format!("HTTP/1.1 {answer}\r\n\r\n")).await;
    peer.gone().await;
    answered
}

/// Waits for a status.
async fn seen(handle: &Handle, wanted: impl Fn(&Status) -> bool) -> Status {
    let until = Instant::now() + HANG;
    loop {
        let status = handle.status();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{status:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

fn last_failed(status: &Status) -> Option<Failure> {
    status.last_failure.as_ref().map(Cause::failure)
}

#[tokio::test]
async fn a_server_that_dies_refuses_and_flaps_is_found_again() {
    let server = WsServer::start().await;
    let port = server.port;
    let connector = WebSocketConnector::new(server.url()).unwrap();
    let (handle, mut messages, task) = forward(supervisor(connector, quick()));

    let mut peer = server.open().await;
    peer.write(text("first")).await;
    assert_eq!(received(&mut messages).await, (1, Message::text("first")));

    // It was up long enough; now it dies, and for a while nobody listens.
    sleep(Duration::from_millis(500)).await;
    drop(server);
    peer.reset();
    let status = seen(&handle, |status| last_failed(status) == Some(Failure::Unreachable)).await;
    assert_ne!(status.state, State::Connected);

    // It is back, and asks for time.
    let server = WsServer::on(TcpListener::bind(("127.0.0.1", port)).await.unwrap());
    let asked = refuse(server.accept().await, "503 Service Unavailable\r\nRetry-After: 1").await;
    // It takes connections and drops them.
    for _ in 0..2 {
        let mut peer = server.open().await;
        assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
        peer.write(close(1011, "flapping")).await;
        peer.gone().await;
    }
    // It is well.
    let mut peer = server.open().await;
    peer.write(text("back")).await;
    assert_eq!(received(&mut messages).await, (4, Message::text("back")));
    let status = handle.status();
    assert_eq!((status.state, status.generation), (State::Connected, 4));
    assert!(status.last_failure.unwrap().to_string().contains("1011 \"flapping\""));

    // The session is done: the supervisor says goodbye.
    peer.write(text("stop")).await;
    let (opcode, code) = peer.frame().await.unwrap();
    assert_eq!((opcode, code), (CLOSE, 1000u16.to_be_bytes().to_vec()));
    peer.write(close(1000, "")).await;
    ended(task).await.unwrap();
}

#[tokio::test]
async fn a_drain_puts_a_close_frame_on_the_wire() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(server.url()).unwrap();
    let (handle, mut messages, task) = forward(supervisor(connector, quick()));
    let mut peer = server.open().await;
    peer.write(text("hello")).await;
    received(&mut messages).await;
    let serve = async {
        assert_eq!(peer.frame().await.unwrap(), (CLOSE, 1000u16.to_be_bytes().to_vec()));
        peer.write(close(1000, "")).await;
        peer.gone().await;
    };
    timeout(HANG, async { tokio::join!(handle.drain(), serve) }).await.expect("the drain hangs");
    assert!(ended(task).await.is_err());
    assert!(server.is_idle().await, "and it dials no more");
}

#[tokio::test]
async fn a_shared_connection_is_used_and_drained_through_its_link() {
    let server = WsServer::start().await;
    // Its reader holds the connection, so the drain takes its bound.
    let policy = quick().drain(Duration::from_millis(100));
    let supervisor = supervisor(WebSocketConnector::new(server.url()).unwrap(), policy);
    let link = supervisor.keep().unwrap();
    let (live, mut peer) = tokio::join!(link.ready(), server.open());
    let live = live.unwrap();
    let reader = tokio::spawn({
        let live = live.clone();
        async move { live.next().await }
    });
    live.send("question".into()).await.unwrap();
    assert_eq!(peer.frame().await.unwrap(), (TEXT, b"question".to_vec()));
    let serve = async {
        assert_eq!(peer.frame().await.unwrap().0, CLOSE);
        peer.write(close(1000, "")).await;
        peer.gone().await;
    };
    timeout(HANG, async { tokio::join!(link.handle().drain(), serve) }).await.expect("the drain hangs");
    assert!(matches!(ended(reader).await, Err(Error::ClosedHere)));
}

#[tokio::test]
async fn what_the_reader_of_a_shared_connection_reports_brings_the_next_one() {
    let server = WsServer::start().await;
    let supervisor = supervisor(WebSocketConnector::new(server.url()).unwrap(), quick());
    let link = supervisor.keep().unwrap();
    let (live, mut peer) = tokio::join!(link.ready(), server.open());
    let live = live.unwrap();
    peer.write(close(1012, "deploy")).await;
    let error = timeout(HANG, live.next()).await.unwrap().unwrap_err();
    live.report(error);
    let _peer = server.open().await;
    let next = timeout(HANG, link.ready()).await.unwrap().unwrap();
    assert_eq!((live.generation(), next.generation()), (1, 2));
    assert!(next.send("hello".into()).await.is_ok());
}

#[tokio::test]
async fn a_silent_peer_is_replaced() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::builder(server.url())
        .ping_interval(Duration::from_millis(200))
        .pong_timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let (handle, mut messages, task) = forward(supervisor(connector, quick()));
    let mut silent = server.open().await;
    // It never answers, and gets no close frame.
    while let Some((opcode, _)) = silent.frame().await {
        assert_eq!(opcode, PING);
    }
    let mut peer = server.open().await;
    peer.write(text("hello")).await;
    assert_eq!(received(&mut messages).await, (2, Message::text("hello")));
    let cause = handle.status().last_failure.unwrap();
    assert!(cause.to_string().contains("no byte for"), "{cause}");
    task.abort();
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_at_the_deadline() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(server.url()).unwrap();
    let policy = quick().attempt_deadline(Duration::from_millis(500));
    let (handle, _messages, task) = forward(supervisor(connector, policy));
    server.accept().await.gone().await;
    let status = seen(&handle, |status| status.last_failure.is_some()).await;
    assert_eq!(last_failed(&status), Some(Failure::Timeout));
    task.abort();
}

#[tokio::test]
async fn a_refused_credential_reaches_the_server_twice_and_then_rests() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::builder(server.url()).header("Authorization", "Bearer sesame-open");
    let (handle, _messages, task) = forward(supervisor(connector.build().unwrap(), quick()));
    for _ in 0..2 {
        refuse(server.accept().await, "401 Unauthorized").await;
    }
    assert!(timeout(Duration::from_secs(2), server.accept()).await.is_err(), "a third attempt within two seconds");
    let status = handle.status();
    assert_eq!((status.state, status.wait), (State::Backoff, Some(WaitCause::Refused)));
    let cause = status.last_failure.unwrap();
    assert_eq!(cause.failure(), Failure::Unauthorized);
    assert!(cause.to_string().contains("401") && !cause.to_string().contains("sesame"), "{cause}");
    task.abort();
}

#[tokio::test]
async fn a_permanent_redirect_rests_and_names_the_location() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(server.url()).unwrap();
    let (handle, _messages, task) = forward(supervisor(connector, quick()));
    refuse(server.accept().await, "301 Moved Permanently\r\nLocation: wss://new.example/feed").await;
    assert!(timeout(Duration::from_secs(2), server.accept()).await.is_err(), "a second attempt within two seconds");
    let cause = handle.status().last_failure.unwrap();
    assert_eq!(cause.failure(), Failure::Permanent);
    assert!(cause.to_string().contains("wss://new.example/feed"), "{cause}");
    task.abort();
}

#[tokio::test]
async fn two_hundred_clients_share_one_connector() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(server.url()).unwrap();
    let supervisors: Vec<_> = (0..200).map(|_| Arc::new(Supervisor::new(connector.clone()))).collect();
    let links: Vec<_> = supervisors.iter().map(|supervisor| supervisor.keep().unwrap()).collect();
    let mut peers = Vec::new();
    for _ in 0..200 {
        peers.push(server.open().await);
    }
    for link in &links {
        timeout(HANG, link.ready()).await.unwrap().unwrap();
    }
}
