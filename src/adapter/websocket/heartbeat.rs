//! When to ask a silent peer whether it lives, and when to stop believing it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rand::TryRng;
use rand::rngs::SysRng;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::machine::add;

/// The timers of one connection.
///
/// A ping goes out every interval, whatever else happens, because some who cut idle connections look at one direction
/// only. Received bytes are what counts as life. They only move the verdict away, so the timer is left alone and asked
/// what it is worth when it fires.
#[derive(Debug)]
pub(super) struct Heartbeat {
    interval: Duration,
    /// The interval times this connection's own factor.
    every: Duration,
    timeout: Duration,
    received: u64,
    heard_at: Instant,
    next_ping: Instant,
    /// When the first ping after the last received byte was sent.
    asked_at: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    Ping,
    Dead { waited: Duration },
}

impl Heartbeat {
    pub(super) fn new(interval: Duration, timeout: Duration, received: u64, now: Instant) -> Self {
        let every = Duration::try_from_secs_f64(interval.as_secs_f64() * factor()).unwrap_or(interval);
        let next_ping = later(now, every);
        let timer = Box::pin(sleep_until(next_ping));
        Self { interval, every, timeout, received, heard_at: now, next_ping, asked_at: None, timer }
    }

    /// Takes note of the bytes received so far.
    pub(super) fn heard(&mut self, received: u64) {
        if received != self.received {
            self.received = received;
            self.heard_at = now();
            self.asked_at = None;
        }
    }

    /// Asks at once.
    pub(super) fn hurry(&mut self) {
        self.next_ping = now();
        self.timer.as_mut().reset(self.next_ping);
    }

    /// Whether a ping is due while data keeps coming and nobody looks at the timer.
    pub(super) fn is_overdue(&self) -> bool {
        self.heard_at >= self.next_ping
    }

    /// Whoever calls [`poll`](Self::poll) read all there is before, so that an answer that waits in a buffer counts.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Beat> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = now();
            if self.verdict().is_some_and(|verdict| verdict <= now) {
                return Poll::Ready(Beat::Dead { waited: now - self.heard_at });
            }
            if self.next_ping <= now {
                self.asked(now);
                return Poll::Ready(Beat::Ping);
            }
            self.rearm();
        }
    }

    /// A ping is on its way.
    pub(super) fn asked(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
        self.next_ping = later(now, self.every);
        self.rearm();
    }

    fn rearm(&mut self) {
        let verdict = self.verdict().unwrap_or(self.next_ping);
        self.timer.as_mut().reset(verdict.min(self.next_ping));
    }

    /// An interval and a timeout after the last byte. A peer that was never asked, because nobody polled, has a timeout
    /// from the question on.
    fn verdict(&self) -> Option<Instant> {
        let asked_at = self.asked_at?;
        Some(later(later(self.heard_at, self.interval).max(asked_at), self.timeout))
    }
}

/// Where the adapter reads the clock: tokio's, because its timers go by that.
#[expect(clippy::disallowed_methods, reason = "a connector is used without a supervisor too, so it has no `Clock`")]
pub(super) fn now() -> Instant {
    Instant::now()
}

fn later(now: Instant, wait: Duration) -> Instant {
    add(now.into_std(), wait).into()
}

/// Between 0.8 and 1; in the middle where the operating system has no randomness to give.
fn factor() -> f64 {
    let drawn = SysRng.try_next_u32().map_or(0.5, |drawn| f64::from(drawn) / f64::from(u32::MAX));
    0.8 + 0.2 * drawn
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::{Instant, advance, timeout};

    use super::{Beat, Heartbeat, factor};

    const INTERVAL: Duration = Duration::from_secs(20);
    const TIMEOUT: Duration = Duration::from_secs(10);
    const GRID: Duration = Duration::from_millis(2);

    async fn beat(heartbeat: &mut Heartbeat) -> Beat {
        poll_fn(|cx| heartbeat.poll(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_death_an_interval_and_a_timeout_after_the_last_byte() {
        for interval in [Duration::from_secs(5), TIMEOUT, INTERVAL] {
            let start = Instant::now();
            let mut heartbeat = Heartbeat::new(interval, TIMEOUT, 0, start);
            assert_eq!(beat(&mut heartbeat).await, Beat::Ping);
            assert!(
                start.elapsed() >= interval * 8 / 10 && start.elapsed() <= interval + GRID,
                "{:?}",
                start.elapsed()
            );
            let waited = loop {
                match beat(&mut heartbeat).await {
                    Beat::Ping => {}
                    Beat::Dead { waited } => break waited,
                }
            };
            assert_eq!(waited, start.elapsed());
            assert!(waited >= interval + TIMEOUT && waited <= interval + TIMEOUT + GRID, "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_for_each_ping_is_life() {
        for (interval, timeout) in [(INTERVAL, TIMEOUT), (TIMEOUT, TIMEOUT), (TIMEOUT, INTERVAL)] {
            let mut heartbeat = Heartbeat::new(interval, timeout, 0, Instant::now());
            for received in 1..1000 {
                assert_eq!(beat(&mut heartbeat).await, Beat::Ping);
                advance(timeout - GRID).await;
                heartbeat.heard(received);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pings_keep_their_distance_whatever_is_received() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(INTERVAL, TIMEOUT, 0, start);
        for received in 0..100 {
            heartbeat.heard(received);
            assert_eq!(beat(&mut heartbeat).await, Beat::Ping);
        }
        let each = start.elapsed() / 100;
        assert!(each >= INTERVAL * 8 / 10 && each <= INTERVAL + GRID, "{each:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_dead_who_was_not_asked() {
        let mut heartbeat = Heartbeat::new(INTERVAL, TIMEOUT, 0, Instant::now());
        advance(Duration::from_secs(3600)).await;
        assert_eq!(beat(&mut heartbeat).await, Beat::Ping);
        let asked = Instant::now();
        assert!(timeout(TIMEOUT - GRID, beat(&mut heartbeat)).await.is_err());
        assert!(matches!(beat(&mut heartbeat).await, Beat::Dead { .. }));
        assert!(asked.elapsed() <= TIMEOUT + GRID);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hurried_heart_asks_at_once() {
        let mut heartbeat = Heartbeat::new(INTERVAL, TIMEOUT, 0, Instant::now());
        assert!(timeout(GRID, beat(&mut heartbeat)).await.is_err());
        heartbeat.hurry();
        assert_eq!(timeout(GRID, beat(&mut heartbeat)).await, Ok(Beat::Ping));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_interval_neither_panics_nor_pings() {
        let mut heartbeat = Heartbeat::new(Duration::MAX, Duration::MAX, 0, Instant::now());
        assert!(timeout(Duration::from_secs(86_400 * 365), beat(&mut heartbeat)).await.is_err());
        heartbeat.hurry();
        assert_eq!(beat(&mut heartbeat).await, Beat::Ping);
        assert!(timeout(Duration::from_secs(86_400 * 365), beat(&mut heartbeat)).await.is_err());
    }

    #[test]
    fn every_connection_has_a_factor_of_its_own() {
        let factors: Vec<f64> = (0..100).map(|_| factor()).collect();
        assert!(factors.iter().all(|factor| (0.8..=1.0).contains(factor)));
        assert!(factors.windows(2).any(|pair| (pair[0] - pair[1]).abs() > 0.01));
    }
}
