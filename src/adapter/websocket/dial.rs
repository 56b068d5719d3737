//! From a name to a TCP connection: resolve afresh, race the addresses, set the socket up.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::error::Error;

/// How long one address may take before the next is tried beside it: RFC 8305 recommends 250 ms. Shorter dials twice
/// on slow but healthy links, longer leaves a user waiting behind a dead family.
const STAGGER: Duration = Duration::from_millis(250);
/// At most so many addresses of one answer are tried.
const MAX_ADDRESSES: usize = 16;
/// Kernel keepalive, for connections whose reader is not polled: first probe, distance, number.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
#[cfg(target_os = "linux")]
const KEEPALIVE_PROBES: u32 = 3;
type Resolving = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// How a name becomes addresses.
#[derive(Clone)]
pub(super) struct Resolver(Arc<dyn Fn(String, u16) -> Resolving + Send + Sync>);

impl Resolver {
    pub(super) fn new<F, Fut>(resolve: F) -> Self
    where
        F: Fn(String, u16) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        Self(Arc::new(move |host, port| Box::pin(resolve(host, port))))
    }

    /// The operating system's.
    pub(super) fn system() -> Self {
        Self::new(|host, port| async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Opens one TCP connection to `host`: the first of its addresses that answers. Bytes that stay unacknowledged for
/// longer than `patience` end it.
pub(super) async fn dial(host: &str, port: u16, resolver: &Resolver, patience: Duration) -> Result<TcpStream, Error> {
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => {
            let answer = (resolver.0)(host.to_owned(), port).await;
            answer.and_then(not_empty).map_err(|source| Error::resolve(host, source))?
        }
    };
    let stream = race(in_turn(addresses)).await?;
    // None of the options decides whether the connection works, so a platform that refuses one is no failed attempt.
    let _ = set_up(&stream, patience);
    Ok(stream)
}

fn not_empty(addresses: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

/// The addresses with the two families in turn, so that the second attempt is the other family's.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut turns = Vec::with_capacity(one.len() + other.len());
    one.reverse();
    other.reverse();
    while !one.is_empty() || !other.is_empty() {
        turns.extend(one.pop());
        turns.extend(other.pop());
    }
    turns.truncate(MAX_ADDRESSES);
    turns
}

/// Dials the addresses one after the other, the next as soon as one failed or took [`STAGGER`]; the first that stands
/// wins and the rest is dropped, which closes them.
async fn race(addresses: Vec<SocketAddr>) -> Result<TcpStream, Error> {
    let mut waiting = addresses.into_iter();
    let mut dials = FuturesUnordered::new();
    let mut failed = Vec::new();
    let mut stagger = pin!(sleep(STAGGER));
    dials.extend(waiting.next().map(connect));
    loop {
        tokio::select! {
            biased;
            dialled = dials.next() => match dialled {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(failure)) => {
                    failed.push(failure);
                    dials.extend(waiting.next().map(connect));
                }
                None => return Err(Error::connect(failed)),
            },
            () = &mut stagger, if waiting.len() > 0 => dials.extend(waiting.next().map(connect)),
        }
        stagger.set(sleep(STAGGER));
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, (SocketAddr, io::Error)> {
    TcpStream::connect(address).await.and_then(not_itself).map_err(|error| (address, error))
}

fn not_itself(stream: TcpStream) -> io::Result<TcpStream> {
    // A dial of a closed port in the ephemeral range can meet itself: nobody listens, and the port would be taken
    // from the server that wants to come back on it.
    // (A peer that reset at once has no address any more; that is for the handshake to find.)
    if stream.local_addr().is_ok_and(|local| stream.peer_addr().is_ok_and(|peer| local == peer)) {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connected to itself: nobody listens there"));
    }
    Ok(stream)
}

/// Keepalive finds a silent peer while nothing is sent, the user timeout while something is; neither does the other's
/// work.
fn set_up(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    #[cfg(target_os = "linux")]
    let keepalive = keepalive.with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(patience))?;
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::hash_map::RandomState;
    use std::hash::BuildHasher;
    use std::io;
    use std::net::SocketAddr;
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::net::{TcpListener, TcpSocket};

    use super::{MAX_ADDRESSES, Resolver, dial, in_turn, not_itself};

    /// A listener below the ephemeral range, where no outgoing connection takes its port.
    pub(in super::super) async fn listen() -> (TcpListener, u16) {
        for port in ports() {
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
                return (listener, port);
            }
        }
        panic!("no free port between 20000 and 32000");
    }

    /// Every port from 20000 to 31999, from anywhere among them.
    fn ports() -> impl Iterator<Item = u16> {
        let start = RandomState::new().hash_one(0);
        (0..12_000).map(move |step| u16::try_from(20_000 + start.wrapping_add(step) % 12_000).unwrap())
    }

    #[test]
    fn the_families_take_turns() {
        let parse = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let turns = in_turn(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "127.0.0.1:1", "127.0.0.2:1"]));
        assert_eq!(turns, parse(&["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1", "[::3]:1"]));
        assert_eq!(in_turn(parse(&["127.0.0.1:1", "[::1]:1"])), parse(&["127.0.0.1:1", "[::1]:1"]));
        assert_eq!(in_turn(parse(&["127.0.0.1:1"; 100])).len(), MAX_ADDRESSES);
        assert!(in_turn(Vec::new()).is_empty());
    }

    /// What a dial of a closed port in the ephemeral range does now and then, done on purpose.
    #[tokio::test]
    async fn a_connection_to_oneself_counts_as_refused() {
        // Bound and never let go of: somebody else would take the port in between.
        let bind = |port| {
            let (own, socket) = (SocketAddr::from(([127, 0, 0, 1], port)), TcpSocket::new_v4().unwrap());
            socket.bind(own).ok().map(|()| (own, socket))
        };
        let (own, socket) = ports().find_map(bind).expect("a free port between 20000 and 32000");
        let stream = socket.connect(own).await.unwrap();
        assert_eq!(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        assert_eq!(not_itself(stream).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn the_socket_is_set_up_to_notice_a_vanished_peer() {
        let (_listener, port) = listen().await;
        let stream = dial("127.0.0.1", port, &Resolver::system(), Duration::from_secs(35)).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap() && socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().unwrap(), super::KEEPALIVE_AFTER);
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), super::KEEPALIVE_PROBES);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(35)));
        }
    }

    #[tokio::test]
    async fn a_patience_without_end_is_no_failed_dial() {
        let (_listener, port) = listen().await;
        assert!(dial("127.0.0.1", port, &Resolver::system(), Duration::MAX).await.is_ok());
    }
}
