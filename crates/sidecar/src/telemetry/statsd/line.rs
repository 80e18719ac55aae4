//! Lines of statsd and of DogStatsD, and the packets that hold them.
//!
//! ```text
//! statsd     name.__zone=a:3|c
//! DogStatsD  name:3|c|#zone:a
//! ```
//! The reference implementation writes the same through its libraries (lyft/gostats and
//! DataDog/datadog-go).

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use ratelease_cli::settings::{Mogrifier, StatsdDialect, Tag};

/// Writes lines into packets that no line crosses.
pub struct Lines<'a> {
    /// The rules that rename metrics; `None` for statsd, whose tags are part of the name.
    mogrifiers: Option<&'a [Mogrifier]>,
    /// The tags of all metrics, as they are written.
    tags: String,
    bytes_max: usize,
    packets: Vec<Vec<u8>>,
    line: String,
}

// === impl Lines ===

impl<'a> Lines<'a> {
    /// Creates packets of at most `bytes_max` bytes; a longer line has a packet of its own.
    pub fn new(dialect: &'a StatsdDialect, tags: &[Tag], bytes_max: usize) -> Self {
        let tag_texts = |separator: char| {
            let pairs = tags.iter().map(move |(name, value)| format!("{name}{separator}{value}"));
            pairs.collect::<Vec<_>>()
        };
        let (mogrifiers, tags) = match dialect {
            StatsdDialect::Statsd => {
                (None, tag_texts('=').iter().map(|tag| format!(".__{tag}")).collect())
            }
            StatsdDialect::DogStatsd(mogrifiers) => {
                (Some(mogrifiers.as_slice()), tag_texts(':').join(","))
            }
        };
        Self { mogrifiers, tags, bytes_max, packets: Vec::new(), line: String::new() }
    }

    /// Writes that the count `name` has grown; nothing if it has not.
    pub fn counter(&mut self, name: &str, more: u64) {
        if more > 0 {
            self.write(name, format_args!("{more}|c"));
        }
    }

    /// Writes that `count` calls took about `took`; nothing if there were none.
    pub fn timer(&mut self, name: &str, took: Duration, count: u64) {
        // Nanoseconds are whole, and their quotient is as short as can be.
        let millis = took.as_nanos() as f64 / 1e6;
        match count {
            0 => {}
            1 => self.write(name, format_args!("{millis}|ms")),
            _ => {
                // A server divides 1 by the rate, and may cut the rest: slightly less than the
                // exact rate comes out as the count.
                let rate = 1.0 / (count as f64 * (1.0 + 1e-12));
                self.write(name, format_args!("{millis}|ms|@{rate}"));
            }
        }
    }

    /// The packets with all lines.
    pub fn packets(self) -> Vec<Vec<u8>> {
        self.packets
    }

    fn write(&mut self, name: &str, value: std::fmt::Arguments<'_>) {
        let name = safe(name);
        self.line.clear();
        // Here and below: writing to a string cannot fail.
        let _ = match self.mogrifiers {
            None => writeln!(self.line, "{name}{}:{value}", self.tags),
            Some(mogrifiers) => {
                let renamed = mogrifiers.iter().find_map(|it| renamed(it, &name));
                let (name, more_tags) = renamed.unwrap_or((name, String::new()));
                let separator = if self.tags.is_empty() || more_tags.is_empty() { "" } else { "," };
                match self.tags.is_empty() && more_tags.is_empty() {
                    true => writeln!(self.line, "{name}:{value}"),
                    false => {
                        let tags = &self.tags;
                        writeln!(self.line, "{name}:{value}|#{tags}{separator}{more_tags}")
                    }
                }
            }
        };
        let line = self.line.as_bytes();
        match self.packets.last_mut() {
            Some(packet) if packet.len() + line.len() <= self.bytes_max => packet.extend(line),
            _ => self.packets.push(line.to_vec()),
        }
    }
}

/// Returns a name that servers read as nothing but a name. Keys have text from requests, which
/// would otherwise end a metric or its line, or begin tags.
///
/// | text | what servers read there |
/// |---|---|
/// | a control character, `:`, `\|` | the end of the line, of the name, of the value |
/// | `.__` | a tag of lyft/gostats, the form in which `EXTRA_TAGS` are sent |
/// | `#` `,` `;` `[` `]` | tags of Librato, InfluxDB, Graphite, SignalFX |
fn safe(name: &str) -> Cow<'_, str> {
    let separates = |c: char| c.is_control() || ":|#,;[]".contains(c);
    // Replaced first: `.::` becomes `.__`.
    let name = match name.contains(separates) {
        true => Cow::Owned(name.replace(separates, "_")),
        false => Cow::Borrowed(name),
    };
    if name.contains(".__") { Cow::Owned(without_gostats_tags(&name)) } else { name }
}

/// Replaces each dot before two underscores by another underscore. The end comes first, since a
/// dot that is replaced may be one of the two underscores behind a dot before it.
fn without_gostats_tags(name: &str) -> String {
    let mut underscores = 0;
    let replaced = name.chars().rev().map(|c| {
        let c = if c == '.' && underscores >= 2 { '_' } else { c };
        underscores = if c == '_' { underscores + 1 } else { 0 };
        c
    });
    let reversed: Vec<_> = replaced.collect();
    reversed.into_iter().rev().collect()
}

/// Returns the new name and the tags that a mogrifier makes of a name that is safe; `None` if its
/// pattern does not match.
fn renamed<'n>(mogrifier: &Mogrifier, name: &str) -> Option<(Cow<'n, str>, String)> {
    let found = mogrifier.pattern.captures(name)?;
    let part = |at: usize| (at < found.len()).then(|| found.get(at).map_or("", |it| it.as_str()));
    // `name` is safe: it has no comma, which would begin another tag.
    let tags = mogrifier.tags.iter().map(|(tag, value)| format!("{tag}:{}", filled(value, part)));
    let tags = tags.collect::<Vec<_>>().join(",");
    Some((Cow::Owned(filled(&mogrifier.name, part)), tags))
}

/// Replaces `$0`, `$1` and so on by the parts with these numbers; a number without a part stays.
fn filled<'p>(text: &str, part: impl Fn(usize) -> Option<&'p str>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = after.split_at(digits);
        match number.parse().ok().and_then(&part) {
            Some(part) => filled.push_str(part),
            None => {
                filled.push('$');
                filled.push_str(number);
            }
        }
        rest = behind;
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ratelease_cli::commands::Task;

    use super::*;

    fn text(lines: Lines<'_>) -> String {
        String::from_utf8(lines.packets().concat()).unwrap()
    }

    fn tags() -> Vec<Tag> {
        [("team", "shop"), ("zone", "a")].map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec()
    }

    /// The dialect of a pod with these variables.
    fn dialect(env: &[(&str, &str)]) -> StatsdDialect {
        let env: BTreeMap<_, _> = env.iter().copied().collect();
        let lookup = |name: &str| env.get(name).map(|value| (*value).to_owned());
        let settings = Task::parse("ratelease", ["serve".into()].into_iter(), &lookup);
        let Ok(Task::Serve(settings)) = settings else { panic!("{env:?}") };
        settings.statsd.expect("a push").dialect
    }

    #[test]
    fn statsd_has_tags_in_the_name_and_dogstatsd_behind_the_value() {
        let dog = StatsdDialect::DogStatsd(Vec::new());
        for (dialect, tags, expected) in [
            (&StatsdDialect::Statsd, vec![], "a.b:3|c\n"),
            (&StatsdDialect::Statsd, tags(), "a.b.__team=shop.__zone=a:3|c\n"),
            (&dog, vec![], "a.b:3|c\n"),
            (&dog, tags(), "a.b:3|c|#team:shop,zone:a\n"),
        ] {
            let mut lines = Lines::new(dialect, &tags, 100);
            lines.counter("a.b", 3);
            lines.counter("a.b", 0);
            assert_eq!(text(lines), expected);
        }
    }

    #[test]
    fn a_value_of_a_request_ends_neither_its_line_nor_its_metric() {
        let mut lines = Lines::new(&StatsdDialect::Statsd, &[], 100);
        lines.counter("a.x:1|c\nforged", 1);
        assert_eq!(text(lines), "a.x_1_c_forged:1|c\n");
    }

    /// Values of requests, and the names that hold them.
    const HOSTILE: [(&str, &str); 9] = [
        ("x.__zone=b.__team=victim", "x___zone=b___team=victim"),
        ("x.::zone=b", "x___zone=b"),
        ("x.|\u{85}zone=b", "x___zone=b"),
        ("x..__zone=b", "x____zone=b"),
        ("x._.__zone=b", "x_____zone=b"),
        ("x,zone=b", "x_zone=b"),
        ("x#zone:b", "x_zone_b"),
        ("x;zone=b", "x_zone=b"),
        ("x[zone=b]", "x_zone=b_"),
    ];

    #[test]
    fn a_value_of_a_request_makes_no_tag_in_either_dialect() {
        let mogrified = dialect(&[
            ("USE_DOG_STATSD", "true"),
            ("USE_DOG_STATSD_MOGRIFIERS", "ANY"),
            ("DOG_STATSD_MOGRIFIER_ANY_PATTERN", "^shop\\.user_(.*)$"),
            ("DOG_STATSD_MOGRIFIER_ANY_NAME", "hits.$1"),
            ("DOG_STATSD_MOGRIFIER_ANY_TAGS", "user:$1"),
        ]);
        let dog = StatsdDialect::DogStatsd(Vec::new());
        for (value, safe) in HOSTILE {
            for (dialect, expected) in [
                (&StatsdDialect::Statsd, format!("shop.user_{safe}.__team=shop.__zone=a:1|c\n")),
                (&dog, format!("shop.user_{safe}:1|c|#team:shop,zone:a\n")),
                (&mogrified, format!("hits.{safe}:1|c|#team:shop,zone:a,user:{safe}\n")),
            ] {
                let mut lines = Lines::new(dialect, &tags(), 1000);
                lines.counter(&format!("shop.user_{value}"), 1);
                assert_eq!(text(lines), expected, "{value:?}");
            }
        }
    }

    /// All texts of up to seven characters of which a server gives a meaning to some.
    #[test]
    fn no_short_text_becomes_a_tag_or_a_second_metric() {
        const CHARACTERS: [char; 6] = ['.', '_', ':', ',', '=', 'k'];
        let mut texts = vec![String::new()];
        for _ in 0..7 {
            let longer = texts.iter().flat_map(|text| CHARACTERS.map(|c| format!("{text}{c}")));
            texts = longer.collect();
            for text in &texts {
                let name = safe(text);
                assert!(!name.contains(".__") && !name.contains([':', ',']), "{text:?}: {name:?}");
                assert_eq!(name.chars().count(), text.chars().count(), "{text:?}: {name:?}");
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "as servers cut the quotient")]
    #[test]
    fn the_rate_of_a_time_gives_back_the_count_when_a_server_cuts_the_rest() {
        for count in (2..2000).chain([u64::from(u32::MAX)]) {
            let mut lines = Lines::new(&StatsdDialect::Statsd, &[], 100);
            lines.timer("t", Duration::from_micros(15), count);
            let line = text(lines);
            let rate = line.trim_end().strip_prefix("t:0.015|ms|@").expect("a rate");
            assert_eq!((1.0 / rate.parse::<f64>().unwrap()) as u64, count, "{line}");
        }
        let mut lines = Lines::new(&StatsdDialect::Statsd, &[], 100);
        lines.timer("t", Duration::from_millis(3), 1);
        lines.timer("t", Duration::from_millis(3), 0);
        assert_eq!(text(lines), "t:3|ms\n");
    }

    #[test]
    fn lines_fill_packets_and_cross_none() {
        let mut lines = Lines::new(&StatsdDialect::Statsd, &[], 20);
        ["a", "b", "a_name_longer_than_a_packet", "c"].iter().for_each(|it| lines.counter(it, 1));
        let packets = lines.packets().into_iter().map(|it| String::from_utf8(it).unwrap());
        let packets: Vec<_> = packets.collect();
        assert_eq!(packets, ["a:1|c\nb:1|c\n", "a_name_longer_than_a_packet:1|c\n", "c:1|c\n"]);
    }

    #[test]
    fn the_first_mogrifier_that_matches_renames_and_adds_tags() {
        let dialect = dialect(&[
            ("USE_DOG_STATSD", "true"),
            ("USE_DOG_STATSD_MOGRIFIERS", "DOMAIN,ANY"),
            (
                "DOG_STATSD_MOGRIFIER_DOMAIN_PATTERN",
                r"^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$",
            ),
            ("DOG_STATSD_MOGRIFIER_DOMAIN_NAME", "hits.$3.$9"),
            ("DOG_STATSD_MOGRIFIER_DOMAIN_TAGS", "domain:$1,key:$2"),
            ("DOG_STATSD_MOGRIFIER_ANY_PATTERN", "^x"),
            ("DOG_STATSD_MOGRIFIER_ANY_NAME", "$0.y"),
        ]);
        for (name, expected) in [
            (
                "ratelimit.service.rate_limit.shop.user_a,b.over_limit",
                "hits.over_limit.$9:1|c|#team:shop,zone:a,domain:shop,key:user_a_b\n",
            ),
            ("x", "x.y:1|c|#team:shop,zone:a\n"),
            ("other", "other:1|c|#team:shop,zone:a\n"),
        ] {
            let mut lines = Lines::new(&dialect, &tags(), 1000);
            lines.counter(name, 1);
            assert_eq!(text(lines), expected);
        }
    }
}
