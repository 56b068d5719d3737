//! Counts what an hour of outage costs, through real supervisors in paused time.
//!
//! Three phases: an idle hour before the loss, an hour down, and the return. Polls and wake-ups are those of `run`'s
//! future, counted by a future around it with a waker of its own. The task behind `keep` cannot be wrapped: of it the
//! decisions, the clock reads, and how often the runtime went to sleep are counted.

use std::future::Future;
use std::ops::{ControlFlow, Sub};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use steadfast::{Clock, Failure, Gate, Link, Policy, Supervisor, SupervisorBuilder};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{Event, Metadata, Subscriber, span};

use crate::common::{Answer, BROKEN, Dialler, ENDPOINT, REFUSED, Server, lock, secs};

/// What the server does while it is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    /// Nobody answers, and says so at once.
    Refuses,
    /// It answers and fails.
    Fails,
    /// It never answers: every attempt runs into its deadline.
    Silent,
    /// It asks to stay away for 30 s.
    Throttles,
    /// It refuses the credential.
    Unauthorized,
}

impl Outage {
    pub(crate) const ALL: [Self; 5] = [Self::Refuses, Self::Fails, Self::Silent, Self::Throttles, Self::Unauthorized];

    pub(crate) const fn answer(self) -> Answer {
        match self {
            Self::Refuses => REFUSED,
            Self::Fails => BROKEN,
            Self::Silent => Answer::Silent,
            Self::Throttles => Answer::Fail(0, Failure::Throttled { retry_after: Some(secs(30)) }),
            Self::Unauthorized => Answer::Fail(0, Failure::Unauthorized),
        }
    }
}

/// How the supervisors are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Keep,
    Run,
}

/// Who lives through which outage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) outage: Outage,
    pub(crate) connections: usize,
    /// Behind one gate, or with a gate each.
    pub(crate) shared: bool,
    pub(crate) form: Form,
}

/// What all connections did together in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Dials that the server saw.
    pub(crate) attempts: usize,
    /// Waits that were begun, the gate's and the own ones.
    pub(crate) waits: usize,
    /// Polls and wake-ups of `run`'s futures.
    pub(crate) polls: usize,
    pub(crate) wakes: usize,
    /// Lines of the log.
    pub(crate) lines: usize,
    /// How often the clock was read: about twice for each decision, and once for each timer that was set.
    pub(crate) reads: usize,
    /// How often the whole runtime had nothing to do and went to sleep.
    pub(crate) parks: usize,
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            attempts: self.attempts - earlier.attempts,
            waits: self.waits - earlier.waits,
            polls: self.polls - earlier.polls,
            wakes: self.wakes - earlier.wakes,
            lines: self.lines - earlier.lines,
            reads: self.reads - earlier.reads,
            parks: self.parks - earlier.parks,
        }
    }
}

/// What one case cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// The hour before: connected, stable, nothing to do.
    pub(crate) idle: Counts,
    /// The hour down.
    pub(crate) outage: Counts,
    /// From the server's return until a minute after the last one was back, and how long that took.
    pub(crate) back: Counts,
    pub(crate) back_after: Duration,
    /// The most polls that one connection had in the hour down and on the return.
    pub(crate) most_polls: [usize; 2],
    /// The most attempts under way at once in the hour down.
    pub(crate) most_in_flight: usize,
}

/// Lives through `case`, in paused time.
pub(crate) fn measure(case: Case) -> Cost {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let tally = Arc::new(Tally::default());
    let _reader = tracing::subscriber::set_default(Lines(Arc::clone(&tally.lines)));
    runtime.expect("a runtime of one thread").block_on(live_through(case, tally))
}

const HOUR: Duration = secs(3_600);

async fn live_through(case: Case, tally: Arc<Tally>) -> Cost {
    let fleet = Fleet::start(case, tally);
    fleet.all_are_up().await;
    // Over the last timer that a fresh connection has: `stable_after`.
    sleep(secs(60)).await;
    let idle = {
        let before = fleet.counts();
        sleep(HOUR).await;
        fleet.counts() - before
    };

    fleet.server.turn(move |_| case.outage.answer());
    fleet.server.in_flight().reset();
    let (before, mark) = (fleet.counts(), fleet.polls());
    fleet.lose_all();
    sleep(HOUR).await;
    let outage = fleet.counts() - before;
    let most_polls = fleet.most_polls_since(&mark);
    let most_in_flight = fleet.server.in_flight().most();

    fleet.server.turn(|_| Answer::Accept(20));
    let (before, mark, began) = (fleet.counts(), fleet.polls(), fleet.server.elapsed());
    fleet.all_are_up().await;
    let back_after = fleet.server.elapsed() - began;
    sleep(secs(60)).await;
    let back = fleet.counts() - before;
    Cost { idle, outage, back, back_after, most_polls: [most_polls, fleet.most_polls_since(&mark)], most_in_flight }
}

/// A wall clock that stands still: a busy machine, whose own goes on in paused time, would look as if suspended.
pub(crate) const fn still() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

/// What is counted beside the futures.
#[derive(Default)]
struct Tally {
    waits: AtomicUsize,
    lines: Arc<AtomicUsize>,
    reads: AtomicUsize,
}

/// Real supervisors against one server.
struct Fleet {
    server: Arc<Server>,
    tally: Arc<Tally>,
    connections: usize,
    links: Vec<Link<Dialler>>,
    bells: Vec<Arc<Bell>>,
    /// Ends every session of `run`.
    loss: Arc<Notify>,
    gate: Option<Gate>,
}

impl Fleet {
    fn start(case: Case, tally: Arc<Tally>) -> Self {
        let server = Server::healthy();
        let gate = Gate::builder(ENDPOINT).build().expect("the default policy is valid");
        let gate = case.shared.then_some(gate);
        let mut fleet = Self {
            server,
            tally,
            connections: case.connections,
            links: Vec::new(),
            bells: Vec::new(),
            loss: Arc::default(),
            gate,
        };
        let builder = fleet.builder();
        for seed in 0..case.connections as u64 {
            let supervisor = builder.clone().seed(seed).build().expect("valid settings");
            match case.form {
                Form::Keep => fleet.links.push(supervisor.keep().expect("it is idle")),
                Form::Run => fleet.run(supervisor),
            }
        }
        fleet
    }

    fn builder(&self) -> SupervisorBuilder<Dialler> {
        let (waits, reads) = (Arc::clone(&self.tally), Arc::clone(&self.tally));
        let now = move || {
            reads.reads.fetch_add(1, Ordering::Relaxed);
            Clock::system().now()
        };
        let builder = Supervisor::builder(self.server.connector())
            .policy(Policy::default())
            .clock(Clock::new(now, still))
            .on_transition(move |transition| {
                if transition.wait.is_some() {
                    waits.waits.fetch_add(1, Ordering::Relaxed);
                }
            });
        match &self.gate {
            Some(gate) => builder.gate(gate),
            None => builder,
        }
    }

    fn run(&mut self, supervisor: Supervisor<Dialler>) {
        let (loss, bell) = (Arc::clone(&self.loss), Arc::new(Bell::default()));
        let running = async move {
            let session = |connection, _| {
                let loss = Arc::clone(&loss);
                async move {
                    loss.notified().await;
                    drop(connection);
                    Err::<ControlFlow<()>, _>(Failure::Transient.because("reset"))
                }
            };
            supervisor.run(session).await
        };
        tokio::spawn(Counted::new(running, &bell));
        self.bells.push(bell);
    }

    fn lose_all(&self) {
        self.loss.notify_waiters();
        for link in &self.links {
            link.current().expect("all are up").report(Failure::Transient.because("reset"));
        }
    }

    async fn all_are_up(&self) {
        for _ in 0..7_200 {
            if self.server.open().now() == self.connections {
                return;
            }
            sleep(secs(1)).await;
        }
        panic!("{} of {} are up after two hours", self.server.open().now(), self.connections);
    }

    fn counts(&self) -> Counts {
        let sum = |count: fn(&Bell) -> &AtomicUsize| -> usize {
            self.bells.iter().map(|bell| count(bell).load(Ordering::Relaxed)).sum()
        };
        let parks = Handle::current().metrics().worker_park_count(0);
        Counts {
            attempts: self.server.dial_count(),
            waits: self.tally.waits.load(Ordering::Relaxed),
            polls: sum(|bell| &bell.polls),
            wakes: sum(|bell| &bell.wakes),
            lines: self.tally.lines.load(Ordering::Relaxed),
            reads: self.tally.reads.load(Ordering::Relaxed),
            parks: usize::try_from(parks).expect("it fits"),
        }
    }

    fn polls(&self) -> Vec<usize> {
        self.bells.iter().map(|bell| bell.polls.load(Ordering::Relaxed)).collect()
    }

    fn most_polls_since(&self, mark: &[usize]) -> usize {
        self.polls().iter().zip(mark).map(|(now, then)| now - then).max().unwrap_or(0)
    }
}

/// Polls and wake-ups of one future.
#[derive(Default)]
pub(crate) struct Bell {
    polls: AtomicUsize,
    wakes: AtomicUsize,
    task: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        let task = lock(&self.task).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Many times what any case takes.
const MOST_POLLS: usize = 5_000;

/// A future whose polls and wake-ups are counted.
pub(crate) struct Counted<F> {
    future: Pin<Box<F>>,
    bell: Arc<Bell>,
    waker: Waker,
}

impl<F: Future> Counted<F> {
    pub(crate) fn new(future: F, bell: &Arc<Bell>) -> Self {
        Self { future: Box::pin(future), bell: Arc::clone(bell), waker: Waker::from(Arc::clone(bell)) }
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, bell, waker } = &mut *self;
        let polls = bell.polls.fetch_add(1, Ordering::Relaxed);
        // Or it would go on for as long as there is patience: time stands still until everybody has had enough.
        assert!(polls < MOST_POLLS, "it spins: {polls} polls");
        lock(&bell.task).get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

/// Counts the lines that this thread logs.
pub(crate) struct Lines(pub(crate) Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("steadfast")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
