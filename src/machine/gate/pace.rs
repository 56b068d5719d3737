//! How fast a gate lets dials through after an outage.

use std::time::{Duration, Instant};

use rand::Rng;

use super::super::time::{Nanos, add, uniform};

/// Dials started per second, and how many may be under way.
///
/// The rate starts at 1/s, doubles with a success of an attempt that began 100 ms after the last change or later, until
/// the first refusal and up to the rate of its last cut, then grows by 0.4/s per success and shrinks to 0.7 of itself
/// per refusal: additive increase and multiplicative decrease, which converges whatever the capacity. Of the attempts
/// sent before the last change none doubles or cuts again: they tell about the rate before it. The number under way
/// starts at 2 and grows by one with each success that took no longer than twice the best + 100 ms: a server that
/// serves from a queue shows its limit by time and not by refusals.
#[derive(Debug)]
pub(super) struct Pace {
    rate: f64,
    /// The time between two starts at that rate.
    gap: Duration,
    limit: f64,
    threshold: f64,
    best: Option<Duration>,
    changed_at: Instant,
    slot: Instant,
    next_start: Instant,
}

impl Pace {
    pub(super) fn new<R: Rng + ?Sized>(now: Instant, threshold: f64, rng: &mut R) -> Self {
        let mut pace = Self {
            rate: FIRST_RATE,
            gap: gap(FIRST_RATE),
            limit: LEAST_LIMIT,
            threshold,
            best: None,
            changed_at: now,
            slot: now,
            next_start: now,
        };
        pace.draw(rng);
        pace
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// The rate up to which the next pace may double.
    pub(super) fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Whether one more may be under way.
    pub(super) fn has_room(&self, in_flight: usize) -> bool {
        // Of whole numbers those up to the limit are those up to its whole part.
        f64::from(u32::try_from(in_flight + 1).unwrap_or(u32::MAX)) <= self.limit
    }

    /// When the next dial may start: drawn inside its slot, so that gates that recover together do not tick together.
    pub(super) fn next_start(&self) -> Instant {
        self.next_start
    }

    pub(super) fn started<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        self.slot = add(self.slot, self.gap).max(now);
        self.draw(rng);
    }

    pub(super) fn succeeded<R: Rng + ?Sized>(&mut self, now: Instant, started: Instant, rng: &mut R) {
        let took = now.saturating_duration_since(started);
        let best = self.best.map_or(took, |best| best.min(took));
        self.best = Some(best);
        if took <= best.saturating_mul(2).saturating_add(SLACK) {
            self.limit += 1.0;
        } else {
            self.limit = (self.limit * CUT).max(LEAST_LIMIT);
        }
        if self.rate >= self.threshold {
            self.rate = (self.rate + INCREASE).min(MOST_RATE);
        } else if started >= add(self.changed_at, SUSTAIN) {
            self.rate = (self.rate * 2.0).min(self.threshold.max(FIRST_RATE)).min(MOST_RATE);
            self.changed_at = now;
        } else {
            return;
        }
        self.reslot(now, rng);
    }

    pub(super) fn refused<R: Rng + ?Sized>(&mut self, now: Instant, started: Instant, rng: &mut R) {
        if started < self.changed_at {
            return;
        }
        self.rate = (self.rate * CUT).max(LEAST_RATE);
        self.threshold = self.rate;
        self.changed_at = now;
        self.reslot(now, rng);
    }

    /// A new rate brings a slot forward that the old one put further away.
    fn reslot<R: Rng + ?Sized>(&mut self, now: Instant, rng: &mut R) {
        self.gap = gap(self.rate);
        let next = add(now, self.gap);
        if self.next_start > next {
            self.slot = now;
            self.draw(rng);
        }
    }

    fn draw<R: Rng + ?Sized>(&mut self, rng: &mut R) {
        self.next_start = add(self.slot, uniform(Duration::ZERO, self.gap, rng));
    }
}

fn gap(rate: f64) -> Duration {
    Nanos::new(Duration::from_secs(1)).share(rate.recip()).duration()
}

const FIRST_RATE: f64 = 1.0;
const LEAST_RATE: f64 = 0.02;
/// Beyond what a timer of one millisecond can tell apart, doubling means nothing.
const MOST_RATE: f64 = 10_000.0;
const LEAST_LIMIT: f64 = 2.0;
const INCREASE: f64 = 0.4;
/// A rate has to be held this long before it doubles, or a server that answers in a millisecond is asked for ten
/// thousand a second within a tenth of one, and a cut to 0.7 of that means nothing.
const SUSTAIN: Duration = Duration::from_millis(100);
const CUT: f64 = 0.7;
const SLACK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test may read the clock")]

    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    /// A pace, an instant so many milliseconds after it began, and a generator.
    fn pace() -> (Pace, impl Fn(u64) -> Instant, SmallRng) {
        let (start, mut rng) = (Instant::now(), SmallRng::seed_from_u64(7));
        (Pace::new(start, f64::INFINITY, &mut rng), move |ms| add(start, Duration::from_millis(ms)), rng)
    }

    fn is(pace: &Pace, rate: f64) -> bool {
        (pace.rate() - rate).abs() < 1e-9
    }

    #[test]
    fn a_rate_doubles_once_held_and_what_was_sent_before_a_change_changes_nothing() {
        let (mut pace, at, mut rng) = pace();
        pace.succeeded(at(200), at(99), &mut rng);
        assert!(is(&pace, 1.0), "not held for long enough: {pace:?}");
        pace.succeeded(at(200), at(100), &mut rng);
        assert!(is(&pace, 2.0), "{pace:?}");
        pace.refused(at(300), at(199), &mut rng);
        assert!(is(&pace, 2.0), "sent before the last change: {pace:?}");
        pace.refused(at(300), at(200), &mut rng);
        assert!(is(&pace, 1.4), "{pace:?}");
        pace.succeeded(at(900), at(800), &mut rng);
        pace.succeeded(at(900), at(800), &mut rng);
        assert!(is(&pace, 2.2), "from the rate of the cut on it grows by addition: {pace:?}");
    }

    #[test]
    fn a_rate_has_both_bounds() {
        let (mut pace, at, mut rng) = pace();
        for second in 1..100 {
            pace.succeeded(at(second * 1_000), at(second * 1_000 - 1), &mut rng);
        }
        assert!(is(&pace, MOST_RATE), "{pace:?}");
        for second in 100..200 {
            pace.refused(at(second * 1_000), at(second * 1_000), &mut rng);
        }
        assert!(is(&pace, LEAST_RATE), "{pace:?}");
    }

    #[test]
    fn slots_that_nobody_used_are_not_made_up_for_and_a_new_rate_brings_the_next_forward() {
        let (mut pace, at, mut rng) = pace();
        pace.started(at(100_000), &mut rng);
        assert!(pace.next_start() >= at(100_000), "{pace:?}");
        for second in 101..120 {
            pace.refused(at(second * 1_000), at(second * 1_000), &mut rng);
        }
        pace.started(at(120_000), &mut rng);
        pace.started(at(120_000), &mut rng);
        assert!(pace.next_start() >= at(170_000), "a slot of 50 s has been used: {pace:?}");
        pace.succeeded(at(120_500), at(120_000), &mut rng);
        assert!(pace.next_start() <= at(123_000), "{pace:?}");
    }
}
