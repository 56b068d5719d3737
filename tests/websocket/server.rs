//! A websocket server that a test scripts byte by byte.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use steadfast::websocket::tungstenite::handshake::derive_accept_key;
use steadfast::websocket::{Builder, Connection, Error, WebSocketConnector};
use steadfast::{Attempt, Connector};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than anything that a test waits for: reaching it means that something hangs.
pub(crate) const HANG: Duration = Duration::from_secs(20);

/// One attempt.
pub(crate) async fn dial(connector: &WebSocketConnector) -> Result<Connection, Error> {
    let attempt = Attempt::first(Instant::now() + HANG);
    timeout(HANG, connector.connect(attempt)).await.expect("no answer of the connector")
}

/// An open websocket, both ends.
pub(crate) async fn pair(settings: impl FnOnce(Builder) -> Builder) -> (Connection, Peer) {
    let server = WsServer::start().await;
    let connector = settings(WebSocketConnector::builder(server.url())).build().expect("valid settings");
    let (connection, peer) = tokio::join!(dial(&connector), server.open());
    (connection.expect("an open websocket"), peer)
}

/// A listener on a port below the ephemeral range.
pub(crate) async fn listen(host: &str) -> (TcpListener, u16) {
    let start = RandomState::new().hash_one(std::process::id());
    for step in 0..12_000 {
        let port = 20_000 + u16::try_from((start.wrapping_add(step)) % 12_000).expect("below 12,000");
        if let Ok(listener) = TcpListener::bind((host, port)).await {
            return (listener, port);
        }
    }
    panic!("no free port on {host} between 20000 and 32000");
}

pub(crate) struct WsServer {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl WsServer {
    pub(crate) async fn start() -> Self {
        Self::on(listen("127.0.0.1").await.0)
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let port = listener.local_addr().expect("an address").port();
        Self { listener, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://127.0.0.1:{}/feed", self.port)
    }

    pub(crate) async fn accept(&self) -> Peer {
        let (stream, _) = timeout(HANG, self.listener.accept()).await.expect("a client").expect("accept");
        Peer::new(stream)
    }

    /// Accepts, reads the request, answers 101.
    pub(crate) async fn open(&self) -> Peer {
        let mut peer = self.accept().await;
        peer.upgrade().await;
        peer
    }

    /// Whether another client is waiting.
    pub(crate) async fn is_idle(&self) -> bool {
        timeout(Duration::from_millis(50), self.listener.accept()).await.is_err()
    }
}

/// The other end of one connection.
pub(crate) struct Peer<S = TcpStream> {
    pub(crate) stream: S,
    pub(crate) request: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, request: String::new() }
    }

    /// Reads up to the blank line.
    pub(crate) async fn read_request(&mut self) {
        while !self.request.ends_with("\r\n\r\n") {
            let byte = timeout(HANG, self.stream.read_u8()).await.expect("a request").expect("a whole request");
            self.request.push(char::from(byte));
        }
    }

    /// The right answer to the request that was read.
    pub(crate) fn switching(&self) -> String {
        let line = self.request.lines().find(|line| line.to_lowercase().starts_with("sec-websocket-key:"));
        let key = line.and_then(|line| line.split_once(": ")).map(|(_, key)| key.trim()).expect("a key");
        let accept = derive_accept_key(key.as_bytes());
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        )
    }

    pub(crate) async fn upgrade(&mut self) {
        self.read_request().await;
        let answer = self.switching();
        self.write(answer).await;
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("write");
        self.stream.flush().await.expect("flush");
    }

    /// The next frame that the client sent: opcode and payload, unmasked. `None` at the end of the stream or a reset.
    pub(crate) async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        timeout(HANG, self.read_frame()).await.expect("a frame or an end").ok()
    }

    async fn read_frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let first = self.stream.read_u8().await?;
        let second = self.stream.read_u8().await?;
        assert_eq!(second & 0x80, 0x80, "a client masks");
        let length = match second & 0x7f {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            length => u64::from(length),
        };
        let mut mask = [0; 4];
        self.stream.read_exact(&mut mask).await?;
        let mut payload = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut payload).await?;
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        Ok((first & 0x0f, payload))
    }

    /// Reads until the client is gone.
    pub(crate) async fn gone(&mut self) {
        let mut buffer = vec![0; 64 << 10];
        timeout(HANG, async { while matches!(self.stream.read(&mut buffer).await, Ok(1..)) {} })
            .await
            .expect("the client closes");
    }
}

impl Peer<TcpStream> {
    /// Ends the connection with a reset.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).expect("linger");
    }
}

pub(crate) const TEXT: u8 = 1;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// An unfragmented frame as a server sends it.
pub(crate) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..126 => bytes.push(u8::try_from(length).expect("short")),
        length @ 126..65_536 => {
            bytes.push(126);
            bytes.extend(u16::try_from(length).expect("medium").to_be_bytes());
        }
        length => {
            bytes.push(127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(payload);
    bytes
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    frame(TEXT, text.as_bytes())
}

pub(crate) fn close(code: u16, reason: &str) -> Vec<u8> {
    frame(CLOSE, &[&code.to_be_bytes(), reason.as_bytes()].concat())
}
