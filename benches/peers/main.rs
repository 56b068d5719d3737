//! The hot paths, each beside whatever somebody might use instead: `cargo bench --bench peers`.
//!
//! Criterion draws the samples. In each, pieces of about a quarter of a millisecond alternate between a way and the base of its
//! path, so both see the same neighbours on the machine; the tables at the end are medians over those pieces. Names are
//! `path/way/threads`, and a part of one as an argument runs only those; `--test` runs everything once.

mod breakers;
mod crew;
mod delays;
mod dials;
mod handles;
mod lives;
mod table;

use std::time::Duration;

use criterion::Criterion;

use table::Report;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(200))
        .nresamples(5_000)
        .without_plots()
        .configure_from_args();
    let mut report = Report::default();
    handles::bench(&mut criterion, &mut report);
    breakers::bench(&mut criterion, &mut report);
    dials::bench(&mut criterion, &mut report);
    delays::bench(&mut criterion, &mut report);
    lives::bench(&mut criterion, &mut report);
    criterion.final_summary();
    report.print();
}
