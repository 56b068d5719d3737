//! What a test needs to show that a service survives.
//!
//! # The problem
//!
//! That a service comes back after an outage is seldom tested, because outages are slow to play and hard to repeat. Under
//! tokio's paused time an outage of a minute takes milliseconds; what is missing is the other side.
//!
//! # What there is
//!
//! - A [`ScriptedServer`] in memory: it accepts, refuses, fails, hangs; it goes down, is cut off, and comes back; and it
//!   [counts](Seen) what it sees, so that the test need not believe the client.
//! - Its connections are [`Transport`]s, which read and write like a socket and break like one: [`Fault`]s are injected
//!   while the service uses them. [`duplex`] makes one without a server.
//! - A [`ManualClock`], for the machine that was suspended.
//! - One seed makes a run repeatable: give each supervisor `.seed(n)`, each its own `n`. Whoever drives
//!   [`machine`](crate::machine) by hand gets the same draws from [`rng`].
//!
//! ```
//! use std::io;
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//!
//! use steadfast::testing::{ScriptedServer, Transport};
//! use steadfast::{Attempt, BoxError, Stopped, Supervisor, connector_fn};
//! use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
//!
//! // The service: logs in, then prints prices. `TcpStream` in production, `Transport` in the test.
//! async fn log_in<T: AsyncRead + AsyncWrite + Unpin>(stream: T) -> io::Result<BufReader<T>> {
//!     let mut stream = BufReader::new(stream);
//!     stream.write_all(b"hello\n").await?;
//!     let mut answer = String::new();
//!     stream.read_line(&mut answer).await?;
//!     if answer == "welcome\n" { Ok(stream) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
//! }
//!
//! async fn prices<T, D>(dial: impl Fn(Attempt) -> D + Send + Sync + 'static) -> Result<(), Stopped>
//! where
//!     T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
//!     D: Future<Output = io::Result<T>> + Send + 'static,
//! {
//!     let connector = connector_fn("prices", move |attempt| {
//!         let stream = dial(attempt);
//!         async { log_in(stream.await?).await }
//!     });
//!     Supervisor::new(connector)
//!         .run(|mut connection, _session| async move {
//!             let mut line = String::new();
//!             while connection.read_line(&mut line).await? > 0 {
//!                 println!("{}", std::mem::take(&mut line).trim_end());
//!             }
//!             Ok::<_, io::Error>(ControlFlow::Continue(())) // the server hung up: dial again
//!         })
//!         .await
//! }
//!
//! // The server: welcomes, then says a price every second.
//! async fn say_prices(transport: Transport) -> io::Result<()> {
//!     let mut stream = BufReader::new(transport);
//!     let mut hello = String::new();
//!     stream.read_line(&mut hello).await?;
//!     assert_eq!(hello, "hello\n");
//!     stream.write_all(b"welcome\n").await?;
//!     loop {
//!         stream.write_all(b"42\n").await?;
//!         tokio::time::sleep(Duration::from_secs(1)).await;
//!     }
//! }
//!
//! // The test: `#[tokio::test(start_paused = true)]`.
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn prices_survive_an_outage() {
//!     let server = ScriptedServer::with_handler(say_prices);
//!     let dialled = server.clone();
//!     let service = tokio::spawn(prices(move |attempt| dialled.dial(&attempt)));
//!     let minute = Duration::from_secs(60);
//!     server.wait_for(minute, |seen| seen.open == 1).await;
//!     tokio::time::sleep(minute).await;
//!
//!     server.go_down();
//!     tokio::time::sleep(minute).await;
//!     let asked = server.seen().dials.len() - 1;
//!     assert!((5..=30).contains(&asked), "it asks, and does not hammer: {asked} times");
//!
//!     server.come_back();
//!     server.wait_for(Duration::from_secs(10), |seen| seen.open == 1).await;
//!     tokio::time::sleep(minute).await;
//!     assert_eq!(server.seen().open, 1, "and it stays");
//!     service.abort();
//! }
//! # prices_survive_an_outage();
//! ```
//!
//! # Time
//!
//! Everything here sleeps on tokio's timer. Under paused time (tokio's feature `test-util`, `start_paused = true`, a
//! runtime with one thread) virtual time jumps to the next timer as soon as every task waits: tests take milliseconds and
//! repeat exactly. In real time all of it works as well, and takes as long as it says.
//!
//! Waiting for something that never comes is what paused time is bad at: with no timer left a test hangs, and with a timer
//! that repeats it spins. [`ScriptedServer::wait_for`] has a limit for that reason.
//!
//! # Misuse
//!
//! This module is for tests, so it panics where a test would otherwise pass without showing anything: a fault that is
//! injected into no connection, a clock that nobody looks at, a handler or a script of the server that panicked.

mod answer;
mod clock;
mod fault;
mod pipe;
mod seen;
mod server;
mod shared;
mod transport;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use answer::Answer;
pub use clock::ManualClock;
pub use fault::{Fault, Faults};
pub use seen::Seen;
pub use server::{ScriptedConnector, ScriptedServer};
pub use transport::{Transport, duplex};

use rand::SeedableRng;
use rand::rngs::SmallRng;

/// The generator that a supervisor with this `seed` draws from in its first run.
///
/// For [`machine::Lifecycle`](crate::machine::Lifecycle) and [`machine::Gate`](crate::machine::Gate) driven by hand: with
/// the same events at the same instants they decide what the supervisor decides. A supervisor takes the seed itself
/// ([`seed`](crate::SupervisorBuilder::seed)). The draws may differ on another platform or with another version of
/// `rand`.
#[must_use]
pub fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed).fork()
}

/// A test that failed is over: what it left behind under a lock harms nobody.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
