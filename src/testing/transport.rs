//! A connection in memory whose faults are switched from outside.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep_until};

use super::fault::{EndedBy, Fault, Faults, Side};
use super::pipe::{Found, remember};
use crate::runtime::Clock;

/// Makes a connection in memory: the client's end and the server's. Each direction buffers up to `capacity` bytes.
///
/// ```
/// use std::time::Duration;
/// use steadfast::testing::{Fault, duplex};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio::time::timeout;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> std::io::Result<()> {
/// let (mut client, mut server) = duplex(1024);
/// let faults = client.faults();
/// faults.inject(Fault::Stall);
/// server.write_all(b"hello").await?; // it does not know
/// assert!(timeout(Duration::from_secs(3_600), client.read_u8()).await.is_err(), "nothing arrives");
/// faults.heal();
/// assert_eq!(client.read_u8().await?, b'h');
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// If `capacity` is 0: nothing could be written.
#[must_use]
pub fn duplex(capacity: usize) -> (Transport, Transport) {
    assert!(capacity > 0, "a connection with a buffer of 0 bytes can carry nothing");
    let faults = Faults::new(capacity);
    let end = |side| Transport { side, number: 0, faults: faults.clone(), timer: None, guard: None };
    (end(Side::Client), end(Side::Server))
}

/// One end of a connection in memory: see [`duplex`]. Dropped, it ends the stream for the other side.
pub struct Transport {
    side: Side,
    pub(super) number: usize,
    faults: Faults,
    /// Fires when the next byte arrives.
    timer: Option<Pin<Box<Sleep>>>,
    /// Dropped after the stream has ended.
    pub(super) guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Transport {
    /// Gives what injects faults into this connection, whoever holds its ends.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// Injects a fault into this connection: short for `faults().inject(fault)`.
    pub fn inject(&self, fault: Fault) {
        self.faults.inject(fault);
    }

    /// The number of the dial that a scripted server gave this connection for, from 0: that of its instant in
    /// [`Seen::dials`](super::Seen::dials).
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Ready when `at` has come.
    fn poll_until(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let at = tokio::time::Instant::from_std(at);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx)
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let faults = self.faults.clone();
            let mut wire = faults.wire();
            if let Some(kind) = wire.reset {
                return Poll::Ready(Err(kind.into()));
            }
            if wire.cut || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let (stalled, most) = (wire.stalled, wire.most());
            let allowed = wire.client_may_read.filter(|_| self.side == Side::Client);
            let (pipe, _) = wire.pipes(self.side);
            let found = if stalled { Found::Nothing(None) } else { pipe.find(Clock::system().now()) };
            match found {
                Found::End => return Poll::Ready(Ok(())),
                Found::Bytes(arrived) => {
                    let count = arrived.min(most).min(buf.remaining()).min(allowed.unwrap_or(usize::MAX));
                    pipe.take(count, buf);
                    if let Some(allowed) = allowed {
                        wire.client_may_read = Some(allowed - count);
                        if allowed == count {
                            wire.cut();
                        }
                    }
                    return Poll::Ready(Ok(()));
                }
                Found::Nothing(next) => {
                    remember(&mut pipe.reader, cx);
                    drop(wire);
                    if next.is_none_or(|at| self.poll_until(at, cx).is_pending()) {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.faults.wire();
        if let Some(kind) = wire.reset {
            return Poll::Ready(Err(kind.into()));
        }
        let (stalled, cut, latency, most) = (wire.stalled, wire.cut, wire.latency, wire.most());
        let (_, pipe) = wire.pipes(self.side);
        // Behind a stall nobody is told that the other side has gone.
        if cut || pipe.end.is_some() || (pipe.unread && !stalled) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(pipe.room()).min(most);
        if count == 0 && !bytes.is_empty() {
            remember(&mut pipe.writer, cx);
            return Poll::Pending;
        }
        pipe.put(&bytes[..count], Clock::system().now(), latency);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.faults.wire().reset.map_or(Ok(()), |kind| Err(kind.into())))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.faults.wire();
        wire.end(EndedBy::Peer(self.side));
        let latency = wire.latency;
        wire.pipes(self.side).1.finish(Clock::system().now(), latency);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        let mut wire = self.faults.wire();
        wire.end(EndedBy::Peer(self.side));
        let latency = wire.latency;
        let (read, written) = wire.pipes(self.side);
        read.unread = true;
        read.wake();
        written.finish(Clock::system().now(), latency);
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("side", &self.side).field("number", &self.number).finish_non_exhaustive()
    }
}
