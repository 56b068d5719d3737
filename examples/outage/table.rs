//! What came of it.

use std::fmt::{self, Display};
use std::ops::Range;
use std::time::Duration;

use crate::meter::{Frames, Meter};

/// The shares of a fleet whose return is timed, in percent.
const SHARES: [usize; 3] = [50, 90, 100];
const COLUMNS: usize = 11;
const HEADER: [[&str; COLUMNS]; 2] = [
    ["", "", "peak per", "", "", "50 %", "90 %", "100 %", "frames", "of them", "dupli-"],
    ["", "attempts", "100 ms", "refused", "dropped", "back", "back", "back", "missed", "told", "cated"],
];
/// The first of the columns that stand beneath the others, so that no line is wider than a terminal.
const FRAMES: usize = 8;
const NOTES: &str = "\
Refused: handshakes that the server reset (beyond 50 a second) or answered with
503. Dropped: accepted, only to be dropped. Missed: numbered frames that a
client never saw. Told: it knew of the loss before its next frame.";

/// One fleet's line.
#[derive(Debug)]
pub(crate) struct Row {
    name: &'static str,
    attempts: u32,
    peak: u32,
    refused: u32,
    dropped: u32,
    back: [Option<Duration>; SHARES.len()],
    away: u32,
    frames: Frames,
}

impl Row {
    /// Reads the meter of a fleet at the end of the run.
    pub(crate) fn new(name: &'static str, meter: &Meter) -> Self {
        let attempts = meter.attempts();
        let back = meter.back();
        let clients = usize::try_from(meter.clients()).unwrap_or(usize::MAX);
        Self {
            name,
            attempts: attempts.iter().sum(),
            peak: attempts.iter().copied().max().unwrap_or(0),
            refused: meter.refusals(),
            dropped: meter.accepted_and_dropped(),
            back: SHARES.map(|share| back.get((clients * share).div_ceil(100) - 1).copied()),
            away: meter.clients() - meter.online(),
            frames: meter.frames(),
        }
    }
}

/// All lines, and what they are measured from.
#[derive(Debug)]
pub(crate) struct Table {
    /// Ours first, the plain loop second.
    pub(crate) rows: Vec<Row>,
    /// When the server was healthy for good.
    pub(crate) healthy: Duration,
    /// When it was killed.
    pub(crate) killed: Duration,
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = HEADER.map(|line| line.map(str::to_owned)).into_iter().chain(self.cells()).collect();
        columns(f, &lines, 1..FRAMES)?;
        writeln!(f)?;
        columns(f, &lines, FRAMES..COLUMNS)?;
        writeln!(f, "\n{NOTES}")?;
        let since_kill = self.healthy.saturating_sub(self.killed).as_secs_f64();
        writeln!(f, "Back: seconds since it is healthy for good; add {since_kill:.1} to count from the kill.")?;
        for row in self.rows.iter().filter(|row| row.away > 0) {
            writeln!(f, "{}: {} clients are still not back.", row.name, row.away)?;
        }
        self.comparison(f)
    }
}

impl Table {
    fn cells(&self) -> impl Iterator<Item = [String; COLUMNS]> {
        self.rows.iter().map(|row| {
            let [half, most, all] = row.back.map(|back| self.since_healthy(back));
            [
                row.name.to_owned(),
                row.attempts.to_string(),
                row.peak.to_string(),
                row.refused.to_string(),
                row.dropped.to_string(),
                half,
                most,
                all,
                row.frames.missed.to_string(),
                row.frames.told.to_string(),
                row.frames.duplicated.to_string(),
            ]
        })
    }

    fn since_healthy(&self, back: Option<Duration>) -> String {
        back.map_or_else(
            || "never".to_owned(),
            |back| format!("{:.1}", back.saturating_sub(self.healthy).as_secs_f64()),
        )
    }

    fn comparison(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, plain, ..] = self.rows.as_slice() else { return Ok(()) };
        write!(
            f,
            "\nOurs against the plain loop: peak {},\nrefused handshakes {},\nlast client back ",
            ratio(plain.peak, ours.peak),
            ratio(plain.refused, ours.refused)
        )?;
        match (ours.back[2], plain.back[2]) {
            (Some(ours), Some(plain)) if ours <= plain => {
                writeln!(f, "{:.1} s sooner.", plain.saturating_sub(ours).as_secs_f64())
            }
            (Some(ours), Some(plain)) => writeln!(f, "{:.1} s later.", ours.saturating_sub(plain).as_secs_f64()),
            (Some(_), None) => writeln!(f, "while some of the plain loop's are still away."),
            (None, _) => writeln!(f, "not within this run."),
        }
    }
}

/// The names and some columns beside them.
fn columns(f: &mut fmt::Formatter<'_>, lines: &[[String; COLUMNS]], some: Range<usize>) -> fmt::Result {
    let width = |column: usize| lines.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
    for cells in lines {
        write!(f, "{:<width$}", cells[0], width = width(0))?;
        for column in some.clone() {
            write!(f, "  {:>width$}", cells[column], width = width(column))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn ratio(plain: u32, ours: u32) -> String {
    if ours == 0 {
        return format!("{plain} to 0");
    }
    format!("{:.1} times lower", f64::from(plain) / f64::from(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_small_terminal() {
        let late = Some(Duration::from_millis(45_600));
        let frames = Frames { missed: 999_999, told: 999_999, duplicated: 999_999 };
        let row = |name| Row {
            name,
            attempts: 99_999,
            peak: 9_999,
            refused: 99_999,
            dropped: 9_999,
            back: [late, late, None],
            away: 1_000,
            frames,
        };
        let rows = vec![row("ours, one gate"), row("plain loop"), row("ours, gate each")];
        let text = Table { rows, healthy: Duration::from_secs(29), killed: Duration::from_secs(16) }.to_string();
        for line in text.lines() {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
    }
}
