//! Refused credentials, and what only people heal.

use steadfast::machine::{Action, Event, State};
use steadfast::{Backoff, Failure, Jitter, Policy, StopReason, WaitCause};

use crate::harness::{Answer, Crew, Lone, dials, millis, plain, secs};

const DAY: u64 = 86_400;

fn refuse() -> Answer {
    Answer::Refuse { after: millis(1), failure: Failure::Unauthorized }
}

fn slowly() -> Policy {
    plain().slow(Backoff::new(secs(60), secs(600)).jitter(Jitter::None))
}

#[test]
fn a_bad_credential_is_tried_twice_and_then_slowly() {
    let mut lone = Lone::dialling(slowly());
    while lone.time() < secs(DAY) {
        lone.pass(millis(1));
        lone.fail(Failure::Unauthorized);
    }
    assert!(lone.dials[1] - lone.dials[0] >= secs(1), "the second one is drawn");
    assert!(lone.dials[1] < secs(3));
    let slow: Vec<_> = lone.dials[1..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(slow.iter().all(|wait| *wait >= secs(60)), "never the fast curve: {slow:?}");
    assert!(lone.dials.len() <= 162, "{}", lone.dials.len());
    assert!(lone.dials.len() >= 140, "{}", lone.dials.len());
}

#[test]
fn the_first_minute_sees_two_refusals_of_a_credential_however_many_present_it() {
    for size in [1, 2, 50, 200] {
        let mut crew = Crew::started(Policy::default(), size, 3, |_| refuse());
        crew.run_until(secs(60));
        assert_eq!(crew.dials.len(), 2, "{size} connections");
        crew.run_until(secs(DAY));
        assert!(crew.dials.len() <= 330, "{} in a day, of {size}", crew.dials.len());
    }
}

#[test]
fn a_limit_on_attempts_ends_refusals_too() {
    let three = std::num::NonZeroU32::new(3).unwrap();
    let mut lone = Lone::dialling(slowly().max_attempts(three));
    lone.fail(Failure::Unauthorized);
    lone.fail(Failure::Unauthorized);
    assert_eq!(lone.tell(Event::Failed(Failure::Unauthorized)), Action::Stop(StopReason::GaveUp));
}

#[test]
fn other_credentials_do_not_notice() {
    let mut crew = Crew::new(Policy::default(), &[1, 1, 1, 2, 2, 2], 9, |dial| {
        if dial.who < 3 { refuse() } else { Answer::Accept { after: millis(1) } }
    });
    crew.tell_all(Event::Start);
    crew.run_until(secs(30));
    assert_eq!(crew.connected(), 3);
    for who in 0..3 {
        assert_eq!(crew.member(who).wait_cause(), Some(WaitCause::Refused), "{who}");
    }
}

#[test]
fn the_gate_tells_how_many_wait_for_a_credential_and_until_when() {
    let mut crew = Crew::started(Policy::default(), 50, 3, |_| refuse());
    crew.run_until(secs(30));
    let status = crew.status();
    assert_eq!((status.refused, status.waiting), (50, 50), "the one that tried last waits with them");
    assert!(status.refused_until.is_some_and(|until| until > crew.now()), "{status:?}");
    let healthy = Crew::new(Policy::default(), &[1, 2], 3, |_| Answer::Accept { after: millis(1) }).status();
    assert_eq!((healthy.refused, healthy.refused_until), (0, None));
}

#[test]
fn a_credential_that_is_tried_for_the_first_time_is_not_called_refused() {
    let credentials: Vec<u64> = std::iter::once(1).chain([2; 20]).collect();
    let mut crew = Crew::new(Policy::default(), &credentials, 3, |dial| Answer::Accept {
        after: if dial.who == 0 { millis(1) } else { secs(5) },
    });
    crew.tell_all(Event::Start);
    crew.run_until(secs(4));
    let status = crew.status();
    assert_eq!((status.waiting, status.in_flight), (19, 1), "one tries for the others");
    assert_eq!((status.refused, status.refused_until), (0, None));
}

#[test]
fn a_rotated_credential_wakes_all_who_present_it() {
    let mut crew = Crew::started(Policy::default(), 20, 3, |dial| {
        if dial.at < secs(3_600) { refuse() } else { Answer::Accept { after: millis(1) } }
    });
    crew.run_until(secs(3_600 + 630));
    assert_eq!(crew.connected(), 20, "one slow step and a pace later");
}

#[test]
fn reconnect_ends_the_slow_curve_after_a_rotation() {
    let mut lone = Lone::dialling(Policy::default());
    while lone.time() < secs(3_600) {
        lone.fail(Failure::Unauthorized);
    }
    lone.tell(Event::Failed(Failure::Unauthorized));
    lone.pass(secs(1));
    let asked = lone.now;
    assert_eq!(lone.tell(Event::Reconnect), Action::Wait);
    assert!(dials(lone.wait()));
    assert!(lone.now.duration_since(asked) <= secs(1), "within the recovery spread");
    lone.tell(Event::Opened);
    assert_eq!(lone.lifecycle.state(), State::Connected);
}

#[test]
fn an_expired_credential_of_a_stable_session_is_no_refusal() {
    let mut lone = Lone::dialling(Policy::default());
    lone.live(secs(3_600), Event::Lost(Failure::Unauthorized));
    let lost = lone.now;
    assert!(dials(lone.wait()));
    assert!(lone.now.duration_since(lost) <= secs(1), "the recovery spread, no slow curve");
    assert!(matches!(lone.tell(Event::Opened), Action::Serve { .. }), "on the first attempt with a fresh one");
    assert_eq!(lone.gate.status(lone.now).trips, 0);
}

#[test]
fn a_credential_that_is_refused_after_the_handshake_is_no_better() {
    // Many servers accept first and say "invalid token" in the session.
    let mut crew = Crew::started(Policy::default(), 5, 3, |_| Answer::Drop {
        after: millis(1),
        uptime: millis(100),
        failure: Failure::Unauthorized,
    });
    crew.run_until(secs(60));
    let after_the_first = crew.dialled().into_iter().filter(|at| *at > millis(101)).count();
    assert_eq!(
        after_the_first,
        1,
        "one more try in the first minute, whoever was let in meanwhile: {:?}",
        crew.dialled()
    );
    crew.run_until(secs(3_600));
    assert!(crew.dials.len() < 30, "{} in an hour", crew.dials.len());
}

#[test]
fn a_refusal_says_that_the_server_lives() {
    let mut lone = Lone::dialling(Policy::default());
    lone.fail(Failure::Unauthorized);
    let status = lone.gate.status(lone.now);
    assert_eq!(status.trips, 0);
    assert_eq!(status.mode, steadfast::machine::Mode::Paced);
}

#[test]
fn what_the_other_side_calls_impossible_is_asked_slowly_unless_told_to_stop() {
    let mut lone = Lone::dialling(slowly());
    for wait in [60, 120, 240, 480, 600, 600] {
        lone.tell(Event::Reached);
        assert_eq!(lone.fail(Failure::Permanent), secs(wait));
    }
    let mut lone = Lone::dialling(slowly().stop_on_permanent(true));
    lone.tell(Event::Reached);
    assert_eq!(lone.tell(Event::Failed(Failure::Permanent)), Action::Stop(StopReason::Permanent));
}

#[test]
fn our_own_mistake_stops_at_once() {
    let mut lone = Lone::dialling(slowly());
    assert_eq!(lone.tell(Event::Failed(Failure::Permanent)), Action::Stop(StopReason::Permanent));
    assert_eq!(lone.lifecycle.state(), State::Stopped);
}
