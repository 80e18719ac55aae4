//! Lines of access logs, and the descriptors that `--descriptor` derives from them.

use crate::run;

const WORDS: [&str; 14] = [
    "[2026-01-01T00:00:00.000Z]",
    "\"GET / HTTP/1.1\"",
    " - ",
    "\"-\"",
    "{\"time\":",
    "\"descriptors\"",
    "%path%",
    "%%",
    "=%",
    ",",
    "+23:59",
    "T24:00:00",
    "9999999999999999999",
    "\\\"",
];

/// The first line is a mapping, and the others belong to a log.
#[test]
fn any_line_is_read_or_refused() {
    run::mutated("logs", &WORDS, 20_000, |input| {
        let text = String::from_utf8_lossy(input);
        let (mapping, log) = text.split_once('\n').unwrap_or(("path=%path%", &text));
        let read = log.lines().map(|line| ratelease_replay::read_line(line.trim(), mapping));
        read.flatten().count() > 0
    });
}
