//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Three fleets of websocket clients, each with a server of its own, live through the same outage: the server is
/// killed, refuses with 503, drops whom it accepts, and is healthy again. Takes under a minute.
#[derive(Clone, Debug, Parser)]
#[command(name = "outage", disable_version_flag = true)]
pub(crate) struct Args {
    /// Clients in each fleet, from 1 to 1000; each 50 beyond 200 make the run about two seconds longer
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) clients: u16,

    /// Handshakes that a server takes at once after a pause, from 1 to 50; then 50 a second. Plain loops knock all at
    /// once: 5 of them get in each time, or up to 50
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub(crate) burst: u8,

    /// Repeats the random draws of our clients (a number from 0); without it each run draws anew
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Also writes a picture of the two timelines, ours and the plain loop's
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Shortens the phases to about ten seconds in all, for a try: too short for a verdict
    #[arg(long)]
    pub(crate) fast: bool,
}
