//! The text of log lines.

use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_engine::span_context::SpanContext;
use serde_json::{Value, json};
use tracing::{debug, error, info};

use super::*;

/// The text that `events` write to a log of this format and level.
fn logged(format: LogFormat, level: LogLevel, ansi: bool, events: impl FnOnce()) -> String {
    logged_calmly(&logging(format, level, 0), ansi, |_| events())
}

fn logging(format: LogFormat, level: LogLevel, lines_per_second: u32) -> Logging {
    Logging { level, format, lines_per_second, values: false, decision_sample_rate: 0.0 }
}

/// Like [`logged`], for events that may report the suppressed lines.
fn logged_calmly(logging: &Logging, ansi: bool, events: impl FnOnce(&LogLimiter)) -> String {
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let sink = Sink::default();
    let writer = sink.clone();
    let limiter = LogLimiter::new(logging.lines_per_second, observe::TARGET, Clock::start());
    let subscriber = subscriber(logging, ansi, limiter.clone(), move || writer.clone());
    tracing::subscriber::with_default(subscriber, || events(&limiter));
    let bytes = sink.0.lock().clone();
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn text_has_one_line_per_event_with_level_target_message_and_fields() {
    let text = logged(LogFormat::Text, LogLevel::Info, false, || {
        warn!(port = 8080, path = %"/a b", name = "x y", "cannot listen");
    });
    let (time, rest) = text.split_once(' ').expect("a timestamp");
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    let target = "ratelease_sidecar::telemetry::tests";
    let expected = format!(" WARN {target}: cannot listen port=8080 path=/a b name=\"x y\"\n");
    assert_eq!(rest, expected);
}

#[test]
fn no_value_can_end_a_line_or_control_a_terminal() {
    let evil = "a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{7}\0\u{202e}\u{2028}z";
    let shown = r"a\nERROR forged\r\u{1b}[2J\u{9b}31m\u{7}\u{0}\u{202e}\u{2028}z";
    for ansi in [false, true] {
        let text = logged(LogFormat::Text, LogLevel::Info, ansi, || {
            warn!(display = %evil, debug = evil, "{evil}");
        });
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert_eq!(text.matches(shown).count(), 2, "message and display: {text}");
        for hidden in ["\u{1b}[2J", "\u{9b}", "\u{7}", "\0", "\r", "\u{202e}", "\u{2028}"] {
            assert!(!text.contains(hidden), "{hidden:?} in {text:?}");
        }
        assert_eq!(text.contains("\u{1b}["), ansi, "colour only where asked for: {text:?}");
    }
}

#[test]
fn invisible_and_bidirectional_characters_are_escaped_in_both_formats() {
    // One character of each range that controls a display.
    let evil = "\u{7f}\u{9b}\u{ad}\u{61c}\u{180e}\u{200b}\u{200f}\u{2028}\u{202e}\u{2060}\u{2069}\
                \u{feff}\u{fff9}\u{e0041}";
    for format in [LogFormat::Text, LogFormat::Json] {
        let text = logged(format, LogLevel::Info, false, || warn!(value = %evil, "a {evil} z"));
        let raw: Vec<char> = evil.chars().filter(|c| text.contains(*c)).collect();
        assert!(raw.is_empty(), "{format:?} {raw:?}");
    }
    let text = logged(LogFormat::Json, LogLevel::Info, false, || warn!(value = %evil, "z"));
    let line: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(line["value"], evil, "an escape in JSON means the same");
}

#[test]
fn json_has_one_object_per_event_with_the_names_of_the_reference() {
    let text = logged(LogFormat::Json, LogLevel::Info, true, || {
        warn!(port = 8080, ok = true, level = "mine", why = %"a\nb", "it {}", "happened");
    });
    assert_eq!(text.lines().count(), 1, "{text:?}");
    let mut line: Value = serde_json::from_str(&text).expect("JSON");
    let time = line["@timestamp"].take();
    assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
    let expected = json!({
        "@timestamp": null, "@message": "it happened", "level": "warning",
        "target": "ratelease_sidecar::telemetry::tests", "port": 8080, "ok": true,
        "fields.level": "mine", "why": "a\nb",
    });
    assert_eq!(line, expected);
}

#[test]
fn a_line_names_its_span() {
    let context = SpanContext::for_test(0x0a, 0xb7);
    let events = || {
        context.within(|| warn!(trace_id = "mine", "in"));
        warn!("out");
    };
    let text = logged(LogFormat::Text, LogLevel::Info, false, events);
    let lines: Vec<_> = text.lines().collect();
    let ids = format!("trace_id={} span_id={}", "0a".repeat(16), "b7".repeat(8));
    assert!(lines[0].ends_with(&format!(r#": in trace_id="mine" {ids}"#)), "{text}");
    assert!(lines[1].ends_with(": out"), "{text}");
    let text = logged(LogFormat::Json, LogLevel::Info, false, events);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["trace_id"], "0a".repeat(16));
    assert_eq!(
        (&lines[0]["span_id"], &lines[0]["fields.trace_id"]),
        (&"b7".repeat(8).into(), &"mine".into())
    );
    assert!(lines[1]["trace_id"].is_null() && lines[1]["span_id"].is_null(), "{text}");
}

#[test]
fn the_level_applies_to_this_crate_and_libraries_only_warn() {
    let events = || {
        error!("E");
        info!("I");
        debug!("D");
        warn!(target: "h2::codec", "lib W");
        debug!(target: "h2::codec", "lib D");
    };
    let messages = |level| {
        let text = logged(LogFormat::Text, level, false, events);
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.map(|(_, message)| message.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(messages(LogLevel::Error), ["E"]);
    assert_eq!(messages(LogLevel::Warn), ["E", "lib W"]);
    assert_eq!(messages(LogLevel::Info), ["E", "I", "lib W"]);
    assert_eq!(messages(LogLevel::Debug), ["E", "I", "D", "lib W"]);
    assert_eq!(messages(LogLevel::Trace), ["E", "I", "D", "lib W", "lib D"]);
}

#[test]
fn repeated_lines_of_a_call_site_are_suppressed_and_counted() {
    const LINES: usize = 1000;
    const MOST: usize = 10;
    let begun = Clock::start();
    let text = logged_calmly(&logging(LogFormat::Json, LogLevel::Info, 10), false, |limiter| {
        for n in 0..LINES {
            warn!(n, "again");
            debug!("unseen, so that it is not counted");
        }
        info!("elsewhere");
        limiter.report();
        limiter.report();
    });
    let seconds = usize::try_from(begun.now().nanos() / 1_000_000_000).unwrap() + 2;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| lines.iter().filter(|line| line["@message"] == message).count();
    assert!(of("again") >= MOST && of("again") <= MOST * seconds, "{}", of("again"));
    assert_eq!(of("elsewhere"), 1, "another place has a bound of its own");
    let reports: Vec<_> = lines.iter().filter(|line| !line["lines"].is_null()).collect();
    assert_eq!(reports.len(), 1, "reported once: {text}");
    assert_eq!(reports[0]["lines"], LINES - of("again"));
    let at = reports[0]["at"].as_str().unwrap();
    assert!(at.starts_with("crates/sidecar/src/telemetry/tests.rs:"), "{at}");
}

#[test]
fn a_sample_is_logged_at_any_level() {
    for level in [LogLevel::Error, LogLevel::Warn, LogLevel::Trace] {
        let text = logged(LogFormat::Text, level, false, || {
            info!(target: observe::TARGET, "S");
            debug!(target: observe::TARGET, "D");
        });
        assert!(text.contains(" S\n"), "{level:?}: {text}");
        assert_eq!(text.contains(" D\n"), level == LogLevel::Trace, "{level:?}: {text}");
    }
}

#[test]
fn the_level_applies_to_every_workspace_crate_and_not_to_libraries() {
    let filter = filter(LogLevel::Debug);
    for ours in ["ratelease_sidecar::app", "ratelease_engine::lease", "ratelease_rules::compile"] {
        assert!(filter.would_enable(ours, &Level::DEBUG), "{ours}");
    }
    assert!(!filter.would_enable("h2::client", &Level::DEBUG));
}
