//! A transition as a line of text, for logs that are compared.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::machine::Transition;

/// A transition as one line, every instant as the duration since `origin`: the same for a run of the simulator and
/// one of the runtime under paused time.
#[must_use]
pub fn line(transition: &Transition, origin: Instant) -> String {
    let since = |instant: Instant| seconds(instant.saturating_duration_since(origin));
    let Transition { at, event, from, to, action, generation, attempt, wait, until } = transition;
    let mut text = format!(
        "{} {from:?} -> {to:?} on {event:?}: {action:?}, generation {generation}, attempt {attempt}",
        since(*at)
    );
    // Writing to a string cannot fail.
    if let Some(cause) = wait {
        let _ = write!(text, ", {cause:?}");
    }
    if let Some(until) = until {
        let _ = write!(text, " until {}", since(*until));
    }
    text
}

fn seconds(duration: Duration) -> String {
    format!("+{}.{:09}s", duration.as_secs(), duration.subsec_nanos())
}
