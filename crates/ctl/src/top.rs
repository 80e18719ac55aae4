//! `ratectl top`: shows a pod live on a terminal.
//!
//! One thread asks the pod at each interval; this one draws the answers and reads the keyboard, so
//! that a pod that hangs blocks neither.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use std::{io, thread};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::buffer::{self, Buffer};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{event, execute};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, BorderType, Cell, Paragraph, RenderDirection, Row, Sparkline, Table, Widget,
};
use ratelease_cli::client::span_above_zero;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Painter};
use ratelease_cli::safe;
use serde::Serialize;
use serde_json::{Value, json};

use crate::signals::Signals;
use crate::status;
use crate::status_client::{BusyRule, HotKey, PodFlags, PodStatus};

pub const NOTES: &str = "\
q, Esc and Ctrl-C end it. Without a terminal, and with --once, two samples of the pod are printed as
one screen of text. With --json each sample is a line of JSON: rates, and the status they are from.

Exit status: 0, 2 the pod cannot be queried, or 128 and the number of the signal that ended it.

Examples:
  ratectl top
  ratectl top --debug 10.0.0.7:6070 --interval 500ms
  ratectl top --once";

/// Time for which the keyboard is polled at once, and so the maximum delay of a redraw.
const POLL: Duration = Duration::from_millis(50);

/// Maximum time from a signal to the end. A read from a terminal that has gone away never returns.
const END_MAX: Duration = Duration::from_secs(1);

/// The longest wait for SIGHUP after a failure of the terminal, which the same hangup may cause.
const HANGUP_MAX: Duration = Duration::from_millis(500);

/// Maximum time for restoring the terminal when a second signal ends the process.
const RESTORE_MAX: Duration = Duration::from_millis(500);

/// Size of the screen without a terminal.
const PAGE: Rect = Rect { x: 0, y: 0, width: 110, height: 34 };

/// Maximum number of samples of one run with `--samples`.
const SAMPLES_MAX: i64 = 100_000;

/// Flags of `top`.
#[derive(Debug, Args)]
pub struct TopFlags {
    /// Time between two samples, a duration
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = span_above_zero)]
    interval: Duration,
    /// Sample twice, print, and end
    #[arg(long)]
    once: bool,
    /// With --once, number of samples before printing
    #[arg(long, value_name = "COUNT", default_value_t = 2, hide = true,
          value_parser = clap::value_parser!(u32).range(1..=SAMPLES_MAX))]
    samples: u32,
    /// With --once, also write the screen as a picture
    #[arg(long, value_name = "FILE", hide = true, requires = "once")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    pod: PodFlags,
    #[command(flatten)]
    out: OutFlags,
}

/// The result of one sample.
type Sample = Result<Value, CliError>;

/// Shows the pod until the user quits.
pub fn run(flags: TopFlags, out: &mut Out) -> CliResult {
    let mut view = View::new(flags.pod.server()?.to_string());
    // A pod that is unreachable at the start is an error; later, the screen shows it.
    view.update(PodStatus::parse(&flags.pod.ask()?));
    let is_live = !flags.once && io::stdout().is_terminal() && io::stdin().is_terminal();
    if flags.out.json {
        print_samples(&flags, view, out)
    } else if is_live {
        let signals = Signals::listen(restore_at_once, Some(END_MAX))?;
        Screen::open()?.show(flags, view, &signals)
    } else {
        print_once(&flags, view, out)
    }
}

/// Prints one line of JSON per sample, until the reader closes the pipe or, with `--once`, after
/// enough samples.
fn print_samples(flags: &TopFlags, mut view: View, out: &mut Out) -> CliResult {
    for number in 1_u32.. {
        thread::sleep(flags.interval);
        let status = flags.pod.ask()?;
        view.update(PodStatus::parse(&status));
        if !flags.once || number + 1 >= flags.samples {
            let rate = view.rate();
            out.json(&json!({"per_second": rate, "rules": view.rules, "status": status}))?;
            out.flush()?;
        }
        if out.is_closed() || (flags.once && number + 1 >= flags.samples) {
            break;
        }
    }
    Ok(Completion::Clean)
}

/// Prints one screen as text.
fn print_once(flags: &TopFlags, mut view: View, out: &mut Out) -> CliResult {
    for _ in 1..flags.samples {
        thread::sleep(flags.interval);
        view.update(PodStatus::parse(&flags.pod.ask()?));
    }
    let mut buffer = Buffer::empty(PAGE);
    draw(&view, Colours { are_on: flags.svg.is_some() }, PAGE, &mut buffer);
    if let Some(path) = &flags.svg {
        std::fs::write(path, svg(&buffer)).map_err(|error| {
            CliError::new(format_args!("{}: cannot be written: {error}", path.display()))
        })?;
    }
    for row in buffer.content.chunks(usize::from(PAGE.width)) {
        let line: String = row.iter().map(buffer::Cell::symbol).collect();
        out.line(line.trim_end())?;
    }
    Ok(Completion::Clean)
}

/// Asks the pod at each interval until the receiver is gone. If the previous sample has not been
/// received yet, the new one is dropped; the next will replace it.
fn send_samples(pod: &PodFlags, interval: Duration, samples: &SyncSender<Sample>) {
    loop {
        thread::sleep(interval);
        if let Err(TrySendError::Disconnected(_)) = samples.try_send(pod.ask()) {
            return;
        }
    }
}

/// Holds the terminal; dropping it restores the previous state, also after a panic or a signal.
struct Screen {
    terminal: DefaultTerminal,
}

// === impl Screen ===

impl Screen {
    fn open() -> Result<Self, CliError> {
        let terminal = ratatui::try_init().map_err(terminal_error)?;
        Ok(Self { terminal })
    }

    /// Shows the pod until the user or a signal ends it. A terminal that goes away fails here, and
    /// sends SIGHUP, in no fixed order: then the signal is the reason.
    fn show(self, flags: TopFlags, view: View, signals: &Signals) -> CliResult {
        self.draw_until_end(flags, view, signals)
            .or_else(|error| signals.wait(HANGUP_MAX).map(Completion::Interrupted).ok_or(error))
    }

    fn draw_until_end(mut self, flags: TopFlags, mut view: View, signals: &Signals) -> CliResult {
        let TopFlags { pod, interval, .. } = flags;
        let colours = Colours { are_on: Painter::of(&io::stdout()).is_on() };
        let (sender, samples) = sync_channel(1);
        thread::spawn(move || send_samples(&pod, interval, &sender));
        let mut is_stale = true;
        loop {
            if is_stale {
                let frame = |frame: &mut ratatui::Frame<'_>| {
                    draw(&view, colours, frame.area(), frame.buffer_mut());
                };
                self.terminal.draw(frame).map_err(terminal_error)?;
            }
            if let Some(interrupt) = signals.first() {
                return Ok(Completion::Interrupted(interrupt));
            }
            match read_input()? {
                Input::Quit => return Ok(Completion::Clean),
                Input::None => is_stale = false,
                // The terminal's size may have changed.
                Input::Other => is_stale = true,
            }
            is_stale |= take_sample(&samples, &mut view);
        }
    }
}

/// Restores the terminal from outside the main thread, for when that hangs on a terminal that no
/// longer responds.
fn restore_at_once() {
    let (restored, wait) = sync_channel(1);
    thread::spawn(move || {
        let _ = ratatui::try_restore().and_then(|()| execute!(io::stdout(), Show));
        restored.send(())
    });
    let _ = wait.recv_timeout(RESTORE_MAX);
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A failure here cannot be handled.
        let _ = ratatui::try_restore();
    }
}

/// Takes the next sample, if there is one; returns whether there was.
fn take_sample(samples: &Receiver<Sample>, view: &mut View) -> bool {
    let Ok(sample) = samples.try_recv() else { return false };
    match sample {
        Ok(status) => view.update(PodStatus::parse(&status)),
        Err(error) => view.set_error(error.to_string()),
    }
    true
}

/// The input from the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    None,
    Other,
    Quit,
}

fn read_input() -> Result<Input, CliError> {
    if !event::poll(POLL).map_err(terminal_error)? {
        return Ok(Input::None);
    }
    Ok(input_of(&event::read().map_err(terminal_error)?))
}

fn input_of(event: &Event) -> Input {
    let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return Input::Other };
    let is_ctrl_c = *code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    match code {
        _ if *kind == KeyEventKind::Release => Input::Other,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Input::Quit,
        _ if is_ctrl_c => Input::Quit,
        _ => Input::Other,
    }
}

fn terminal_error(error: io::Error) -> CliError {
    CliError::new(format_args!("the terminal cannot be used: {error}; --once needs none"))
}

// === View ===
//
// The state that `top` shows: the last status, and rates computed from earlier ones.

/// Number of rates that are kept: ten minutes at one a second, more than the width of a terminal.
const RATES_MAX: usize = 600;

/// Everything on the screen.
#[derive(Debug, Clone, Default)]
struct View {
    /// Address of the pod.
    server: String,
    /// The pod's last status.
    pod: PodStatus,
    /// The error of the last attempt, if it failed.
    error: Option<String>,
    /// Oldest first.
    rates: VecDeque<Rate>,
    /// Busiest first.
    rules: Vec<RuleRate>,
}

/// Requests a second between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Rate {
    passed: f64,
    denied: f64,
    errors: f64,
}

/// A rule's requests a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RuleRate {
    rule: String,
    passed: f64,
    denied: f64,
}

// === impl View ===

impl View {
    fn new(server: String) -> Self {
        Self { server, ..Self::default() }
    }

    /// Takes a new status. Rates are computed from the previous one, unless the process has
    /// restarted since.
    fn update(&mut self, pod: PodStatus) {
        let span = pod.uptime.checked_sub(self.pod.uptime).filter(|span| !span.is_zero());
        let seconds = span.map_or(0.0, |span| span.as_secs_f64());
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        match (&pod.decisions, &self.pod.decisions) {
            (Some(now), Some(before)) if seconds > 0.0 => {
                if self.rates.len() == RATES_MAX {
                    self.rates.pop_front();
                }
                self.rates.push_back(Rate {
                    passed: per_second(now.ok, before.ok),
                    denied: per_second(now.over_limit, before.over_limit),
                    errors: per_second(now.errors, before.errors),
                });
            }
            // The process has restarted, so earlier counts cannot be compared with new ones.
            _ => self.rates.clear(),
        }
        self.rules = pod
            .rules_busiest
            .iter()
            .map(|now| {
                let mut known = self.pod.rules_busiest.iter();
                let before = known.find(|before| before.rule == now.rule);
                let zero = BusyRule::default();
                let (before, is_known) = (before.unwrap_or(&zero), before.is_some());
                let rate = |now, before| {
                    if seconds > 0.0 && is_known { per_second(now, before) } else { 0.0 }
                };
                RuleRate {
                    rule: now.rule.clone(),
                    passed: rate(now.ok, before.ok),
                    denied: rate(now.over_limit, before.over_limit),
                }
            })
            .collect();
        self.rules.sort_by(|a, b| (b.passed + b.denied).total_cmp(&(a.passed + a.denied)));
        self.pod = pod;
        self.error = None;
    }

    /// Records that the pod could not be asked.
    fn set_error(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Returns the newest rates; `None` before the second sample.
    fn rate(&self) -> Option<Rate> {
        self.rates.back().copied()
    }
}

// === Draw ===
//
// Draws the screen of `top`: from a view to cells. Pure functions.

/// Maximum number of lines for problems.
const PROBLEMS_MAX: usize = 3;

/// Height of the graphs in lines, with borders.
const GRAPH_HEIGHT: u16 = 6;

/// Maximum height of the shards in lines, with the border.
const SHARDS_HEIGHT_MAX: usize = 8;

/// The styles; without colour only bold and dim are used.
#[derive(Debug, Clone, Copy)]
struct Colours {
    are_on: bool,
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
fn draw(view: &View, colours: Colours, area: Rect, buffer: &mut Buffer) {
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
    let uptime = span(pod.uptime.as_secs());
    let rules = &pod.rules;
    let of = format!("  {}  {} up {uptime}, store {}", view.server, pod.version, pod.store);
    let version = rules.version.as_deref().unwrap_or("none");
    let origin = if rules.from_snapshot { " of the snapshot" } else { "" };
    let count = rules.count;
    let ok = rules.loads_ok;
    let refused = rules.loads_failed;
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

/// Draws the pod's decisions, and the number and the memory of its keys.
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
    let keys = count("keys");
    let evicted = count("buffer_evictions");
    let held = bytes(count("buffer_bytes"));
    let budget = bytes(count("buffer_budget_bytes"));
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
        let opened = shard.opened;
        let away = shard.away();
        let hot = shard.hot_key.as_ref().map(|hot| format!(", hot key {}", status::key(hot)));
        let rest = format!(", opened {opened} times, {away}{}", hot.unwrap_or_default());
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
    let hours = seconds / 3600;
    let minutes = seconds / 60 % 60;
    match hours {
        0 if minutes == 0 => format!("{seconds}s"),
        0 => format!("{minutes}m{:02}s", seconds % 60),
        1..48 => format!("{hours}h{minutes:02}m"),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

// === Svg ===
//
// Renders a screen as an SVG picture, for the documentation.

/// Width of a cell in pixels.
const WIDTH: f64 = 8.4;

/// Height of a cell in pixels.
const HEIGHT: f64 = 16.5;

/// Position of the text in a cell, in pixels from its top.
const BASELINE: f64 = 13.0;

/// Margin around the screen in pixels.
const MARGIN: f64 = 12.0;

/// Colour of the screen.
const BACKGROUND: &str = "#16181d";

/// Colour of text without a colour of its own.
const FOREGROUND: &str = "#d8dee9";

/// Renders `buffer` as an SVG document. Each run of one style is one text, stretched to the width
/// of its cells, so that columns are aligned in any font.
fn svg(buffer: &Buffer) -> String {
    let area = buffer.area;
    let width = f64::from(area.width) * WIDTH + 2.0 * MARGIN;
    let height = f64::from(area.height) * HEIGHT + 2.0 * MARGIN;
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

fn write_run(svg: &mut String, column: usize, row: usize, run: &[buffer::Cell]) {
    let text: String = run.iter().map(buffer::Cell::symbol).collect();
    let (Some(first), false) = (run.first(), text.trim().is_empty()) else { return };
    let x = MARGIN + column as f64 * WIDTH;
    let y = MARGIN + row as f64 * HEIGHT + BASELINE;
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
