//! Rules of the gate that show at a bare gate only: what is known by whom, and who is woken.

use std::num::NonZeroUsize;

use steadfast::machine::{Admission, Event, Member, Mode, Permit, Settled, Step, Tenure};
use steadfast::{Failure, Policy, WaitCause};

use crate::door::{Door, LEASE};
use crate::harness::{Lone, millis, plain, secs};

const LATER: Failure = Failure::Throttled { retry_after: Some(secs(60)) };

/// A gate whose first attempt has succeeded, after which it is closed; gives the session of that attempt.
fn healthy(members: u64) -> (Door, Tenure) {
    let mut door = Door::new(plain(), members, 7);
    let permit = door.next(0);
    let tenure = settle(&mut door, permit, Ok(()));
    door.pass(secs(20));
    (door, tenure)
}

fn settle(door: &mut Door, permit: Permit, outcome: Result<(), Failure>) -> Tenure {
    let Settled { epoch, .. } = door.gate.settle(door.now, permit, outcome, &mut Step::default(), &mut door.rng);
    Tenure::new(epoch, door.now)
}

fn lose(door: &mut Door, who: usize, tenure: Tenure, failure: Failure) {
    let _ = door.gate.lost(door.now, door.members[who], tenure, failure, &mut Step::default(), &mut door.rng);
}

fn mode(door: &Door) -> Mode {
    door.gate.status(door.now).mode
}

fn woken(door: &mut Door) -> Vec<u64> {
    door.gate.wakes().collect()
}

/// Members 1 and 2 present a credential that nobody has tried, behind a gate that has become paced.
fn untried() -> (Door, Member, Member) {
    let mut door = Door::new(plain(), 1, 7);
    let (first, second) = (door.gate.join(5), door.gate.join(5));
    door.members.extend([first, second]);
    let permit = door.next(0);
    door.settle(permit, Ok(()));
    assert_eq!(mode(&door), Mode::Paced);
    (door, first, second)
}

/// The same, the first tries it and the second waits for that.
fn tried_by_the_first() -> (Door, Member, Permit) {
    let (mut door, _, second) = untried();
    let permit = door.next(1);
    assert!(door.ask(2).is_err());
    let _ = woken(&mut door);
    (door, second, permit)
}

/// The first was refused in a session, and has dialled again; the second waits whether that lasts.
fn refused_in_a_session() -> (Door, Member, Tenure) {
    let (mut door, _, second) = untried();
    let permit = door.next(1);
    let tenure = settle(&mut door, permit, Ok(()));
    lose(&mut door, 1, tenure, Failure::Unauthorized);
    let permit = door.next(1);
    let tenure = settle(&mut door, permit, Ok(()));
    assert!(door.ask(2).is_err());
    let _ = woken(&mut door);
    (door, second, tenure)
}

#[test]
fn a_bulkhead_binds_a_closed_gate() {
    let (mut door, _) = healthy(3);
    door.gate.set_max_in_flight(NonZeroUsize::MIN);
    let _under_way = door.ask(1).unwrap();
    assert!(door.gate.is_closed());
    assert!(door.ask(2).is_err());
}

#[test]
fn a_hint_that_comes_late_binds_a_closed_gate() {
    let (mut door, _) = healthy(3);
    let (slow, refused) = (door.ask(0).unwrap(), door.ask(1).unwrap());
    door.settle(refused, Err(Failure::Transient));
    let probe = door.next(2);
    door.settle(probe, Ok(()));
    door.settle(slow, Err(LATER));
    door.pass(secs(20));
    let (wait, cause) = door.ask(1).unwrap_err();
    assert!(door.gate.is_closed());
    assert!(cause == WaitCause::Throttled && wait > secs(30), "{cause:?} {wait:?}");
    door.pass(wait);
    assert!(door.ask(1).is_ok());
}

#[test]
fn a_pace_is_over_for_whoever_asks_after_it() {
    let (mut door, _) = healthy(6);
    let under_way: Vec<_> = (1..6).map(|who| door.ask(who).expect("nobody has to wait")).collect();
    assert_eq!(under_way.len(), 5);
}

#[test]
fn a_pace_goes_on_while_somebody_dials_or_waits() {
    let mut door = Door::new(plain(), 2, 7);
    let permit = door.next(0);
    door.settle(permit, Ok(()));
    let permit = door.next(1);
    door.pass(millis(10_500));
    assert_eq!(mode(&door), Mode::Paced, "one is under way");
    door.settle(permit, Ok(()));
    assert_eq!(mode(&door), Mode::Closed);

    let mut door = Door::new(plain(), 3, 7);
    let permit = door.next(0);
    door.settle(permit, Ok(()));
    let permit = door.next(1);
    assert!(door.ask(2).is_err());
    door.settle(permit, Ok(()));
    door.pass(secs(20));
    assert_eq!(mode(&door), Mode::Paced, "one waits");
}

#[test]
fn an_attempt_of_an_older_epoch_gives_a_session_of_that_epoch_which_forgives_nothing() {
    let (mut door, _) = healthy(4);
    let (older, refused) = (door.ask(0).unwrap(), door.ask(1).unwrap());
    door.settle(refused, Err(Failure::Transient));
    let older = settle(&mut door, older, Ok(()));
    assert!(older.epoch < door.gate.status(door.now).epoch);
    let probe = door.next(2);
    door.settle(probe, Err(Failure::Transient));
    assert_eq!(door.gate.status(door.now).trips, 1);
    let member = door.members[0];
    door.gate.stable(door.now, member, older);
    assert_eq!(door.gate.status(door.now).trips, 1);
}

#[test]
fn a_young_session_of_a_proven_epoch_is_charged_to_nobody_else() {
    for proven in [false, true] {
        let (mut door, tenure) = healthy(2);
        if proven {
            let member = door.members[0];
            door.gate.stable(door.now, member, tenure);
        }
        let permit = door.ask(1).unwrap();
        let young = settle(&mut door, permit, Ok(()));
        lose(&mut door, 1, young, Failure::Transient);
        assert_eq!(mode(&door) == Mode::Closed, proven);
    }
}

#[test]
fn a_young_session_counts_as_one_that_was_answered_and_failed_whatever_ended_it() {
    let waits = [Failure::Transient, Failure::Planned, Failure::Unreachable].map(|failure| {
        let mut lone = Lone::dialling(Policy::default());
        lone.live(millis(100), Event::Lost(failure));
        let lost = lone.now;
        lone.wait();
        lone.now.duration_since(lost)
    });
    assert_eq!(waits, [waits[0]; 3]);
}

#[test]
fn a_credential_that_an_attempt_told_nothing_about_is_tried_by_the_next() {
    let (mut door, second, permit) = tried_by_the_first();
    door.settle(permit, Err(Failure::Transient));
    assert_eq!(woken(&mut door), [second.id], "the attempt failed");

    let (mut door, second, permit) = tried_by_the_first();
    door.gate.abandon(door.now, permit);
    assert_eq!(woken(&mut door), [second.id], "the attempt was cancelled");
    let cancelled = door.now;
    let _permit = door.next(2);
    assert!(door.now < cancelled + LEASE / 2, "it need not wait for the end of what was cancelled");

    let (mut door, first, second) = untried();
    assert!(door.ask(1).is_err() && door.ask(2).is_err(), "no slot is free yet");
    let _ = woken(&mut door);
    door.gate.leave(door.now, first);
    assert_eq!(woken(&mut door), [second.id], "the one who would have tried went away");
}

#[test]
fn whoever_waits_for_a_credential_is_woken_when_the_session_that_presents_it_ends_or_lasts() {
    let (mut door, second, tenure) = refused_in_a_session();
    lose(&mut door, 1, tenure, Failure::Transient);
    assert_eq!(woken(&mut door), [second.id], "it ended");

    let (mut door, second, tenure) = refused_in_a_session();
    door.pass(secs(10));
    let member = door.members[1];
    door.gate.stable(door.now, member, tenure);
    assert_eq!(woken(&mut door), [second.id], "it lasts");
}

#[test]
fn a_turn_that_is_given_up_passes_on_in_the_same_step() {
    let mut door = Door::new(plain(), 3, 7);
    let permit = door.ask(0).unwrap();
    assert!(door.ask(1).is_err() && door.ask(2).is_err());
    let _ = woken(&mut door);
    door.gate.abandon(door.now, permit);
    let ids = [door.members[1].id, door.members[2].id];
    assert_eq!(woken(&mut door), ids, "the head, and who stands by");
    let head = door.members[1];
    door.gate.leave(door.now, head);
    assert_eq!(woken(&mut door), ids[1..], "who stood by is the head");
}

#[test]
fn whoever_waits_for_an_opening_hears_that_somebody_hastened_it() {
    let mut door = Door::new(plain(), 3, 7);
    for who in [0, 1, 0, 1, 0] {
        let permit = door.next(who);
        door.settle(permit, Err(Failure::Transient));
    }
    let (wait, _) = door.ask(2).unwrap_err();
    assert!(wait > secs(5), "{wait:?}");
    let _ = woken(&mut door);
    let (member, drawn) = (door.members[0], door.now + secs(2));
    door.gate.hasten(door.now, member, drawn);
    assert_eq!(woken(&mut door), [door.members[2].id]);
    assert_eq!(door.ask(2).unwrap_err().0, secs(2));
}

#[test]
fn a_crowd_that_comes_back_to_a_closed_gate_comes_at_a_pace_and_one_alone_at_once() {
    for size in [1, 20] {
        let (mut door, _) = healthy(1);
        door.members.extend((0..=size).map(|_| door.gate.join(5)).collect::<Vec<_>>());
        let permit = door.ask(1).unwrap();
        let refused = settle(&mut door, permit, Ok(()));
        lose(&mut door, 1, refused, Failure::Unauthorized);
        let member = door.members[1];
        let permit = door.next(1);
        let lasting = settle(&mut door, permit, Ok(()));
        for who in 2..door.members.len() {
            assert!(door.ask(who).is_err());
        }
        let _ = woken(&mut door);
        door.pass(secs(30));
        door.gate.stable(door.now, member, lasting);
        assert_eq!(woken(&mut door).len(), size, "all that are parked");
        let at_once = (2..door.members.len()).filter(|who| door.ask(*who).is_ok()).count();
        assert_eq!(at_once, usize::from(size == 1), "of {size}");
    }
}

#[test]
fn those_who_wait_for_a_refused_credential_come_back_a_turn_apart() {
    let (mut door, ..) = untried();
    let more: Vec<_> = (0..3).map(|_| door.gate.join(5)).collect();
    door.members.extend(more);
    let permit = door.next(1);
    door.settle(permit, Err(Failure::Unauthorized));
    let waits: Vec<_> = (2..6).map(|who| door.ask(who).unwrap_err().0).collect();
    assert!(waits.windows(2).all(|pair| pair[1] - pair[0] == secs(1)), "{waits:?}");
}

#[test]
fn each_refusal_may_be_hastened() {
    let (mut door, first, _) = untried();
    for _ in 0..3 {
        let permit = door.next(1);
        door.settle(permit, Err(Failure::Unauthorized));
        let drawn = door.now + millis(1_500);
        door.gate.hasten(door.now, first, drawn);
        assert!(door.ask(1).unwrap_err().0 <= millis(1_500));
    }
}

#[test]
fn a_credential_that_worked_is_tried_by_one_first_after_the_gate_became_narrow() {
    let (mut door, second, permit) = tried_by_the_first();
    let session = settle(&mut door, permit, Ok(()));
    assert_eq!(woken(&mut door), [second.id], "it works");
    lose(&mut door, 1, session, Failure::Transient);
    let probe = door.next(0);
    door.settle(probe, Ok(()));
    let _trial = door.next(1);
    let (wait, cause) = door.ask(2).unwrap_err();
    assert!(cause == WaitCause::Paced && wait > LEASE, "until the trial is over: {cause:?} {wait:?}");
}

#[test]
fn a_wait_names_the_opening_as_the_earliest_start() {
    let mut door = Door::new(plain(), 2, 7);
    let permit = door.next(0);
    door.settle(permit, Err(LATER));
    for who in [0, 1] {
        let (member, now) = (door.members[who], door.now);
        let Admission::Wait(wait) = door.gate.admit(now, member, LEASE, &mut door.rng) else { panic!("it is open") };
        assert!(wait.earliest >= now + secs(60));
        assert_eq!(wait.earliest == wait.until, who == 0, "only the first comes at the opening");
    }
}

#[test]
fn a_refusal_is_hastened_once_and_whoever_did_it_makes_the_next_try() {
    let (mut door, first, second) = untried();
    for _ in 0..2 {
        let permit = door.next(1);
        door.settle(permit, Err(Failure::Unauthorized));
    }
    assert!(door.ask(2).unwrap_err().0 > secs(10), "the slow curve");
    let now = door.now;
    door.gate.hasten(now, second, now + secs(5));
    door.gate.hasten(now, first, now + secs(2));
    assert_eq!(door.ask(2).unwrap_err().0, secs(5));
    assert_eq!(door.ask(1).unwrap_err().0, secs(6), "a turn later");
}

#[test]
fn whoever_goes_away_does_not_wait_for_a_credential_any_more() {
    let (mut door, second, _permit) = tried_by_the_first();
    assert_eq!(door.gate.status(door.now).waiting, 1);
    door.gate.leave(door.now, second);
    assert_eq!(door.gate.status(door.now).waiting, 0);
}

#[test]
fn a_gate_remembers_a_thousand_refused_credentials_and_no_more() {
    let mut door = Door::new(plain(), 0, 7);
    for key in 0..1_100 {
        let member = door.gate.join(key);
        door.members.push(member);
        let permit = door.next(door.members.len() - 1);
        door.settle(permit, Err(Failure::Unauthorized));
    }
    assert_eq!(door.gate.status(door.now).refused, 1_024);
}

#[test]
fn the_next_pace_doubles_no_further_than_the_rate_of_the_last_cut() {
    let (mut door, ..) = untried();
    let permit = door.next(1);
    let session = settle(&mut door, permit, Ok(()));
    let permit = door.next(0);
    door.settle(permit, Err(Failure::Transient));
    let cut = door.gate.status(door.now).pace.unwrap();
    lose(&mut door, 1, session, Failure::Transient);
    for _ in 0..2 {
        let permit = door.next(0);
        door.pass(millis(100));
        door.settle(permit, Ok(()));
    }
    let pace = door.gate.status(door.now).pace.unwrap();
    assert!(cut < 1.5 && (pace - 1.4).abs() < 1e-9, "cut to {cut}, begun anew at 1, then at {pace}");
}

#[test]
fn an_epoch_has_to_be_proven_anew() {
    let (mut door, mut session) = healthy(2);
    let member = door.members[0];
    door.gate.stable(door.now, member, session);
    session.stable = true;
    lose(&mut door, 0, session, Failure::Transient);
    let permit = door.next(0);
    let young = settle(&mut door, permit, Ok(()));
    assert_eq!(mode(&door), Mode::Paced);
    lose(&mut door, 0, young, Failure::Transient);
    assert_ne!(mode(&door), Mode::Paced);
}

#[test]
fn what_an_older_attempt_says_of_our_settings_does_not_end_a_probe() {
    let (mut door, _) = healthy(2);
    let (older, refused) = (door.ask(0).unwrap(), door.ask(1).unwrap());
    door.settle(refused, Err(Failure::Transient));
    door.settle(older, Err(Failure::Permanent));
    assert_ne!(mode(&door), Mode::Paced);
}

#[test]
fn an_answer_about_our_settings_ends_a_row_of_failures() {
    let mut door = Door::new(plain(), 2, 7);
    let permit = door.next(0);
    door.settle(permit, Ok(()));
    let transient = Failure::Transient;
    for failure in [transient, transient, transient, transient, Failure::Permanent, transient] {
        let permit = door.next(1);
        door.settle(permit, Err(failure));
        assert_eq!(mode(&door), Mode::Paced);
    }
}

#[test]
fn a_dial_that_is_told_to_come_later_narrows_a_closed_gate() {
    let (mut door, _) = healthy(3);
    let permit = door.ask(0).unwrap();
    door.settle(permit, Err(LATER));
    door.pass(secs(70));
    let _probe = door.one_of_all();
}

#[test]
fn a_hint_at_the_end_of_a_session_binds_nobody_else() {
    let mut door = Door::new(plain(), 2, 7);
    let permit = door.next(0);
    let session = settle(&mut door, permit, Ok(()));
    lose(&mut door, 0, session, LATER);
    let lost = door.now;
    let _permit = door.next(1);
    assert!(door.now < lost + secs(30));
}

#[test]
fn whoever_is_told_twice_in_a_row_to_come_later_adds_a_draw_of_the_curve() {
    let (mut door, mut step) = (Door::new(plain(), 2, 7), Step::default());
    // Of an older epoch, so that it is the connection's own row and not the gate's.
    let (member, older) = (door.members[0], Tenure::new(0, door.now));
    let mut wait = || {
        let wait = door.gate.lost(door.now, member, older, LATER, &mut step, &mut door.rng).unwrap();
        wait.until.duration_since(door.now)
    };
    assert!(wait() <= secs(62));
    wait();
    assert!(wait() > secs(62));
}

#[test]
fn another_failure_ends_a_row_of_hints_for_a_connection_and_for_its_gate() {
    let (mut door, mut step) = (Door::new(plain(), 2, 7), Step::default());
    let (member, older) = (door.members[0], Tenure::new(0, door.now));
    let mut wait = |failure| {
        let wait = door.gate.lost(door.now, member, older, failure, &mut step, &mut door.rng).unwrap();
        wait.until.duration_since(door.now)
    };
    for _ in 0..3 {
        assert!(wait(LATER) <= secs(62));
        wait(Failure::Transient);
    }

    let mut door = Door::new(plain(), 2, 7);
    for _ in 0..3 {
        let permit = door.next(0);
        assert!(door.settle(permit, Err(LATER)).unwrap() <= secs(62));
        let permit = door.next(0);
        door.settle(permit, Err(Failure::Transient));
    }
}

#[test]
fn a_pace_is_cut_by_whoever_is_told_to_come_later() {
    let (mut door, ..) = untried();
    let permit = door.next(0);
    door.settle(permit, Err(Failure::Throttled { retry_after: None }));
    assert!(door.gate.status(door.now).pace.unwrap() < 0.9);
}

#[test]
fn whom_a_pace_refused_asks_again_soon_and_the_second_time_by_the_growing_curve() {
    let (mut door, mut step) = (Door::new(Policy::default(), 2, 7), Step::default());
    let permit = door.next(0);
    door.settle(permit, Ok(()));
    let waits = [(); 2].map(|()| {
        let permit = door.next(1);
        let settled = door.gate.settle(door.now, permit, Err(Failure::Transient), &mut step, &mut door.rng);
        settled.wait.unwrap().until.duration_since(door.now)
    });
    assert_eq!(mode(&door), Mode::Paced);
    assert!(waits[0] < millis(1_500) && waits[1] > secs(2), "{waits:?}");
}
