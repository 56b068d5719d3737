//! The table of states and events, and the diagram: both in docs/STATES.md, both from the real machine.

use std::collections::BTreeMap;
use std::{env, fs};

use steadfast::machine::{Action, Admission, Event, Permit, State};
use steadfast::{Failure, Policy};

use crate::harness::{Lone, secs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/STATES.md");
const BEGIN: &str = "<!-- begin: written by tests/machine/state_table.rs -->\n";
const END: &str = "<!-- end -->\n";

/// A state as a column, with one canonical way to get there.
struct Column {
    name: &'static str,
    make: fn() -> Lone,
    /// Another connection has the gate's one slot.
    behind: bool,
}

fn columns() -> Vec<Column> {
    let column = |name, make| Column { name, make, behind: false };
    vec![
        column("Idle", || Lone::new(Policy::default())),
        column("Connecting", || Lone::dialling(Policy::default())),
        column("Connecting, reached", || after(&[Event::Start, Event::Reached])),
        column("Connected, young", || after(&[Event::Start, Event::Opened])),
        column("Connected, stable", || {
            let mut lone = after(&[Event::Start, Event::Opened]);
            lone.pass(secs(60));
            lone.tell(Event::TimedOut);
            lone
        }),
        column("Backoff, own wait", || after(&[Event::Start, Event::Failed(Failure::Unreachable)])),
        Column { name: "Backoff, in the queue", make: || Lone::new(Policy::default()), behind: true },
        column("Draining, session", || after(&[Event::Start, Event::Opened, Event::Drain])),
        column("Draining, closing", || after(&[Event::Start, Event::Opened, Event::Finished])),
        column("Stopped", || {
            let mut lone = after(&[Event::Start, Event::Drain]);
            lone.pass(secs(60));
            lone
        }),
    ]
}

fn after(events: &[Event]) -> Lone {
    let mut lone = Lone::new(Policy::default());
    for event in events {
        lone.tell(*event);
    }
    lone
}

/// An event as a row: `name(class)` of the diagram's event `name`.
#[derive(Clone, Copy)]
struct Row {
    event: Event,
    name: &'static str,
    class: &'static str,
}

fn rows() -> Vec<Row> {
    let plain = |event, name| vec![Row { event, name, class: "" }];
    let classed = |event: fn(Failure) -> Event, name| {
        CLASSES.map(|(class, failure)| Row { event: event(failure), name, class }).to_vec()
    };
    [
        plain(Event::Start, "Start"),
        plain(Event::Reached, "Reached"),
        plain(Event::Opened, "Opened"),
        classed(Event::Failed, "Failed"),
        classed(Event::Lost, "Lost"),
        plain(Event::Finished, "Finished"),
        plain(Event::Advised(secs(5)), "Advised"),
        plain(Event::GateTurned, "GateTurned"),
        plain(Event::Reconnect, "Reconnect"),
        plain(Event::Drain, "Drain"),
        plain(Event::Closed, "Closed"),
        vec![
            Row { event: Event::TimedOut, name: "TimedOut", class: EARLY },
            Row { event: Event::TimedOut, name: "TimedOut", class: DUE },
        ],
    ]
    .concat()
}

const EARLY: &str = "before the deadline";
const DUE: &str = "at the deadline";

const CLASSES: [(&str, Failure); 8] = [
    ("Permanent", Failure::Permanent),
    ("Planned", Failure::Planned),
    ("Throttled", Failure::Throttled { retry_after: None }),
    ("Throttled, 60 s", Failure::Throttled { retry_after: Some(secs(60)) }),
    ("Timeout", Failure::Timeout),
    ("Transient", Failure::Transient),
    ("Unauthorized", Failure::Unauthorized),
    ("Unreachable", Failure::Unreachable),
];

/// What the machine said to one event in one state.
struct Cell {
    from: State,
    to: State,
    action: Action,
    text: String,
}

fn run(column: &Column, row: &Row) -> Cell {
    let mut lone = (column.make)();
    let other = column.behind.then(|| take_slot(&mut lone));
    let from = lone.lifecycle.state();
    if row.event == Event::GateTurned
        && let Some(permit) = other
    {
        // Its turn: the other connection is through.
        lone.pass(secs(1));
        lone.gate.abandon(lone.now, permit);
    }
    if row.class == DUE {
        lone.now = lone.lifecycle.deadline().unwrap_or(lone.now).max(lone.now);
    }
    let action = lone.tell(row.event);
    let to = lone.lifecycle.state();
    let action_name = match action {
        Action::Stop(reason) => format!("Stop, {reason:?}"),
        action => kind(action),
    };
    let text = match (action, lone.lifecycle.wait_cause()) {
        (Action::Continue, _) => {
            assert_eq!(from, to, "going on changes no state");
            "·".to_owned()
        }
        (Action::Wait, Some(cause)) => format!("{action_name} → {to:?} ({cause:?})"),
        _ => format!("{action_name} → {to:?}"),
    };
    Cell { from, to, action, text }
}

/// Lets another connection have the gate, and this one wait for it.
fn take_slot(lone: &mut Lone) -> Permit {
    let other = lone.gate.join(0);
    let Admission::Go(permit) = lone.gate.admit(lone.now, other, secs(10), &mut lone.rng) else {
        panic!("the gate is free")
    };
    assert_eq!(lone.tell(Event::Start), Action::Wait);
    permit
}

/// An action without its numbers.
fn kind(action: Action) -> String {
    let text = format!("{action:?}");
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}

fn table(columns: &[Column], rows: &[Row]) -> String {
    let names: Vec<_> = columns.iter().map(|column| column.name).collect();
    let mut lines =
        vec![format!("| event | {} |", names.join(" | ")), format!("|---{}|", "|---".repeat(columns.len()))];
    for row in rows {
        let class = if row.class.is_empty() { String::new() } else { format!(" ({})", row.class) };
        let cells: Vec<_> = columns.iter().map(|column| run(column, row).text).collect();
        lines.push(format!("| `{}`{class} | {} |", row.name, cells.join(" | ")));
    }
    lines.join("\n") + "\n"
}

/// Events by name, each with its classes.
type Events = Vec<(&'static str, Vec<&'static str>)>;

fn diagram(columns: &[Column], rows: &[Row]) -> String {
    // From, to and action of an arrow; what leads there.
    let mut arrows: BTreeMap<(usize, usize, String), Events> = BTreeMap::new();
    for column in columns {
        for row in rows {
            let cell = run(column, row);
            if cell.action == Action::Continue {
                continue;
            }
            let events = arrows.entry((order(cell.from), order(cell.to), kind(cell.action))).or_default();
            match events.iter_mut().find(|(name, _)| *name == row.name) {
                Some((_, classes)) if classes.contains(&row.class) => {}
                Some((_, classes)) => classes.push(row.class),
                None => events.push((row.name, vec![row.class])),
            }
        }
    }
    let arrows = arrows.iter().map(|((from, to, action), events)| {
        let events: Vec<_> = events.iter().map(|(name, classes)| label(name, classes)).collect();
        format!("    {:?} --> {:?}: {} / {action}\n", STATES[*from], STATES[*to], events.join(", "))
    });
    let arrows: String = arrows.collect();
    format!("```mermaid\nstateDiagram-v2\n    [*] --> Idle\n{arrows}    Stopped --> [*]\n```\n")
}

/// `Failed` where every class leads there, `Failed(Permanent)` otherwise.
fn label(name: &str, classes: &[&str]) -> String {
    let kinds = CLASSES.len();
    match classes {
        classes if classes.len() == kinds || classes == [""] || name == "TimedOut" => name.to_owned(),
        classes => format!("{name}({})", classes.join(" or ")),
    }
}

const STATES: [State; 6] =
    [State::Idle, State::Connecting, State::Connected, State::Backoff, State::Draining, State::Stopped];

fn order(state: State) -> usize {
    STATES.iter().position(|other| *other == state).expect("a state of the diagram")
}

#[test]
fn the_page_of_states_is_what_the_machine_does() {
    let (columns, rows) = (columns(), rows());
    let generated =
        format!("{BEGIN}\n## Diagram\n\n{}\n## Table\n\n{}\n{END}", diagram(&columns, &rows), table(&columns, &rows));
    let page = fs::read_to_string(FILE).expect("docs/STATES.md");
    let (before, rest) = page.split_once(BEGIN).expect("the mark of the beginning");
    let (_, after) = rest.split_once(END).expect("the mark of the end");
    let fresh = format!("{before}{generated}{after}");
    if env::var_os("UPDATE").is_some() {
        fs::write(FILE, fresh).expect("docs/STATES.md");
        return;
    }
    for (number, (is, was)) in fresh.lines().zip(page.lines()).enumerate() {
        assert_eq!(is, was, "line {}; if it is meant: UPDATE=1 cargo test --test machine page_of_states", number + 1);
    }
    assert_eq!(fresh, page, "if it is meant: UPDATE=1 cargo test --test machine page_of_states");
}

#[test]
fn the_table_knows_every_state_event_and_class() {
    let states: Vec<_> = STATES.iter().map(|state| format!("{state:?}")).collect();
    assert_eq!(sorted(states), variants(include_str!("../../src/machine/event.rs"), "State"));
    let events: Vec<_> = rows().iter().map(|row| row.name.to_owned()).collect();
    assert_eq!(sorted(events), variants(include_str!("../../src/machine/event.rs"), "Event"));
    let classes = CLASSES.iter().map(|(class, _)| class.split(',').next().unwrap().to_owned()).collect();
    assert_eq!(sorted(classes), variants(include_str!("../../src/machine/failure.rs"), "Failure"));
    let reached: Vec<_> =
        columns().iter().map(|column| run(column, &rows()[0]).from).map(|state| format!("{state:?}")).collect();
    assert_eq!(sorted(reached), variants(include_str!("../../src/machine/event.rs"), "State"));
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    names
}

/// The variants of an enum in a source file, sorted.
fn variants(source: &str, name: &str) -> Vec<String> {
    let (_, body) = source.split_once(&format!("pub enum {name} {{\n")).expect("the enum");
    let (body, _) = body.split_once("\n}\n").expect("its end");
    let variant = |line: &str| {
        let line = line.strip_prefix("    ")?;
        line.starts_with(char::is_uppercase).then(|| line.split([',', '(', ' ']).take(1).collect())
    };
    sorted(body.lines().filter_map(variant).collect())
}
