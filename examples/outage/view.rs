//! The run as it happens: a moving view in a terminal, one line a second elsewhere.

use std::io::{self, Write};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use ratatui::{DefaultTerminal, Frame};

use crate::Fleet;
use crate::ours;
use crate::schedule::{Phase, Schedule};

/// Where the run is shown; dropping it gives the terminal back.
#[derive(Debug)]
pub(crate) enum View {
    Lines { shown: Option<(Phase, u64)> },
    Screen(DefaultTerminal),
}

impl View {
    /// Takes the whole terminal.
    pub(crate) fn screen() -> io::Result<Self> {
        Ok(Self::Screen(ratatui::try_init()?))
    }

    /// Writes lines.
    pub(crate) fn lines() -> Self {
        Self::Lines { shown: None }
    }

    /// Shows where the run is.
    pub(crate) fn show(
        &mut self,
        schedule: &Schedule,
        elapsed: Duration,
        fleets: &[Fleet],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        match self {
            Self::Screen(terminal) => terminal.draw(|frame| draw(frame, schedule, elapsed, fleets)).map(drop),
            Self::Lines { shown } => {
                let (phase, left) = schedule.at(elapsed);
                let now = Some((phase, elapsed.as_secs()));
                if *shown == now {
                    return Ok(());
                }
                *shown = now;
                writeln!(out, "{}", line(phase, left, elapsed, fleets))?;
                out.flush()
            }
        }
    }

    /// Whether somebody asked to end: the terminal hands control keys in as keys.
    pub(crate) fn interrupted(&self) -> io::Result<bool> {
        let Self::Screen(_) = self else { return Ok(false) };
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if control_c || key.code == KeyCode::Char('q') {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Self::Screen(_) = self {
            ratatui::restore();
        }
    }
}

fn line(phase: Phase, left: Duration, elapsed: Duration, fleets: &[Fleet]) -> String {
    let mut line =
        format!("{:>5.1} s  {:<15} {:>4.1} s left", elapsed.as_secs_f64(), phase.label(), left.as_secs_f64());
    for fleet in fleets {
        let attempts: u32 = fleet.meter.attempts().iter().sum();
        line += &format!(
            " | {}: {}/{} up, {attempts} attempts, {}",
            fleet.name,
            fleet.meter.online(),
            fleet.meter.clients(),
            ours::describe(&fleet.gates)
        );
    }
    line
}

fn draw(frame: &mut Frame<'_>, schedule: &Schedule, elapsed: Duration, fleets: &[Fleet]) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let (phase, left) = schedule.at(elapsed);
    let share = elapsed.as_secs_f64() / schedule.total().as_secs_f64();
    let progress = Gauge::default()
        .block(Block::bordered().title(" the servers "))
        .gauge_style(Style::new().fg(colour(phase)))
        .ratio(share.clamp(0.0, 1.0))
        .label(format!("{}, {:.1} s left", phase.label(), left.as_secs_f64()));
    frame.render_widget(progress, head);
    let highest = fleets.iter().flat_map(|fleet| fleet.meter.attempts()).max().unwrap_or(1).max(1);
    let areas = Layout::vertical(fleets.iter().map(|_| Constraint::Fill(1))).split(body);
    for (fleet, area) in fleets.iter().zip(areas.iter()) {
        draw_fleet(frame, fleet, *area, elapsed, highest);
    }
    frame.render_widget(
        Line::from(" attempts per 100 ms, newest at the right, one scale for all; q ends it").dim(),
        foot,
    );
}

fn draw_fleet(frame: &mut Frame<'_>, fleet: &Fleet, area: Rect, elapsed: Duration, highest: u32) {
    let block = Block::bordered().title(format!(" {} ", fleet.name));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [text, bars] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(inner);
    let attempts = fleet.meter.attempts();
    let online = fleet.meter.online();
    let facts = vec![
        Line::from(vec![
            format!("connected {online:>4}").fg(Color::Green),
            format!("   waiting {:>4}", fleet.meter.clients().saturating_sub(online)).fg(Color::Yellow),
            format!("   attempts {:>5}", attempts.iter().sum::<u32>()).into(),
            format!("   refused {:>5}", fleet.meter.refusals()).fg(Color::Red),
        ]),
        Line::from(ours::describe(&fleet.gates)),
    ];
    frame.render_widget(Paragraph::new(facts), text);
    let shown = recent(&attempts, elapsed, usize::from(bars.width));
    // A bar that is there is seen: at least an eighth of a row.
    let least = u64::from(highest).div_ceil(u64::from(bars.height.max(1)) * 8);
    let shown: Vec<u64> =
        shown.iter().map(|count| if *count == 0 { 0 } else { u64::from(*count).max(least) }).collect();
    let sparkline = Sparkline::default().data(&shown).max(u64::from(highest)).style(Style::new().fg(Color::Cyan));
    frame.render_widget(sparkline, bars);
}

/// The last `width` bins that have begun.
fn recent(attempts: &[u32], elapsed: Duration, width: usize) -> &[u32] {
    let begun = usize::try_from(elapsed.as_millis() / crate::meter::BIN.as_millis()).unwrap_or(usize::MAX);
    let end = begun.saturating_add(1).min(attempts.len());
    &attempts[end.saturating_sub(width)..end]
}

fn colour(phase: Phase) -> Color {
    match phase {
        Phase::Start | Phase::Steady | Phase::Recovery => Color::Green,
        Phase::Killed => Color::Red,
        Phase::Unavailable | Phase::Flapping => Color::Yellow,
    }
}
