//! The window of a gate: how many at once, how far apart, and not before when.

use std::time::{Duration, Instant};

use super::super::WaitCause;
use super::super::time::add;
use super::Member;

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) permit: u64,
    pub(super) member: Member,
    pub(super) started: Instant,
    pub(super) lease_ends: Instant,
    pub(super) epoch: u64,
}

/// Attempts under way, the last start, and the instant before which nobody may start.
#[derive(Debug, Default)]
pub(super) struct Window {
    flights: Vec<Flight>,
    last_start: Option<Instant>,
    freed_at: Option<Instant>,
    open_until: Option<Instant>,
    hastened: bool,
    hint_until: Option<Instant>,
}

impl Window {
    pub(super) fn start(&mut self, flight: Flight) {
        self.last_start = Some(flight.started);
        self.flights.push(flight);
    }

    /// Takes an attempt out; `None` where its lease has ended before.
    pub(super) fn take(&mut self, permit: u64, now: Instant) -> Option<Flight> {
        let at = self.flights.iter().position(|flight| flight.permit == permit)?;
        self.freed_at = Some(now);
        Some(self.flights.swap_remove(at))
    }

    /// An attempt whose lease has ended.
    pub(super) fn overdue(&self, now: Instant) -> Option<u64> {
        self.flights.iter().find(|flight| flight.lease_ends <= now).map(|flight| flight.permit)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// When the first slot is free again at the latest.
    pub(super) fn first_lease_end(&self) -> Option<Instant> {
        self.flights.iter().map(|flight| flight.lease_ends).min()
    }

    pub(super) fn last_start(&self) -> Option<Instant> {
        self.last_start
    }

    /// Since when the present number of attempts has been under way.
    pub(super) fn freed_at(&self) -> Option<Instant> {
        self.freed_at
    }

    /// Starts an open time, or lengthens the one that runs.
    pub(super) fn open(&mut self, until: Instant) {
        self.open_until = self.open_until.max(Some(until));
        self.hastened = false;
    }

    /// Ends the open time by `drawn`; once.
    pub(super) fn hasten(&mut self, drawn: Instant) {
        if !self.hastened {
            self.open_until = self.open_until.map(|until| until.min(drawn));
            self.hastened = true;
        }
    }

    /// The server named a wait: it binds everyone.
    pub(super) fn hint(&mut self, until: Instant) {
        self.hint_until = self.hint_until.max(Some(until));
    }

    /// Ends the open time; a hint stays.
    pub(super) fn end_open_time(&mut self) {
        self.open_until = None;
    }

    /// Until when nobody may start, and why; it may be over.
    pub(super) fn shut(&self) -> Option<(Instant, WaitCause)> {
        let open = self.open_until.map(|until| (until, WaitCause::BreakerOpen));
        let hint = self.hint_until.map(|until| (until, WaitCause::Throttled));
        match (open, hint) {
            (Some(open), Some(hint)) if hint.0 >= open.0 => Some(hint),
            (open, hint) => open.or(hint),
        }
    }

    /// The earliest start that is `gap` after the last one.
    pub(super) fn after_gap(&self, gap: Duration) -> Option<Instant> {
        self.last_start.map(|last| add(last, gap))
    }
}
