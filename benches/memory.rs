//! What an idle supervised connection costs in memory, and what it costs in CPU to lose a hundred thousand at once.
//!
//! `cargo bench --bench memory` prints two tables in about a minute; without `--bench`, or with `--test`, it takes a
//! fiftieth of the connections. Heap bytes and blocks are exact and repeat; CPU time is printed beside its aim
//! and asserted nowhere.
//!
//! `stats_alloc` counts: three relaxed counters a call, read at any instant and from async code. Others count around one
//! closure of one thread only, or keep a backtrace for each block, which would drown the CPU time.

#![expect(clippy::print_stdout, reason = "the tables are the purpose")]

use std::alloc::System;
use std::any::Any;
use std::fs;
use std::future::{Future, pending, ready};
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use steadfast::{Attempt, Connector, Endpoint, Gate, Lease, Link, Session, Supervisor, SupervisorBuilder};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Of heap, for one idle connection.
const AIM_BYTES: usize = 1024;
/// Of CPU, for one connection and for one attempt.
const AIM_MICROS: f64 = 5.0;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let count = if has("--bench") && !has("--test") { 100_000 } else { 2_000 };
    if let Some(row) = arguments.iter().find_map(|argument| argument.strip_prefix(ROW)?.parse().ok()) {
        return print_row(row, count);
    }
    memory(count, &arguments);
    losses(count, &arguments);
}

/// Whether every word on the command line is in the name of the table or of the row: `memory kept`, `loss 100`.
fn is_wanted(table: &str, row: &str, arguments: &[String]) -> bool {
    let mut words = arguments.iter().filter(|argument| !argument.starts_with("--"));
    words.all(|word| table.contains(word) || row.contains(word))
}

// Memory.

/// What one row weighs: `count` of something, held by what comes back.
type Make = fn(usize) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>>;

const ROWS: [(&str, Make); 15] = [
    ("tokio: a task that is pending", |count| Box::pin(ready(tasks(count, || drop(tokio::spawn(pending::<()>())))))),
    ("tokio: a task with a sleep", |count| Box::pin(ready(tasks(count, || drop(tokio::spawn(sleep(2 * SETTLED))))))),
    ("tokio: watch and sleep", |count| Box::pin(ready(tasks(count, watched)))),
    ("tokio: watch, mpsc, Notify and sleep", |count| Box::pin(ready(tasks(count, called)))),
    ("built, not started; one gate for all", |count| Box::pin(ready(built(count, Sharing::All)))),
    ("built, not started; a gate each", |count| Box::pin(ready(built(count, Sharing::Nobody)))),
    ("kept and connected; one gate for all", |count| Box::pin(kept(count, Sharing::All))),
    ("kept and connected; gates of 100", |count| Box::pin(kept(count, Sharing::Hundreds))),
    ("kept and connected; a gate each", |count| Box::pin(kept(count, Sharing::Nobody))),
    ("kept and connected; each by `Supervisor::new`", |count| Box::pin(ready(new(count)))),
    ("`run` in a task of its own; one gate for all", |count| Box::pin(ran(count, Sharing::All))),
    ("`run` in a task of its own; a gate each", |count| Box::pin(ran(count, Sharing::Nobody))),
    ("kept and waiting in an outage; one gate for all", |count| Box::pin(waiting(count, Sharing::All))),
    ("kept and waiting in an outage; gates of 100", |count| Box::pin(waiting(count, Sharing::Hundreds))),
    ("kept and waiting in an outage; a gate each", |count| Box::pin(waiting(count, Sharing::Nobody))),
];

const ROW: &str = "--row=";

/// Each row is a process of its own: in one that has freed memory, resident pages tell nothing.
fn memory(count: usize, arguments: &[String]) {
    let rows: Vec<_> = (0..ROWS.len()).filter(|row| is_wanted("memory", ROWS[*row].0, arguments)).collect();
    if rows.is_empty() {
        return;
    }
    println!("Memory of one connection, of {count}; the aim for an idle one is {AIM_BYTES} bytes of heap.\n");
    println!("| what | heap bytes | blocks | resident bytes |");
    println!("|---|---:|---:|---:|");
    let program = std::env::current_exe().expect("it is running");
    for row in rows {
        let flags = arguments.iter().filter(|argument| argument.starts_with("--"));
        let status = Command::new(&program).args(flags).arg(format!("{ROW}{row}")).status();
        assert!(status.is_ok_and(|status| status.success()), "row {row} failed");
    }
    println!();
}

/// Prints what one of them holds, half a minute after the last has come.
fn print_row(row: usize, count: usize) {
    let (what, make) = ROWS[row];
    let runtime = paused();
    let before = Footprint::now();
    let held = runtime.block_on(async {
        let held = make(count).await;
        sleep(SETTLED).await;
        held
    });
    before.print(what, count);
    drop(held);
}

/// What tokio alone needs for a task that could do the same.
fn tasks<T: 'static>(count: usize, spawn: fn() -> T) -> Box<dyn Any> {
    Box::new((0..count).map(|_| spawn()).collect::<Vec<_>>())
}

fn watched() -> watch::Sender<u64> {
    let (tell, mut told) = watch::channel(0);
    tokio::spawn(async move {
        tokio::select! {
            _ = told.changed() => {}
            () = sleep(2 * SETTLED) => {}
        }
    });
    tell
}

fn called() -> (watch::Sender<u64>, mpsc::Sender<u64>, Arc<Notify>) {
    let (tell, mut told) = watch::channel(0);
    let (send, mut receive) = mpsc::channel(8);
    let notify = Arc::new(Notify::new());
    let notified = Arc::clone(&notify);
    tokio::spawn(async move {
        tokio::select! {
            _ = told.changed() => {}
            _ = receive.recv() => {}
            () = notified.notified() => {}
            () = sleep(2 * SETTLED) => {}
        }
    });
    (tell, send, notify)
}

fn built(count: usize, sharing: Sharing) -> Box<dyn Any> {
    Box::new(Fleet::new(sharing, count).each().map(build).collect::<Vec<_>>())
}

async fn kept(count: usize, sharing: Sharing) -> Box<dyn Any> {
    let fleet = Fleet::new(sharing, count);
    let links = fleet.keep();
    fleet.until_accepted(count).await;
    Box::new((fleet, links))
}

fn new(count: usize) -> Box<dyn Any> {
    let server = Arc::new(Server::new());
    let keep = |_| Supervisor::new(Dialler(Arc::clone(&server))).keep().expect("it is not active elsewhere");
    Box::new((0..count).map(keep).collect::<Vec<_>>())
}

async fn ran(count: usize, sharing: Sharing) -> Box<dyn Any> {
    let fleet = Fleet::new(sharing, count);
    for builder in fleet.each() {
        let supervisor = build(builder);
        tokio::spawn(async move { supervisor.run(serve).await });
    }
    fleet.until_accepted(count).await;
    Box::new(fleet)
}

async fn serve(_lease: Lease<()>, _session: Session) -> Result<ControlFlow<()>, io::Error> {
    pending().await
}

async fn waiting(count: usize, sharing: Sharing) -> Box<dyn Any> {
    let fleet = Fleet::new(sharing, count);
    let links = fleet.keep();
    fleet.until_accepted(count).await;
    sleep(SETTLED).await;
    fleet.lose(&links);
    Box::new((fleet, links))
}

/// What the process holds.
struct Footprint {
    bytes: usize,
    blocks: usize,
    resident: usize,
}

impl Footprint {
    fn now() -> Self {
        let stats = HEAP.stats();
        Self {
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
            blocks: stats.allocations - stats.deallocations,
            resident: resident(),
        }
    }

    fn print(&self, what: &str, count: usize) {
        let now = Self::now();
        let each = |after: usize, before: usize| (after.saturating_sub(before) + count / 2) / count;
        let (bytes, resident) = (each(now.bytes, self.bytes), each(now.resident, self.resident));
        println!("| {what} | {bytes} | {} | {resident} |", each(now.blocks, self.blocks));
    }
}

/// Resident bytes, where the system tells: for information, because freed pages are not given back at once.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok()).map_or(0, |pages| pages * 4096)
}

// Mass loss.

fn losses(count: usize, arguments: &[String]) {
    let gates =
        [("one gate for all", Sharing::All), ("gates of 100", Sharing::Hundreds), ("a gate each", Sharing::Nobody)];
    let wanted: Vec<_> = gates.into_iter().filter(|(name, _)| is_wanted("loss", name, arguments)).collect();
    if wanted.is_empty() {
        return;
    }
    println!(
        "{count} kept connections, lost at one instant; the server refuses for {OUTAGE:?}, then accepts. The aim is"
    );
    println!(
        "{AIM_MICROS} µs of CPU for each connection and each attempt, until all have been back for {SETTLED:?}.\n"
    );
    println!("| gates | attempts | back after, s | CPU, ms | µs a connection and attempt |");
    println!("|---|---:|---:|---:|---:|");
    for (name, gate) in wanted {
        let runtime = paused();
        runtime.block_on(async {
            let fleet = Fleet::new(gate, count);
            let links = fleet.keep();
            fleet.until_accepted(count).await;
            sleep(SETTLED).await;
            let (dials, cpu, start) = (fleet.server.dials(), cpu_time(), tokio::time::Instant::now());
            fleet.lose(&links);
            sleep(OUTAGE).await;
            fleet.server.up.store(true, Ordering::Relaxed);
            fleet.until_accepted(2 * count).await;
            let back = start.elapsed().as_secs_f64();
            sleep(SETTLED).await;
            let (attempts, cpu) = (fleet.server.dials() - dials, cpu_time().saturating_sub(cpu));
            let each = micros(cpu) / f64::from(u32::try_from(count + attempts).unwrap_or(u32::MAX));
            println!("| {name} | {attempts} | {back:.1} | {:.0} | {each:.2} |", micros(cpu) / 1e3);
        });
    }
    println!();
}

/// CPU time of the main thread, which does all the work here; zero where the system does not tell.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/self/schedstat").ok();
    Duration::from_nanos(text.and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or_default())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

// The connections.

/// Longer than `stable_after`, so that nothing is due any more.
const SETTLED: Duration = Duration::from_secs(30);
const OUTAGE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
enum Sharing {
    All,
    Hundreds,
    Nobody,
}

/// As many connections to one server.
struct Fleet {
    server: Arc<Server>,
    builder: SupervisorBuilder<Dialler>,
    sharing: Sharing,
    count: usize,
}

impl Fleet {
    fn new(sharing: Sharing, count: usize) -> Self {
        let server = Arc::new(Server::new());
        let builder = Supervisor::builder(Dialler(Arc::clone(&server)));
        Self { server, builder, sharing, count }
    }

    fn each(&self) -> impl Iterator<Item = SupervisorBuilder<Dialler>> {
        let gate = || Gate::builder(ENDPOINT).build().expect("the default policy is valid");
        let each_gate = match self.sharing {
            Sharing::All => self.count,
            Sharing::Hundreds => 100,
            Sharing::Nobody => 0,
        };
        let mut current = gate();
        (0..self.count).map(move |n| {
            if each_gate == 0 {
                return self.builder.clone();
            }
            if n % each_gate == 0 {
                current = gate();
            }
            self.builder.clone().gate(&current)
        })
    }

    fn keep(&self) -> Vec<Link<Dialler>> {
        self.each().map(|builder| build(builder).keep().expect("it is not active elsewhere")).collect()
    }

    /// All of them break, and the server is away.
    fn lose(&self, links: &[Link<Dialler>]) {
        self.server.up.store(false, Ordering::Relaxed);
        for link in links {
            link.current().expect("it is connected").report(io::Error::from(io::ErrorKind::ConnectionReset));
        }
    }

    async fn until_accepted(&self, count: usize) {
        while self.server.accepted.load(Ordering::Relaxed) < count {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn build(builder: SupervisorBuilder<Dialler>) -> Supervisor<Dialler> {
    builder.build().expect("the settings are valid")
}

/// A runtime whose clock stands still while somebody works.
fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime needs nothing")
}

const ENDPOINT: &str = "test://server:1";

struct Server {
    up: AtomicBool,
    dials: AtomicUsize,
    accepted: AtomicUsize,
    endpoint: Endpoint,
}

impl Server {
    fn new() -> Self {
        let endpoint = Endpoint::new(ENDPOINT);
        Self { up: AtomicBool::new(true), dials: AtomicUsize::new(0), accepted: AtomicUsize::new(0), endpoint }
    }

    fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }
}

/// Answers in its first poll; the connection itself weighs nothing.
struct Dialler(Arc<Server>);

impl Connector for Dialler {
    type Connection = ();
    type Error = io::Error;

    async fn connect(&self, _attempt: Attempt) -> Result<(), io::Error> {
        self.0.dials.fetch_add(1, Ordering::Relaxed);
        if self.0.up.load(Ordering::Relaxed) {
            self.0.accepted.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    fn endpoint(&self) -> Endpoint {
        self.0.endpoint.clone()
    }
}
