//! Tests of the view, and of screens as text.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use ratatui::style::Style;
use serde_json::{Value, json};

use super::*;
use crate::status_client::Decisions;

const COLOURS: Colours = Colours { are_on: true };

fn status(uptime: u64, ok: u64, over: u64) -> Value {
    json!({
        "version": "0.1.0", "uptime_seconds": uptime, "store": "cluster 10.0.0.1:6379",
        "rules": {"version": "00000000000000ab", "count": 12, "loads_ok": 3, "loads_failed": 1,
            "last_fault": "shop.yaml:3:5: unknown key"},
        "shards": [
            {"shard": 0, "breaker": "closed", "opened": 0, "round_trip_ms": 0.43},
            {"shard": 1, "breaker": "open", "opened": 2, "round_trip_ms": 9.0,
                "hot_key": {"key": "hash", "share": 0.4}},
        ],
        "counts": {"keys": 1234, "buffer_bytes": 2 << 20, "buffer_budget_bytes": 64 << 20},
        "decisions": {"ok": ok, "over_limit": over, "errors": 0, "by_how": {"local": ok},
            "p50_us": 11.0, "p99_us": 80.0},
        "rules_busiest": [{"rule": "shop.user_id", "ok": ok, "over_limit": over, "shadow": 0}],
        "hot_keys": {
            "requested": [{"key": "SIkqHKtZuP__J8Xf1wKPgA", "rule": "shop.user_id", "count": 900,
                "share": 0.25}],
            "denied": [{"key": "x", "rule": "shop.user_id", "count": 90, "share": 0.5,
                "values": "user_id=alice"}],
        },
    })
}

fn view() -> View {
    let mut view = View::new("127.0.0.1:6070".into());
    for at in 0..20 {
        view.update(PodStatus::parse(&status(100 + at, at * at * 100, at * 3)));
    }
    view
}

/// Draws `view` on a terminal of this size.
fn screen(view: &View, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, COLOURS, frame.area(), frame.buffer_mut())).unwrap();
    terminal
}

fn text(view: &View, width: u16, height: u16) -> String {
    let screen = screen(view, width, height).backend().to_string();
    let lines = screen.lines().map(|line| line.trim_matches('"').trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_whole_screen_is_as_it_was() {
    let expected = include_str!("screen.txt");
    let found = text(&view(), 100, 28);
    assert_eq!(found.trim_end(), expected.trim_end(), "found:\n{found}");
}

#[test]
fn problems_are_red_and_without_colour_bold() {
    let problem = |colours| {
        let area = Rect::new(0, 0, 100, 28);
        let mut buffer = Buffer::empty(area);
        draw(&view(), colours, area, &mut buffer);
        let cell = buffer[(0, 2)].clone();
        (cell.symbol().to_owned(), cell.fg, cell.modifier)
    };
    let bold = Modifier::BOLD;
    assert_eq!(problem(COLOURS), ("t".to_owned(), Color::Red, bold));
    assert_eq!(problem(Colours { are_on: false }), ("t".to_owned(), Color::Reset, bold));
}

#[test]
fn a_pod_of_another_version_shows_the_fields_it_has() {
    let mut view = View::new("a:1".into());
    view.update(PodStatus::parse(
        &json!({"version": "0.0.9", "rules": {"version": "ab", "count": 1}}),
    ));
    let text = text(&view, 80, 24);
    for part in ["0.0.9", "rules ab: 1 rules", "reports no decisions", "none asked yet"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn the_error_of_an_unreachable_pod_comes_first() {
    let mut view = view();
    view.set_error("127.0.0.1:6070: cannot be reached".into());
    let text = text(&view, 100, 28);
    assert_eq!(text.lines().nth(2), Some("127.0.0.1:6070: cannot be reached"));
    assert!(text.contains("shop.user_id"), "what was shown stays\n{text}");
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let mut view = View::new("a:1".into());
    view.update(PodStatus::parse(
        &json!({"store": "x\u{1b}[2Jy", "rules": {"last_fault": "a\u{7}b"}}),
    ));
    let text = text(&view, 80, 24);
    assert!(!text.contains(['\u{1b}', '\u{7}']) && text.contains("x␛[2Jy"), "{text}");
}

#[test]
fn no_size_is_too_small_and_a_resize_draws_anew() {
    let view = view();
    for (width, height) in [(1, 1), (1, 50), (200, 1), (20, 10), (79, 23), (400, 100)] {
        screen(&view, width, height);
    }
    let mut terminal = screen(&view, 100, 28);
    terminal.backend_mut().resize(60, 20);
    terminal.draw(|frame| draw(&view, COLOURS, frame.area(), frame.buffer_mut())).unwrap();
    assert_eq!(terminal.backend().buffer().area, Rect::new(0, 0, 60, 20));
    assert!(terminal.backend().to_string().contains("busiest rules"));
}

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

fn pod(uptime: u64, ok: u64, over_limit: u64) -> PodStatus {
    let decisions = Some(Decisions { ok, over_limit, ..Decisions::default() });
    let rule = |rule: &str, ok| BusyRule { rule: rule.into(), ok, ..BusyRule::default() };
    let rules_busiest = vec![rule("few", 5), rule("many", ok)];
    PodStatus {
        uptime: Duration::from_secs(uptime),
        decisions,
        rules_busiest,
        ..PodStatus::default()
    }
}

#[test]
fn rates_follow_from_two_looks() {
    let mut view = View::default();
    view.update(pod(10, 100, 7));
    assert_eq!(view.rate(), None);
    view.update(pod(12, 300, 8));
    assert_eq!(view.rate(), Some(Rate { passed: 100.0, denied: 0.5, errors: 0.0 }));
    let rules: Vec<_> = view.rules.iter().map(|of| (of.rule.as_str(), of.passed)).collect();
    assert_eq!(rules, [("many", 100.0), ("few", 0.0)]);
}

#[test]
fn a_restarted_pod_has_no_rates_yet() {
    let mut view = View::default();
    for (at, ok) in [(10, 1000), (11, 2000), (1, 10)] {
        view.update(pod(at, ok, 0));
    }
    assert_eq!(view.rates.len(), 0);
    assert_eq!(view.rules[0].passed, 0.0);
    view.update(pod(2, 30, 0));
    assert_eq!(view.rate().map(|rate| rate.passed), Some(20.0));
}

#[test]
fn a_pod_without_decisions_has_no_rates() {
    let mut view = View::default();
    view.update(PodStatus { uptime: Duration::from_secs(1), ..PodStatus::default() });
    view.update(PodStatus { uptime: Duration::from_secs(2), ..PodStatus::default() });
    assert_eq!(view.rates.len(), 0);
}

#[test]
fn old_rates_give_way() {
    let mut view = View::default();
    (0..2 * RATES_MAX as u64).for_each(|at| view.update(pod(at + 1, at, 0)));
    assert_eq!(view.rates.len(), RATES_MAX);
}

#[test]
fn the_last_status_stays_while_the_pod_is_unreachable() {
    let mut view = View::new("a:1".into());
    view.update(pod(1, 1, 0));
    view.set_error("cannot be reached".into());
    assert!(view.error.is_some() && view.pod.decisions.is_some());
    view.update(pod(2, 1, 0));
    assert_eq!(view.error, None);
}

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
