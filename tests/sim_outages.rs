//! What an outage costs the server, and how soon everybody is back.
#![cfg(feature = "sim")]

mod sim_support;

use std::time::Duration;

use sim_support::{behind_one_gate, capacity, lone, millis, play, secs};
use steadfast::sim::{Fleet, Overload, Report, Scenario, Server, Step};
use steadfast::{Failure, Policy};

const LENGTHS: [u64; 3] = [5, 60, 600];

/// Attempts in the outage and seconds until all are back, the means over 20 seeds.
fn mean(clients: usize, during: &Server, length: u64) -> (f64, f64) {
    let outage = Scenario::outage(during.clone(), secs(length), Server::healthy());
    let runs: Vec<Report> = (0..20).map(|seed| play(&behind_one_gate(clients).seed(seed), &outage)).collect();
    let dials: usize = runs.iter().map(Report::dials_in_outage).sum();
    let back: Duration = runs.iter().map(|run| run.back(1.0).expect("everybody is back")).sum();
    (f64::from(u32::try_from(dials).expect("few attempts")) / 20.0, back.as_secs_f64() / 20.0)
}

#[test]
fn two_hundred_cost_a_refusing_server_no_more_than_one_does() {
    for length in LENGTHS {
        let (alone, _) = mean(1, &Server::refusing(), length);
        let (together, back) = mean(200, &Server::refusing(), length);
        assert!(together <= alone * 1.2 + 2.0, "{together} attempts of 200, {alone} of one, in {length} s");
        assert!(back < 6.0, "back after {back} s, of an outage of {length} s");
    }
}

#[test]
fn a_lone_client_is_back_two_seconds_after_a_server_that_refused() {
    for length in LENGTHS {
        let (_, back) = mean(1, &Server::refusing(), length);
        assert!(back < 3.5, "back after {back} s, of an outage of {length} s");
    }
}

#[test]
fn a_server_that_accepts_and_drops_sees_ever_fewer_attempts() {
    let dropping = Server::dropping(millis(200));
    for clients in [1, 2, 200] {
        let (minute, _) = mean(clients, &dropping, 60);
        let (ten, back) = mean(clients, &dropping, 600);
        assert!(ten < minute * 10.0, "{clients} clients: {minute} attempts in a minute, {ten} in ten");
        assert!(ten < 120.0, "{clients} clients: {ten} attempts in ten minutes");
        assert!(back < 90.0, "{clients} clients: back after {back} s");
    }
}

#[test]
fn two_hundred_lost_to_a_silent_server_hang_one_dial_at_a_time() {
    let outage = Scenario::outage(Server::silent(), secs(60), Server::healthy());
    for seed in 0..10 {
        let report = play(&behind_one_gate(200).seed(seed), &outage);
        let before: Vec<_> = report.dials().iter().filter(|dial| dial.at >= secs(60) && dial.at < secs(120)).collect();
        assert!((1..=8).contains(&before.len()), "{} attempts in a minute of silence", before.len());
        for pair in before.windows(2) {
            assert!(pair[0].ended.is_some_and(|ended| ended <= pair[1].at), "two hang at once: {pair:?}");
        }
        assert!(report.back(1.0).is_some_and(|back| back < secs(60)), "{:?}", report.back(1.0));
    }
}

#[test]
fn a_retry_after_is_waited_out_by_everybody() {
    let throttled = Server::failing(Failure::Throttled { retry_after: Some(secs(10)) });
    let outage = Scenario::outage(throttled, secs(60), Server::healthy());
    for clients in [1, 2, 200] {
        for seed in 0..10 {
            let report = play(&behind_one_gate(clients).seed(seed), &outage);
            let dials: Vec<_> = report.dials().iter().filter(|dial| dial.at >= secs(60)).collect();
            for (told, next) in dials.iter().zip(dials.iter().skip(1)).filter(|(told, _)| told.outcome != Some(Ok(())))
            {
                let wait = next.at - told.ended.expect("it was answered");
                assert!(wait > secs(10), "{clients} clients: {wait:?} after a Retry-After of 10 s");
            }
            assert!(report.dials_in_outage() <= 7, "{} attempts in a minute", report.dials_in_outage());
        }
    }
}

#[test]
fn a_server_that_keeps_naming_a_wait_is_asked_ever_less() {
    let throttled = Server::failing(Failure::Throttled { retry_after: Some(secs(10)) });
    // The wait alone, obeyed with two seconds of jitter at most, would be 55 attempts.
    for (clients, most) in [(1, 20.0), (2, 25.0), (200, 42.0)] {
        let (dials, _) = mean(clients, &throttled, 600);
        assert!(dials < most, "{clients} clients: {dials} attempts in ten minutes");
    }
}

#[test]
fn a_503_without_a_number_is_asked_less_often_than_a_refusal() {
    let (refused, _) = mean(1, &Server::refusing(), 60);
    let (overloaded, back) = mean(1, &Server::failing(Failure::Transient), 60);
    assert!(overloaded * 2.0 < refused, "{overloaded} attempts against {refused}");
    assert!(back < 40.0, "back after {back} s");
}

#[test]
fn fifty_a_second_from_a_queue_are_used_to_the_full() {
    for (clients, least) in [(200, 4.0), (1_000, 20.0)] {
        for overload in [Overload::Queue, Overload::QueueOfTheDead] {
            let outage = Scenario::outage(Server::refusing(), secs(5), capacity(50, overload));
            for seed in 0..5 {
                let report = play(&behind_one_gate(clients).seed(seed), &outage);
                let back = report.back(1.0).expect("everybody is back").as_secs_f64();
                assert!(back < least + 10.0, "{clients} clients are back after {back} s, least is {least} s");
                assert_eq!(report.dials_after(), clients, "each dials once");
            }
        }
    }
}

#[test]
fn a_server_that_sheds_is_found_out_at_few_refusals() {
    for price in [0.0, 1.0] {
        let shed = Overload::Shed { price, queue: millis(10) };
        let outage = Scenario::outage(Server::refusing(), secs(5), capacity(50, shed));
        for seed in 0..5 {
            let report = play(&behind_one_gate(200).seed(seed), &outage);
            let back = report.back(1.0).expect("everybody is back");
            assert!(back < secs(60), "back after {back:?}");
            assert!(report.refused_after() < 60, "{} refusals for 200 clients", report.refused_after());
        }
    }
}

#[test]
fn a_hundred_gates_share_a_server_without_overrunning_it() {
    let outage = Scenario::outage(Server::refusing(), secs(5), capacity(500, Overload::Queue));
    let report = play(&behind_one_gate(10_000).gates_of(sim_support::size(100)).seed(1), &outage);
    let back = report.back(1.0).expect("everybody is back");
    assert!(back < secs(30), "back after {back:?}, least is 20 s");
    assert!(report.dials_after() < 11_000, "{} attempts for 10,000 clients", report.dials_after());
}

#[test]
fn lone_clients_of_a_server_that_sheds_do_not_collapse() {
    let shed = Overload::Shed { price: 0.3, queue: millis(10) };
    let outage = Scenario::outage(Server::refusing(), secs(30), capacity(50, shed));
    let report = play(&lone(Policy::default(), 1_000).seed(1), &outage);
    let back = report.back(1.0).expect("everybody is back");
    assert!(back < secs(180), "back after {back:?}, least is 20 s");
}

#[test]
fn the_fleet_policy_recovers_within_a_fifth_more_than_the_shortest_time() {
    let fleet = lone(Policy::for_fleet(2_000, 100.0), 2_000).seed(1);
    let roomy = capacity(100, Overload::Shed { price: 1.0, queue: secs(1) });
    for length in [1, 5, 60, 600] {
        let report = play(&fleet, &Scenario::outage(Server::refusing(), secs(length), roomy.clone()));
        let most = report.back(0.99).expect("nearly everybody is back");
        assert!(most < secs(24), "99 % are back after {most:?} of an outage of {length} s, least is 20 s");
        assert!(report.refused_after() < 80, "{} of 2,000 refused", report.refused_after());
    }
}

#[test]
fn first_attempts_after_a_loss_fill_the_spread() {
    let outage = Scenario::outage(Server::healthy(), Duration::ZERO, Server::healthy());
    let report = play(&lone(Policy::default().recovery_spread(secs(30)), 10_000).seed(1), &outage);
    let firsts = report.first_dials();
    assert_eq!(firsts.len(), 10_000, "everybody dials");
    let mut bins = [0_u32; 30];
    for first in firsts.values() {
        bins[usize::try_from(first.as_secs()).map_or(29, |second| second.min(29))] += 1;
    }
    // 333 are expected in each; five standard deviations are 90.
    assert!(bins.iter().all(|count| (243..=423).contains(count)), "{bins:?}");
}

#[test]
fn a_start_up_goes_through_the_gate() {
    for clients in [10, 50, 200] {
        for seed in 0..10 {
            let report = play(&behind_one_gate(clients).seed(seed), &Scenario::new(Server::healthy()));
            assert_eq!(report.dials().iter().filter(|dial| dial.at < millis(5)).count(), 1, "one asks first");
            assert_eq!(report.dials().len(), clients, "nobody dials twice");
            let back = report.back(1.0).expect("everybody is up");
            assert!(back < secs(5), "{clients} are up after {back:?}");
        }
    }
}

#[test]
fn one_seed_gives_one_run_and_another_seed_another() {
    let outage = Scenario::outage(Server::refusing(), secs(5), capacity(50, Overload::Queue))
        .at(secs(62), Step::Reconnect(0..20))
        .at(secs(63), Step::Cancel(20..30));
    let fleet = behind_one_gate(100).log([0, 50, 99]);
    let first = play(&fleet.clone().seed(7), &outage);
    let again = play(&fleet.clone().seed(7), &outage);
    let other = play(&fleet.seed(8), &outage);
    assert!(first.log(50).len() > 5, "{:?}", first.log(50));
    assert_eq!(first, again);
    assert_ne!(first.log(50), other.log(50));
}

#[test]
fn a_policy_that_cannot_work_is_refused_by_the_fleet() {
    let error = Fleet::new(Policy::default().base(Duration::ZERO), 1).expect_err("zero doubled stays zero");
    assert_eq!(error.field(), "quick.base");
}
