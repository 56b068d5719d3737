//! What happens next: a queue keyed by (instant, sequence), so that one seed gives one order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::machine::Event;

/// A handshake or a session as the server and the timers know it: stale as soon as its client does something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Errand {
    pub(super) client: usize,
    pub(super) number: u64,
}

/// Something that is due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The scenario's step of that index.
    Step(usize),
    /// News about what a client was doing.
    News(Errand, Event),
    /// The gate woke a client.
    Turned(usize),
    /// A client's timer, if it is still set to this instant.
    Timer(usize),
    /// The server is done with the handshake at the head of its queue, unless it was replaced since.
    Served(u64),
}

/// Everything that is due, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Duration, u64, Entry)>>,
    sequence: u64,
}

impl Queue {
    /// Adds something due `at` that long after the start, behind what is already due then.
    pub(super) fn push(&mut self, at: Duration, due: Due) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, Entry(due))));
    }

    /// Takes what is due first, and when.
    pub(super) fn pop(&mut self) -> Option<(Duration, Due)> {
        self.heap.pop().map(|Reverse((at, _, Entry(due)))| (at, due))
    }
}

/// Takes no part in the order: instant and sequence decide.
#[derive(Debug)]
struct Entry(Due);

impl PartialEq for Entry {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}
