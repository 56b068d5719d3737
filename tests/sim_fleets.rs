//! Fleets of lone clients against a server that their return can overrun, and what others do to it.
//!
//! The server takes a twentieth of the fleet in a second, and a client hangs up after 5 s. Only the ratio matters:
//! most runs have 1,000 clients and 50 a second in place of 10,000 and 500.
#![cfg(test)]
#![cfg(feature = "sim")]

mod sim_support;

use std::time::Duration;

use sim_support::{behind_one_gate, capacity, lone, millis, play, secs, size};
use steadfast::sim::{Overload, Report, Scenario, Server};
use steadfast::{Backoff, Growth, Jitter, Policy};

/// It answers too late rather than no: whoever has hung up is served all the same.
const QUEUES: Overload = Overload::QueueOfTheDead;
/// It says no to whom it cannot serve before it hangs up, and saying so costs it nothing.
const SHEDS: Overload = Overload::Shed { price: 0.0, queue: Duration::from_secs(4) };

/// Down for 5 s, and then an overrun server for a quarter of an hour.
fn outage(per_second: u32, overload: Overload) -> Scenario {
    let back = capacity(per_second, overload);
    Scenario::outage(Server::refusing(), secs(5), back).until(Scenario::HEALTHY_FOR + secs(905))
}

fn impatient(policy: Policy) -> Policy {
    policy.attempt_deadline(secs(5)).handshake_limit(secs(5))
}

fn spread_over(seconds: u64, seed: u64) -> Report {
    let policy = impatient(Policy::default()).recovery_spread(secs(seconds));
    play(&lone(policy, 1_000).seed(seed), &outage(50, QUEUES))
}

/// Handshakes that the server was asked for since it is back, and that gave nobody a connection.
fn wasted(report: &Report) -> usize {
    report.dials_after() - report.clients()
}

fn all_back(report: &Report) -> Duration {
    report.back(1.0).expect("everybody is back")
}

#[test]
fn a_spread_that_is_shorter_than_the_fleet_needs_is_worse_than_none_and_one_that_is_long_enough_wastes_nothing() {
    for seed in 0..3 {
        let none = spread_over(0, seed);
        assert!(all_back(&none) > secs(59), "{:?}: a herd is bad enough", all_back(&none));
        for short in [5, 10] {
            let report = spread_over(short, seed);
            assert!(wasted(&report) > wasted(&none), "{short} s: {} and {}", wasted(&report), wasted(&none));
            assert!(all_back(&report) > secs(59), "{short} s: {:?}", all_back(&report));
        }
        // The least that the server needs is 20 s; what is left of the spread when it returns is 20 s and 25 s.
        for (enough, least) in [(25, 20), (30, 25)] {
            let report = spread_over(enough, seed);
            assert_eq!(wasted(&report), 0, "{enough} s");
            assert!(all_back(&report) < millis(least * 1_000 + 500), "{enough} s: {:?}", all_back(&report));
            let dials: usize = report.dials_per_client().values().sum();
            // Those who were drawn while it was down are refused, at no cost to it, and come again.
            assert!(dials < 1_600, "{enough} s: {dials} attempts of 1,000 clients");
        }
    }
}

#[test]
fn the_window_of_a_fleet_is_long_enough() {
    for seed in 0..3 {
        let policy = impatient(Policy::for_fleet(1_000, 50.0));
        let report = play(&lone(policy, 1_000).seed(seed), &outage(50, QUEUES));
        assert_eq!(wasted(&report), 0);
        assert!(all_back(&report) < secs(25), "{:?}, least is 20 s", all_back(&report));
    }
}

/// What many clients do: again after 5 s, all alike.
fn fixed() -> Policy {
    let five = Backoff::new(secs(5), secs(5)).jitter(Jitter::None);
    let policy = Policy::default().quick(five).growing(Growth::fixed(secs(5)).jitter(Jitter::None));
    impatient(policy).recovery_spread(Duration::ZERO)
}

#[test]
fn an_outage_that_feeds_itself_never_ends_for_a_fixed_retry() {
    // A server that sheds for nothing gets over it, so that the other run shows what the queue does.
    let shed = play(&lone(fixed(), 1_000).seed(1), &outage(50, SHEDS));
    assert!(all_back(&shed) < secs(30), "{:?}, least is 20 s", all_back(&shed));
    let queued = play(&lone(fixed(), 1_000).seed(1), &outage(50, QUEUES));
    assert_eq!(queued.back(0.5), None, "a quarter of an hour later not even half of them are back");
    assert!(wasted(&queued) > 50_000, "{}", wasted(&queued));
}

#[test]
fn an_outage_that_feeds_itself_ends_for_ten_thousand_of_ours() {
    for overload in [QUEUES, SHEDS] {
        let report = play(&lone(impatient(Policy::default()), 10_000).seed(1), &outage(500, overload));
        assert!(all_back(&report) < secs(130), "{overload:?}: {:?}, least is 20 s", all_back(&report));
    }
}

#[test]
fn processes_of_a_hundred_connections_each_use_what_such_a_server_can_take() {
    for overload in [QUEUES, SHEDS] {
        let report = play(&behind_one_gate(1_000).gates_of(size(100)).seed(1), &outage(50, overload));
        assert!(all_back(&report) < secs(30), "{overload:?}: {:?}, least is 20 s", all_back(&report));
        assert!(wasted(&report) < 50, "{overload:?}: {} wasted handshakes", wasted(&report));
    }
}

#[test]
fn a_thousand_processes_that_start_at_once_fill_the_startup_spread() {
    let starts = |spread| {
        let fleet = lone(Policy::default().startup_spread(spread), 1_000).seed(1);
        play(&fleet, &Scenario::new(Server::healthy())).first_dials().into_values().collect::<Vec<_>>()
    };
    let mut bins = [0_u32; 10];
    for start in starts(secs(10)) {
        bins[usize::try_from(start.as_secs()).map_or(9, |second| second.min(9))] += 1;
    }
    // 100 are expected in each; five standard deviations are 47.
    assert!(bins.iter().all(|count| (53..=147).contains(count)), "{bins:?}");
    assert_eq!(starts(Duration::ZERO), [Duration::ZERO; 1_000], "and all in one instant without it");
}
