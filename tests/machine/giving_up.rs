//! Limits on time and attempts.

use std::num::NonZeroU32;

use steadfast::machine::{Action, Event, State};
use steadfast::{Backoff, Failure, Policy, StopReason};

use crate::harness::{Answer, Crew, Lone, dials, millis, plain, secs};

const GAVE_UP: Action = Action::Stop(StopReason::GaveUp);

fn in_tenths() -> Policy {
    plain().quick(Backoff::new(millis(100), secs(3)).jitter(steadfast::Jitter::None)).stable_after(secs(1))
}

#[test]
fn the_clock_of_giving_up_starts_at_the_first_failure_of_this_outage() {
    let mut lone = Lone::dialling(in_tenths().give_up_after(secs(1)));
    // Up for two seconds, longer than the limit; then back after 0.3 s.
    assert!(dials(lone.live(secs(2), Event::Lost(Failure::Transient))));
    while lone.time() < millis(2_300) {
        lone.fail(Failure::Unreachable);
    }
    lone.live(secs(2), Event::Lost(Failure::Transient));
    let lost = lone.now;
    let last = loop {
        if lone.lifecycle.state() == State::Connecting {
            lone.tell(Event::Failed(Failure::Unreachable));
        }
        let action = lone.wait_for_deadline();
        if !dials(action) {
            break action;
        }
    };
    assert_eq!(last, GAVE_UP);
    assert_eq!(lone.now.duration_since(lost), secs(1));
}

#[test]
fn a_short_session_does_not_restart_the_clock() {
    let mut lone = Lone::dialling(plain().give_up_after(secs(60)));
    let last = loop {
        let action = lone.live(millis(100), Event::Lost(Failure::Planned));
        assert_eq!(action, Action::Wait);
        let action = lone.wait();
        if !dials(action) {
            break action;
        }
    };
    assert_eq!(last, GAVE_UP);
    assert_eq!(lone.time(), millis(60_100), "sixty seconds from the first loss");
}

#[test]
fn giving_up_ends_neither_an_attempt_nor_a_live_session() {
    let mut lone = Lone::dialling(plain().give_up_after(secs(5)));
    lone.fail(Failure::Unreachable);
    lone.pass(secs(8));
    assert_eq!(lone.tell(Event::TimedOut), Action::Continue, "the attempt");
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { .. }));
    lone.pass(secs(5));
    assert_eq!(lone.tell(Event::TimedOut), Action::Continue, "the session");
    assert_eq!(lone.tell(Event::Lost(Failure::Transient)), GAVE_UP, "a wait begins after the limit");
}

#[test]
fn giving_up_counts_while_waiting_for_the_gate() {
    // One dials and dials; the other one only ever waits for it.
    let mut crew = Crew::started(plain().give_up_after(secs(20)), 2, 5, |_| Answer::Silence);
    crew.run_until(secs(60));
    let mut gone: Vec<_> = crew.stopped.iter().map(|(who, _)| *who).collect();
    gone.sort_unstable();
    assert_eq!(gone, [0, 1]);
    assert!(crew.stopped.iter().all(|(_, reason)| *reason == StopReason::GaveUp));
    assert!(crew.dials.iter().all(|dial| dial.at < secs(31)), "nothing is dialled afterwards");
}

#[test]
fn a_limit_on_attempts_is_on_those_in_a_row() {
    let five = NonZeroU32::new(5).unwrap();
    let mut lone = Lone::dialling(plain().max_attempts(five));
    lone.tell(Event::Opened);
    for _ in 0..10 {
        lone.pass(secs(3600));
        assert!(dials(lone.tell(Event::Lost(Failure::Transient))));
        assert_eq!(lone.lifecycle.attempt(), 1);
        lone.fail(Failure::Unreachable);
        lone.tell(Event::Opened);
    }
    lone.pass(secs(3600));
    lone.tell(Event::Lost(Failure::Transient));
    for _ in 0..4 {
        lone.fail(Failure::Unreachable);
    }
    assert_eq!(lone.tell(Event::Failed(Failure::Unreachable)), GAVE_UP, "after the fifth in a row");
}

#[test]
fn short_sessions_count_as_attempts_in_a_row() {
    let three = NonZeroU32::new(3).unwrap();
    let mut lone = Lone::dialling(plain().max_attempts(three));
    for _ in 0..2 {
        assert_eq!(lone.live(secs(1), Event::Lost(Failure::Planned)), Action::Wait);
        lone.wait();
    }
    assert_eq!(lone.live(secs(1), Event::Lost(Failure::Planned)), GAVE_UP);
}

#[test]
fn starting_again_is_the_way_back_and_never_uses_a_generation_twice() {
    let one = NonZeroU32::new(1).unwrap();
    let mut lone = Lone::dialling(plain().max_attempts(one));
    assert_eq!(lone.live(secs(1), Event::Lost(Failure::Transient)), GAVE_UP);
    assert_eq!(lone.lifecycle.deadline(), None);
    lone.pass(secs(3600));
    assert_eq!(lone.tell(Event::Start), Action::Dial { attempt: 1, generation: 2 });
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { generation: 2 }));
}
