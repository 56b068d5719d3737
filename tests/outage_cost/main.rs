//! What an outage costs, as counts.
#![cfg(test)]

#[path = "../common/mod.rs"]
mod common;
mod measure;

use measure::{Case, Form, Outage, measure};

#[test]
fn look() {
    for outage in Outage::ALL {
        for (connections, shared) in [(1, true), (100, true), (100, false), (10_000, true)] {
            for form in [Form::Run, Form::Keep] {
                let began = std::time::Instant::now();
                let cost = measure(Case { outage, connections, shared, form });
                eprintln!("{outage:?} {connections} {shared} {form:?} {:?}\n  {:?}\n  {:?}\n  {:?} {:?} most {:?} in flight {}", began.elapsed(), cost.idle, cost.outage, cost.back, cost.back_after, cost.most_polls, cost.most_in_flight);
            }
        }
    }
}
