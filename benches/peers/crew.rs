//! How a way is timed: beside its base, in alternating pieces, alone and on two threads at once.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};

use crate::table::{Aim, Report, Row};

/// Does it so many times on the thread that made it, and tells from when until when.
type Run = Box<dyn FnMut(u64) -> Span>;

#[derive(Clone, Copy)]
struct Span {
    begun: Instant,
    ended: Instant,
}

impl Span {
    fn since(begun: Instant) -> Self {
        Self { begun, ended: Instant::now() }
    }

    fn length(self) -> Duration {
        self.ended - self.begun
    }

    /// Whether both ran at the same time for most of it: on a busy machine they often have to share a core, and then
    /// nothing is contended. Locks are not fair, so one of the two may end well before the other.
    fn is_beside(self, other: Self) -> bool {
        let both = self.ended.min(other.ended).saturating_duration_since(self.begun.max(other.begun));
        both >= self.length().max(other.length()).mul_f64(0.5)
    }
}

/// One way to do something.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Called on each thread that is to run it.
    start: Arc<dyn Fn() -> Run + Send + Sync>,
}

/// A way that does not wait: `state` is made on each thread.
pub(crate) fn way<S: 'static>(
    name: &'static str,
    state: impl Fn() -> S + Send + Sync + 'static,
    act: impl Fn(&mut S) + Copy + Send + Sync + 'static,
) -> Way {
    let start = move || -> Run {
        let mut state = state();
        Box::new(move |times| {
            let state = black_box(&mut state);
            let begun = Instant::now();
            for _ in 0..times {
                act(state);
            }
            Span::since(begun)
        })
    };
    Way { name, start: Arc::new(start) }
}

/// A way that may wait: each thread has a runtime, as a server with one for each core has.
pub(crate) fn async_way<S: 'static>(
    name: &'static str,
    state: impl Fn() -> S + Send + Sync + 'static,
    act: impl AsyncFn(&mut S) + Copy + Send + Sync + 'static,
) -> Way {
    let start = move || -> Run {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut state = state();
        Box::new(move |times| {
            runtime.block_on(async {
                let begun = Instant::now();
                for _ in 0..times {
                    act(&mut state).await;
                }
                Span::since(begun)
            })
        })
    };
    Way { name, start: Arc::new(start) }
}

/// A path: its base comes first.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) base: Way,
    pub(crate) ways: Vec<Way>,
    /// With how many threads at once: `&[1]` or `&[1, 2]`.
    pub(crate) threads: &'static [usize],
    pub(crate) aims: Vec<Aim>,
}

impl Path {
    pub(crate) fn bench(self, criterion: &mut Criterion, report: &mut Report) {
        let mut group = criterion.benchmark_group(self.name);
        let mut rows = Vec::new();
        for way in std::iter::once(&self.base).chain(&self.ways) {
            let mut row = Row::new(way.name);
            for &threads in self.threads {
                let mut pieces = Vec::new();
                group.bench_function(BenchmarkId::new(way.name, threads), |bencher| {
                    let mut crew = Crew::new(&self.base, way, threads);
                    bencher.iter_custom(|times| crew.measure(times, &mut pieces));
                });
                row.take(threads, &pieces);
            }
            rows.push(row);
        }
        group.finish();
        report.add(self.title, rows, &self.aims);
    }
}

/// One piece, in nanoseconds an operation and thread.
pub(crate) struct Piece {
    pub(crate) way: f64,
    /// Right after it: the base; or, after two threads, the way on one of them alone.
    pub(crate) beside: f64,
}

/// The calling thread and, for two, another one.
struct Crew {
    runs: [Run; 2],
    /// How many times make a piece.
    times: [u64; 2],
    other: Option<Other>,
}

const BASE: usize = 0;
const WAY: usize = 1;

/// Shorter than a slice of the scheduler, so that most pieces run undisturbed.
const PIECE: Duration = Duration::from_micros(250);

impl Crew {
    fn new(base: &Way, way: &Way, threads: usize) -> Self {
        let ways = [base.clone(), way.clone()];
        let runs = ways.each_ref().map(|way| (way.start)());
        let mut crew = Self { runs, times: [1; 2], other: (threads == 2).then(|| Other::new(way.clone())) };
        while (crew.runs[BASE])(crew.times[BASE]).length() < PIECE {
            crew.times[BASE] *= 2;
        }
        while crew.time(crew.times[WAY]).0 < PIECE {
            crew.times[WAY] *= 2;
        }
        crew
    }

    /// Runs the way that many times, each piece beside what it is compared with.
    fn measure(&mut self, times: u64, pieces: &mut Vec<Piece>) -> Duration {
        let mut total = Duration::ZERO;
        let mut left = times;
        while left > 0 {
            let piece = left.min(self.times[WAY]);
            left -= piece;
            let (took, counts) = self.time(piece);
            total += took;
            if counts && piece == self.times[WAY] {
                let against = if self.other.is_some() { WAY } else { BASE };
                let beside = (self.runs[against])(self.times[against]).length();
                pieces.push(Piece { way: per(took, piece), beside: per(beside, self.times[against]) });
            }
        }
        total
    }

    /// How long the way takes, by the mean of the threads; and whether they ran at the same time.
    fn time(&mut self, times: u64) -> (Duration, bool) {
        let Some(other) = &mut self.other else { return ((self.runs[WAY])(times).length(), true) };
        other.jobs.send(times).expect("the other thread runs");
        other.line.cross();
        let own = (self.runs[WAY])(times);
        let other = other.took.recv().expect("the other thread runs");
        ((own.length() + other.length()) / 2, own.is_beside(other))
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds and counts of a quarter of a millisecond")]
fn per(took: Duration, times: u64) -> f64 {
    took.as_nanos() as f64 / times as f64
}

/// The second thread; it ends when the crew is dropped.
struct Other {
    jobs: SyncSender<u64>,
    took: Receiver<Span>,
    line: Line,
    _thread: JoinHandle<()>,
}

impl Other {
    fn new(way: Way) -> Self {
        let (jobs, todo) = sync_channel(1);
        let (done, took) = sync_channel(1);
        let line = Line::default();
        let mut other = line.clone();
        let thread = thread::spawn(move || {
            let mut run = (way.start)();
            for times in todo {
                other.cross();
                if done.send(run(times)).is_err() {
                    return;
                }
            }
        });
        Self { jobs, took, line, _thread: thread }
    }
}

/// Lets two threads go at the same instant.
#[derive(Clone, Default)]
struct Line {
    arrived: Arc<AtomicU64>,
    crossed: u64,
}

impl Line {
    fn cross(&mut self) {
        self.crossed += 2;
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < self.crossed {
            spin_loop();
            spins += 1;
            // The other one may have no core of its own at the moment.
            if spins.is_multiple_of(1_000) {
                thread::yield_now();
            }
        }
    }
}
