//! From a URL to an open websocket, against servers that answer well, badly or not at all.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use steadfast::websocket::rustls::RootCertStore;
use steadfast::websocket::{Builder, Error, Message, WebSocketConnector};
use steadfast::{Attempt, Connector, Failure};
use tokio::time::timeout;

use crate::server::{HANG, Peer, WsServer, close, dial, listen, text};

fn connector(server: &WsServer) -> WebSocketConnector {
    WebSocketConnector::new(server.url()).expect("a valid URL")
}

/// Dials a server that answers `answer` to the upgrade request.
async fn answered(answer: &str) -> Error {
    answered_to(answer, |builder| builder).await
}

async fn answered_to(answer: &str, settings: impl FnOnce(Builder) -> Builder) -> Error {
    let server = WsServer::start().await;
    let connector = settings(WebSocketConnector::builder(server.url())).build().expect("valid settings");
    let serve = async {
        let mut peer = server.accept().await;
        peer.read_request().await;
        peer.write(answer).await;
        peer.gone().await;
    };
    let (result, ()) = tokio::join!(dial(&connector), serve);
    result.err().unwrap_or_else(|| panic!("connected by {answer:?}"))
}

fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

#[tokio::test]
async fn the_request_has_path_query_host_and_headers() {
    let server = WsServer::start().await;
    let url = format!("ws://127.0.0.1:{}/a/b?c=d", server.port);
    let connector = WebSocketConnector::builder(&url)
        .header("Authorization", "Bearer token")
        .header("Sec-WebSocket-Protocol", "chat")
        .header("X-Twice", "1")
        .header("X-Twice", "2");
    let connector = connector.build().unwrap();
    let serve = async {
        let mut peer = server.accept().await;
        peer.read_request().await;
        let answer = peer.switching().replace("Upgrade: ", "Sec-WebSocket-Protocol: chat\r\nUpgrade: ");
        peer.write(answer).await;
        peer.request
    };
    let (connection, request) = tokio::join!(dial(&connector), serve);
    assert!(request.starts_with("GET /a/b?c=d HTTP/1.1\r\n"), "{request}");
    let host = format!("host: 127.0.0.1:{}", server.port);
    for line in [&host, "authorization: bearer token", "sec-websocket-protocol: chat", "x-twice: 1", "x-twice: 2"] {
        assert_eq!(request.to_lowercase().matches(&format!("\r\n{line}\r\n")).count(), 1, "{line} in {request}");
    }
    assert_eq!(connection.unwrap().answer().get("sec-websocket-protocol").unwrap(), "chat");
}

#[tokio::test]
async fn a_host_header_replaces_the_one_of_the_url() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::builder(server.url()).header("Host", "other.example").build().unwrap();
    let (connection, peer) = tokio::join!(dial(&connector), server.open());
    assert!(connection.is_ok());
    let hosts: Vec<_> = peer.request.lines().filter(|line| line.to_lowercase().starts_with("host:")).collect();
    assert_eq!(hosts, ["Host: other.example"]);
}

#[tokio::test]
async fn frames_that_come_with_the_answer_are_not_lost() {
    let server = WsServer::start().await;
    let serve = async {
        let mut peer = server.accept().await;
        peer.read_request().await;
        let glued = [peer.switching().into_bytes(), text("first"), text("second"), close(1012, "bye")].concat();
        peer.write(glued).await;
        peer
    };
    let connector = connector(&server);
    let (connection, _peer) = tokio::join!(dial(&connector), serve);
    let connection = connection.unwrap();
    assert_eq!(connection.next().await.unwrap(), Message::text("first"));
    assert_eq!(connection.next().await.unwrap(), Message::text("second"));
    assert!(matches!(connection.next().await, Err(Error::Closed { code: 1012, .. })));
}

/// The raw crate waits for ever in each of these; all that helps is that dropping the future ends everything.
#[tokio::test]
async fn an_attempt_dropped_at_its_deadline_leaves_nothing_open() {
    enum Script {
        Silent,
        Half,
        Trickle,
    }
    for script in [Script::Silent, Script::Half, Script::Trickle] {
        let server = WsServer::start().await;
        let connector = connector(&server);
        let serve = async {
            let mut peer = server.accept().await;
            match script {
                Script::Silent => {}
                Script::Half => {
                    peer.read_request().await;
                    let answer = peer.switching();
                    peer.write(&answer[..answer.len() / 2]).await;
                }
                Script::Trickle => {
                    peer.read_request().await;
                    let answer = peer.switching();
                    for byte in answer.as_bytes() {
                        if tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &[*byte]).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
            peer.gone().await;
        };
        let attempt = Attempt::first(Instant::now() + HANG);
        let dialled = timeout(Duration::from_millis(300), connector.connect(attempt));
        let (dialled, ()) = tokio::join!(dialled, serve);
        assert!(dialled.is_err(), "nothing connects, and nothing fails before the deadline");
        assert!(server.is_idle().await);
    }
}

#[tokio::test]
async fn a_tls_handshake_that_is_never_answered_ends_with_the_attempt() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(format!("wss://127.0.0.1:{}/", server.port)).unwrap();
    let attempt = Attempt::first(Instant::now() + HANG);
    let dialled = timeout(Duration::from_millis(300), connector.connect(attempt));
    let (dialled, ()) = tokio::join!(dialled, async { server.accept().await.gone().await });
    assert!(dialled.is_err());
}

#[tokio::test]
async fn a_connection_cut_in_the_handshake_is_transient() {
    let server = WsServer::start().await;
    let connector = connector(&server);
    for script in ["fin", "reset after the request", "reset at once"] {
        let serve = async {
            let mut peer = server.accept().await;
            if script != "reset at once" {
                peer.read_request().await;
            }
            if script != "fin" {
                peer.reset();
            }
        };
        let (result, ()) = tokio::join!(dial(&connector), serve);
        let error = result.unwrap_err();
        // The reset may be there before the dial is over.
        assert!(matches!(error, Error::Upgrade { .. } | Error::Connect { .. }), "{script}: {error:?}");
        assert_eq!(error.failure(), Failure::Transient, "{script}: {}", chain(&error));
    }
    let (result, _peer) = tokio::join!(dial(&connector), server.open());
    assert!(result.is_ok(), "and it connects as soon as the server does what it should");
}

#[tokio::test]
async fn another_protocol_on_the_port_is_transient() {
    for answer in ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "\0\0\0\x04\0\0"] {
        assert_eq!(answered(answer).await.failure(), Failure::Transient, "{answer:?}");
    }
}

#[tokio::test]
async fn a_status_says_what_a_refusal_means() {
    let two = Some(Duration::from_secs(2));
    for (answer, failure) in [
        ("500 Internal Server Error\r\n", Failure::Transient),
        ("502 Bad Gateway\r\n", Failure::Transient),
        ("503 Service Unavailable\r\n", Failure::Transient),
        ("504 Gateway Timeout\r\n", Failure::Transient),
        ("408 Request Timeout\r\n", Failure::Transient),
        ("404 Not Found\r\n", Failure::Transient),
        ("401 Unauthorized\r\n", Failure::Unauthorized),
        ("403 Forbidden\r\n", Failure::Unauthorized),
        ("429 Too Many Requests\r\nRetry-After: 2\r\n", Failure::Throttled { retry_after: two }),
        ("429 Too Many Requests\r\n", Failure::Throttled { retry_after: None }),
        ("503 Service Unavailable\r\nretry-after: 2\r\n", Failure::Throttled { retry_after: two }),
        ("503 Service Unavailable\r\nRetry-After:\r\n", Failure::Transient),
        ("503 Service Unavailable\r\nRetry-After: -5\r\n", Failure::Transient),
        (
            "503 Busy\r\nRetry-After: soon\r\nRetry-After: 2\r\nRetry-After: 1\r\n",
            Failure::Throttled { retry_after: two },
        ),
    ] {
        let error = answered(&format!("HTTP/1.1 {answer}\r\n")).await;
        assert!(matches!(error, Error::Refused(_)), "{answer}: {error:?}");
        assert_eq!(error.failure(), failure, "{answer}");
        assert!(error.to_string().contains(&answer[..3]), "{error}");
    }
}

#[tokio::test]
async fn retry_after_as_a_date_counts_from_its_arrival() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
    let error = answered(&format!("HTTP/1.1 503 Busy\r\nRetry-After: {date}\r\n\r\n")).await;
    let Failure::Throttled { retry_after: Some(wait) } = error.failure() else { panic!("{error}") };
    // The format has whole seconds, and a busy machine may take a while to get here.
    assert!(wait <= Duration::from_secs(100) && wait > Duration::from_secs(70), "{wait:?}");
}

#[tokio::test]
async fn an_http_1_0_answer_is_read_like_any_other() {
    let error = answered("HTTP/1.0 503 Service Unavailable\r\nRetry-After: 2\r\n\r\nmaintenance").await;
    assert_eq!(error.failure(), Failure::Throttled { retry_after: Some(Duration::from_secs(2)) });
    assert!(error.to_string().contains("maintenance"), "{error}");
    assert_eq!(answered("HTTP/1.0 502 Bad Gateway\r\n\r\n").await.failure(), Failure::Transient);
}

#[tokio::test]
async fn an_http_1_0_answer_upgrades_nothing() {
    let server = WsServer::start().await;
    let serve = async {
        let mut peer = server.accept().await;
        peer.read_request().await;
        let answer = peer.switching().replace("HTTP/1.1", "HTTP/1.0");
        peer.write(answer).await;
        peer.gone().await;
    };
    let connector = connector(&server);
    let (result, ()) = tokio::join!(dial(&connector), serve);
    assert_eq!(result.unwrap_err().failure(), Failure::Transient);
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_says_where_to() {
    let elsewhere = WsServer::start().await;
    let location = format!("Location: https://me:hunter2@127.0.0.1:{}/login?token=hunter2", elsewhere.port);
    for (status, failure) in [(301, Failure::Permanent), (308, Failure::Permanent), (302, Failure::Transient)] {
        let error = answered(&format!("HTTP/1.1 {status} Moved\r\n{location}\r\n\r\n")).await;
        assert_eq!(error.failure(), failure, "{status}");
        let text = error.to_string();
        assert!(text.contains(&format!("https://127.0.0.1:{}/login", elsewhere.port)), "{text}");
        assert!(!text.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{text} {error:?}");
    }
    assert!(elsewhere.is_idle().await);
}

#[tokio::test]
async fn the_start_of_a_page_in_place_of_an_upgrade_is_in_the_error() {
    let error = answered("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n<html>Welcome to the hotel</html>").await;
    assert_eq!(error.failure(), Failure::Transient);
    assert!(error.to_string().contains("200 OK") && error.to_string().contains("Welcome to the hotel"), "{error}");
    let Error::Refused(refusal) = error else { panic!("{error:?}") };
    assert_eq!((refusal.status().as_u16(), refusal.headers().len()), (200, 1));
    assert!(refusal.body().starts_with(b"<html>"));
}

#[tokio::test]
async fn a_server_that_repeats_a_credential_brings_it_into_no_error() {
    let answer =
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer sesame-open\r\n\r\nbad token sesame-open, key tr1ckster";
    let error = answered_to(answer, |builder| builder.header("Authorization", "Bearer sesame-open")).await;
    for text in [chain(&error), format!("{error:?}")] {
        assert!(text.contains("bad token [hidden]") && !text.contains("sesame"), "{text}");
    }
}

#[tokio::test]
async fn settings_and_connector_show_no_secret() {
    let builder = WebSocketConnector::builder("wss://host/path-hunter2?key=hunter2").header("Authorization", "hunter2");
    assert!(format!("{builder:?}").contains("Authorization"));
    assert!(!format!("{builder:?}").contains("hunter2"));
    let connector = builder.build().unwrap();
    assert!(!format!("{connector:?}").contains("hunter2"));
    assert_eq!(connector.endpoint().as_str(), "wss://host");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let builder = || WebSocketConnector::builder("ws://host");
    for (builder, setting) in [
        (WebSocketConnector::builder("ws://host:99999/"), "url"),
        (WebSocketConnector::builder("http://host/"), "url"),
        (WebSocketConnector::builder("wss://exa_mple..com/"), "url"),
        (builder().header("bad name", "value"), "header"),
        (builder().ping_interval(Duration::ZERO), "ping_interval"),
        (builder().pong_timeout(Duration::ZERO), "pong_timeout"),
        (builder().send_timeout(Duration::ZERO), "send_timeout"),
        (builder().max_message_size(0), "max_message_size"),
        (builder().max_frame_size(0), "max_frame_size"),
        (WebSocketConnector::builder("wss://host").roots(RootCertStore::empty()), "roots"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.setting(), setting);
        assert!(error.to_string().starts_with(&format!("websocket: {setting} is `")), "{error}");
    }
    let far = builder().ping_interval(Duration::MAX).pong_timeout(Duration::MAX).send_timeout(Duration::MAX);
    assert!(far.build().is_ok());
}

/// A listener whose queue is full: the kernel drops what dials it.
struct Blackhole {
    address: SocketAddr,
    _held: Vec<socket2::Socket>,
}

impl Blackhole {
    /// On the IPv6 loopback address where there is one, else on another IPv4 one.
    fn dig(port: u16) -> Self {
        let address = SocketAddr::new("::1".parse().expect("an address"), port);
        Self::on(address)
            .or_else(|_| Self::on(SocketAddr::new("127.0.0.2".parse().expect("an address"), port)))
            .expect("a listener")
    }

    fn on(address: SocketAddr) -> io::Result<Self> {
        let socket = || socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None);
        let listener = socket()?;
        listener.bind(&address.into())?;
        listener.listen(0)?;
        let mut held = vec![listener];
        for _ in 0..6 {
            let client = socket()?;
            client.set_nonblocking(true)?;
            let _ = client.connect(&address.into());
            held.push(client);
        }
        Ok(Self { address, _held: held })
    }
}

fn with_addresses(port: u16, addresses: Vec<SocketAddr>) -> WebSocketConnector {
    WebSocketConnector::builder(format!("ws://name.test:{port}/"))
        .resolver(move |_, _| std::future::ready(Ok(addresses.clone())))
        .build()
        .expect("valid settings")
}

#[tokio::test]
async fn an_address_that_drops_packets_delays_by_a_quarter_of_a_second() {
    let server = WsServer::start().await;
    let hole = Blackhole::dig(server.port);
    let live = SocketAddr::new("127.0.0.1".parse().unwrap(), server.port);
    let connector = with_addresses(server.port, vec![hole.address, live]);
    let started = Instant::now();
    let (connection, _peer) = tokio::join!(dial(&connector), server.open());
    assert!(started.elapsed() >= Duration::from_millis(250), "the first address had its chance");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(connection.unwrap().peer_addr(), Some(live));
    assert!(server.is_idle().await, "one connection, on the winner");
}

#[tokio::test]
async fn an_address_that_refuses_does_not_delay() {
    let server = WsServer::start().await;
    let live = SocketAddr::new("127.0.0.1".parse().unwrap(), server.port);
    let connector = with_addresses(server.port, vec![closed_port().await, closed_port().await, live]);
    let (connection, _peer) = tokio::join!(dial(&connector), server.open());
    assert_eq!(connection.unwrap().peer_addr(), Some(live));
    assert!(server.is_idle().await);
}

async fn closed_port() -> SocketAddr {
    let (listener, _) = listen("127.0.0.1").await;
    listener.local_addr().expect("an address")
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_every_address_is_named() {
    let (first, second) = (closed_port().await, closed_port().await);
    let error = dial(&with_addresses(80, vec![first, second])).await.unwrap_err();
    assert_eq!(error.failure(), Failure::Unreachable);
    let text = chain(&error);
    assert!(text.contains(&first.to_string()) && text.contains(&second.to_string()), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn the_name_is_resolved_afresh_for_each_attempt() {
    let server = WsServer::start().await;
    let live = SocketAddr::new("127.0.0.1".parse().unwrap(), server.port);
    let dead = closed_port().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let connector = WebSocketConnector::builder("ws://name.test:7/feed")
        .resolver(move |host, port| {
            assert_eq!((host.as_str(), port), ("name.test", 7));
            let answer = match count.fetch_add(1, Ordering::Relaxed) {
                0 => Err(io::Error::other("temporary failure in name resolution")),
                1 => Ok(Vec::new()),
                2 => Ok(vec![dead]),
                _ => Ok(vec![live]),
            };
            std::future::ready(answer)
        })
        .build()
        .unwrap();
    for attempt in 0..3 {
        let error = dial(&connector).await.unwrap_err();
        assert_eq!(error.failure(), Failure::Unreachable, "{}", chain(&error));
        assert_eq!(asked.load(Ordering::Relaxed), attempt + 1);
    }
    let (connection, _peer) = tokio::join!(dial(&connector), server.open());
    assert!(connection.is_ok());
    assert_eq!(asked.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn an_ip_address_is_not_looked_up() {
    let server = WsServer::start().await;
    let connector =
        WebSocketConnector::builder(server.url()).resolver(|_, _| async { panic!("asked") }).build().unwrap();
    let (connection, _peer) = tokio::join!(dial(&connector), server.open());
    assert!(connection.is_ok());
}

#[tokio::test]
async fn the_systems_resolver_finds_localhost() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(format!("ws://localhost:{}/", server.port)).unwrap();
    let (connection, _peer) = tokio::join!(dial(&connector), server.open());
    assert!(connection.is_ok());
}

#[tokio::test]
async fn a_plain_server_on_a_tls_port_is_transient() {
    let server = WsServer::start().await;
    let connector = WebSocketConnector::new(format!("wss://127.0.0.1:{}/", server.port)).unwrap();
    let serve = async {
        let mut peer: Peer = server.accept().await;
        peer.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        peer.gone().await;
    };
    let (result, ()) = tokio::join!(dial(&connector), serve);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Tls { .. }), "{error:?}");
    assert_eq!(error.failure(), Failure::Transient);
}
