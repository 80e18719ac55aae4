//! `ratectl top`: shows a pod live on a terminal.
//!
//! One thread asks the pod at each interval; this one draws the answers and reads the keyboard, so
//! that a pod that hangs blocks neither.

mod draw;
mod svg;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::layout::Rect;
use ratelease_cli::fetch::span_above_zero;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Painter};
use serde_json::{Value, json};

use super::signals::Signals;
use super::status_client::{PodFlags, PodStatus};
use draw::{Colours, draw};
use view::View;

pub(super) const NOTES: &str = "\
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
pub(super) fn run(flags: TopFlags, out: &mut Out) -> CliResult {
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
        std::fs::write(path, svg::svg(&buffer)).map_err(|error| {
            CliError::new(format_args!("{}: cannot be written: {error}", path.display()))
        })?;
    }
    for row in buffer.content.chunks(usize::from(PAGE.width)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_end_it_and_nothing_else_does() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        for event in [
            key(KeyCode::Char('q'), none),
            key(KeyCode::Esc, none),
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert_eq!(input_of(&event), Input::Quit, "{event:?}");
        }
        for event in [
            key(KeyCode::Char('c'), none),
            key(KeyCode::Char('x'), KeyModifiers::CONTROL),
            Event::Resize(10, 10),
        ] {
            assert_eq!(input_of(&event), Input::Other, "{event:?}");
        }
    }

    #[test]
    fn a_failed_sample_is_shown_as_an_error_until_the_next_one() {
        let (sender, samples) = sync_channel(1);
        let mut view = View::new("a:1".into());
        assert!(!take_sample(&samples, &mut view));
        sender.send(Err(CliError::new("gone"))).unwrap();
        assert!(take_sample(&samples, &mut view));
        assert_eq!(view.error.as_deref(), Some("gone"));
        sender.send(Ok(json!({"version": "1"}))).unwrap();
        assert!(take_sample(&samples, &mut view));
        assert_eq!((view.error.as_deref(), view.pod.version.as_str()), (None, "1"));
    }
}
