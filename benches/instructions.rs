//! One path of the crate, so many times: what `benches/instructions.sh` runs under callgrind.
//!
//! Each path is run with two numbers of rounds; the difference is what the rounds cost, whatever the set-up costs. Seeds
//! are fixed and time is made up, so that the same build gives the same number.

use std::fmt;
use std::hint::black_box;
use std::num::ParseIntError;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use steadfast::machine::{Action, Admission, Event, Gate, Lifecycle, Member, Permit, Step, add};
use steadfast::{Backoff, Clock, Failure, Jitter, Link, Policy, Supervisor, connector_fn};

/// Runs so many rounds.
type Path = fn(u64);

const PATHS: [(&str, Path); 19] = [
    ("empty", empty),
    ("arc-clone", arc_clone),
    ("arc-swap", arc_swap_load),
    ("mutex", mutex),
    ("two-mutexes", two_mutexes),
    ("cached-link", cached_link),
    ("link", link),
    ("is-closed", is_closed),
    ("dial-closed", dial_closed),
    ("dial-200", dial_with_200_waiting),
    ("dial-10000", dial_with_10_000_waiting),
    ("small-rng", small_rng),
    ("uniform", uniform),
    ("delay-band", |rounds| delay(Jitter::Band(0.05), rounds)),
    ("delay-decorrelated", |rounds| delay(Jitter::Decorrelated, rounds)),
    ("delay-equal", |rounds| delay(Jitter::Equal, rounds)),
    ("delay-full", |rounds| delay(Jitter::Full, rounds)),
    ("delay-none", |rounds| delay(Jitter::None, rounds)),
    ("decision", decisions),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["life"] => println!("{}", LIFE.len()),
        ["life", event] => println!("{:?}", LIFE[number::<usize>(event) - 1]),
        ["decisions-in-a-round"] => println!("{DECISIONS}"),
        [name, rounds] => match name.strip_prefix("life-") {
            Some(events) => life(number(events), number(rounds)),
            None => run(name, number(rounds)),
        },
        // As `cargo bench` and `cargo test` call it.
        _ => println!("bash benches/instructions.sh runs these, counted by callgrind"),
    }
}

fn run(name: &str, rounds: u64) {
    let path = PATHS.iter().find(|(path, _)| *path == name);
    let (_, path) = path.unwrap_or_else(|| panic!("no path is called {name}"));
    path(rounds);
}

fn number<N: FromStr<Err = ParseIntError>>(text: &str) -> N {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn empty(rounds: u64) {
    for round in 0..rounds {
        black_box(round);
    }
}

// What others do.

fn arc_clone(rounds: u64) {
    let one = Arc::new(1_u64);
    for round in 0..rounds {
        black_box(round);
        drop(black_box(Arc::clone(black_box(&one))));
    }
}

fn arc_swap_load(rounds: u64) {
    let one = ArcSwap::from_pointee(1_u64);
    for round in 0..rounds {
        black_box(round);
        drop(black_box(black_box(&one).load()));
    }
}

fn mutex(rounds: u64) {
    let one = Mutex::new(1_u64);
    for round in 0..rounds {
        black_box(round);
        drop(black_box(lock(black_box(&one))));
    }
}

fn two_mutexes(rounds: u64) {
    let one = Mutex::new(1_u64);
    for round in 0..rounds {
        black_box(round);
        drop(black_box(lock(black_box(&one))));
        drop(black_box(lock(black_box(&one))));
    }
}

fn small_rng(rounds: u64) {
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..rounds {
        black_box(round);
        black_box(black_box(&mut rng).next_u64());
    }
}

/// A bound and one widening multiplication.
fn uniform(rounds: u64) {
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..rounds {
        black_box(round);
        let wide = u128::from(black_box(&mut rng).next_u64()) * u128::from(black_box(1_000_000_u64));
        black_box(u64::try_from(wide >> 64).unwrap_or(0));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// The live connection, and whether the gate is closed.

fn cached_link(rounds: u64) {
    kept(|link| {
        let mut cached = link.cached();
        for round in 0..rounds {
            black_box(round);
            black_box(black_box(&mut cached).current());
        }
    });
}

fn link(rounds: u64) {
    kept(|link| {
        for round in 0..rounds {
            black_box(round);
            drop(black_box(black_box(link).current()));
        }
    });
}

fn is_closed(rounds: u64) {
    let gate = steadfast::Gate::builder("bench").build().expect("a gate");
    // Whoever asks has it at hand.
    let gate = black_box(&gate);
    for round in 0..rounds {
        black_box(round);
        black_box(gate.is_closed());
    }
}

/// A connection that does nothing.
#[derive(Debug)]
struct Nothing;

impl fmt::Display for Nothing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing")
    }
}

impl std::error::Error for Nothing {}

/// Does something with the link of a live connection.
fn kept(body: impl FnOnce(&Link<BenchConnector>)) {
    paused().block_on(async {
        let supervisor = Supervisor::builder(BenchConnector).seed(7).build().expect("a supervisor");
        let link = supervisor.keep().expect("a link");
        drop(link.ready().await.expect("a live connection"));
        body(&link);
    });
}

/// Connects at once.
struct BenchConnector;

impl steadfast::Connector for BenchConnector {
    type Connection = u64;
    type Error = Nothing;

    async fn connect(&self, attempt: steadfast::Attempt) -> Result<u64, Nothing> {
        Ok(attempt.generation())
    }
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

// The dial through a shared gate.

const LEASE: Duration = Duration::from_secs(10);

/// A gate behind its lock, and what those who dial have.
struct Door {
    gate: Mutex<Gate>,
    rng: SmallRng,
    now: Instant,
}

impl Door {
    fn new() -> Self {
        let gate = Gate::new(Arc::new(Policy::default()));
        Self { gate: Mutex::new(gate), rng: SmallRng::seed_from_u64(7), now: Instant::now() }
    }

    fn join(&self) -> Member {
        lock(&self.gate).join(1)
    }

    fn admit(&mut self, member: Member) -> Admission {
        let mut gate = lock(&self.gate);
        let admission = gate.admit(self.now, member, LEASE, &mut self.rng);
        black_box(gate.wakes().count());
        admission
    }

    fn settle(&mut self, permit: Permit, step: &mut Step) {
        let mut gate = lock(&self.gate);
        black_box(gate.settle(self.now, permit, Ok(()), step, &mut self.rng));
        black_box(gate.wakes().count());
    }

    /// Comes back whenever it is told to, until it may dial.
    fn turn(&mut self, member: Member) -> Permit {
        loop {
            match self.admit(member) {
                Admission::Go(permit) => return permit,
                Admission::Wait(wait) => self.now = wait.until,
                _ => unreachable!("it goes or it waits"),
            }
        }
    }
}

/// Admit and settle, each under the lock, while nobody has to wait.
fn dial_closed(rounds: u64) {
    let mut door = Door::new();
    let (member, mut step) = (door.join(), Step::default());
    let permit = door.turn(member);
    door.settle(permit, &mut step);
    door.now = add(door.now, Duration::from_secs(60));
    let permit = door.turn(member);
    assert!(lock(&door.gate).is_closed(), "a minute after the first success");
    door.settle(permit, &mut step);
    for round in 0..rounds {
        black_box(round);
        if let Admission::Go(permit) = black_box(&mut door).admit(member) {
            door.settle(permit, &mut step);
        }
    }
}

fn dial_with_200_waiting(rounds: u64) {
    dial_waiting(200, rounds);
}

fn dial_with_10_000_waiting(rounds: u64) {
    dial_waiting(10_000, rounds);
}

/// One in turn: it queues behind `size` others, is the first one day, dials and succeeds. Three calls to the gate.
fn dial_waiting(size: usize, rounds: u64) {
    let mut door = Door::new();
    let (probe, mut step) = (door.join(), Step::default());
    let permit = door.turn(probe);
    door.settle(permit, &mut step);
    // The probe has succeeded, so they follow in the order in which they ask.
    let members: Vec<Member> = (0..size).map(|_| door.join()).collect();
    for member in &members {
        assert!(matches!(door.admit(*member), Admission::Wait(_)), "the pace begins with one a second");
    }
    let in_turn = members.iter().cycle();
    for (member, round) in in_turn.zip(0..rounds) {
        black_box(round);
        // Within `base` of its turn, or it would lose it; the pace has long allowed the next one.
        door.now = add(door.now, Duration::from_millis(10));
        let permit = door.turn(*member);
        door.settle(permit, &mut step);
        assert!(matches!(door.admit(*member), Admission::Wait(_)), "it queues behind the others");
    }
    assert_eq!(lock(&door.gate).status(door.now).waiting, size, "as many wait as before");
}

// The next delay.

fn delay(jitter: Jitter, rounds: u64) {
    let curve = Backoff::new(Duration::from_millis(500), Duration::from_secs(5)).jitter(jitter);
    let mut rng = SmallRng::seed_from_u64(7);
    let mut previous = Duration::ZERO;
    for round in 0..rounds {
        black_box(round);
        previous = black_box(&curve).delay(black_box(3), previous, &mut rng);
        black_box(previous);
    }
}

// Steps of a lifecycle.

/// One connection and its own gate.
struct Lone {
    life: Lifecycle,
    gate: Gate,
    rng: SmallRng,
    now: Instant,
}

impl Lone {
    fn new(policy: Arc<Policy>) -> Self {
        let mut gate = Gate::new(Arc::clone(&policy));
        let life = Lifecycle::new(policy, gate.join(1));
        Self { life, gate, rng: SmallRng::seed_from_u64(7), now: Instant::now() }
    }

    fn tell(&mut self, event: Event) -> Action {
        let action = self.life.on_event(self.now, event, &mut self.gate, &mut self.rng);
        black_box(self.gate.wakes().count());
        action
    }

    fn told(&mut self, tell: Tell) -> Action {
        match tell {
            Tell::Now(event) => self.tell(event),
            Tell::Later(event) => {
                self.now = add(self.now, Duration::from_secs(60));
                self.tell(event)
            }
            Tell::Due => {
                self.now = self.life.deadline().unwrap_or(self.now);
                self.tell(Event::TimedOut)
            }
        }
    }
}

/// A life of a connection with a gate of its own: up, lost, an outage of every kind, back, drained.
const LIFE: [Tell; 23] = [
    Tell::Now(Event::Start),
    Tell::Now(Event::Reached),
    Tell::Now(Event::Opened),
    Tell::Due,
    Tell::Later(Event::Lost(Failure::Transient)),
    Tell::Due,
    Tell::Now(Event::Failed(Failure::Unreachable)),
    Tell::Due,
    Tell::Now(Event::Failed(Failure::Unreachable)),
    Tell::Due,
    Tell::Now(Event::Reached),
    Tell::Now(Event::Failed(Failure::Timeout)),
    Tell::Due,
    Tell::Now(Event::Failed(Failure::Transient)),
    Tell::Due,
    Tell::Now(Event::Failed(Failure::Throttled { retry_after: Some(Duration::from_secs(30)) })),
    Tell::Due,
    Tell::Now(Event::Failed(Failure::Unauthorized)),
    Tell::Due,
    Tell::Now(Event::Opened),
    Tell::Due,
    Tell::Later(Event::Drain),
    Tell::Now(Event::Finished),
];

/// When a connection is told something.
#[derive(Clone, Copy, Debug)]
enum Tell {
    /// At its deadline: that it has passed.
    Due,
    /// A minute later.
    Later(Event),
    Now(Event),
}

/// The beginning of that life, with a fresh connection and gate each round.
fn life(events: usize, rounds: u64) {
    let policy = Arc::new(Policy::default());
    for round in 0..rounds {
        black_box(round);
        let mut lone = Lone::new(Arc::clone(&policy));
        for tell in LIFE.iter().take(events) {
            lone.told(*tell);
        }
        black_box(&lone);
    }
}

// The runtime.

/// Up, stable, lost, and the next dial: events of a session in [`decisions`].
const DECISIONS: u64 = 4;

/// Sessions that live for a while, are forgiven and end: decided and published by the runtime under paused time.
fn decisions(rounds: u64) {
    let policy = Policy::default().stable_after(Duration::from_millis(1)).base(Duration::from_millis(1));
    let connector = connector_fn("bench", |attempt| async move { Ok::<_, Nothing>(attempt.generation()) });
    // The system's wall clock is read from a file: not what is counted here.
    let clock = Clock::new(|| Clock::system().now(), || SystemTime::UNIX_EPOCH);
    paused().block_on(async {
        let supervisor =
            Supervisor::builder(connector).policy(policy).clock(clock).seed(7).build().expect("a supervisor");
        let ended = supervisor.run(|connection, _session| async move {
            let last = *connection >= rounds;
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, Nothing>(if last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        ended.await.expect("it ends by itself");
    });
}
