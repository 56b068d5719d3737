//! What an outage costs, as counts.
//!
//! One hour down, behind one gate of `n` connections with the default policy. What each count is made of:
//!
//! | the server | from one attempt to the next | attempts an hour |
//! |---|---|---|
//! | refuses | the quick curve, [5/3, 5) s | 3,600 ÷ 3.33 = 1,080 |
//! | fails | the growing curve, its ceiling shared: [5, 15) s | 3,600 ÷ 10 = 360 |
//! | is silent | the attempt's deadline of 10 s and the same | 3,600 ÷ 20 = 180 |
//! | throttles | the 30 s that it asks for and the same as jitter | 3,600 ÷ 40 = 90 |
//! | refuses the credential | 0.5 to 1 s once, 60 to 180 s once, then up to [200, 600) s | 4 + 3,200 ÷ 400 = 12 |
//!
//! None of these depends on `n`. A connection with a gate of its own has the growing curve's ceiling to itself: it
//! reaches 120 s within ten minutes, and from then on a gap is 2/15 of the outage's age on average, so that
//! 7.5 · ln 6 = 13 attempts follow in the fifty minutes that are left (with d seconds of dial or hint in each gap,
//! 7.5 · ln((3,600 + 7.5 d) ÷ (600 + 7.5 d))).
//!
//! Polls of one supervisor: one at the loss, one at the end of its draw, one when a line of the log that was left out
//! is told. Each attempt: its turn, the deadline of a silent one, the end of the own wait, the draw of the next head,
//! and three that stand by. And the waiter of rank r looks in every (r + 1) · `base`, counted from the opening: over an
//! hour 7,200 ÷ (r + 1) times at most, 7,200 · ln n for all of them together, so the more there are the less each does.
#![cfg(test)]

#[path = "../common/mod.rs"]
mod common;
mod footprint;
mod leaving;
mod measure;

use measure::{Case, Cost, Counts, Form, Outage, measure};

/// The longest gap between two attempts behind a shared gate, in half seconds: that is `base`.
const fn longest_gap(outage: Outage) -> usize {
    match outage {
        Outage::Refuses => 2 * 5,
        Outage::Fails => 2 * 15,
        // Its slot is free half a second after the deadline.
        Outage::Silent => 2 * 25 + 1,
        Outage::Throttles => 2 * 45,
        Outage::Unauthorized => 2 * 600,
    }
}

/// The attempts of one hour at one server, as the curves say: behind a shared gate, and of one that is alone.
const fn attempts(outage: Outage) -> (f64, f64) {
    match outage {
        Outage::Refuses => (1_080.0, 1_080.0),
        Outage::Fails => (360.0, 14.0 + 13.0),
        Outage::Silent => (180.0, 10.0 + 13.0),
        Outage::Throttles => (90.0, 10.0 + 12.0),
        Outage::Unauthorized => (12.0, 12.0),
    }
}

#[test]
fn one_hour_down_costs_a_lone_connection_one_poll_for_each_attempt() {
    for outage in Outage::ALL {
        let cost = measure(Case { outage, connections: 1, shared: true, form: Form::Run });
        assert_idle(&cost, &format!("{outage:?}"));
        let (_, expected) = attempts(outage);
        let tolerance = if outage == Outage::Refuses { 0.05 } else { 0.5 };
        assert_near(cost.outage.attempts, expected, tolerance, &format!("{outage:?}: attempts"));
        assert_polled_for_what_it_does(outage, 1, &cost);
        assert_bounded_log(10, &cost);
        let silent = if outage == Outage::Silent { cost.outage.attempts } else { 0 };
        assert_within(cost.outage.polls, (cost.outage.attempts + silent, cost.outage.attempts + silent + 4), "polls");
    }
}

#[test]
fn twenty_with_a_gate_each_cost_twenty_times_one() {
    for outage in Outage::ALL {
        let run = measure(Case { outage, connections: 20, shared: false, form: Form::Run });
        assert_idle(&run, &format!("{outage:?}"));
        let (_, expected) = attempts(outage);
        assert_near(run.outage.attempts, 20.0 * expected, 0.1, &format!("{outage:?}: attempts"));
        assert_polled_for_what_it_does(outage, 20, &run);
        assert_bounded_log(20, &run);
        assert!(run.outage.polls <= 2 * run.outage.attempts + 80, "{outage:?}: {run:?}");
        // The same draws, so the same hour: what is shared through links costs what is lent to a closure.
        let keep = measure(Case { outage, connections: 20, shared: false, form: Form::Keep });
        for (run, keep) in [(run.idle, keep.idle), (run.outage, keep.outage), (run.back, keep.back)] {
            assert_eq!(Counts { polls: 0, wakes: 0, ..run }, keep, "{outage:?}");
        }
    }
}

#[test]
fn a_hundred_behind_one_gate_cost_the_server_one() {
    for outage in Outage::ALL {
        for form in [Form::Run, Form::Keep] {
            assert_cost_of_a_shared_gate(outage, 100, form);
        }
    }
}

#[test]
fn ten_thousand_behind_one_gate_cost_a_server_that_refuses_one() {
    assert_cost_of_a_shared_gate(Outage::Refuses, 10_000, Form::Run);
}

#[test]
fn ten_thousand_behind_one_gate_cost_a_server_that_fails_one() {
    assert_cost_of_a_shared_gate(Outage::Fails, 10_000, Form::Keep);
}

#[test]
fn ten_thousand_behind_one_gate_cost_a_silent_server_one() {
    assert_cost_of_a_shared_gate(Outage::Silent, 10_000, Form::Run);
}

#[test]
fn ten_thousand_behind_one_gate_cost_a_server_that_throttles_one() {
    assert_cost_of_a_shared_gate(Outage::Throttles, 10_000, Form::Run);
}

#[test]
fn ten_thousand_with_one_refused_credential_cost_the_server_one() {
    assert_cost_of_a_shared_gate(Outage::Unauthorized, 10_000, Form::Run);
}

fn assert_cost_of_a_shared_gate(outage: Outage, connections: usize, form: Form) {
    let cost = measure(Case { outage, connections, shared: true, form });
    let of = format!("{outage:?} {connections} {form:?}");
    assert_idle(&cost, &of);
    let (expected, _) = attempts(outage);
    let tolerance = if outage == Outage::Unauthorized { 0.25 } else { 0.08 };
    assert_near(cost.outage.attempts, expected, tolerance, &format!("{of}: attempts"));
    assert_eq!(cost.most_in_flight, 1, "{of}");
    assert_bounded_log(10, &cost);
    let waits = waits_of_a_shared_gate(outage, connections, cost.outage.attempts);
    assert_within(cost.outage.waits, waits, &format!("{of}: waits"));
    assert_polled_for_what_it_does(outage, connections, &cost);
    if form == Form::Run {
        // Who stands far in front is drawn to the back by the next failure, so nobody pays for all.
        let [outage, back] = cost.most_polls;
        let most = if connections < 1_000 { 3 * cost.outage.polls / connections + 60 } else { 300 };
        assert!(outage <= most, "{of}: one was polled {outage} times");
        assert!(back <= 16, "{of}: one was polled {back} times on the return");
    }
}

/// Connected and stable, there is nothing to do. The watcher of suspends looks every five seconds, for all together.
fn assert_idle(cost: &Cost, of: &str) {
    let Counts { reads, parks, .. } = cost.idle;
    assert_eq!(cost.idle, Counts { reads, parks, ..Counts::default() }, "{of}: idle");
    assert_within(reads, (719, 721), &format!("{of}: clock reads while idle"));
    // One tick is up to five sleeps of the timer wheel.
    assert_within(parks, (720, 5 * 720), &format!("{of}: the runtime woke up while idle"));
}

/// Between which bounds the waits of all lie: two for each connection, and then what the table above says.
fn waits_of_a_shared_gate(outage: Outage, connections: usize, attempts: usize) -> (usize, usize) {
    // How often rank r looks in, where its turn comes `rank + 1` times `base` after the opening.
    let least: usize = (1..connections).map(|rank| HALF_SECONDS / (longest_gap(outage) + rank + 1)).sum();
    // A refused credential is tried again after a minute at the soonest; for the rest the opening may be now.
    let from = if outage == Outage::Unauthorized { 2 * 60 } else { 0 };
    let most: usize = (1..connections).map(|rank| HALF_SECONDS.div_ceil(from + rank + 1)).sum();
    (2 * connections + least, 4 * connections + 6 * attempts + most)
}

/// In an hour.
const HALF_SECONDS: usize = 2 * 3_600;

/// Every poll is an attempt, a wait, a deadline or a line that was left out; every wake-up is a poll. So nothing spins.
fn assert_polled_for_what_it_does(outage: Outage, connections: usize, cost: &Cost) {
    let Counts { attempts, waits, polls, wakes, reads, .. } = cost.outage;
    let of = format!("{outage:?} {connections}");
    let deadlines = if outage == Outage::Silent { attempts } else { 0 };
    let run = polls > 0;
    if run {
        assert_within(polls, (waits, waits + deadlines + 2 * connections), &format!("{of}: polls"));
        assert_within(wakes, (polls, polls + polls / 100), &format!("{of}: wake-ups"));
    }
    // Each wait is decided at a time and a timer is set for it; each attempt is decided, has a deadline and fails.
    let idle = cost.idle.reads;
    assert_within(reads, (2 * waits, idle + 2 * waits + 4 * attempts + 4 * connections), &format!("{of}: clock reads"));

    // On the return nobody dials twice. The turn, the answer, and that it was stable are three polls; four places in
    // the queue are told to stand by, and a line that was left out is one more.
    let Counts { attempts, waits, polls, wakes, reads, .. } = cost.back;
    assert_eq!(attempts, connections, "{of}: attempts on the return");
    if run {
        assert_within(polls, (3 * connections, 10 * connections), &format!("{of}: polls on the return"));
        assert_within(wakes, (polls, polls + polls / 100), &format!("{of}: wake-ups on the return"));
    }
    assert!(waits <= 6 * connections, "{of}: {waits} waits on the return");
    let most = cost.back_after.as_secs() + 60 + 2 * waits as u64 + 8 * connections as u64;
    assert!(reads as u64 <= most, "{of}: {reads} clock reads on the return");
}

/// A line for each attempt, and for losses and returns together `burst` at once and ten a second.
fn assert_bounded_log(burst: usize, cost: &Cost) {
    let Counts { attempts, lines, .. } = cost.outage;
    assert_within(lines, (attempts - attempts / 20 - 1, attempts + burst), "lines while it is down");
    let seconds = usize::try_from(cost.back_after.as_secs()).expect("hours");
    assert_within(cost.back.lines, (1, burst * (seconds + 2)), "lines on the return");
}

/// Tasks of the present runtime.
fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn assert_within(count: usize, (least, most): (usize, usize), what: &str) {
    assert!((least..=most).contains(&count), "{what}: {count}, where {least} to {most} are due");
}

fn assert_near(measured: usize, expected: f64, tolerance: f64, what: &str) {
    // Three of grace: an hour begins and ends within a gap.
    let (least, most) = (expected * (1.0 - tolerance) - 3.0, expected * (1.0 + tolerance) + 3.0);
    let near = (least..=most).contains(&f64::from(u32::try_from(measured).expect("a count")));
    assert!(near, "{what}: {measured}, where {least:.0} to {most:.0} are due");
}
