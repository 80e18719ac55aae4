//! Tests of screens, as text.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;

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
