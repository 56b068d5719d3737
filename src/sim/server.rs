//! The other side: what it does to a handshake, and how many it can take.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use super::queue::Errand;
use crate::machine::{Event, Failure};

/// How the server behaves, from some instant of a [`Scenario`](super::Scenario) on.
///
/// An answer takes 10 ms, unless [`latency`](Self::latency) says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    answer: Answer,
    latency: Duration,
    capacity: Option<(NonZeroU32, Overload)>,
    unauthorized: Option<u64>,
    poisoned: Option<usize>,
}

/// What a server does with more handshakes than it can take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Overload {
    /// Queues them and passes over those whose client has gone.
    Queue,
    /// Queues them and serves those too whose client has gone: work for nobody.
    QueueOfTheDead,
    /// Answers 503 at once when more than `queue` of work is waiting; saying so costs `price` accepts, until a second
    /// of work is owed on top of the queue: beyond that the kernel resets, which costs nothing.
    Shed {
        /// The cost of a 503, as a share of the cost of an accept.
        price: f64,
        /// How much work may wait.
        queue: Duration,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Accept,
    AcceptAndDrop(Duration),
    Fail(Failure),
    Refuse,
    Silence,
}

impl Server {
    /// Accepts everyone.
    #[must_use]
    pub const fn healthy() -> Self {
        Self::answering(Answer::Accept)
    }

    /// Refuses every dial: the host is up, nobody listens.
    #[must_use]
    pub const fn refusing() -> Self {
        Self::answering(Answer::Refuse)
    }

    /// Never answers: packets go nowhere, so a dial does not even reach it.
    #[must_use]
    pub const fn silent() -> Self {
        Self::answering(Answer::Silence)
    }

    /// Accepts everyone and drops each session `after` that time.
    #[must_use]
    pub const fn dropping(after: Duration) -> Self {
        Self::answering(Answer::AcceptAndDrop(after))
    }

    /// Answers every handshake with a failure: `Throttled` is a 503 with `Retry-After`, `Transient` one without.
    #[must_use]
    pub const fn failing(failure: Failure) -> Self {
        Self::answering(Answer::Fail(failure))
    }

    const fn answering(answer: Answer) -> Self {
        Self { answer, latency: Duration::from_millis(10), capacity: None, unauthorized: None, poisoned: None }
    }

    /// Sets how long an answer takes, the server's own work apart.
    #[must_use]
    pub const fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Takes at most so many handshakes a second, where it accepts at all. By default there is no limit.
    #[must_use]
    pub const fn capacity(mut self, per_second: NonZeroU32, overload: Overload) -> Self {
        self.capacity = Some((per_second, overload));
        self
    }

    /// Answers 401 to one credential.
    #[must_use]
    pub const fn unauthorized(mut self, credential: u64) -> Self {
        self.unauthorized = Some(credential);
        self
    }

    /// Fails every handshake of one client: its virtual host does not exist.
    #[must_use]
    pub const fn poisoned(mut self, client: usize) -> Self {
        self.poisoned = Some(client);
        self
    }
}

/// What becomes of one dial.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reception {
    /// The answer, and when it arrives; `reached` if TCP stood first.
    Answer { at: Duration, event: Event, reached: bool },
    /// TCP stands, the answer is for later.
    Queued,
    /// Nothing, ever.
    Nothing,
}

/// The server at work.
#[derive(Debug)]
pub(super) struct Desk {
    server: Server,
    /// Counts replacements: work begun for an earlier server is void.
    shift: u64,
    busy_until: Duration,
    /// Whether the head of the queue is being served.
    in_hand: bool,
    queue: VecDeque<Errand>,
}

impl Desk {
    pub(super) fn new(server: Server) -> Self {
        Self { server, shift: 0, busy_until: Duration::ZERO, in_hand: false, queue: VecDeque::new() }
    }

    /// From now on the server behaves like this; the handshakes that were waiting for the earlier one are reset.
    pub(super) fn replace(&mut self, server: Server) -> impl Iterator<Item = Errand> + use<> {
        self.server = server;
        self.shift += 1;
        self.busy_until = Duration::ZERO;
        self.in_hand = false;
        std::mem::take(&mut self.queue).into_iter()
    }

    /// How long a session lives that begins now, where it ends by itself.
    pub(super) fn session(&self) -> Option<Duration> {
        match self.server.answer {
            Answer::AcceptAndDrop(after) => Some(after),
            Answer::Accept | Answer::Fail(_) | Answer::Refuse | Answer::Silence => None,
        }
    }

    /// One handshake arrives.
    pub(super) fn dial(&mut self, now: Duration, errand: Errand, credential: u64) -> Reception {
        let at = now + self.server.latency;
        match self.server.answer {
            Answer::Silence => Reception::Nothing,
            Answer::Refuse => Reception::Answer { at, event: Event::Failed(Failure::Unreachable), reached: false },
            Answer::Fail(failure) => failed(at, failure),
            Answer::Accept | Answer::AcceptAndDrop(_) => {
                if self.server.unauthorized == Some(credential) {
                    return failed(at, Failure::Unauthorized);
                }
                if self.server.poisoned == Some(errand.client) {
                    return failed(at, Failure::Transient);
                }
                self.accept(now, errand)
            }
        }
    }

    fn accept(&mut self, now: Duration, errand: Errand) -> Reception {
        let at = now + self.server.latency;
        let Some((per_second, overload)) = self.server.capacity else {
            return Reception::Answer { at, event: Event::Opened, reached: true };
        };
        let Overload::Shed { price, queue } = overload else {
            self.queue.push_back(errand);
            return Reception::Queued;
        };
        let accept = cost(per_second);
        let begin = self.busy_until.max(now);
        if begin - now > queue {
            self.busy_until = (begin + accept.mul_f64(price)).min(now + queue + MOST_OWED);
            return failed(at, Failure::Transient);
        }
        self.busy_until = begin + accept;
        Reception::Answer { at: self.busy_until + self.server.latency, event: Event::Opened, reached: true }
    }

    /// If it has nothing in hand and somebody waits: when the head of the queue will have been served, and the shift
    /// that it holds for.
    pub(super) fn begin(&mut self, now: Duration, is_there: impl Fn(Errand) -> bool) -> Option<(Duration, u64)> {
        let (per_second, overload) = self.server.capacity?;
        if self.in_hand {
            return None;
        }
        if overload == Overload::Queue {
            while self.queue.front().is_some_and(|errand| !is_there(*errand)) {
                self.queue.pop_front();
            }
        }
        self.queue.front()?;
        self.in_hand = true;
        Some((now + cost(per_second), self.shift))
    }

    /// The head of the queue is served: who, and when the answer arrives.
    pub(super) fn served(&mut self, now: Duration, shift: u64) -> Option<(Errand, Duration)> {
        if shift != self.shift {
            return None;
        }
        self.in_hand = false;
        self.queue.pop_front().map(|errand| (errand, now + self.server.latency))
    }
}

fn failed(at: Duration, failure: Failure) -> Reception {
    Reception::Answer { at, event: Event::Failed(failure), reached: true }
}

fn cost(per_second: NonZeroU32) -> Duration {
    Duration::from_secs(1) / per_second.get()
}

/// How much work a server can owe to those it refuses.
const MOST_OWED: Duration = Duration::from_secs(1);
