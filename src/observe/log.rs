//! How many lines of the log a connection and a gate may write.

use std::time::{Duration, Instant};

use tracing::{Span, info, warn};

use super::Cause;
use crate::machine::{Action, Event, Failure, State, StopReason, Transition};

/// One line about one decision.
///
/// A dial is told by its outcome, and who waits for the gate is told once: `on_transition` has them all.
pub(crate) struct Line<'a> {
    pub(crate) transition: &'a Transition,
    pub(crate) cause: Option<&'a Cause>,
    /// The last failure, where lines before this one were left out that may have told it.
    pub(crate) untold: Option<&'a Cause>,
    /// How many lines of this connection were not written since its last one.
    pub(crate) suppressed: u64,
    /// How many lines of all the gate's connections were not written since the last of any.
    pub(crate) gate_suppressed: u64,
}

impl Line<'_> {
    /// Whether `transition` is news.
    pub(crate) fn is_due(transition: &Transition) -> bool {
        match transition.action {
            Action::Serve { .. } | Action::Stop(_) => true,
            Action::Wait | Action::Close | Action::Dial { .. } => {
                matches!(transition.from, State::Connecting | State::Connected)
            }
            Action::Continue | Action::WindDown => false,
        }
    }

    /// Under `span`, if anybody was there to hear of it.
    pub(crate) fn write(&self, span: Option<&Span>) {
        let span = span.and_then(Span::id);
        let Self { transition, cause, untold, suppressed, gate_suppressed } = *self;
        let Transition { generation, attempt, wait, until, .. } = *transition;
        let until = until.filter(|_| wait.is_some());
        let message = self.message();
        let cause = cause.map(tracing::field::display);
        let last_failure = untold.map(tracing::field::display);
        let wait = wait.map(tracing::field::debug);
        let sleep = until.map(|until| tracing::field::debug(until.saturating_duration_since(transition.at)));
        if self.is_warning() {
            warn!(
                parent: span,
                generation, attempt, wait, sleep, cause, last_failure, suppressed, gate_suppressed, "{message}"
            );
        } else {
            info!(
                parent: span,
                generation, attempt, wait, sleep, cause, last_failure, suppressed, gate_suppressed, "{message}"
            );
        }
    }

    fn message(&self) -> &'static str {
        match (self.transition.action, self.transition.event, self.transition.from) {
            (Action::Serve { .. }, _, _) => "connected",
            (Action::Stop(StopReason::Busy), _, _) => "stopped: busy",
            (Action::Stop(StopReason::Drained), _, _) => "stopped: drained",
            (Action::Stop(StopReason::Dropped), _, _) => "stopped: dropped",
            (Action::Stop(StopReason::Finished), _, _) => "stopped: finished",
            (Action::Stop(StopReason::GaveUp), _, _) => "stopped: gave up",
            (Action::Stop(StopReason::Permanent), _, _) => "stopped: trying again cannot succeed",
            (_, Event::Reconnect, _) => "reconnecting",
            (_, _, State::Connecting) => "attempt failed",
            _ => "connection ended",
        }
    }

    fn is_warning(&self) -> bool {
        match self.transition.action {
            Action::Stop(reason) => reason.is_failure(),
            // What was said to be over has not failed.
            _ => self.cause.or(self.untold).is_some_and(|cause| cause.failure() != Failure::Planned),
        }
    }
}

/// Admits at most `N` lines in any second; time is handed in.
///
/// The first is always admitted, so the first failure is seen at once. What is not written counts, and the next line
/// tells.
#[derive(Debug)]
pub(crate) struct Limiter<const N: usize> {
    /// When the last `N` lines were written; `next` is the oldest.
    written: [Option<Instant>; N],
    next: u8,
    suppressed: u32,
}

impl<const N: usize> Default for Limiter<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Limiter<N> {
    pub(crate) const fn new() -> Self {
        Self { written: [None; N], next: 0, suppressed: 0 }
    }

    /// Whether a line has to be left out.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.written[usize::from(self.next)].is_some_and(|oldest| now.saturating_duration_since(oldest) < SECOND)
    }

    /// A line is written; how many were left out since the last one.
    pub(crate) fn write(&mut self, now: Instant) -> u64 {
        let next = usize::from(self.next);
        self.written[next] = Some(now);
        self.next = u8::try_from((next + 1) % N).unwrap_or(0);
        u64::from(std::mem::take(&mut self.suppressed))
    }

    /// A line is left out.
    pub(crate) const fn suppress(&mut self) {
        self.suppressed = self.suppressed.saturating_add(1);
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Offers a line every 10 ms for 15 s and returns when the written ones came, in milliseconds, and what they tell.
    fn written<const N: usize>() -> (Vec<u64>, Vec<u64>) {
        let (start, mut limiter) = (Instant::now(), Limiter::<N>::new());
        let mut offer = |ms| {
            let now = start + Duration::from_millis(ms);
            if limiter.is_full(now) {
                limiter.suppress();
                return None;
            }
            Some((ms, limiter.write(now)))
        };
        (0..1_500).filter_map(|n| offer(n * 10)).unzip()
    }

    #[test]
    fn the_first_line_comes_at_once_and_then_one_a_second() {
        let (at, told) = written::<1>();
        assert_eq!(at, (0..15).map(|second| second * 1_000).collect::<Vec<_>>());
        assert_eq!((told[0], &told[1..]), (0, &[99; 14][..]));
    }

    #[test]
    fn no_second_holds_more_than_its_share() {
        let (lines, told) = written::<10>();
        assert_eq!(lines.len(), 150);
        assert_eq!(told.iter().sum::<u64>(), 14 * 90, "those of the last second are still to be told");
        assert!(lines.windows(11).all(|w| w[10] - w[0] >= 1_000));
    }
}
