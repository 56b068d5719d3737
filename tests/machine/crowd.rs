//! Many connections on one gate.

use std::time::Duration;

use steadfast::machine::{Event, Mode};
use steadfast::{Failure, Policy};

use crate::harness::{Answer, Crew, Dial, millis, secs};

const REFUSE: Answer = Answer::Refuse { after: Duration::from_millis(1), failure: Failure::Unreachable };
const ACCEPT: Answer = Answer::Accept { after: Duration::from_millis(20) };

/// Down until `healed`.
fn healed_at(healed: u64) -> impl FnMut(Dial) -> Answer {
    move |dial| if dial.at < secs(healed) { REFUSE } else { ACCEPT }
}

#[test]
fn nobody_rushes_in_after_the_probe() {
    let mut crew = Crew::started(Policy::default(), 64, 3, healed_at(30));
    crew.run_until(secs(30));
    let before = crew.dials.len();
    crew.run_until(secs(90));
    assert_eq!(crew.connected(), 64);
    let back = &crew.dials[before..];
    assert_eq!(back.len(), 64, "one dial each");
    for (successes, dial) in back.iter().enumerate() {
        assert!(dial.in_flight <= 2 + successes, "{dial:?}");
        assert!(dial.in_flight <= 2 || successes > 3);
    }
    let order: Vec<_> = back.iter().map(|dial| dial.who).collect();
    assert!(order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 10, "shuffled: {order:?}");
}

#[test]
fn as_many_are_under_way_as_have_succeeded_and_two() {
    let slow = secs(2);
    let mut crew = Crew::started(Policy::default(), 200, 3, |_| Answer::Accept { after: slow });
    crew.run_until(secs(120));
    assert_eq!(crew.connected(), 200);
    for dial in &crew.dials[1..] {
        let succeeded = crew.dials.iter().filter(|other| other.at + slow <= dial.at).count();
        assert!(dial.in_flight < 2 + succeeded, "{dial:?} after {succeeded}");
    }
    let most = crew.dials.iter().map(|dial| dial.in_flight).max();
    assert!(most > Some(20), "it does widen: {most:?}");
}

#[test]
fn a_server_that_serves_from_a_queue_is_not_overrun() {
    // Ten a second, one after the other, and nobody is refused: its limit shows in nothing but time.
    let mut free_at = secs(0);
    let mut longest = secs(0);
    let mut crew = Crew::started(Policy::default(), 300, 3, |dial: Dial| {
        free_at = free_at.max(dial.at) + millis(100);
        longest = longest.max(free_at - dial.at);
        Answer::Accept { after: free_at - dial.at }
    });
    crew.run_until(secs(60));
    assert_eq!(crew.connected(), 300);
    assert!(longest < secs(2), "the queue was {longest:?} long");
}

#[test]
fn five_failures_in_a_row_end_the_pace_and_all_come_back_in_the_end() {
    let mut again = None;
    let mut crew = Crew::started(Policy::default(), 64, 3, move |dial: Dial| {
        // Down for 10 s, healthy until four are under way at once, then down for 20 s.
        if again.is_none() && dial.at >= secs(10) && dial.in_flight >= 4 {
            again = Some(dial.at);
        }
        let down = dial.at < secs(10) || again.is_some_and(|since| dial.at < since + secs(20));
        if down { REFUSE } else { Answer::Accept { after: millis(400) } }
    });
    crew.run_until(secs(10));
    assert!(matches!(crew.status().mode, Mode::Open | Mode::HalfOpen));
    let mut modes = Vec::new();
    for tick in 100..1_200 {
        crew.run_until(millis(tick * 100));
        let mode = crew.status().mode;
        if modes.last() != Some(&mode) {
            modes.push(mode);
        }
    }
    assert_eq!(crew.connected(), 64);
    let paced = modes.iter().filter(|mode| **mode == Mode::Paced).count();
    assert!(paced >= 2, "paced, narrow again, paced: {modes:?}");
}

#[test]
fn refusals_among_successes_cut_the_pace_and_do_not_end_it() {
    let mut number = 0;
    let mut crew = Crew::started(Policy::default(), 100, 3, move |_| {
        number += 1;
        if number % 3 == 0 { Answer::Refuse { after: millis(5), failure: Failure::Transient } } else { ACCEPT }
    });
    let mut fastest: f64 = 0.0;
    for tick in 1..3_000 {
        crew.run_until(millis(tick * 100));
        let status = crew.status();
        assert_ne!(status.mode, Mode::Open);
        fastest = fastest.max(status.pace.unwrap_or_default());
    }
    assert_eq!(crew.connected(), 100);
    assert_eq!(crew.status().trips, 0);
    assert!(fastest < 20.0, "cut again and again: {fastest}");
}

#[test]
fn the_cut_of_a_pace_that_another_outage_ended_binds_no_longer_than_until_all_were_back() {
    let mut number = 0;
    let mut crew = Crew::started(Policy::default(), 500, 3, move |_| {
        number += 1;
        let refuses = number < 60 && number % 3 == 0;
        if refuses { Answer::Refuse { after: millis(5), failure: Failure::Transient } } else { ACCEPT }
    });
    while crew.connected() < 300 {
        crew.run_until(crew.time() + millis(100));
    }
    assert_eq!(crew.status().mode, Mode::Paced);
    for _ in 0..2 {
        crew.tell_all(Event::Lost(Failure::Transient));
        let again = crew.time() + secs(1_000);
        crew.run_until(again);
        assert_eq!((crew.connected(), crew.status().mode), (500, Mode::Closed));
    }
    let lost = crew.time();
    crew.tell_all(Event::Lost(Failure::Transient));
    crew.run_until(lost + secs(6));
    assert_eq!(crew.connected(), 500, "the rate doubles, as it does after a first outage");
}

#[test]
fn a_lost_crowd_does_not_become_a_crowd_of_hanging_dials() {
    // All are connected; then all sessions end at once and the server says nothing any more.
    let mut crew =
        Crew::started(Policy::default(), 200, 3, |dial| if dial.at < secs(100) { ACCEPT } else { Answer::Silence });
    crew.run_until(secs(100));
    assert_eq!(crew.connected(), 200);
    let before = crew.dials.len();
    crew.tell_all(Event::Lost(Failure::Transient));
    crew.run_until(secs(400));
    assert!(crew.dials[before..].iter().all(|dial| dial.in_flight == 1));
    assert!(crew.dials.len() > before + 5, "it is asked");
}

#[test]
fn one_poisoned_connection_shuts_nobody_out() {
    for failure in [Failure::Transient, Failure::Timeout, Failure::Unreachable] {
        let mut crew = Crew::started(Policy::default(), 200, 3, |dial| match dial.who {
            17 => Answer::Refuse { after: millis(10), failure },
            _ => ACCEPT,
        });
        crew.run_until(secs(200));
        assert_eq!(crew.connected(), 199, "{failure}");
        for healthy in [3, 99, 150] {
            let lost = crew.time();
            crew.tell(healthy, Event::Lost(Failure::Transient));
            crew.run_until(lost + secs(3));
            assert_eq!(crew.connected(), 199, "{failure}: {healthy} is back at once");
        }
        assert_eq!(crew.status().trips, 0, "{failure}");
    }
}

#[test]
fn sessions_that_die_together_are_one_charge() {
    // Everybody gets in, and everybody is dropped a second later: once an epoch, not two hundred times.
    let mut crew = Crew::started(Policy::default(), 50, 3, |dial| {
        if dial.at < secs(40) { ACCEPT } else { Answer::Accept { after: millis(1) } }
    });
    crew.run_until(secs(40));
    assert_eq!(crew.connected(), 50);
    let before = crew.status();
    crew.tell_all(Event::Lost(Failure::Transient));
    let after = crew.status();
    assert!(after.epoch <= before.epoch + 1, "{before:?} {after:?}");
    assert!(after.trips <= before.trips + 1);
}

#[test]
fn who_does_not_come_loses_its_turn() {
    // Nobody polls the head of the queue; the next one goes `base` later, and nobody starves.
    let mut crew = Crew::started(Policy::default(), 10, 3, healed_at(20));
    crew.run_until(secs(19));
    crew.put_to_sleep(&[0, 4, 7]);
    crew.run_until(secs(120));
    assert_eq!(crew.connected(), 7, "all who are awake");
    crew.wake_up();
    crew.run_until(secs(180));
    assert_eq!(crew.connected(), 10);
}
