//! The window of a gate: how many at once, how far apart, and not before when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::super::WaitCause;
use super::super::time::add;
use super::Member;

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) member: Member,
    pub(super) started: Instant,
    pub(super) epoch: u64,
}

/// Attempts under way, the last start, and the instant before which nobody may start.
///
/// A closed gate may have ten thousand under way: one is found by the number of its permit, and which lease ends first
/// is known, without looking at the others.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By the number of the permit, from `first` on. `None` is over; the first one is not.
    flights: VecDeque<Option<Flight>>,
    first: u64,
    in_flight: usize,
    /// Every flight's, and some of flights that are over; the first one's is not.
    leases: BinaryHeap<Reverse<(Instant, u64)>>,
    last_start: Option<Instant>,
    freed_at: Option<Instant>,
    open_until: Option<Instant>,
    hastened: bool,
    hint_until: Option<Instant>,
}

impl Window {
    /// Starts an attempt, and gives the number of its permit: never used twice.
    pub(super) fn start(&mut self, flight: Flight, lease_ends: Instant) -> u64 {
        let permit = self.first + self.flights.len() as u64;
        self.last_start = Some(flight.started);
        self.leases.push(Reverse((lease_ends, permit)));
        self.flights.push_back(Some(flight));
        self.in_flight += 1;
        permit
    }

    /// Takes an attempt out; `None` where its lease has ended before.
    pub(super) fn take(&mut self, permit: u64, now: Instant) -> Option<Flight> {
        let flight = self.flights.get_mut(self.place(permit)?)?.take()?;
        self.freed_at = Some(now);
        self.in_flight -= 1;
        while matches!(self.flights.front(), Some(None)) {
            self.flights.pop_front();
            self.first += 1;
        }
        while self.leases.peek().is_some_and(|Reverse((_, permit))| !self.is_under_way(*permit)) {
            self.leases.pop();
        }
        Some(flight)
    }

    /// The attempt whose lease ended first, if one has.
    pub(super) fn overdue(&self, now: Instant) -> Option<u64> {
        let Reverse((ends, permit)) = self.leases.peek()?;
        (*ends <= now).then_some(*permit)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// When the first slot is free again at the latest.
    pub(super) fn first_lease_end(&self) -> Option<Instant> {
        self.leases.peek().map(|Reverse((ends, _))| *ends)
    }

    /// Gives back the room that an outage took, when nothing is under way.
    pub(super) fn shrink(&mut self) {
        (self.flights, self.leases) = (VecDeque::new(), BinaryHeap::new());
    }

    fn is_under_way(&self, permit: u64) -> bool {
        self.place(permit).and_then(|place| self.flights.get(place)).is_some_and(Option::is_some)
    }

    fn place(&self, permit: u64) -> Option<usize> {
        usize::try_from(permit.checked_sub(self.first)?).ok()
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

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn of_many_under_way_each_is_found_and_the_first_lease_is_known() {
        let (start, mut rng) = (Instant::now(), SmallRng::seed_from_u64(7));
        let mut window = Window::default();
        let mut plain: Vec<(Instant, u64)> = Vec::new();
        for second in 0..2_000 {
            let now = add(start, Duration::from_secs(second));
            if plain.is_empty() || rng.random_bool(0.52) {
                let member = Member { id: second, credential: 0 };
                let ends = add(now, Duration::from_secs(rng.random_range(1..900)));
                let permit = window.start(Flight { member, started: now, epoch: second }, ends);
                assert!(plain.iter().all(|(_, other)| *other < permit), "numbers grow");
                plain.push((ends, permit));
            } else {
                let (_, permit) = plain.swap_remove(rng.random_range(0..plain.len()));
                assert!(window.take(permit, now).is_some());
                assert!(window.take(permit, now).is_none(), "once");
            }
            let first = plain.iter().min().copied();
            assert_eq!(window.in_flight(), plain.len());
            assert_eq!(window.first_lease_end(), first.map(|(ends, _)| ends));
            let overdue = first.filter(|(ends, _)| *ends <= now).map(|(_, permit)| permit);
            assert_eq!(window.overdue(now), overdue);
        }
        assert!(plain.len() > 20, "or it shows nothing: {}", plain.len());
        for (_, permit) in plain {
            window.take(permit, start);
        }
        assert_eq!((window.flights.len(), window.leases.len()), (0, 0), "nothing is left behind");
    }

    #[test]
    fn open_time_and_hint_grow_only_and_the_later_counts() {
        let (now, mut window) = (Instant::now(), Window::default());
        let at = |seconds| add(now, Duration::from_secs(seconds));
        window.open(at(10));
        window.open(at(5));
        assert_eq!(window.shut(), Some((at(10), WaitCause::BreakerOpen)));
        window.hasten(at(4));
        window.hasten(at(2));
        assert_eq!(window.shut(), Some((at(4), WaitCause::BreakerOpen)), "the first draw counts");
        window.open(at(30));
        window.hasten(at(6));
        assert_eq!(window.shut(), Some((at(6), WaitCause::BreakerOpen)), "the next open time may be hastened");
        window.hint(at(20));
        window.hint(at(15));
        assert_eq!(window.shut(), Some((at(20), WaitCause::Throttled)));
        window.open(at(25));
        assert_eq!(window.shut(), Some((at(25), WaitCause::BreakerOpen)));
        window.end_open_time();
        assert_eq!(window.shut(), Some((at(20), WaitCause::Throttled)), "a hint stays");
    }
}
