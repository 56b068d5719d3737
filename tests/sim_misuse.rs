//! One connection, one credential or one impatient caller does not spoil it for the others.
#![cfg(feature = "sim")]

mod sim_support;

use std::time::Duration;

use sim_support::{behind_one_gate, capacity, lone, millis, play, secs};
use steadfast::sim::{Overload, Report, Scenario, Server, Step};
use steadfast::{Failure, Policy};

#[test]
fn one_poisoned_connection_delays_nobody_else() {
    let scenario = Scenario::new(Server::healthy())
        .at(secs(60), Step::Serve(Server::healthy().poisoned(0)))
        .at(secs(60), Step::Lose(0..1, Failure::Transient))
        .at(secs(300), Step::Lose(1..2, Failure::Transient))
        .at(secs(600), Step::Lose(1..200, Failure::Transient))
        .until(secs(900));
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        let healthy_one = report.dials().iter().find(|dial| dial.client == 1 && dial.at >= secs(300));
        let back = healthy_one.and_then(|dial| dial.ended).expect("it dials") - secs(300);
        assert!(back < secs(3), "a healthy one that was lost is back after {back:?}");
        let others = (1..200).map(|client| report.back_of(client).expect("a healthy one is back")).max();
        let others = others.map(|back| back + report.healed()).expect("there are others") - secs(600);
        assert!(others < secs(10), "199 healthy ones that were lost are back after {others:?}");
        assert_eq!(report.back_of(0), None, "the poisoned one is not");
        assert!(report.dials_per_client()[&0] > 5, "and it tries on");
    }
}

#[test]
fn a_refused_credential_is_tried_twice_in_the_first_minute_however_many_present_it() {
    for latency in [10, 100, 1000] {
        let server = Server::healthy().unauthorized(1).latency(millis(latency));
        let scenario = Scenario::outage(server.clone(), Duration::ZERO, server).until(secs(60 + 3600));
        for seed in 0..10 {
            let report = play(&behind_one_gate(200).credentials(2).seed(seed), &scenario);
            let refused: Vec<_> =
                report.dials().iter().filter(|dial| dial.outcome == Some(Err(Failure::Unauthorized))).collect();
            let within = |time: Duration| refused.iter().filter(|dial| dial.at < refused[0].at + time).count();
            assert_eq!(within(secs(59)), 2, "latency {latency} ms, seed {seed}: two tries in the first minute");
            assert!((6..=20).contains(&within(secs(3600))), "{} tries in the hour", within(secs(3600)));
            for healthy in (0..200).step_by(2) {
                let back = report.back_of(healthy).expect("the other credential is fine");
                assert!(back < secs(20), "client {healthy} is back after {back:?}");
            }
        }
    }
}

#[test]
fn a_credential_that_works_again_brings_everybody_back() {
    let refusing = Server::healthy().unauthorized(0);
    let scenario = Scenario::outage(refusing, secs(1800), Server::healthy()).until(secs(3600));
    for seed in 0..5 {
        let report = play(&behind_one_gate(50).seed(seed), &scenario);
        let back = report.back(1.0).expect("everybody is back");
        assert!(back < secs(620), "back after {back:?}: one step of the slow curve");
    }
}

#[test]
fn reconnect_ends_the_wait_of_a_refused_credential() {
    let refusing = Server::healthy().unauthorized(0);
    let scenario = Scenario::outage(refusing, secs(1800), Server::healthy())
        .at(secs(60 + 1801), Step::Reconnect(0..1))
        .until(secs(3600));
    for seed in 0..5 {
        let report = play(&behind_one_gate(50).seed(seed), &scenario);
        let back = report.back(1.0).expect("everybody is back");
        assert!(back < secs(15), "back after {back:?}");
    }
}

#[test]
fn waiters_that_are_never_polled_lose_their_turn() {
    for (forgotten, most) in [(5, 30), (20, 60), (50, 120)] {
        let scenario = Scenario::outage(Server::refusing(), secs(60), Server::healthy())
            .at(Scenario::HEALTHY_FOR + secs(30), Step::Forget(0..forgotten));
        for seed in 0..10 {
            let report = play(&behind_one_gate(200).seed(seed), &scenario);
            let back = report.back(1.0).expect("those who are polled are back");
            assert!(back < secs(most), "{forgotten} are never polled, the others are back after {back:?}");
        }
    }
}

#[test]
fn a_dial_that_nobody_polls_to_its_end_holds_the_others_up_once() {
    // The silent server holds the dial of whoever is first; a second later nobody of the first hundred is polled.
    let lost = Scenario::HEALTHY_FOR;
    let scenario =
        Scenario::outage(Server::silent(), secs(8), Server::healthy()).at(lost + secs(1), Step::Forget(0..100));
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        let back = report.back(1.0).expect("those who are polled are back");
        assert!(back < secs(400), "back after {back:?}");
        assert!(report.peak_in_flight() < 200, "no herd");
    }
}

#[test]
fn cancelled_waiters_leave_no_gap_behind() {
    let lost = Scenario::HEALTHY_FOR;
    let scenario = Scenario::outage(Server::refusing(), secs(60), Server::healthy())
        .at(lost + secs(30), Step::Cancel(0..100))
        .at(lost + secs(60), Step::Cancel(100..150));
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        let back = report.back(1.0).expect("the others are back");
        assert!(back < secs(15), "back after {back:?}");
        let gone = report.dials().iter().filter(|dial| dial.client < 100 && dial.at > lost + secs(30)).count();
        assert_eq!(gone, 0, "the cancelled ones dial no more");
    }
}

#[test]
fn cancelling_whoever_dials_passes_the_turn_on() {
    let lost = Scenario::HEALTHY_FOR;
    // One after the other is cancelled while a silent server holds the dial of one of them.
    let mut scenario = Scenario::outage(Server::silent(), secs(20), Server::healthy());
    for client in 0..100 {
        scenario =
            scenario.at(lost + secs(1) + millis(100) * client, Step::Cancel(client as usize..client as usize + 1));
    }
    let mut cancelled = 0;
    for seed in 0..20 {
        let report = play(&behind_one_gate(110).seed(seed), &scenario);
        assert!(report.back(1.0).is_some_and(|back| back < secs(60)), "{:?}", report.back(1.0));
        cancelled += report.dials().iter().filter(|dial| dial.at >= lost && dial.outcome.is_none()).count();
    }
    assert!(cancelled >= 10, "only {cancelled} were cancelled while dialling");
}

/// Everybody calls `reconnect()` ten times, a tenth of a second apart.
fn storm(mut scenario: Scenario, from: Duration) -> Scenario {
    for call in 0..10 {
        scenario = scenario.at(from + millis(100) * call, Step::Reconnect(0..200));
    }
    scenario
}

#[test]
fn a_storm_of_reconnects_stays_within_the_gate() {
    let lost = Scenario::HEALTHY_FOR;
    let scenario = storm(Scenario::outage(Server::refusing(), secs(60), Server::healthy()), lost + secs(20));
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        let second = lost + secs(20)..lost + secs(21);
        let dials = report.dials().iter().filter(|dial| second.contains(&dial.at)).count();
        assert!((1..=3).contains(&dials), "{dials} attempts in the second of the storm, `base` is half of it");
        assert!(report.dials_in_outage() < 60, "{} attempts in the outage", report.dials_in_outage());
        assert!(report.back(1.0).is_some_and(|back| back < secs(15)), "{:?}", report.back(1.0));
    }
}

#[test]
fn a_storm_of_reconnects_does_not_undercut_a_hint() {
    let lost = Scenario::HEALTHY_FOR;
    let throttled = Server::failing(Failure::Throttled { retry_after: Some(secs(30)) });
    let scenario = storm(Scenario::outage(throttled, secs(20), Server::healthy()), lost + secs(10));
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        assert_eq!(report.dials_in_outage(), 1, "nobody dials while the hint runs");
    }
}

#[test]
fn reconnects_of_live_connections_fill_the_spread() {
    let scenario = Scenario::new(Server::healthy()).at(secs(60), Step::Reconnect(0..1_000));
    let report = play(&lone(Policy::default(), 1_000).seed(1), &scenario);
    let again: Vec<Duration> =
        report.dials().iter().filter(|dial| dial.at >= secs(60)).map(|dial| dial.at - secs(60)).collect();
    assert_eq!(again.len(), 1_000, "everybody dials once more");
    for tenth in 0..10 {
        let bin = millis(100) * tenth..millis(100) * (tenth + 1);
        let count = again.iter().filter(|at| bin.contains(at)).count();
        // 100 are expected in each; five standard deviations are 47.
        assert!((53..=147).contains(&count), "{count} in {bin:?}");
    }
}

#[test]
fn nobody_dials_after_a_drain() {
    let lost = Scenario::HEALTHY_FOR;
    let scenario = Scenario::outage(Server::refusing(), secs(60), capacity(50, Overload::Queue))
        .at(lost + secs(10), Step::Drain(0..100))
        .at(lost + secs(61), Step::Drain(100..150));
    for seed in 0..5 {
        let report = play(&behind_one_gate(200).seed(seed), &scenario);
        let late = report.dials().iter().filter(|dial| dial.client < 100 && dial.at > lost + secs(10)).count();
        assert_eq!(late, 0, "attempts after a drain");
        assert!(report.back(1.0).is_some_and(|back| back < secs(20)), "{:?}", report.back(1.0));
    }
}

#[test]
fn advice_widens_the_spread_of_the_next_first_attempt() {
    let scenario = Scenario::new(Server::healthy())
        .at(secs(50), Step::Advise(0..1_000, secs(20)))
        .at(secs(60), Step::Lose(0..1_000, Failure::Planned));
    let report = play(&lone(Policy::default(), 1_000).seed(1), &scenario);
    let firsts = report.first_dials();
    let late = firsts.values().filter(|first| **first > secs(10)).count();
    assert!((420..=580).contains(&late), "{late} of 1,000 in the second half of the spread");
    assert!(firsts.values().all(|first| *first <= secs(20) + millis(1)));
    assert_eq!(since_loss(&report), 1_000, "one attempt each");
}

fn since_loss(report: &Report) -> usize {
    report.dials_per_client().values().sum()
}

#[test]
fn a_storm_of_reconnects_after_refused_credentials_fills_the_spread() {
    let scenario = Scenario::new(Server::healthy().unauthorized(0))
        .at(secs(30), Step::Serve(Server::healthy()))
        .at(secs(30), Step::Reconnect(0..1_000));
    let report = play(&lone(Policy::default(), 1_000).seed(1), &scenario);
    assert!(report.back(1.0).is_some_and(|back| back < secs(2)), "{:?}", report.back(1.0));
    let peak = report.dials().iter().filter(|dial| dial.at >= secs(30) && dial.at < secs(30) + millis(100)).count();
    assert!(peak < 200, "{peak} of 1,000 in the first tenth of a second");
}

#[test]
fn ten_calls_of_reconnect_are_one_draw() {
    // A second into an outage of 503 nobody's own wait ends within two seconds; `reconnect()` ends it by a draw.
    let lost = Scenario::HEALTHY_FOR;
    let from = lost + secs(2);
    let overloaded = Server::failing(Failure::Transient);
    let mut scenario = Scenario::outage(overloaded, secs(60), Server::healthy());
    for call in 0..10 {
        scenario = scenario.at(from + millis(1) * call, Step::Reconnect(0..1_000));
    }
    let report = play(&lone(Policy::default(), 1_000).seed(1), &scenario);
    let spread = from..from + millis(1_001);
    let asked: Vec<_> = report.dials().iter().filter(|dial| spread.contains(&dial.at)).collect();
    let late = asked.iter().filter(|dial| dial.at >= from + millis(500)).count();
    // A call while the attempt is under way is one more: a hundredth of them dial within the calls' nine milliseconds.
    assert!((950..=1_050).contains(&asked.len()), "{} attempts for 1,000 clients", asked.len());
    // Half are expected; five standard deviations are 79.
    assert!((421..=579).contains(&late), "{late} of 1,000 in the second half of the spread");
}
