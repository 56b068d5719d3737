//! What an hour of outage costs a server and each of its clients: attempts, polls, wake-ups and lines of the log.
//!
//! `cargo run --release --example outage_cost` prints the tables. `tests/outage_cost` asserts the same counts.
#![expect(clippy::print_stdout, reason = "printing the tables is what this program is for")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/outage_cost/measure.rs"]
mod measure;

use measure::{Case, Cost, Form, Outage, measure};

fn main() {
    println!("{INTRODUCTION}");
    println!(
        "| the server | clients | attempts | at once | of each: attempts | polls | wake-ups | lines | the most polls | \
         polls on the return | all back after |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for outage in Outage::ALL {
        for (connections, shared) in FLEETS {
            row(outage, connections, shared, &measure(Case { outage, connections, shared, form: Form::Run }));
        }
    }
    println!("{KEPT}");
    println!("| the server | waits | clock reads | sleeps of the runtime | the same, in the idle hour before |");
    println!("|---|---|---|---|---|");
    for outage in Outage::ALL {
        let Cost { idle, outage: down, .. } =
            measure(Case { outage, connections: KEPT_LINKS, shared: true, form: Form::Keep });
        println!("| {} | {} | {} | {} | {} |", name(outage), down.waits, down.reads, down.parks, idle.parks);
    }
}

const INTRODUCTION: &str = "\
## The cost of an hour down

Real supervisors with `Policy::default()` on a paused clock: up and idle for an hour, lost at once, an hour down, and
back. In the idle hour nobody is polled and nothing is logged. Attempts are those of all clients; what follows is the
mean of one client and hour. A client that returns is polled while it stands near the head of the queue, for the answer
and when it has become stable.
";

const KEPT: &str = "
Of a hundred clients behind one gate that share their connection by links, all together in the hour down:
";

const KEPT_LINKS: usize = 100;

/// How many clients, and whether behind one gate.
const FLEETS: [(usize, bool); 4] = [(1, true), (100, true), (10_000, true), (100, false)];

fn row(outage: Outage, connections: usize, shared: bool, cost: &Cost) {
    let gates = if connections == 1 || shared { "" } else { ", a gate each" };
    let down = &cost.outage;
    let each = |count: usize| {
        let number = |count: usize| f64::from(u32::try_from(count).expect("a count"));
        let mean = number(count) / number(connections);
        if mean < 1.0 { format!("{mean:.4}") } else { format!("{mean:.1}") }
    };
    println!(
        "| {} | {connections}{gates} | {} | {} | {} | {} | {} | {} | {} | {} | {} s |",
        name(outage),
        down.attempts,
        cost.most_in_flight,
        each(down.attempts),
        each(down.polls),
        each(down.wakes),
        each(down.lines),
        cost.most_polls[0],
        each(cost.back.polls),
        cost.back_after.as_secs(),
    );
}

const fn name(outage: Outage) -> &'static str {
    match outage {
        Outage::Refuses => "refuses",
        Outage::Fails => "answers and fails",
        Outage::Silent => "silent",
        Outage::Throttles => "503, Retry-After 30 s",
        Outage::Unauthorized => "refuses the credential",
    }
}
