//! Two ways to survive an outage, side by side: `cargo run --release --example outage --features websocket`.
//!
//! Three fleets of websocket clients lose their servers at the same moment: one supervised behind a shared gate, one
//! of plain loops, one supervised with a gate for each client (what jitter alone does). Each has a server of its own
//! that takes 50 handshakes a second and resets what is beyond.

mod args;
mod meter;
mod ours;
mod picture;
mod plain;
mod schedule;
mod server;
mod table;
#[cfg(test)]
mod tests;
mod view;

use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use steadfast::Gate;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::Args;
use crate::meter::{BIN, Meter};
use crate::ours::Gates;
use crate::schedule::{Phase, Schedule, now};
use crate::table::{Row, Table};
use crate::view::View;

/// A fleet with its server.
pub(crate) struct Fleet {
    name: &'static str,
    meter: Arc<Meter>,
    gates: Vec<Gate>,
    /// They run until the set is dropped; one that ends says why.
    clients: JoinSet<String>,
    server: JoinSet<io::Result<()>>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Complete,
    Interrupted,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let screen = io::stdout().is_terminal() && io::stdin().is_terminal();
    match run(&args, screen, &mut io::stdout()) {
        Ok(Ended::Complete) => ExitCode::SUCCESS,
        // What shells report for a program ended by an interrupt.
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(error) => {
            let _closed = writeln!(io::stderr(), "outage: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, screen: bool, out: &mut dyn Write) -> Result<Ended, Box<dyn Error>> {
    raise_file_limit(args.clients)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(outage(args, screen, out));
    runtime.shutdown_background();
    ended
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

async fn outage(args: &Args, screen: bool, out: &mut dyn Write) -> Result<Ended, Box<dyn Error>> {
    let schedule = Schedule::new(args.clients, args.fast);
    let seed = args.seed.unwrap_or_else(rand::random);
    writeln!(
        out,
        "{} clients a fleet, {} handshakes a second, {} at once, {:.0} s, --seed {seed}",
        args.clients,
        server::HANDSHAKES_PER_SECOND,
        args.burst,
        schedule.total().as_secs_f64()
    )?;
    if let Some(path) = &args.svg {
        // Better now than after the run.
        File::create(path).map_err(|error| format!("--svg {}: {error}", path.display()))?;
    }
    let (phase, phases) = watch::channel(Phase::Start);
    let mut fleets = start(args, seed, &schedule, &phases).await?;
    let mut view = if screen { View::screen()? } else { View::lines() };
    let ended = conduct(&schedule, &phase, &mut fleets, &mut view, out).await;
    drop(view);
    if ended? == Ended::Interrupted {
        writeln!(out, "Interrupted.")?;
        return Ok(Ended::Interrupted);
    }
    let table = Table {
        rows: fleets.iter().map(|fleet| Row::new(fleet.name, &fleet.meter)).collect(),
        healthy: schedule.begin(Phase::Recovery),
        killed: schedule.begin(Phase::Killed),
    };
    writeln!(out, "\n{table}")?;
    if let (Some(path), [ours, plain, ..]) = (&args.svg, fleets.as_slice()) {
        picture::write(path, &schedule, &ours.meter, &plain.meter)?;
        writeln!(out, "Picture: {}", path.display())?;
    }
    Ok(Ended::Complete)
}

/// Starts the fleets, each against a server of its own.
async fn start(
    args: &Args,
    seed: u64,
    schedule: &Schedule,
    phases: &watch::Receiver<Phase>,
) -> Result<Vec<Fleet>, Box<dyn Error>> {
    let mut fleets = Vec::new();
    let start = now();
    for (name, gates) in
        [("ours, one gate", Some(Gates::Shared)), ("plain loop", None), ("ours, gate each", Some(Gates::Own))]
    {
        let (listener, address) = server::listen().await?;
        let meter = Meter::new(args.clients, start, schedule.total());
        let mut server = JoinSet::new();
        server.spawn(server::serve(listener, address, args.burst, phases.clone(), meter.clone()));
        let (clients, gates) = match gates {
            Some(gates) => ours::spawn(args.clients, address, &meter, gates, seed)?,
            None => (plain::spawn(args.clients, address, &meter), Vec::new()),
        };
        fleets.push(Fleet { name, meter, gates, clients, server });
    }
    Ok(fleets)
}

/// Moves the servers through their phases.
async fn conduct(
    schedule: &Schedule,
    phase: &watch::Sender<Phase>,
    fleets: &mut [Fleet],
    view: &mut View,
    out: &mut dyn Write,
) -> Result<Ended, Box<dyn Error>> {
    let mut interrupted = Box::pin(signalled());
    let mut ticks = interval(BIN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            signal = &mut interrupted => return signal.map(|()| Ended::Interrupted).map_err(Into::into),
        }
        let Some(elapsed) = fleets.first().map(|fleet| fleet.meter.elapsed()) else { return Ok(Ended::Complete) };
        if elapsed >= schedule.total() {
            return Ok(Ended::Complete);
        }
        let (current, _) = schedule.at(elapsed);
        phase.send_if_modified(|phase| std::mem::replace(phase, current) != current);
        for fleet in fleets.iter_mut() {
            fleet.meter.sample();
            fleet.check()?;
        }
        view.show(schedule, elapsed, fleets, out)?;
        if view.interrupted()? {
            return Ok(Ended::Interrupted);
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
        if let Some(client) = self.clients.try_join_next() {
            return Err(format!("{}: a client ended: {}", self.name, client?).into());
        }
        if let Some(server) = self.server.try_join_next() {
            return Err(format!("{}: the server ended: {:?}", self.name, server?).into());
        }
        Ok(())
    }
}
