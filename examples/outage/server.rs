//! A websocket server of limited capacity that can be killed, can refuse, and can flap.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_async, accept_hdr_async};

use crate::meter::Meter;
use crate::schedule::{Phase, now};

/// Handshakes a second that the server takes; it resets what is beyond.
pub(crate) const HANDSHAKES_PER_SECOND: f64 = 50.0;
/// What it says while it answers with 503.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");
/// Numbered frames: ten a second, to everyone.
const FRAME_EVERY: Duration = Duration::from_millis(100);
/// How long a session lives while the server flaps.
const FLAP: Duration = Duration::from_millis(100);
/// How long a client may take over its side of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Frames that a slow session may lag behind before it is cut off.
const LAG: usize = 64;

/// Where servers listen: below the ports that systems hand out to clients.
const PORTS: Range<u16> = 20_000..32_000;

/// Listens on the first free port from a random one on.
pub(crate) async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let start = rand::random_range(PORTS);
    let mut refused = io::ErrorKind::AddrInUse.into();
    for port in (start..PORTS.end).chain(PORTS.start..start) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok((listener, address)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Serves for ever, as the phase says.
pub(crate) async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    burst: u8,
    mut phase: watch::Receiver<Phase>,
    meter: Arc<Meter>,
) -> io::Result<()> {
    let frames = broadcast::Sender::new(LAG);
    let mut feed = JoinSet::new();
    feed.spawn(number_frames(frames.clone(), meter.clone()));
    let mut bucket = Bucket::full(burst, now());
    let mut sessions = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        let current = *phase.borrow_and_update();
        if current == Phase::Killed {
            listener = None;
            sessions.shutdown().await;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await?);
        }
        tokio::select! {
            stream = accept(listener.as_ref()) => {
                let stream = stream?;
                if bucket.take(now()) {
                    sessions.spawn(answer(stream, current, frames.subscribe(), meter.clone()));
                } else {
                    meter.refused();
                    stream.set_zero_linger()?;
                }
            }
            changed = phase.changed() => if changed.is_err() { return Ok(()) },
            Some(_) = sessions.join_next() => {}
        }
    }
}

/// Waits for ever where nobody listens.
async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// The feed goes on whoever listens: what nobody receives is missed.
async fn number_frames(frames: broadcast::Sender<u64>, meter: Arc<Meter>) {
    let mut ticks = interval(FRAME_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for number in 0.. {
        ticks.tick().await;
        meter.numbered(number);
        let _nobody_listens = frames.send(number);
    }
}

async fn answer(mut stream: TcpStream, phase: Phase, frames: broadcast::Receiver<u64>, meter: Arc<Meter>) {
    let ended = if phase == Phase::Unavailable {
        meter.refused();
        timeout(HANDSHAKE_LIMIT, refuse(&mut stream)).await.is_ok()
    } else {
        admit(&mut stream, phase, frames, &meter).await.is_ok()
    };
    tracing::trace!(?phase, ended, "answered");
}

async fn refuse(stream: &mut TcpStream) {
    #[expect(clippy::result_large_err, reason = "the callback's type is fixed by tungstenite")]
    let unavailable = |_: &Request, _: Response| -> Result<Response, ErrorResponse> {
        let mut response = ErrorResponse::new(None);
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        Err(response)
    };
    let _refused = accept_hdr_async(stream, unavailable).await;
}

async fn admit(
    stream: &mut TcpStream,
    phase: Phase,
    frames: broadcast::Receiver<u64>,
    meter: &Meter,
) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    // Whatever ends this task ends the connection as a crash would: by a reset.
    stream.set_zero_linger()?;
    let Ok(accepted) = timeout(HANDSHAKE_LIMIT, accept_async(stream)).await else { return Ok(()) };
    let socket = accepted?;
    if phase == Phase::Flapping {
        meter.dropped();
        let _cut = timeout(FLAP, session(socket, frames)).await;
        return Ok(());
    }
    session(socket, frames).await
}

async fn session(
    mut socket: WebSocketStream<&mut TcpStream>,
    mut frames: broadcast::Receiver<u64>,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            frame = frames.recv() => match frame {
                Ok(number) => socket.send(Message::text(number.to_string())).await?,
                Err(_lagging_or_over) => return Ok(()),
            },
            message = socket.next() => match message {
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
        }
    }
}

/// A token bucket.
struct Bucket {
    size: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn full(burst: u8, now: Instant) -> Self {
        let size = f64::from(burst);
        Self { size, tokens: size, filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * HANDSHAKES_PER_SECOND).min(self.size);
        self.filled = now;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_takes_its_rate_and_no_more() {
        let start = now();
        let mut bucket = Bucket::full(5, start);
        let taken = (0..10_000).filter(|n| bucket.take(start + Duration::from_millis(1) * *n)).count();
        assert!((504..=505).contains(&taken), "{taken} in 10 s after a burst of 5");
    }
}
