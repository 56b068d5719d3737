//! Two ways to survive an outage, side by side: `cargo run --release --example outage --features websocket`.
//!
//! Three fleets of websocket clients lose their servers at the same moment: one supervised behind a shared gate, one
//! of plain loops, one supervised with a gate for each client (what jitter alone does). Each has a server of its own
//! that takes 50 handshakes a second and resets what is beyond.

mod args;
mod meter;
mod picture;
mod plain;
mod schedule;
mod server;
mod table;
mod view;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::args::Args;
use crate::meter::{BIN, Meter};
use crate::schedule::{Phase, Schedule, now};
use crate::table::{Row, Table};
use crate::view::View;

/// A fleet with its server.
pub(crate) struct Fleet {
    name: &'static str,
    meter: Arc<Meter>,
    gate: Box<dyn Fn() -> String>,
    clients: JoinSet<()>,
    server: JoinSet<io::Result<()>>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            let _closed = writeln!(io::stderr(), "outage: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    raise_file_limit(args.clients)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(outage(args));
    runtime.shutdown_background();
    outcome
}

/// Six sockets a client live in this process, more than many systems allow at first.
fn raise_file_limit(clients: u16) -> Result<(), Box<dyn Error>> {
    let needed = u64::from(clients) * 6 + 100;
    let allowed = rlimit::increase_nofile_limit(needed)?;
    if allowed < needed {
        return Err(format!(
            "--clients {clients} needs {needed} open files and the system allows {allowed}: at most --clients {}, or \
             a higher `ulimit -n`",
            allowed.saturating_sub(100) / 6
        )
        .into());
    }
    Ok(())
}

async fn outage(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let schedule = Schedule::new(args.clients, args.fast);
    let seed = args.seed.unwrap_or_else(rand::random);
    writeln!(
        io::stdout(),
        "{} clients a fleet, {} handshakes a second, {:.0} s, --seed {seed}",
        args.clients,
        server::HANDSHAKES_PER_SECOND,
        schedule.total().as_secs_f64()
    )?;
    let (phase, phases) = watch::channel(Phase::Start);
    let mut fleets = start(args.clients, seed, &schedule, &phases).await?;
    let mut view = View::open()?;
    let ended = conduct(&schedule, &phase, &mut fleets, &mut view).await;
    drop(view);
    if !ended? {
        writeln!(io::stderr(), "outage: interrupted")?;
        return Ok(ExitCode::from(130));
    }
    let table = Table {
        rows: fleets.iter().map(|fleet| Row::new(fleet.name, &fleet.meter)).collect(),
        healthy: schedule.begin(Phase::Recovery),
        killed: schedule.begin(Phase::Killed),
    };
    writeln!(io::stdout(), "\n{table}")?;
    if let (Some(path), [ours, plain, ..]) = (&args.svg, fleets.as_slice()) {
        picture::write(path, &schedule, &ours.meter, &plain.meter)?;
        writeln!(io::stdout(), "Picture: {}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the fleets, each against a server of its own.
async fn start(
    clients: u16,
    seed: u64,
    schedule: &Schedule,
    phases: &watch::Receiver<Phase>,
) -> Result<Vec<Fleet>, Box<dyn Error>> {
    let mut fleets = Vec::new();
    let start = now();
    for name in ["ours, one gate", "plain loop", "ours, gate each"] {
        let (listener, address) = server::listen().await?;
        let meter = Meter::new(clients, start, schedule.total());
        let mut server = JoinSet::new();
        server.spawn(server::serve(listener, address, phases.clone(), meter.clone()));
        let clients = plain::spawn(clients, address, &meter);
        fleets.push(Fleet { name, meter, gate: Box::new(|| "no gate".to_owned()), clients, server });
    }
    let _ = seed;
    Ok(fleets)
}

/// Moves the servers through their phases; false if somebody interrupted it.
async fn conduct(
    schedule: &Schedule,
    phase: &watch::Sender<Phase>,
    fleets: &mut [Fleet],
    view: &mut View,
) -> Result<bool, Box<dyn Error>> {
    let mut interrupted = Box::pin(signalled());
    let mut ticks = interval(BIN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            signal = &mut interrupted => return signal.map(|()| false).map_err(Into::into),
        }
        let Some(elapsed) = fleets.first().map(|fleet| fleet.meter.elapsed()) else { return Ok(true) };
        if elapsed >= schedule.total() {
            return Ok(true);
        }
        let (current, _) = schedule.at(elapsed);
        phase.send_if_modified(|phase| std::mem::replace(phase, current) != current);
        for fleet in fleets.iter_mut() {
            fleet.meter.sample();
            fleet.check()?;
        }
        view.show(schedule, elapsed, fleets)?;
        if view.interrupted()? {
            return Ok(false);
        }
    }
}

/// Waits for a signal that asks to end.
async fn signalled() -> io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

impl Fleet {
    /// Clients and servers run until the end; one that ends before has failed.
    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        let ended = |what: &str, why: Option<JoinError>| {
            let why = why.map_or_else(String::new, |error| format!(": {error}"));
            format!("{}: {what} ended before the run did{why}", self.name)
        };
        if let Some(client) = self.clients.try_join_next() {
            return Err(ended("a client", client.err()).into());
        }
        if let Some(server) = self.server.try_join_next() {
            server.map_err(|error| ended("the server", Some(error)))??;
            return Err(ended("the server", None).into());
        }
        Ok(())
    }
}
