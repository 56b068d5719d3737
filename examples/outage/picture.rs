//! The two timelines as an SVG file: ours above the plain loop's, on the same scale.

use std::error::Error;
use std::path::Path;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::meter::{BIN, Meter};
use crate::schedule::{Phase, Schedule};

const SIZE: (u32, u32) = (960, 560);
const ATTEMPTS: RGBColor = RGBColor(0xd9, 0x48, 0x01);
const CONNECTED: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);

/// Writes the picture.
pub(crate) fn write(path: &Path, schedule: &Schedule, ours: &Meter, plain: &Meter) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let highest = ours.attempts().into_iter().chain(plain.attempts()).max().unwrap_or(1).max(1);
    let highest = f64::from(highest.next_multiple_of(20));
    let (upper, lower) = root.split_vertically(SIZE.1 / 2);
    let clients = ours.clients();
    panel(&upper, schedule, &format!("steadfast: {clients} clients behind one gate"), ours, highest)?;
    panel(&lower, schedule, &format!("plain loop: {clients} clients, 0.5, 1, 2, 4, 4 … s"), plain, highest)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(area: &Area<'_>, schedule: &Schedule, title: &str, meter: &Meter, highest: f64) -> Result<(), Box<dyn Error>> {
    let end = schedule.total().as_secs_f64();
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17).into_font())
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .right_y_label_area_size(52)
        .build_cartesian_2d(0.0..end, 0.0..highest * 1.15)?
        .set_secondary_coord(0.0..end, 0.0..115.0);
    phases(&mut chart, schedule, highest)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds")
        .y_desc("attempts per 100 ms")
        .x_label_formatter(&|seconds| format!("{seconds:.0}"))
        .y_label_formatter(&|attempts| format!("{attempts:.0}"))
        .draw()?;
    chart
        .configure_secondary_axes()
        .y_desc("connected, %")
        .y_label_formatter(&|percent| if *percent > 100.0 { String::new() } else { format!("{percent:.0}") })
        .draw()?;
    let bars = steps(&meter.attempts(), 1.0);
    chart.draw_series(AreaSeries::new(bars, 0.0, ATTEMPTS))?;
    let line = steps(&meter.connected(), 100.0 / f64::from(meter.clients()));
    chart.draw_secondary_series(LineSeries::new(line, CONNECTED.stroke_width(2)))?;
    Ok(())
}

/// Shades the time in which the server is not well, and names what is wrong.
fn phases(chart: &mut DualChart<'_, '_>, schedule: &Schedule, highest: f64) -> Result<(), Box<dyn Error>> {
    for (phase, begin, end) in schedule.spans() {
        let (begin, end) = (begin.as_secs_f64(), end.as_secs_f64());
        let shade = match phase {
            Phase::Start | Phase::Steady | Phase::Recovery => None,
            Phase::Killed => Some(RGBColor(0xcc, 0xcc, 0xcc)),
            Phase::Unavailable => Some(RGBColor(0xe2, 0xe2, 0xe2)),
            Phase::Flapping => Some(RGBColor(0xee, 0xee, 0xee)),
        };
        if let Some(shade) = shade {
            chart.draw_series([Rectangle::new([(begin, 0.0), (end, highest * 1.15)], shade.filled())])?;
        }
        let style = ("sans-serif", 12).into_font().color(&BLACK.mix(0.7));
        chart.draw_series([Text::new(phase.label(), (begin + 0.2, highest * 1.13), style)])?;
    }
    Ok(())
}

type DualChart<'a, 'b> = plotters::chart::DualCoordChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<RangedCoordf64, RangedCoordf64>,
    Cartesian2d<RangedCoordf64, RangedCoordf64>,
>;

/// Each value as a step as wide as its 100 ms; neighbours of equal height share one.
fn steps(values: &[u32], scale: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut end = 0;
    for same in values.chunk_by(|left, right| left == right) {
        let height = f64::from(same[0]) * scale;
        points.push(((BIN * end).as_secs_f64(), height));
        end += u32::try_from(same.len()).unwrap_or(u32::MAX);
        points.push(((BIN * end).as_secs_f64(), height));
    }
    points
}
