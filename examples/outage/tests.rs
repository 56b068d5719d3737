//! The demo as a user meets it.

use clap::Parser;

use crate::args::Args;
use crate::{Ended, run};

fn refusal(args: &[&str]) -> String {
    Args::try_parse_from([&["outage"], args].concat()).expect_err("a refusal").to_string()
}

#[test]
fn bad_arguments_say_what_is_allowed() {
    for value in ["0", "1001", "-1"] {
        let refusal = refusal(&[&format!("--clients={value}")]);
        assert!(refusal.contains(value) && refusal.contains("--clients <N>"), "{refusal}");
        assert!(refusal.contains("1..=1000"), "{refusal}");
    }
    let burst = refusal(&["--burst", "51"]);
    assert!(burst.contains("--burst <N>") && burst.contains("1..=50"), "{burst}");
    let not_a_number = refusal(&["--seed", "seven"]);
    assert!(not_a_number.contains("seven") && not_a_number.contains("--seed <N>"), "{not_a_number}");
    let unknown = refusal(&["--client", "5"]);
    assert!(unknown.contains("--clients"), "{unknown}");
}

#[test]
fn help_explains_every_argument() {
    let help = refusal(&["--help"]);
    for expected in
        ["--clients <N>", "--burst <N>", "--seed <N>", "--svg <FILE>", "--fast", "from 1 to 1000", "default: 200"]
    {
        assert!(help.contains(expected), "{expected} in {help}");
    }
}

#[test]
fn a_picture_that_cannot_be_written_ends_the_run_before_it_begins() {
    let path = "/there/is/no/such/folder.svg";
    let args = Args::try_parse_from(["outage", "--svg", path]).expect("good arguments");
    let refusal = run(&args, false, &mut Vec::new()).expect_err("a refusal").to_string();
    assert!(refusal.starts_with("--svg") && refusal.contains(path), "{refusal}");
}

#[test]
fn a_run_ends_with_a_table_and_a_picture_and_loses_nothing_untold() {
    let picture = std::env::temp_dir().join(format!("outage-{}.svg", std::process::id()));
    let picture_path = picture.to_str().expect("a path in UTF-8");
    let args = Args::try_parse_from(["outage", "--fast", "--clients", "12", "--seed", "1", "--svg", picture_path]);
    let mut out = Vec::new();
    let ended = run(&args.expect("good arguments"), false, &mut out).expect("a run");
    let out = String::from_utf8(out).expect("text");
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    std::fs::remove_file(&picture).expect("to clean up");

    assert_eq!(ended, Ended::Complete);
    for phase in ["start", "steady", "killed", "503", "flapping", "healthy again"] {
        assert!(out.contains(phase), "{phase} in {out}");
    }
    for fleet in ["ours, one gate", "plain loop", "ours, gate each"] {
        let rows = out.lines().filter_map(|line| line.strip_prefix(fleet)).filter(|row| row.starts_with("  "));
        let cells: Vec<_> = rows.flat_map(str::split_whitespace).collect();
        assert_eq!(cells.len(), 10, "{fleet} in {out}");
        let attempts: u32 = cells[0].parse().expect("attempts");
        assert!(attempts > 12, "somebody dials again after the kill: {cells:?}");
        let (missed, told) = (cells[7], cells[8]);
        assert_ne!(missed, "0", "frames were numbered during the kill: {cells:?}");
        assert_eq!(missed, told, "{cells:?}");
        assert_eq!(cells[9], "0", "duplicated: {cells:?}");
    }
    assert!(out.contains("Ours against the plain loop"), "{out}");
    assert!(svg.contains("12 clients behind one gate") && svg.ends_with("</svg>\n"), "{svg}");
}
