//! The scripted server at work.

use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::iter;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::sleep;

use super::answer::{Answer, Kind};
use super::fault::{EndedBy, Fault, Faults, Side};
use super::lock;
use super::seen::Seen;
use super::transport::{Transport, duplex};
use crate::runtime::{Attempt, Clock};

/// How much each direction of a connection buffers.
const CAPACITY: usize = 64 << 10;

/// What a server and its connectors share.
pub(super) struct Shared {
    start: Instant,
    handler: Handler,
    script: Mutex<Script>,
    record: Mutex<Record>,
    /// Rings when dials under way are reset.
    down: Notify,
    /// Rings when the record changes.
    changed: Notify,
    panicked: AtomicBool,
}

type Handler = Box<dyn Fn(Transport) -> Served + Send + Sync>;
type Served = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;
type Answers = Box<dyn Iterator<Item = Answer> + Send>;

struct Script {
    /// Under a lock of its own, which is the only one held while an answer is made: making one may change the server.
    next: Arc<Mutex<Answers>>,
    then: Answer,
}

impl Script {
    fn new(answers: Answers, then: Answer) -> Self {
        Self { next: Arc::new(Mutex::new(answers)), then }
    }
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) seen: Seen,
    /// How often it went down.
    downs: u64,
    /// How often the network was cut.
    cuts: u64,
    /// Connections whose client's end exists, by number.
    open: BTreeMap<usize, Faults>,
}

impl Shared {
    pub(super) fn new(handler: Handler) -> Arc<Self> {
        Arc::new(Self {
            start: Clock::system().now(),
            handler,
            script: Mutex::new(Script::new(Box::new(iter::empty()), Answer::accept())),
            record: Mutex::default(),
            down: Notify::new(),
            changed: Notify::new(),
            panicked: AtomicBool::new(false),
        })
    }

    pub(super) fn answer(&self, answer: Answer) {
        *lock(&self.script) = Script::new(Box::new(iter::empty()), answer);
    }

    pub(super) fn script(&self, answers: Answers) {
        let mut script = lock(&self.script);
        *script = Script::new(answers, script.then);
    }

    pub(super) fn reset_dials(&self) {
        self.record().downs += 1;
        self.down.notify_waiters();
    }

    pub(super) fn cut_dials(&self) {
        self.record().cuts += 1;
    }

    /// Gives how many connections got the fault; not those that one has ended already.
    pub(super) fn inject(&self, fault: Fault) -> usize {
        self.open().iter().filter(|faults| faults.wire().inject(fault)).count()
    }

    pub(super) fn open(&self) -> Vec<Faults> {
        self.record().open.values().cloned().collect()
    }

    /// Panics if a handler or the script did.
    #[track_caller]
    pub(super) fn hold_handlers(&self) {
        let panicked = self.panicked.load(Ordering::Acquire);
        assert!(!panicked, "a handler of the scripted server panicked, or its script: what it said stands above");
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub(super) async fn dial(self: &Arc<Self>, attempt: &Attempt) -> io::Result<Transport> {
        let down = self.down.notified();
        let (number, downs, cuts) = self.note(|record, now| {
            record.seen.dials.push(now);
            (record.seen.dials.len() - 1, record.downs, record.cuts)
        });
        let _in_flight = InFlight::new(self);
        let Answer { after, reached, kind } = self.next_answer();
        let answered = async {
            // A dial that takes no time resolves in its first poll.
            if after > Duration::ZERO {
                sleep(after).await;
                if self.record().cuts != cuts {
                    pending::<()>().await;
                }
            }
            if reached {
                attempt.reached();
            }
            match kind {
                Kind::Accept => Ok(()),
                Kind::Error(kind) => Err(kind.into()),
                Kind::Fail(failure) => Err(io::Error::other(failure.because(format!("dial {number}")))),
                Kind::Hang => pending().await,
                Kind::Panic => panic!("dial {number} panics, as its script says"),
            }
        };
        first(down, pin!(answered)).await.err().unwrap_or_else(|| Err(reset()))?;
        self.accept(number, downs)
    }

    fn next_answer(&self) -> Answer {
        let (next, then) = {
            let script = lock(&self.script);
            (Arc::clone(&script.next), script.then)
        };
        let _watch = Watch(self);
        let next = lock(&next).next();
        next.unwrap_or(then)
    }

    fn accept(self: &Arc<Self>, number: usize, downs: u64) -> io::Result<Transport> {
        let (mut client, mut server) = duplex(CAPACITY);
        self.note(|record, _| {
            if record.downs != downs {
                return Err(reset());
            }
            record.open.insert(number, client.faults());
            record.seen.open += 1;
            record.seen.most_open = record.seen.most_open.max(record.seen.open);
            Ok(())
        })?;
        (client.number, server.number) = (number, number);
        client.guard = Some(Box::new(Open { shared: Arc::clone(self), number }));
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let _watch = Watch(&shared);
            // That a connection ends with an error is what outages are about.
            let _ = (shared.handler)(server).await;
        });
        Ok(client)
    }

    /// Changes the record, and tells those who wait for that.
    fn note<T>(&self, change: impl FnOnce(&mut Record, Duration) -> T) -> T {
        let now = Clock::system().now().saturating_duration_since(self.start);
        let result = change(&mut self.record(), now);
        self.changed.notify_waiters();
        result
    }
}

/// A dial under way.
struct InFlight<'a>(&'a Shared);

impl<'a> InFlight<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.note(|Record { seen, .. }, _| {
            seen.in_flight += 1;
            seen.most_in_flight = seen.most_in_flight.max(seen.in_flight);
        });
        Self(shared)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.note(|record, _| record.seen.in_flight -= 1);
    }
}

/// The client's end of a connection exists.
struct Open {
    shared: Arc<Shared>,
    number: usize,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.note(|record, now| {
            record.seen.open -= 1;
            let faults = record.open.remove(&self.number);
            if faults.is_some_and(|faults| faults.wire().ended_by == Some(EndedBy::Peer(Side::Client))) {
                record.seen.closes.push(now);
            }
        });
    }
}

/// Notices that what the test has written panics: a handler, or the script.
struct Watch<'a>(&'a Shared);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::Release);
            self.0.changed.notify_waiters();
        }
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// The first of two to resolve; of both at once the first one's.
pub(super) async fn first<A: Future, B: Future>(one: A, mut other: Pin<&mut B>) -> Result<A::Output, B::Output> {
    let mut one = pin!(one);
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => other.as_mut().poll(cx).map(Err),
    })
    .await
}
