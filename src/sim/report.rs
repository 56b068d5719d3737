//! What a run showed: to the server, and to the clients.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::machine::Failure;

/// One attempt. Instants are durations since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dial {
    /// Whose.
    pub client: usize,
    /// When it began.
    pub at: Duration,
    /// When it ended; `None` if the run ended first, or nobody polled it.
    pub ended: Option<Duration>,
    /// How it ended: `Timeout` also where the client's own deadline passed; `None` if it was cancelled or never ended.
    pub outcome: Option<Result<(), Failure>>,
}

/// What a run showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub(super) lost: Duration,
    pub(super) healed: Duration,
    pub(super) dials: Vec<Dial>,
    pub(super) standings: Vec<Standing>,
    pub(super) log: BTreeMap<usize, Vec<String>>,
    pub(super) violations: Vec<String>,
}

/// Where a client stands at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not connected, and should be.
    Away,
    /// Cancelled, stopped or never polled again.
    Excused,
    /// Connected since then without a break.
    Up(Duration),
}

impl Report {
    /// Every attempt, in the order of their starts.
    #[must_use]
    pub fn dials(&self) -> &[Dial] {
        &self.dials
    }

    /// How many clients the fleet has.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.standings.len()
    }

    /// When the server changed for the last time, since the start: what the times until clients are back count from.
    #[must_use]
    pub fn healed(&self) -> Duration {
        self.healed
    }

    /// Attempts begun between the loss and the return of the server.
    #[must_use]
    pub fn dials_in_outage(&self) -> usize {
        self.dials.iter().filter(|dial| (self.lost..self.healed).contains(&dial.at)).count()
    }

    /// Attempts begun since the server is back.
    #[must_use]
    pub fn dials_after(&self) -> usize {
        self.dials.iter().filter(|dial| dial.at >= self.healed).count()
    }

    /// Attempts begun since the loss, by client.
    #[must_use]
    pub fn dials_per_client(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for dial in self.since_loss() {
            *counts.entry(dial.client).or_default() += 1;
        }
        counts
    }

    /// Attempts begun since the server is back that failed.
    #[must_use]
    pub fn refused_after(&self) -> usize {
        let after = self.dials.iter().filter(|dial| dial.at >= self.healed);
        after.filter(|dial| matches!(dial.outcome, Some(Err(_)))).count()
    }

    /// When each client dialled first after the loss, as time since the loss.
    #[must_use]
    pub fn first_dials(&self) -> BTreeMap<usize, Duration> {
        let mut firsts = BTreeMap::new();
        for dial in self.since_loss() {
            firsts.entry(dial.client).or_insert(dial.at - self.lost);
        }
        firsts
    }

    /// How long after the return of the server `share` (0 to 1) of the clients were connected for good; `None` if that
    /// never came to be. Clients that were cancelled, stopped or never polled again are not counted.
    #[must_use]
    pub fn back(&self, share: f64) -> Option<Duration> {
        let mut back: Vec<_> = (0..self.standings.len()).filter_map(|client| self.back_of(client)).collect();
        back.sort_unstable();
        let expected = self.standings.iter().filter(|standing| **standing != Standing::Excused).count();
        let wanted = share_of(expected, share);
        wanted.checked_sub(1).map_or(Some(Duration::ZERO), |last| back.get(last).copied())
    }

    /// How long after the return of the server this client was connected for good.
    #[must_use]
    pub fn back_of(&self, client: usize) -> Option<Duration> {
        match self.standings.get(client)? {
            Standing::Up(since) => Some(since.saturating_sub(self.healed)),
            Standing::Away | Standing::Excused => None,
        }
    }

    /// The most attempts begun within one interval of 100 ms since the loss.
    #[must_use]
    pub fn peak_per_100_ms(&self) -> usize {
        let mut bins: BTreeMap<u128, usize> = BTreeMap::new();
        for dial in self.since_loss() {
            *bins.entry(dial.at.as_millis() / 100).or_default() += 1;
        }
        bins.into_values().max().unwrap_or_default()
    }

    /// The most attempts under way at once since the loss.
    #[must_use]
    pub fn peak_in_flight(&self) -> usize {
        let mut edges: Vec<(Duration, isize)> = Vec::new();
        for dial in self.since_loss() {
            edges.push((dial.at, 1));
            edges.extend(dial.ended.map(|ended| (ended, -1)));
        }
        // At one instant the ends come first.
        edges.sort_unstable();
        let mut now = 0_isize;
        edges.into_iter().fold(0, |peak, (_, step)| {
            now += step;
            peak.max(now.unsigned_abs())
        })
    }

    /// The transitions of a client that the fleet was asked to log, as [`line`](super::line) writes them.
    #[must_use]
    pub fn log(&self, client: usize) -> &[String] {
        self.log.get(&client).map_or(&[], Vec::as_slice)
    }

    /// Broken invariants, the first few; empty, unless the machine is wrong.
    #[must_use]
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn since_loss(&self) -> impl Iterator<Item = &Dial> {
        self.dials.iter().filter(|dial| dial.at >= self.lost)
    }
}

/// `share` of `count`, rounded up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count of clients is far below 2^52, and a share of it is between zero and it"
)]
fn share_of(count: usize, share: f64) -> usize {
    ((count as f64 * share.clamp(0.0, 1.0)).ceil() as usize).min(count)
}
