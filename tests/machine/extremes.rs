//! Every count and duration at its largest: nothing panics, nothing wraps, and nothing waits without an end.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use steadfast::machine::{Event, State};
use steadfast::{Backoff, Failure, Growth, HintLimit, Jitter, Policy};

use crate::harness::{Lone, millis, secs};

fn extremes() -> Vec<Policy> {
    let (policy, most) = (Policy::default, Duration::MAX);
    let day = secs(86_400);
    vec![
        policy().quick(Backoff::new(Duration::from_nanos(1), most)),
        policy().quick(Backoff::new(secs(1), most).jitter(Jitter::None)),
        policy().quick(Backoff::new(secs(1), most).jitter(Jitter::Band(0.0))),
        policy().quick(Backoff::new(secs(1), secs(30)).fast(u32::MAX, secs(30))),
        policy().slow(Backoff::new(secs(1), most).jitter(Jitter::Equal)),
        policy().growing(Growth::new(secs(15), f64::MAX, most).timeout_weight(u32::MAX)),
        policy().growing(Growth::new(most, 1.0, most).age_share(1.0).jitter(Jitter::Full)),
        policy().hint_limit(most, HintLimit::Obey).advice_limit(most),
        policy().recovery_spread(most - Duration::from_nanos(1)).startup_spread(most - Duration::from_nanos(1)),
        policy().stable_after(day).attempt_deadline(day).handshake_limit(day).drain(day).close(day),
        policy().give_up_after(most).max_attempts(NonZeroU32::MAX).max_age(most),
        policy().failures_to_narrow(NonZeroU32::MAX),
        policy().failures_to_narrow(NonZeroU32::MIN),
        Policy::for_fleet(u32::MAX, 0.001),
        Policy::for_fleet(1, f64::MAX),
    ]
}

#[test]
fn the_largest_of_everything_neither_panics_nor_waits_without_an_end() {
    let longest = Failure::Throttled { retry_after: Some(Duration::MAX) };
    let ends = [
        Event::Failed(Failure::Unreachable),
        Event::Failed(Failure::Transient),
        Event::Failed(longest),
        Event::Failed(Failure::Unauthorized),
        Event::TimedOut,
        Event::Opened,
    ];
    for policy in extremes() {
        let mut lone = Lone::new(policy);
        lone.gate.set_max_in_flight(NonZeroUsize::MAX);
        lone.tell(Event::Start);
        let mut dialled = 0;
        for round in 0..1_000 {
            let state = lone.lifecycle.state();
            let deadline = lone.lifecycle.deadline();
            match state {
                State::Backoff => {
                    let until =
                        deadline.unwrap_or_else(|| panic!("{lone:?} waits without an end", lone = lone.lifecycle));
                    assert!(until >= lone.now);
                    lone.now = until;
                    lone.tell(Event::TimedOut);
                }
                State::Connecting => {
                    dialled += 1;
                    lone.tell(Event::Reached);
                    if ends[round % ends.len()] == Event::TimedOut {
                        lone.now = lone.lifecycle.deadline().expect("a dial ends");
                    }
                    lone.tell(ends[round % ends.len()]);
                }
                State::Connected => {
                    lone.tell(Event::Advised(Duration::MAX));
                    lone.pass(if round % 2 == 0 { millis(1) } else { secs(86_400) });
                    lone.tell(if round % 3 == 0 { Event::Reconnect } else { Event::Lost(longest) });
                }
                other => panic!("{other:?}"),
            }
            // What an operator sees is computed from the same numbers.
            let _ = lone.gate.status(lone.now);
        }
        assert!(dialled > 100, "{dialled}: {:?}", lone.lifecycle);
    }
}
