//! What happens to the servers, and when.

use std::time::{Duration, Instant};

/// What a server does to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The clients come one after the other, as in a rolling deployment.
    Start,
    /// All is well.
    Steady,
    /// Nobody listens; every socket was reset.
    Killed,
    /// Each handshake is answered with 503 and `Retry-After`.
    Unavailable,
    /// Each handshake succeeds, and the session is dropped soon after.
    Flapping,
    /// Healthy for good.
    Recovery,
}

impl Phase {
    /// In few words.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Steady => "steady",
            Self::Killed => "killed",
            Self::Unavailable => "503",
            Self::Flapping => "flapping",
            Self::Recovery => "healthy again",
        }
    }
}

/// The phases of one run with their lengths.
#[derive(Debug)]
pub(crate) struct Schedule {
    stages: [(Phase, Duration); 6],
}

/// Clients that start each second: below what the servers take, so that the run begins without refusals.
const STARTS_PER_SECOND: f64 = 40.0;

impl Schedule {
    /// Every client is up and forgiven (10 s) before the kill. Afterwards a plain loop needs at least one round of its
    /// longest delay for each 50 clients, so the end waits longer for larger fleets.
    pub(crate) fn new(clients: u16, fast: bool) -> Self {
        let clients = f64::from(clients);
        let [steady, killed, unavailable, flapping, recovery] =
            if fast { [1.0, 1.0, 1.0, 1.0, 6.0] } else { [11.0, 5.0, 4.0, 4.0, 22.0 + clients / 50.0] };
        let stages = [
            (Phase::Start, clients / STARTS_PER_SECOND),
            (Phase::Steady, steady),
            (Phase::Killed, killed),
            (Phase::Unavailable, unavailable),
            (Phase::Flapping, flapping),
            (Phase::Recovery, recovery),
        ];
        Self { stages: stages.map(|(phase, seconds)| (phase, Duration::from_secs_f64(seconds))) }
    }

    /// How long the run takes.
    pub(crate) fn total(&self) -> Duration {
        self.stages.iter().map(|(_, length)| *length).sum()
    }

    /// When the client with this number starts.
    pub(crate) fn start_of(client: u16) -> Duration {
        Duration::from_secs_f64(f64::from(client) / STARTS_PER_SECOND)
    }

    /// The phase at this time of the run, and how long it still lasts.
    pub(crate) fn at(&self, elapsed: Duration) -> (Phase, Duration) {
        let mut end = Duration::ZERO;
        for (phase, length) in self.stages {
            end += length;
            if elapsed < end {
                return (phase, end.saturating_sub(elapsed));
            }
        }
        (Phase::Recovery, Duration::ZERO)
    }

    /// When each phase begins and ends.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (Phase, Duration, Duration)> {
        self.stages.iter().scan(Duration::ZERO, |end, (phase, length)| {
            let begin = *end;
            *end += *length;
            Some((*phase, begin, *end))
        })
    }

    /// When this phase begins.
    pub(crate) fn begin(&self, wanted: Phase) -> Duration {
        self.spans().find(|(phase, _, _)| *phase == wanted).map_or(Duration::ZERO, |(_, begin, _)| begin)
    }
}

/// The one place where the demo reads the clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}
