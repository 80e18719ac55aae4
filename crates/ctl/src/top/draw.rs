//! Draws the screen of `top`: from a view to cells. Pure functions.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, BorderType, Cell, Paragraph, RenderDirection, Row, Sparkline, Table, Widget,
};
use ratelease_cli::safe;

use super::view::View;
use crate::status;
use crate::status_client::{HotKey, PodStatus};

/// Maximum number of lines for problems.
const PROBLEMS_MAX: usize = 3;

/// Height of the graphs in lines, with borders.
const GRAPH_HEIGHT: u16 = 6;

/// Maximum height of the shards in lines, with the border.
const SHARDS_HEIGHT_MAX: usize = 8;

/// The styles; without colour only bold and dim are used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Colours {
    pub(super) are_on: bool,
}

// === impl Colours ===

impl Colours {
    fn of(self, colour: Color) -> Style {
        if self.are_on { Style::new().fg(colour) } else { Style::new() }
    }

    fn good(self) -> Style {
        self.of(Color::Green)
    }

    fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn faint(self) -> Style {
        self.of(Color::DarkGray)
    }
}

/// Draws `view` into `area`. What does not fit is left out.
pub(super) fn draw(view: &View, colours: Colours, area: Rect, buffer: &mut Buffer) {
    let mut problems = view.pod.problems();
    problems.splice(0..0, view.error.clone());
    problems.truncate(PROBLEMS_MAX);
    let shards = view.pod.shards.len().clamp(1, SHARDS_HEIGHT_MAX - 2) + 2;
    let [head, problem, graphs, facts, tables, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(lines(problems.len())),
        Constraint::Length(GRAPH_HEIGHT),
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(lines(shards)),
    ])
    .areas(area);
    heading(view, colours).render(head, buffer);
    let problems: Vec<_> =
        problems.iter().map(|problem| Line::styled(safe::line(problem), colours.bad())).collect();
    Paragraph::new(problems).render(problem, buffer);
    draw_graphs(view, colours, graphs, buffer);
    figures(&view.pod, colours).render(facts, buffer);
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(tables);
    rules(view, colours).render(left, buffer);
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(right);
    let hot = &view.pod.hot_keys;
    keys("hottest keys", &hot.requested, colours.good(), colours).render(above, buffer);
    keys("most denied keys", &hot.denied, colours.bad(), colours).render(below, buffer);
    draw_shards(&view.pod, colours, bottom, buffer);
}

fn heading(view: &View, colours: Colours) -> Paragraph<'static> {
    let pod = &view.pod;
    let (uptime, rules) = (span(pod.uptime.as_secs()), &pod.rules);
    let of = format!("  {}  {} up {uptime}, store {}", view.server, pod.version, pod.store);
    let version = rules.version.as_deref().unwrap_or("none");
    let origin = if rules.from_snapshot { " of the snapshot" } else { "" };
    let (count, ok, refused) = (rules.count, rules.loads_ok, rules.loads_failed);
    let loads = format!(": {count} rules, {ok} loads accepted, {refused} refused");
    Paragraph::new(vec![
        Line::from(vec![
            Span::styled("ratectl top", colours.title()),
            Span::raw(safe::line(&of)),
            Span::styled("   q quits", colours.faint()),
        ]),
        Line::from(format!("rules {version}{origin}{loads}")),
    ])
}

fn draw_graphs(view: &View, colours: Colours, area: Rect, buffer: &mut Buffer) {
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let rate = view.rate();
    let passed: Vec<_> = view.rates.iter().rev().map(|rate| whole(rate.passed)).collect();
    let denied: Vec<_> = view.rates.iter().rev().map(|rate| whole(rate.denied)).collect();
    let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), number);
    let title = format!(" passed {}/s ", shown(rate.map(|rate| rate.passed)));
    graph(title, &passed, colours.good()).render(left, buffer);
    let title = format!(" denied {}/s ", shown(rate.map(|rate| rate.denied)));
    graph(title, &denied, colours.bad()).render(right, buffer);
}

/// Draws a graph with the newest rate on the right.
fn graph(title: String, rates: &[u64], style: Style) -> Sparkline<'_> {
    let most = rates.iter().max().copied().unwrap_or_default().max(1);
    Sparkline::default()
        .block(block(title).title_bottom(Line::from(format!(" up to {most}/s ")).right_aligned()))
        .data(rates)
        .max(most)
        .direction(RenderDirection::RightToLeft)
        .style(style)
}

/// Draws how the pod decides and what it holds.
fn figures(pod: &PodStatus, colours: Colours) -> Paragraph<'static> {
    let count = |name: &str| pod.counts.get(name).copied().unwrap_or_default();
    let decided = match &pod.decisions {
        Some(of) => {
            let latency = match (of.p50_us, of.p99_us) {
                (Some(p50), Some(p99)) => format!("p50 {p50:.0} µs, p99 {p99:.0} µs; "),
                _ => String::new(),
            };
            let how: Vec<_> = of.used().map(|(how, count)| format!("{how} {count}")).collect();
            format!("{latency}{} errors; {}", of.errors, how.join(", "))
        }
        None => "this pod reports no decisions".to_owned(),
    };
    let (keys, evicted) = (count("keys"), count("buffer_evictions"));
    let (held, budget) = (bytes(count("buffer_bytes")), bytes(count("buffer_budget_bytes")));
    let held = format!("{keys} keys in {held} of {budget}, {evicted} evicted");
    let heading = |text: &'static str| Span::styled(text, colours.title());
    Paragraph::new(vec![
        Line::from(vec![heading("decisions "), Span::raw(decided)]),
        Line::from(vec![heading("buffers   "), Span::raw(held)]),
    ])
}

fn rules(view: &View, colours: Colours) -> Table<'static> {
    let rows = view.rules.iter().map(|of| {
        let denied = if of.denied > 0.0 { colours.bad() } else { Style::new() };
        Row::new([
            Cell::from(right(number(of.passed))),
            Cell::from(right(number(of.denied))).style(denied),
            Cell::from(safe::line(&of.rule)),
        ])
    });
    let widths = [Constraint::Length(9), Constraint::Length(9), Constraint::Fill(1)];
    let header = Row::new([right("passed/s".into()), right("denied/s".into()), Line::from("rule")]);
    Table::new(rows, widths).header(header.style(colours.faint())).block(block(" busiest rules "))
}

fn keys(title: &'static str, keys: &[HotKey], share: Style, colours: Colours) -> Table<'static> {
    let rows = keys.iter().map(|hot| {
        Row::new([
            Cell::from(right(format!("{:.1} %", hot.share * 100.0))).style(share),
            Cell::from(right(hot.count.to_string())),
            Cell::from(status::key(hot)),
        ])
    });
    let widths = [Constraint::Length(8), Constraint::Length(10), Constraint::Fill(1)];
    let header = Row::new([right("share".into()), right("count".into()), Line::from("key (rule)")]);
    let block = block(format!(" {title} "));
    Table::new(rows, widths).header(header.style(colours.faint())).block(block)
}

fn draw_shards(pod: &PodStatus, colours: Colours, area: Rect, buffer: &mut Buffer) {
    let lines = pod.shards.iter().map(|shard| {
        let style = if shard.is_open() { colours.bad() } else { colours.good() };
        let (opened, away) = (shard.opened, shard.round_trip_ms);
        let hot = shard.hot_key.as_ref().map(|hot| format!(", hot key {}", status::key(hot)));
        let rest = format!(", opened {opened} times, {away:.2} ms away{}", hot.unwrap_or_default());
        Line::from(vec![
            Span::raw(safe::line(&format!("{:>4} ", shard.name()))),
            Span::styled(safe::line(&shard.breaker), style),
            Span::raw(rest),
        ])
    });
    let mut lines: Vec<_> = lines.collect();
    if lines.is_empty() {
        lines.push(Line::styled("none asked yet", colours.faint()));
    }
    // Shards with problems first, since not all may fit.
    let error: Vec<_> = pod.shards.iter().map(|shard| !shard.is_open()).collect();
    let mut order: Vec<_> = lines.into_iter().enumerate().collect();
    order.sort_by_key(|(at, _)| error.get(*at).copied());
    let lines: Vec<_> = order.into_iter().map(|(_, line)| line).collect();
    Paragraph::new(lines).block(block(" shards ")).render(area, buffer);
}

fn block(title: impl Into<Line<'static>>) -> Block<'static> {
    Block::bordered().border_type(BorderType::Rounded).title(title)
}

fn right(text: String) -> Line<'static> {
    Line::from(text).right_aligned()
}

fn lines(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating")]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}

/// Formats a rate, with one decimal if it is small.
fn number(rate: f64) -> String {
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{:.1} KiB", count as f64 / 1024.0),
        _ => format!("{:.1} MiB", count as f64 / 1_048_576.0),
    }
}

fn span(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match hours {
        0 if minutes == 0 => format!("{seconds}s"),
        0 => format!("{minutes}m{:02}s", seconds % 60),
        1..48 => format!("{hours}h{minutes:02}m"),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests;
