//! What an outage costs the server and the clients, by kind of outage, its length and the size of the fleet.
//!
//! `cargo run --release --features sim --example recovery_table > docs/RECOVERY.md` writes that page anew.
#![expect(clippy::print_stdout, reason = "printing the tables is what this program is for")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, Instant};

use steadfast::sim::{Fleet, Overload, Report, Scenario, Server, Step};
use steadfast::{Failure, Policy};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    println!("{INTRODUCTION}");
    let tables = Tables { origin: Instant::now() };
    tables.by_kind_of_outage()?;
    tables.ten_thousand()?;
    tables.fifty_a_second()?;
    tables.special_cases()
}

const INTRODUCTION: &str = "\
# Recovery, measured

What an outage costs the server (attempts) and the clients (time until they are back), for the machine that ships,
under virtual time against a model of a server. This page is the output of

```text
cargo run --release --features sim --example recovery_table > docs/RECOVERY.md
```

The same seeds give the same figures. Unless a row says otherwise the policy is `Policy::default()`, everybody has been
connected for a minute and is lost at once, an answer takes 10 ms, and times count from the instant at which the server
is well again. `lone` clients have a gate each, so nothing but their own draws keeps them apart. What the model leaves
out: packets, addresses, the cost of connections that stay up.
";

struct Tables {
    origin: Instant,
}

impl Tables {
    /// Dials in the outage and seconds until all are back, for fleets behind one gate.
    fn by_kind_of_outage(&self) -> Outcome {
        let kinds = [
            ("refuses", Server::refusing()),
            ("silent", Server::silent()),
            ("accepts, drops after 200 ms", Server::dropping(Duration::from_millis(200))),
            ("503, Retry-After 10 s", Server::failing(throttled(10))),
            ("503 without", Server::failing(Failure::Transient)),
        ];
        println!("## One gate, by kind of outage\n");
        println!("Attempts during the outage / mean seconds from the server's return until all are back, 20 seeds.\n");
        println!("| the server | clients | down 5 s | 60 s | 600 s |\n|---|---|---|---|---|");
        for (name, server) in kinds {
            for clients in [1, 2, 200] {
                print!("| {name} | {clients} |");
                for length in [5, 60, 600] {
                    let outage = Scenario::outage(server.clone(), secs(length), Server::healthy());
                    let mean = self.mean(&Fleet::new(Policy::default(), clients)?, 20, &outage);
                    print!(" {:.0} / {:.1} |", mean.dials_in_outage, mean.all_back);
                }
                println!();
            }
        }
        println!();
        Ok(())
    }

    /// A server that takes 500 handshakes a second back: 20 s is the least.
    fn ten_thousand(&self) -> Outcome {
        println!("## 10,000 clients, 500 handshakes a second (20 s is the least)\n");
        capacity_header();
        let queue = Server::healthy().capacity(per_second(500), Overload::Queue);
        let overloaded = Server::failing(Failure::Transient);
        for (gate, seeds, longest) in [(100, 3, 600), (10, 3, 60), (1, 1, 60)] {
            let fleet = Fleet::new(Policy::default(), 10_000)?.gates_of(size(gate));
            let name = if gate == 1 { "lone".to_owned() } else { format!("gates of {gate}") };
            for length in [5, 60, 600].into_iter().filter(|length| *length <= longest) {
                let outage = Scenario::outage(Server::refusing(), secs(length), queue.clone());
                self.capacity_row(&format!("{name}, refused {length} s, queue"), &fleet, seeds, &outage);
            }
            let outage = Scenario::outage(overloaded.clone(), secs(600), queue.clone());
            self.capacity_row(&format!("{name}, 503 for 600 s, queue"), &fleet, seeds, &outage);
            for price in [0.0, 0.3, 1.0] {
                let outage = Scenario::outage(Server::refusing(), secs(longest), shedding(500, price, 10));
                let name = format!("{name}, refused {longest} s, sheds at {price} of an accept");
                self.capacity_row(&name, &fleet, seeds, &outage);
            }
        }
        let told = Fleet::new(Policy::for_fleet(10_000, 500.0), 10_000)?.gates_of(size(1));
        for length in [5, 60, 600] {
            let outage = Scenario::outage(Server::refusing(), secs(length), shedding(500, 1.0, 1_000));
            let name = format!("lone, `for_fleet(10_000, 500.0)`, refused {length} s, sheds at 1 beyond 1 s of work");
            self.capacity_row(&name, &told, 1, &outage);
        }
        println!();
        Ok(())
    }

    /// One gate in front of a small server.
    fn fifty_a_second(&self) -> Outcome {
        println!("## One gate, 50 handshakes a second, refused for 5 s\n");
        capacity_header();
        for clients in [200, 1_000] {
            let fleet = Fleet::new(Policy::default(), clients)?;
            for (name, server) in [
                ("queue", Server::healthy().capacity(per_second(50), Overload::Queue)),
                ("queue of the dead", Server::healthy().capacity(per_second(50), Overload::QueueOfTheDead)),
                ("sheds at 0", shedding(50, 0.0, 10)),
                ("sheds at 1", shedding(50, 1.0, 10)),
            ] {
                let outage = Scenario::outage(Server::refusing(), secs(5), server);
                self.capacity_row(&format!("{clients} clients, {name}"), &fleet, 10, &outage);
            }
        }
        println!();
        Ok(())
    }

    fn special_cases(&self) -> Outcome {
        println!("## Special cases\n\n| case | result |\n|---|---|");
        self.one_credential_refused()?;
        self.one_poisoned_connection()?;
        self.start_up()?;
        self.never_polled()
    }

    fn one_credential_refused(&self) -> Outcome {
        let scenario =
            Scenario::outage(Server::healthy().unauthorized(1), Duration::ZERO, Server::healthy().unauthorized(1))
                .until(Scenario::HEALTHY_FOR + secs(3600));
        let report = Fleet::new(Policy::default(), 200)?.credentials(2).seed(1).run(self.origin, &scenario);
        let refused = |within: Duration| {
            let dials = report.dials().iter().filter(|dial| dial.outcome == Some(Err(Failure::Unauthorized)));
            dials.filter(|dial| dial.at < Scenario::HEALTHY_FOR + within).count()
        };
        let other = (0..200).step_by(2).filter_map(|client| report.back_of(client)).max();
        println!(
            "| 401 for one of two keys, 100 connections each | {} refused dials in the first minute, {} in the hour; the other key is back in {} |",
            refused(secs(60)),
            refused(secs(3600)),
            seconds(other)
        );
        Ok(())
    }

    fn one_poisoned_connection(&self) -> Outcome {
        let poisoned = Server::healthy().poisoned(0);
        let scenario = Scenario::new(Server::healthy())
            .at(secs(60), Step::Serve(poisoned))
            .at(secs(60), Step::Lose(0..1, Failure::Transient))
            .at(secs(300), Step::Lose(1..2, Failure::Transient))
            .until(secs(900));
        let mut slowest = Duration::ZERO;
        for seed in 0..20 {
            let report = Fleet::new(Policy::default(), 200)?.seed(seed).run(self.origin, &scenario);
            let back = report.back_of(1).ok_or("the healthy one is not back")?;
            slowest = slowest.max((back + report.healed()).saturating_sub(secs(300)));
        }
        println!(
            "| one poisoned connection among 200, a healthy one is lost after 4 min | back in at most {} |",
            seconds(Some(slowest))
        );
        Ok(())
    }

    fn start_up(&self) -> Outcome {
        for clients in [10, 50, 200] {
            let mean = self.mean(&Fleet::new(Policy::default(), clients)?, 20, &Scenario::new(Server::healthy()));
            println!("| start-up of {clients} | {:.1} s |", mean.all_back);
        }
        Ok(())
    }

    fn never_polled(&self) -> Outcome {
        let lost = Scenario::HEALTHY_FOR;
        let scenario =
            Scenario::outage(Server::refusing(), secs(60), Server::healthy()).at(lost + secs(30), Step::Forget(0..50));
        let mean = self.mean(&Fleet::new(Policy::default(), 200)?, 20, &scenario);
        println!(
            "| 50 of 200 waiters never polled again, refused for 60 s | the others are back in {:.1} s |",
            mean.all_back
        );
        Ok(())
    }

    fn capacity_row(&self, name: &str, fleet: &Fleet, seeds: u64, scenario: &Scenario) {
        let mean = self.mean(fleet, seeds, scenario);
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} | {:.1} |",
            mean.dials_in_outage / mean.clients,
            mean.dials_after / mean.clients,
            mean.refused_after / mean.clients,
            mean.peak,
            mean.most_back,
            mean.all_back
        );
    }

    fn mean(&self, fleet: &Fleet, seeds: u64, scenario: &Scenario) -> Mean {
        let mut sum = Mean::default();
        for seed in 0..seeds {
            let report = fleet.clone().seed(seed).run(self.origin, scenario);
            for violation in report.violations() {
                println!("\n**broken invariant**, seed {seed}: {violation}\n");
            }
            sum.add(&report);
        }
        sum.over(seeds)
    }
}

#[derive(Default)]
struct Mean {
    clients: f64,
    dials_in_outage: f64,
    dials_after: f64,
    refused_after: f64,
    peak: f64,
    most_back: f64,
    all_back: f64,
}

impl Mean {
    fn add(&mut self, report: &Report) {
        self.clients += count(report.clients());
        self.dials_in_outage += count(report.dials_in_outage());
        self.dials_after += count(report.dials_after());
        self.refused_after += count(report.refused_after());
        self.peak += count(report.peak_per_100_ms());
        self.most_back += report.back(0.99).map_or(f64::INFINITY, |time| time.as_secs_f64());
        self.all_back += report.back(1.0).map_or(f64::INFINITY, |time| time.as_secs_f64());
    }

    #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
    fn over(self, seeds: u64) -> Self {
        let n = seeds as f64;
        Self {
            clients: self.clients / n,
            dials_in_outage: self.dials_in_outage / n,
            dials_after: self.dials_after / n,
            refused_after: self.refused_after / n,
            peak: self.peak / n,
            most_back: self.most_back / n,
            all_back: self.all_back / n,
        }
    }
}

fn capacity_header() {
    println!("Attempts and refusals are a client's mean; times are seconds from the server's return.\n");
    println!(
        "| fleet, outage, server | attempts in the outage | after it | refused after it | peak per 100 ms | 99 % back | all back |"
    );
    println!("|---|---|---|---|---|---|---|");
}

fn shedding(per: u32, price: f64, queue_millis: u64) -> Server {
    Server::healthy().capacity(per_second(per), Overload::Shed { price, queue: Duration::from_millis(queue_millis) })
}

fn throttled(seconds: u64) -> Failure {
    Failure::Throttled { retry_after: Some(secs(seconds)) }
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

#[expect(clippy::cast_precision_loss, reason = "counts of dials are far below 2^52")]
fn count(number: usize) -> f64 {
    number as f64
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn per_second(rate: u32) -> NonZeroU32 {
    NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN)
}

fn size(clients: usize) -> NonZeroUsize {
    NonZeroUsize::new(clients).unwrap_or(NonZeroUsize::MIN)
}
