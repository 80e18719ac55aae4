//! The picture: the cost of each cell, and its accuracy. Drawn by hand, since chart libraries do
//! not support `prefers-color-scheme`, and the README is also read on dark pages.

use std::fmt::Write;

use crate::cell::{LARGE, Mode};
use crate::run::Row;

/// Width of the picture.
const WIDTH: f64 = 860.0;

/// Height of the picture.
const HEIGHT: f64 = 500.0;

/// Left edge of the plotted area, after the labels of the vertical axis.
const LEFT: f64 = 72.0;

/// Right edge of the plotted area.
const RIGHT: f64 = WIDTH - 28.0;

/// Top edge of the plotted area, below the title and the legend.
const TOP: f64 = 112.0;

/// Bottom edge of the plotted area, above the labels of the horizontal axis.
const BOTTOM: f64 = HEIGHT - 62.0;

/// Range of commands per 1000 decisions, as powers of ten.
const COST: (i32, i32) = (-1, 3);
/// The minimum range of admitted / exact.
const SHOWN: (f64, f64) = (0.95, 1.1);

/// The ends of the range of admitted / exact are rounded to this step.
const STEP: f64 = 0.05;

/// The grid has fewer horizontal lines than this.
const LINES_MAX: f64 = 8.5;

/// Colours for readers with red-green colour blindness, after Okabe and Ito.
const STYLE: &str = "
  text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .quiet { fill: #59636e }
  .page { fill: #ffffff }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .exact { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 }
  .mark { fill-opacity: .45; stroke-width: 1.2 }
  .leased { fill: #0072b2; stroke: #0072b2 }
  .off { fill: #009e73; stroke: #009e73 }
  .report { fill: #d55e00; stroke: #d55e00 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .page { fill: #0d1117 }
    .grid { stroke: #30363d }
    .exact { stroke: #f0f6fc }
    .leased { fill: #56b4e9; stroke: #56b4e9 }
    .off { fill: #2bc497; stroke: #2bc497 }
    .report { fill: #f0883e; stroke: #f0883e }
  }
";

/// The positions of figures on the page.
struct Scale {
    low: f64,
    high: f64,
}

/// Draws a scatter plot of all cells.
pub fn svg(rows: &[Row]) -> String {
    let scale = Scale::of(rows);
    let mut page = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">Accuracy against Redis commands for three ways to share a limit\
         </title>\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n"
    );
    text(
        &mut page,
        20.0,
        32.0,
        "title",
        "start",
        "What it costs to share a limit, and how near it comes",
    );
    let subtitle = "Four pods share a limit on a Redis Cluster; each mark is one cell of \
                    algorithm, demand, offered load and limit.";
    text(&mut page, 20.0, 54.0, "quiet", "start", subtitle);
    legend(&mut page);
    axes(&mut page, &scale);
    // The rarest mode last, so that its marks are not hidden.
    for mode in [Mode::Leased, Mode::Off, Mode::ReportAfter] {
        for row in rows.iter().filter(|row| row.cell.mode == mode) {
            let (x, y) = (scale.x(row.cost()), scale.y(row.of_exact()));
            mark(&mut page, mode, radius(row.cell.limit), x, y);
        }
    }
    page + "</svg>\n"
}

fn legend(page: &mut String) {
    let y = 82.0;
    let modes = [
        (Mode::Leased, 27.0, "leased"),
        (Mode::Off, 107.0, "lease: off, a trip each"),
        (Mode::ReportAfter, 277.0, "report-after, every 100 ms"),
    ];
    for (mode, x, says) in modes {
        mark(page, mode, radius(1_000), x, y);
        text(page, x + 12.0, y + 4.5, "", "start", says);
    }
    let sizes = [(20, 563.0, "20"), (1_000, 608.0, "1000"), (LARGE, 669.0, "100 000 a window")];
    text(page, 548.0, y + 4.5, "quiet", "end", "limit:");
    for (limit, x, says) in sizes {
        mark(page, Mode::Leased, radius(limit), x, y);
        text(page, x + 11.0, y + 4.5, "quiet", "start", says);
    }
}

fn axes(page: &mut String, scale: &Scale) {
    for power in COST.0..=COST.1 {
        let x = scale.x(10_f64.powi(power));
        line(page, "grid", [x, TOP, x, BOTTOM]);
        let says = if power < 0 {
            format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power))
        } else {
            format!("{}", 10_f64.powi(power))
        };
        text(page, x, BOTTOM + 20.0, "", "middle", &says);
    }
    for value in scale.grid() {
        let y = scale.y(value);
        line(page, "grid", [LEFT, y, RIGHT, y]);
        text(page, LEFT - 9.0, y + 4.5, "", "end", &format!("{value:.2}"));
    }
    let (middle_x, middle_y) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
    line(page, "exact", [LEFT, scale.y(1.0), RIGHT, scale.y(1.0)]);
    let bottom = "Redis commands for 1000 decisions (log scale)";
    text(page, middle_x, BOTTOM + 46.0, "quiet", "middle", bottom);
    let _ = writeln!(
        page,
        "<text class=\"quiet\" text-anchor=\"middle\" \
         transform=\"translate(20 {middle_y}) rotate(-90)\">\
         admitted ÷ what one exact server admits</text>"
    );
    text(page, LEFT + 8.0, TOP + 18.0, "quiet", "start", "over the limit ↑");
    text(page, LEFT + 8.0, BOTTOM - 10.0, "quiet", "start", "denied in error ↓");
}

fn mark(page: &mut String, mode: Mode, radius: f64, x: f64, y: f64) {
    let r = radius;
    let _ = match mode {
        Mode::Leased => {
            writeln!(page, "<circle class=\"mark leased\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/>")
        }
        Mode::Off => writeln!(
            page,
            "<rect class=\"mark off\" x=\"{:.1}\" y=\"{:.1}\" width=\"{w}\" height=\"{w}\"/>",
            x - r * 0.9,
            y - r * 0.9,
            w = 1.8 * r
        ),
        Mode::ReportAfter => writeln!(
            page,
            "<path class=\"mark report\" d=\"M{x:.1} {:.1}l{:.1} {:.1}h{:.1}z\"/>",
            y - 1.15 * r,
            1.1 * r,
            2.0 * r,
            -2.2 * r
        ),
    };
}

fn radius(limit: u32) -> f64 {
    match limit {
        LARGE.. => 7.0,
        1_000.. => 5.0,
        _ => 3.5,
    }
}

fn line(page: &mut String, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
    let _ = writeln!(page, "<line class=\"{class}\" {ends}/>");
}

fn text(page: &mut String, x: f64, y: f64, class: &str, anchor: &str, says: &str) {
    let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"");
    let _ = writeln!(page, "<text class=\"{class}\" {place}>{says}</text>");
}

// === impl Scale ===

impl Scale {
    fn of(rows: &[Row]) -> Self {
        let values = rows.iter().map(Row::of_exact).filter(|value| value.is_finite());
        let (low, high) =
            values.fold(SHOWN, |(low, high), value| (low.min(value), high.max(value)));
        // A margin, so that no mark lies on the edge.
        let low = ((low - 0.01) / STEP).floor() * STEP;
        Self { low, high: ((high + 0.01) / STEP).ceil() * STEP }
    }

    /// The lines of the grid: at 1, and as many others as remain readable.
    fn grid(&self) -> impl Iterator<Item = f64> {
        let steps = [1.0, 2.0, 4.0, 10.0, 20.0].map(|many| many * STEP);
        let few = |step: &f64| (self.high - self.low) / step < LINES_MAX;
        let step = steps.into_iter().find(few).unwrap_or(1.0);
        let (low, high) = (self.low, self.high);
        let lines = (-100..100).map(move |at| 1.0 + f64::from(at) * step);
        lines.filter(move |value| (low - 1e-9..=high + 1e-9).contains(value))
    }

    fn x(&self, cost: f64) -> f64 {
        let (from, to) = (f64::from(COST.0), f64::from(COST.1));
        let power = cost.max(f64::MIN_POSITIVE).log10().clamp(from, to);
        LEFT + (power - from) / (to - from) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - (value - self.low) / (self.high - self.low) * (BOTTOM - TOP)
    }
}
