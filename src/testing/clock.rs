//! A clock whose machine can be suspended.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::{Handle, Id};

use super::lock;
use crate::runtime::Clock;

/// The clock of a machine that a test suspends, and whose wall clock it sets.
///
/// Its monotonic time is tokio's, so under paused time it jumps from timer to timer, and in real time it passes; waits
/// are slept on tokio's timer either way. Its wall time is its own: it goes along with the monotonic time, begins at the
/// same instant in every run, and moves apart only by [`suspend`](Self::suspend) and [`set_back`](Self::set_back).
///
/// Give [`clock`](Self::clock) to every supervisor of the test, and to the gate that they share. A test that neither
/// suspends nor sets the clock does not need one: `tokio::time::pause` is enough.
///
/// ```
/// use std::time::Duration;
/// use steadfast::testing::{ManualClock, ScriptedServer};
/// use steadfast::{Policy, Supervisor};
/// use tokio::time::sleep;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, clock) = (ScriptedServer::new(), ManualClock::new());
/// let supervisor = Supervisor::builder(server.connector()).clock(clock.clock()).seed(7).build()?;
/// let handle = supervisor.handle();
/// let service = async {
///     supervisor
///         .run(|_connection, session| async move {
///             session.draining().await;
///             Ok::<_, std::io::Error>(std::ops::ControlFlow::<()>::Continue(()))
///         })
///         .await
/// };
/// let test = async {
///     sleep(Duration::from_secs(30)).await;
///     clock.suspend(Duration::from_secs(3_600)); // the lid is closed for an hour
///     sleep(Duration::from_secs(10)).await;
///     assert_eq!(handle.status().generation, 2, "nobody believes the old connection");
/// };
/// tokio::select! {
///     stopped = service => println!("{stopped:?}"),
///     () = test => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ManualClock {
    clock: Clock,
    state: Arc<State>,
}

struct State {
    runtime: Id,
    start: Instant,
    /// The wall time at the start, moved by what happened since.
    wall: Mutex<SystemTime>,
    /// Somebody has read the wall time.
    watched: AtomicBool,
}

impl ManualClock {
    /// A clock whose wall time is 2001-09-09 01:46:40 UTC.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let state = Arc::new(State {
            runtime: runtime(),
            start: Clock::system().now(),
            wall: Mutex::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
            watched: AtomicBool::new(false),
        });
        let read = Arc::clone(&state);
        let wall = move || {
            read.watched.store(true, Ordering::Release);
            let passed = Clock::system().now().saturating_duration_since(read.start);
            *lock(&read.wall) + passed
        };
        Self { clock: Clock::new(|| Clock::system().now(), wall), state }
    }

    /// Gives the clock for supervisors and gates: the same one every time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The machine sleeps for `gap`: no timer fires, no monotonic time passes, the wall clock goes on.
    ///
    /// It returns at once. A supervisor notices within 5 s of tokio's time; a gap of 10 s or less is a correction of the
    /// clock to it, and is ignored.
    ///
    /// # Panics
    ///
    /// If nobody looks at this clock, so that the sleep would pass unnoticed: no supervisor has it, or none runs yet
    /// (what was spawned has to be polled first: await something). Also on another runtime than it was made on, and if
    /// the wall clock would overflow.
    #[track_caller]
    pub fn suspend(&self, gap: Duration) {
        self.set("suspend", |wall| wall.checked_add(gap));
    }

    /// Somebody sets the wall clock back. No supervisor should care.
    ///
    /// # Panics
    ///
    /// As [`suspend`](Self::suspend), and if the wall clock would underflow.
    #[track_caller]
    pub fn set_back(&self, by: Duration) {
        self.set("set_back", |wall| wall.checked_sub(by));
    }

    #[track_caller]
    fn set(&self, call: &str, to: impl FnOnce(SystemTime) -> Option<SystemTime>) {
        assert!(runtime() == self.state.runtime, "`{call}` on another runtime than this clock was made on");
        assert!(
            self.state.watched.load(Ordering::Acquire),
            "`{call}`, but nobody looks at this clock: give it to the supervisor (`.clock(clock.clock())`), let that run, and \
             await something before"
        );
        let mut wall = lock(&self.state.wall);
        let Some(moved) = to(*wall) else { panic!("`{call}` beyond what a wall clock can say") };
        *wall = moved;
    }
}

#[track_caller]
fn runtime() -> Id {
    match Handle::try_current() {
        Ok(runtime) => runtime.id(),
        Err(_) => panic!("a manual clock runs on tokio's time: use it inside of a tokio runtime"),
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("wall", &*lock(&self.state.wall)).finish_non_exhaustive()
    }
}
