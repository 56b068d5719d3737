//! What the outage of a whole process costs: 100,000 kept connections lose their server at one instant, and come back.
//!
//! `cargo bench --bench mass`, or another number behind `--`. Time is paused, so only work counts: the CPU time of the
//! one thread that does all of it. Connections and dials themselves cost next to nothing here.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use steadfast::{Connector, Failure, Gate, Link, Supervisor, connector_fn};
use tokio::time::sleep;

const ENDPOINT: &str = "bench://server:1";

/// How long the server is away.
const OUTAGE: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    // `cargo bench` says `--bench`; `cargo test` does not, and wants to know only whether it runs.
    let usual = if has("--bench") && !has("--test") { 100_000 } else { 200 };
    let connections = arguments.iter().find_map(|word| word.parse().ok()).unwrap_or(usual);
    println!("\n**{connections} connections lose a server that is away for {} s**\n", OUTAGE.as_secs());
    println!("| gates | connect | lose | attempts | back after, s | a connection | a connection and attempt |");
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for gates in [connections, connections / 100, 1] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(outage(connections, gates.max(1)));
    }
}

async fn outage(connections: u64, gates: u64) {
    let server = Arc::new(Server::default());
    let gates: Vec<Gate> =
        (0..gates).map(|_| Gate::builder(ENDPOINT).build().expect("the default policy is valid")).collect();
    let begun = cpu();
    let links: Vec<_> =
        gates.iter().cycle().zip(0..connections).map(|(gate, seed)| keep(&server, gate, seed)).collect();
    all_up(&links).await;
    // Long enough to be forgiven everything, and for the gates to close.
    sleep(Duration::from_secs(60)).await;
    let connected = cpu();
    server.down.store(true, Ordering::Relaxed);
    server.dials.store(0, Ordering::Relaxed);
    let lost = tokio::time::Instant::now();
    for link in &links {
        link.current().expect("it is up").report(Failure::Unreachable.because("reset"));
    }
    let reported = cpu();
    sleep(OUTAGE).await;
    server.down.store(false, Ordering::Relaxed);
    all_up(&links).await;
    let back = cpu();
    let attempts = server.dials.load(Ordering::Relaxed);
    println!(
        "| {} | {} | {} | {attempts} | {:.0} | {} | {} |",
        gates.len(),
        micros(connected - begun, connections),
        micros(reported - connected, connections),
        lost.elapsed().as_secs_f64(),
        micros(back - connected, connections),
        micros(back - connected, connections.max(attempts)),
    );
}

/// A server in this process: it says no while it is down.
#[derive(Default)]
struct Server {
    down: AtomicBool,
    dials: AtomicU64,
}

fn keep(server: &Arc<Server>, gate: &Gate, seed: u64) -> Link<impl Connector<Connection = ()>> {
    let server = Arc::clone(server);
    let connector = connector_fn(ENDPOINT, move |_| {
        server.dials.fetch_add(1, Ordering::Relaxed);
        let down = server.down.load(Ordering::Relaxed);
        async move { if down { Err(Failure::Unreachable.because("refused")) } else { Ok(()) } }
    });
    let supervisor = Supervisor::builder(connector).gate(gate).seed(seed).build().expect("the default policy is valid");
    supervisor.keep().expect("it is idle")
}

async fn all_up<C: Connector>(links: &[Link<C>]) {
    for link in links {
        link.ready().await.expect("nobody gives up");
    }
}

/// The CPU time of this thread; where the system does not tell, the time that passed.
fn cpu() -> Duration {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let told = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| BEGUN.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

/// A share in microseconds.
#[expect(clippy::cast_precision_loss, reason = "counts of connections and attempts")]
fn micros(whole: Duration, parts: u64) -> String {
    format!("{:.1} µs", whole.as_secs_f64() * 1e6 / parts.max(1) as f64)
}
