//! What was measured, as tables for docs/PERFORMANCE.md.

use std::fmt::Write;

use crate::crew::Piece;

/// One way, by the medians of its pieces.
pub(crate) struct Row {
    name: &'static str,
    /// Nanoseconds an operation, and how often the base fits into it.
    alone: Option<(f64, f64)>,
    /// The same for each of two threads, and against the way alone.
    two: Option<(f64, f64)>,
}

impl Row {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, alone: None, two: None }
    }

    /// Takes what was measured with that many threads; nothing if it was filtered out.
    pub(crate) fn take(&mut self, threads: usize, pieces: &[Piece]) {
        let all = |of: fn(&Piece) -> f64| median(pieces.iter().map(of).collect());
        let measured = all(|piece| piece.way).zip(all(|piece| piece.way / piece.beside));
        if threads == 1 {
            self.alone = measured;
        } else {
            self.two = measured;
        }
    }
}

/// What a figure may be at most.
pub(crate) enum Aim {
    /// How often the fastest of others fits into a way.
    Times(&'static str, &'static [&'static str], f64),
    /// How much slower a way is with two threads than alone.
    Flat(&'static str, f64),
}

impl Aim {
    /// What it is about, what was measured, and the most that it may be.
    fn measure(&self, rows: &[Row]) -> Option<(String, f64, f64)> {
        let row = |name: &str| rows.iter().find(|row| row.name == name).expect("an aim is about a way of its path");
        let base = |name: &str| row(name).alone.map(|(_, ratio)| ratio);
        match *self {
            Self::Times(way, others, most) => {
                let (ratio, fastest) = others
                    .iter()
                    .filter_map(|other| Some((base(way)? / base(other)?, *other)))
                    .max_by(|(one, _), (other, _)| one.total_cmp(other))?;
                Some((format!("{way} ÷ {fastest}"), ratio, most))
            }
            Self::Flat(way, most) => Some((format!("{way}, two threads ÷ one"), row(way).two?.1, most)),
        }
    }
}

/// All tables of a run.
#[derive(Default)]
pub(crate) struct Report {
    tables: String,
    aims: String,
}

impl Report {
    pub(crate) fn add(&mut self, title: &str, rows: Vec<Row>, aims: &[Aim]) {
        for (what, measured, most) in aims.iter().filter_map(|aim| aim.measure(&rows)) {
            let met = if measured <= most { "yes" } else { "no" };
            let _ = writeln!(self.aims, "| {what} | {most} | {} | {met} |", figure(measured));
        }
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.alone.is_some() || row.two.is_some()).collect();
        if !rows.is_empty() {
            self.tables += &markdown(title, &rows);
        }
    }

    pub(crate) fn print(&self) {
        if self.tables.is_empty() {
            println!(
                "No table: `--test` and `--list` measure nothing; otherwise no name has that part, and `--list` shows them."
            );
        }
        print!("\n{}", self.tables);
        if !self.aims.is_empty() {
            print!("**Aims**\n\n| what | at most | measured | met |\n|---|--:|--:|---|\n{}", self.aims);
        }
    }
}

fn markdown(title: &str, rows: &[Row]) -> String {
    let threads = rows.iter().any(|row| row.two.is_some());
    let mut text = format!("**{title}**\n\n| way | ns | × base |");
    text.push_str(if threads { " two threads, ns | × alone |\n|---|--:|--:|--:|--:|\n" } else { "\n|---|--:|--:|\n" });
    for row in rows {
        let _ = write!(text, "| {} |{}", row.name, cells(row.alone));
        if threads {
            text.push_str(&cells(row.two));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

fn cells(measured: Option<(f64, f64)>) -> String {
    measured.map_or_else(|| " | |".to_owned(), |(time, ratio)| format!(" {} | {} |", figure(time), figure(ratio)))
}

/// Two significant digits below ten; whole numbers from there on.
fn figure(number: f64) -> String {
    match number {
        small if small < 1.0 => format!("{small:.2}"),
        medium if medium < 10.0 => format!("{medium:.1}"),
        large => format!("{large:.0}"),
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}
