//! Renders a screen as an SVG picture, for the documentation.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a cell in pixels, and the position of the text in it.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 16.5;
const BASELINE: f64 = 13.0;

/// Margin around the screen in pixels.
const MARGIN: f64 = 12.0;

const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d8dee9";

/// Renders `buffer` as an SVG document. Each run of one style is one text, stretched to the width
/// of its cells, so that columns are aligned in any font.
pub(super) fn svg(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (width, height) = (
        f64::from(area.width) * WIDTH + 2.0 * MARGIN,
        f64::from(area.height) * HEIGHT + 2.0 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (row, cells) in buffer.content.chunks(usize::from(area.width).max(1)).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| (a.fg, a.modifier) == (b.fg, b.modifier)) {
            write_run(&mut svg, column, row, run);
            column += run.len();
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn write_run(svg: &mut String, column: usize, row: usize, run: &[Cell]) {
    let text: String = run.iter().map(Cell::symbol).collect();
    let (Some(first), false) = (run.first(), text.trim().is_empty()) else { return };
    let (x, y) = (MARGIN + column as f64 * WIDTH, MARGIN + row as f64 * HEIGHT + BASELINE);
    let weight = if first.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{}\"{weight} textLength=\"{:.1}\" \
         lengthAdjust=\"spacingAndGlyphs\">{}</text>",
        fill(first.fg),
        run.len() as f64 * WIDTH,
        escaped(&text)
    );
}

fn fill(colour: Color) -> &'static str {
    match colour {
        Color::Red => "#e06c75",
        Color::Green => "#98c379",
        Color::DarkGray => "#7f848e",
        _ => FOREGROUND,
    }
}

/// Escapes text; spaces become non-breaking, because browsers differ in how they keep other spaces.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace(' ', "\u{a0}")
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn a_run_of_one_style_is_one_text() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 2));
        buffer.set_string(0, 1, "a<b", Style::new());
        buffer.set_string(3, 1, "red", Style::new().fg(Color::Red));
        let svg = svg(&buffer);
        let texts: Vec<_> = svg.lines().filter(|line| line.starts_with("<text")).collect();
        let [plain, red] = texts[..] else { panic!("{svg}") };
        assert!(plain.contains(">a&lt;b<") && plain.contains(FOREGROUND), "{plain}");
        assert!(red.contains("x=\"37.2\"") && red.contains("#e06c75"), "{red}");
        assert!(svg.ends_with("</svg>\n") && svg.contains("viewBox=\"0 0 74 57\""), "{svg}");
    }
}
