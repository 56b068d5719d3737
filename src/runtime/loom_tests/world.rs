//! What the models are made of: threads, tasks, a clock that stands still, a server that counts.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime};

use loom::model::Builder;
use loom::sync::atomic::AtomicUsize as Shared;
use loom::thread::JoinHandle;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::stand_ins;
use crate::machine::{Classified, Failure, GateStatus, Policy};
use crate::observe::Endpoint;
use crate::runtime::control::{Control, Parts};
use crate::runtime::gate::Seat;
use crate::runtime::sync::{Mutex, unpoisoned};
use crate::runtime::{Attempt, BoxError, Clock, Connector, Gate, Supervisor, SupervisorBuilder};

/// Runs `model` in every order with at most that many preemptions (switches away from a thread that could go on).
pub(super) fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut checker = Builder::new();
    checker.preemption_bound = Some(preemptions);
    checker.max_branches = 20_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    checker.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        stand_ins::begin();
        model();
    });
    println!("{} runs", runs.load(Ordering::Relaxed));
}

/// Another thread, with room for a shell on its stack.
pub(super) fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    loom::thread::Builder::new().stack_size(STACK).spawn(run).unwrap()
}

/// In words.
const STACK: usize = 1 << 16;

struct Bell(loom::sync::Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Runs a future to its end on this thread. It is polled when it was woken, and may be once when it was not.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let bell = Arc::new(Bell(loom::sync::Notify::new()));
    let waker = Waker::from(Arc::clone(&bell));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        bell.0.wait();
    }
}

/// Polls a future for as long as it wakes itself, and no longer: what happens before the others begin.
pub(super) fn settle<F: Future + ?Sized>(future: Pin<&mut F>) {
    struct Again(AtomicUsize);
    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.0.store(1, Ordering::Relaxed);
        }
    }
    let again = Arc::new(Again(AtomicUsize::new(1)));
    let waker = Waker::from(Arc::clone(&again));
    let mut future = future;
    while again.0.swap(0, Ordering::Relaxed) == 1 {
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "it is over already");
    }
}

/// What somebody waits at until somebody else opens it.
#[derive(Default)]
pub(super) struct Door(Mutex<(bool, Option<Waker>)>);

impl Door {
    pub(super) fn open(&self) {
        let waker = {
            let mut door = unpoisoned(self.0.lock());
            door.0 = true;
            door.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) async fn passed(&self) {
        poll_fn(|cx| {
            let mut door = unpoisoned(self.0.lock());
            if door.0 {
                return Poll::Ready(());
            }
            door.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// No wait of a model is longer than a minute, but those that nothing ends.
pub(super) fn policy() -> Policy {
    Policy::default()
        .recovery_spread(Duration::ZERO)
        .stable_after(NEVER)
        .attempt_deadline(NEVER)
        .handshake_limit(NEVER)
        .drain(NEVER)
        .close(NEVER)
}

const NEVER: Duration = Duration::from_secs(10 * 3_600);

thread_local! {
    static ORIGIN: Cell<Instant> = Cell::new(Instant::now());
}

/// Where the time of every model begins.
pub(super) fn origin() -> Instant {
    ORIGIN.get()
}

pub(super) fn clock() -> Clock {
    Clock::new(|| origin() + stand_ins::passed(), || SystemTime::UNIX_EPOCH)
}

pub(super) fn gate(policy: Policy) -> Gate {
    Gate::builder(ENDPOINT).policy(policy).clock(clock()).build().unwrap()
}

/// What a supervisor of that gate shares, without a supervisor.
pub(super) fn control(gate: &Gate, policy: Policy) -> Arc<Control> {
    Control::new(Parts {
        policy: Arc::new(policy),
        clock: clock(),
        gate: Seat::Shared(gate.clone()),
        credential: 0,
        endpoint: ENDPOINT.into(),
        span: tracing::Span::none(),
        observer: None,
        rng: SmallRng::seed_from_u64(1),
    })
}

const ENDPOINT: &str = "model://server:1";

/// What the server does with a dial.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Accept,
    Fail(Failure),
    /// After everybody else had a turn.
    FailLate(Failure),
    Panic,
}

/// How it answers the dial of that number, from 0, and at which door the dial waits before.
type Script = Box<dyn Fn(usize) -> (Answer, Option<Arc<Door>>) + Send + Sync>;

/// A server that counts what it sees.
pub(super) struct Server {
    script: Script,
    dials: AtomicUsize,
    /// The checker has to know of these, or it would not look for dials that overlap.
    under_way: Shared,
    most_under_way: AtomicUsize,
    open: AtomicUsize,
    closed: AtomicUsize,
}

impl Server {
    pub(super) fn new(script: impl Fn(usize) -> (Answer, Option<Arc<Door>>) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            dials: AtomicUsize::new(0),
            under_way: Shared::new(0),
            most_under_way: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        })
    }

    /// Accepts every dial at once.
    pub(super) fn accepting() -> Arc<Self> {
        Self::new(|_| (Answer::Accept, None))
    }

    pub(super) fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }

    /// How many dials were under way at once, at most.
    pub(super) fn most_under_way(&self) -> usize {
        self.most_under_way.load(Ordering::Relaxed)
    }

    /// Connections that nobody has dropped yet.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were said goodbye to.
    pub(super) fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn dialler(self: &Arc<Self>) -> Dialler {
        Dialler(Arc::clone(self))
    }

    /// A connection that nobody had to dial.
    pub(super) fn conn(self: &Arc<Self>) -> Conn {
        self.open.fetch_add(1, Ordering::Relaxed);
        Conn(Arc::clone(self))
    }

    /// Begins a supervisor that dials it.
    pub(super) fn builder(self: &Arc<Self>, gate: &Gate, seed: u64) -> SupervisorBuilder<Dialler> {
        Supervisor::builder(self.dialler()).policy(policy()).gate(gate).clock(clock()).seed(seed)
    }

    /// Under way until it is dropped.
    fn arrive(self: &Arc<Self>) -> UnderWay {
        let now = self.under_way.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_under_way.fetch_max(now, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }
}

struct UnderWay(Arc<Server>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) struct Dialler(Arc<Server>);

/// One connection.
pub(super) struct Conn(Arc<Server>);

impl Drop for Conn {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connector for Dialler {
    type Connection = Conn;
    type Error = BoxError;

    async fn connect(&self, _attempt: Attempt) -> Result<Conn, BoxError> {
        let (answer, door) = (self.0.script)(self.0.dials.fetch_add(1, Ordering::Relaxed));
        let _under_way = self.0.arrive();
        if let Some(door) = door {
            door.passed().await;
        }
        match answer {
            Answer::Accept => Ok(self.0.conn()),
            Answer::Fail(failure) => Err(failing(failure).into()),
            Answer::FailLate(failure) => {
                loom::thread::yield_now();
                Err(failing(failure).into())
            }
            // Without the hook, which would print it in every run.
            Answer::Panic => resume_unwind(Box::new("on purpose")),
        }
    }

    fn endpoint(&self) -> Endpoint {
        ENDPOINT.into()
    }

    async fn close(&self, _conn: &Conn) {
        self.0.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// An error of that class.
pub(super) fn failing(failure: Failure) -> Classified {
    failure.because(io::Error::other("on purpose"))
}

/// Nobody holds a slot of the gate, and nobody waits.
pub(super) fn assert_free(gate: &Gate) -> GateStatus {
    let status = gate.status();
    assert_eq!((status.in_flight, status.waiting), (0, 0), "{status:?}");
    status
}
