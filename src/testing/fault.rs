//! What can go wrong on the way.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::lock;
use super::pipe::Pipe;

/// Something that goes wrong with a connection, from the moment it is injected.
///
/// All but [`CutAfter`](Self::CutAfter) hold for both directions. Faults of different kinds add up; one of the same kind
/// replaces the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// So many more bytes reach the client, then its stream ends, and with it the connection. With 0 it ends at once:
    /// what is under way is lost.
    CutAfter(usize),
    /// Each byte takes so long, on top of what is under way. So does the end of the stream. An answer takes it twice.
    Latency(Duration),
    /// Reads and writes fail with this kind of error, at once and for good; what is under way is lost.
    Reset(io::ErrorKind),
    /// Half-open: nothing arrives any more, neither bytes nor the end of the stream, and nobody is told. Writes succeed
    /// until the buffer is full, and are pending from then on.
    Stall,
    /// Each read and each write moves one byte.
    Trickle,
}

/// Injects faults into one connection, while others hold its ends. Cheap to clone; owns nothing.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Wire>>);

impl Faults {
    /// Makes `fault` happen from now on.
    pub fn inject(&self, fault: Fault) {
        self.wire().inject(fault);
    }

    /// Undoes latency, stalls, trickling, and a cut that has not happened yet. Bytes that a stall held back arrive now.
    /// A connection that has ended stays so.
    pub fn heal(&self) {
        let mut wire = self.wire();
        (wire.latency, wire.stalled, wire.trickles) = (Duration::ZERO, false, false);
        if !wire.cut {
            wire.client_may_read = None;
        }
        wire.wake_all();
    }

    pub(super) fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Wire {
            to_client: Pipe::new(capacity),
            to_server: Pipe::new(capacity),
            latency: Duration::ZERO,
            stalled: false,
            trickles: false,
            client_may_read: None,
            cut: false,
            reset: None,
            ended_by: None,
        })))
    }

    pub(super) fn wire(&self) -> MutexGuard<'_, Wire> {
        lock(&self.0)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wire = self.wire();
        f.debug_struct("Faults")
            .field("latency", &wire.latency)
            .field("stalled", &wire.stalled)
            .field("trickles", &wire.trickles)
            .field("ended_by", &wire.ended_by)
            .finish_non_exhaustive()
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// Who ended a connection first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    Fault,
    Peer(Side),
}

/// Both directions of a connection, and what is wrong with them.
pub(super) struct Wire {
    to_client: Pipe,
    to_server: Pipe,
    pub(super) latency: Duration,
    pub(super) stalled: bool,
    trickles: bool,
    /// How many more bytes the client gets, where somebody counts.
    pub(super) client_may_read: Option<usize>,
    /// The client has got the last of them.
    pub(super) cut: bool,
    pub(super) reset: Option<io::ErrorKind>,
    pub(super) ended_by: Option<EndedBy>,
}

impl Wire {
    /// Tells whether it can make a difference: not once a fault has ended the connection.
    pub(super) fn inject(&mut self, fault: Fault) -> bool {
        let lives = !self.cut && self.reset.is_none();
        match fault {
            Fault::CutAfter(bytes) if !self.cut => {
                self.client_may_read = Some(bytes);
                if bytes == 0 {
                    self.cut();
                }
            }
            Fault::CutAfter(_) => {}
            Fault::Latency(latency) => self.latency = latency,
            Fault::Reset(kind) => {
                self.reset = Some(kind);
                self.end(EndedBy::Fault);
                self.forget_bytes();
            }
            Fault::Stall => self.stalled = true,
            Fault::Trickle => self.trickles = true,
        }
        self.wake_all();
        lives
    }

    pub(super) fn cut(&mut self) {
        self.cut = true;
        self.end(EndedBy::Fault);
        self.forget_bytes();
        self.wake_all();
    }

    /// Notes who came first.
    pub(super) const fn end(&mut self, by: EndedBy) {
        if self.ended_by.is_none() {
            self.ended_by = Some(by);
        }
    }

    /// The direction that `side` reads, and the one that it writes.
    pub(super) const fn pipes(&mut self, side: Side) -> (&mut Pipe, &mut Pipe) {
        match side {
            Side::Client => (&mut self.to_client, &mut self.to_server),
            Side::Server => (&mut self.to_server, &mut self.to_client),
        }
    }

    /// The most that one read or write moves.
    pub(super) const fn most(&self) -> usize {
        if self.trickles { 1 } else { usize::MAX }
    }

    fn forget_bytes(&mut self) {
        for pipe in [&mut self.to_client, &mut self.to_server] {
            (pipe.bytes, pipe.arrivals) = (VecDeque::new(), VecDeque::new());
        }
    }

    pub(super) fn wake_all(&mut self) {
        self.to_client.wake();
        self.to_server.wake();
    }
}
