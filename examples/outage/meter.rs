//! Counts what one fleet does and what it suffers, by the same rules for every fleet.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite::Message;

use crate::schedule::now;

/// The grain of the timelines.
pub(crate) const BIN: Duration = Duration::from_millis(100);

/// All counters of one fleet and its server.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    attempts: Vec<AtomicU32>,
    connected: Mutex<Vec<u32>>,
    clients: Vec<Mutex<Ledger>>,
    online: AtomicU32,
    sequence: AtomicU64,
    refused: AtomicU32,
    dropped: AtomicU32,
}

/// What one client knows.
#[derive(Debug, Default)]
struct Ledger {
    online_since: Option<Instant>,
    last_frame: Option<u64>,
    knows_of_gap: bool,
    frames: Frames,
}

/// Numbered frames that did not arrive exactly once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frames {
    /// Numbers that a client never saw, between its first frame and the end of the run.
    pub(crate) missed: u64,
    /// Of them, those whose client had noticed the loss of its session before the next frame came.
    pub(crate) told: u64,
    /// Frames whose number was not above the one before.
    pub(crate) duplicated: u64,
}

impl Meter {
    pub(crate) fn new(clients: u16, start: Instant, total: Duration) -> Arc<Self> {
        let bins = bin(total) + 1;
        Arc::new(Self {
            start,
            attempts: std::iter::repeat_with(AtomicU32::default).take(bins).collect(),
            connected: Mutex::new(Vec::with_capacity(bins)),
            clients: (0..clients).map(|_| Mutex::default()).collect(),
            online: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            refused: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
        })
    }

    /// One client's way to count.
    pub(crate) fn client(self: &Arc<Self>, number: u16) -> Client {
        Client { meter: self.clone(), number: usize::from(number) }
    }

    /// The server numbered a frame.
    pub(crate) fn numbered(&self, frame: u64) {
        self.sequence.store(frame, Relaxed);
    }

    /// The server refused a handshake: a reset, or a 503.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The server accepted and dropped.
    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Notes how many are connected now, also for the bins that a busy machine has skipped.
    pub(crate) fn sample(&self) {
        let bins = (bin(self.elapsed()) + 1).min(self.attempts.len());
        lock(&self.connected).resize(bins, self.online());
    }

    pub(crate) fn clients(&self) -> u32 {
        u32::try_from(self.clients.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn online(&self) -> u32 {
        self.online.load(Relaxed)
    }

    /// Attempts in each 100 ms of the run.
    pub(crate) fn attempts(&self) -> Vec<u32> {
        self.attempts.iter().map(|count| count.load(Relaxed)).collect()
    }

    /// Clients connected at each 100 ms of the run.
    pub(crate) fn connected(&self) -> Vec<u32> {
        lock(&self.connected).clone()
    }

    /// Handshakes that the server reset or answered with 503.
    pub(crate) fn refusals(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    /// Sessions that the server accepted only to drop them.
    pub(crate) fn accepted_and_dropped(&self) -> u32 {
        self.dropped.load(Relaxed)
    }

    /// When the clients that are connected now came back for good, sorted.
    pub(crate) fn back(&self) -> Vec<Duration> {
        let mut back: Vec<_> = self
            .clients
            .iter()
            .filter_map(|ledger| lock(ledger).online_since)
            .map(|since| since.saturating_duration_since(self.start))
            .collect();
        back.sort_unstable();
        back
    }

    /// The frames of all clients; what a client that is still away misses counts too.
    pub(crate) fn frames(&self) -> Frames {
        let sequence = self.sequence.load(Relaxed);
        let mut sum = Frames::default();
        for ledger in &self.clients {
            let ledger = lock(ledger);
            sum.missed += ledger.frames.missed;
            sum.told += ledger.frames.told;
            sum.duplicated += ledger.frames.duplicated;
            if ledger.online_since.is_none() {
                let away = ledger.last_frame.map_or(0, |last| sequence.saturating_sub(last));
                sum.missed += away;
                sum.told += if ledger.knows_of_gap { away } else { 0 };
            }
        }
        sum
    }

    pub(crate) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.start)
    }
}

/// What a client of any fleet reports.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    meter: Arc<Meter>,
    number: usize,
}

impl Client {
    /// It dials.
    pub(crate) fn dials(&self) {
        if let Some(bin) = self.meter.attempts.get(bin(self.meter.elapsed())) {
            bin.fetch_add(1, Relaxed);
        }
    }

    /// It has a connection, until what this returns is dropped.
    pub(crate) fn connected(&self) -> Online {
        self.ledger().online_since = Some(now());
        self.meter.online.fetch_add(1, Relaxed);
        Online { client: self.clone() }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.meter.clients[self.number])
    }
}

/// One session of a client.
#[derive(Debug)]
pub(crate) struct Online {
    client: Client,
}

impl Online {
    /// A message came; the server sends nothing but numbers.
    pub(crate) fn message(&self, message: &Message) {
        if let Some(number) = message.to_text().ok().and_then(|text| text.parse().ok()) {
            self.client.ledger().frame(number);
        }
    }

    /// The client's own code learnt that frames may be missing: its session ended, or this is a new one.
    pub(crate) fn knows_of_gap(&self) {
        self.client.ledger().knows_of_gap = true;
    }
}

impl Drop for Online {
    fn drop(&mut self) {
        self.client.ledger().online_since = None;
        self.client.meter.online.fetch_sub(1, Relaxed);
    }
}

impl Ledger {
    fn frame(&mut self, number: u64) {
        if let Some(last) = self.last_frame {
            if number <= last {
                self.frames.duplicated += 1;
                return;
            }
            let missed = number - last - 1;
            self.frames.missed += missed;
            self.frames.told += if self.knows_of_gap { missed } else { 0 };
        }
        self.last_frame = Some(number);
        self.knows_of_gap = false;
    }
}

fn bin(elapsed: Duration) -> usize {
    usize::try_from(elapsed.as_millis() / BIN.as_millis()).unwrap_or(usize::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64) -> Message {
        Message::text(number.to_string())
    }

    #[test]
    fn a_gap_counts_as_told_only_after_the_loss_was_noticed() {
        let meter = Meter::new(1, now(), BIN);
        let client = meter.client(0);
        let online = client.connected();
        online.message(&frame(1));
        online.message(&frame(4));
        online.knows_of_gap();
        drop(online);
        let online = client.connected();
        online.message(&frame(9));
        online.message(&frame(9));
        let frames = meter.frames();
        assert_eq!((frames.missed, frames.told, frames.duplicated), (6, 4, 1));
    }

    #[test]
    fn frames_missed_by_a_client_that_never_came_back_count() {
        let meter = Meter::new(2, now(), BIN);
        let (told, untold) = (meter.client(0), meter.client(1));
        for client in [&told, &untold] {
            client.connected().message(&frame(1));
        }
        told.connected().knows_of_gap();
        meter.numbered(11);
        let frames = meter.frames();
        assert_eq!((frames.missed, frames.told), (20, 10));
    }
}
