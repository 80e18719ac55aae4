//! Parses Envoy's default text format of access logs, old and new, and Istio's, which has more
//! fields at the end.
//!
//! ```text
//! [%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE%
//! %RESPONSE_FLAGS% [%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS%
//! "%UPSTREAM_TRANSPORT_FAILURE_REASON%"] %BYTES_RECEIVED% %BYTES_SENT% %DURATION%
//! %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%"
//! "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"
//! ```

use crate::timestamp;

/// Fields in order, without the three that only newer versions write. A line may end earlier.
const IN_ORDER: [&str; 17] = [
    "status",
    "response_flags",
    "bytes_received",
    "bytes_sent",
    "duration",
    "upstream_service_time",
    "x_forwarded_for",
    "user_agent",
    "request_id",
    "authority",
    "upstream_host",
    "upstream_cluster",
    "upstream_local_address",
    "downstream_local_address",
    "downstream_remote_address",
    "requested_server_name",
    "route_name",
];

/// Fields that are derived from others.
const MADE: [&str; 5] = ["method", "path", "path_without_query", "protocol", "remote_address"];

/// Minimum number of fields after the request: up to the duration.
const FIELDS_MIN: usize = 5;

/// Position of the three fields of newer versions.
const NEWER_AT: usize = 2;
const NEWER_COUNT: usize = 3;

/// One line, split into its fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    time: &'a str,
    /// Method, path, protocol.
    request: &'a str,
    /// Values of the fields in [`IN_ORDER`].
    fields: Vec<&'a str>,
}

/// Returns the names that [`Line::field`] accepts.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    MADE.into_iter().chain(IN_ORDER)
}

// === impl Line ===

impl<'a> Line<'a> {
    /// Parses a line; the error says what does not match the format.
    pub(crate) fn parse(line: &'a str) -> Result<Self, &'static str> {
        let rest = line.strip_prefix('[').ok_or("does not begin with [ or {")?;
        let (time, rest) = rest.split_once("] ").ok_or("has no ] behind its time")?;
        let (request, mut rest) = quoted(rest).ok_or("has no quoted request behind its time")?;
        let mut fields = Vec::with_capacity(IN_ORDER.len() + NEWER_COUNT);
        while !rest.is_empty() && fields.len() < IN_ORDER.len() + NEWER_COUNT {
            let (field, after) = match quoted(rest) {
                Some(cut) => cut,
                None => rest.split_once(' ').unwrap_or((rest, "")),
            };
            fields.push(field);
            rest = after;
        }
        // Older versions have the received bytes here, a number.
        let is_number = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
        if fields.len() >= NEWER_AT + NEWER_COUNT && !fields.get(NEWER_AT).is_some_and(is_number) {
            fields.drain(NEWER_AT..NEWER_AT + NEWER_COUNT);
        }
        if fields.len() < FIELDS_MIN {
            return Err("ends before its duration");
        }
        Ok(Self { time, request, fields })
    }

    /// Returns the time in microseconds since the Unix epoch.
    pub(crate) fn time(&self) -> Option<u64> {
        timestamp::parse(self.time)
    }

    /// Returns the field of this name; `None` if it is `-` or missing.
    pub(crate) fn field(&self, name: &str) -> Option<&'a str> {
        let at = |name: &str| {
            let at = IN_ORDER.iter().position(|known| *known == name)?;
            self.fields.get(at).copied()
        };
        let field = match name {
            "method" => self.request.split(' ').next(),
            "protocol" => self.request.rsplit(' ').next(),
            "path" => self.path(),
            "path_without_query" => self.path().and_then(|path| path.split('?').next()),
            "remote_address" => at("x_forwarded_for")
                .filter(|list| *list != "-")
                .and_then(|list| list.rsplit(',').next())
                .or_else(|| at("downstream_remote_address").map(without_port))
                .map(str::trim),
            name => at(name),
        };
        field.filter(|field| *field != "-")
    }

    fn path(&self) -> Option<&'a str> {
        let (_, rest) = self.request.split_once(' ')?;
        Some(rest.rsplit_once(' ').map_or(rest, |(path, _)| path))
    }
}

/// Splits off a quoted text and the space after it. Envoy does not escape quotes, so only a quote
/// before a space or at the end closes the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('"')?;
    match inner.split_once("\" ") {
        Some(cut) => Some(cut),
        None => Some((inner.strip_suffix('"')?, "")),
    }
}

fn without_port(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "[2016-04-15T20:17:00.310Z] \"POST /api/v1/locations?a=b HTTP/2\" 204 - 154 \
        0 226 100 \"10.0.35.28, 10.1.0.9\" \"nsq\"2inch\" \"cc21d9b0\" \"locations\" \
        \"tcp://10.0.2.1:80\"";
    const NEW: &str = "[2026-11-21T10:00:00.001Z] \"GET / HTTP/1.1\" 429 RL \
        request_rate_limited - \"-\" 0 18 1 - \"-\" \"curl/8.5.0\" \"id\" \"shop.test\" \"-\" \
        outbound|80||shop - 10.0.0.2:80 10.9.8.7:41020 - default";

    #[test]
    fn the_old_form_is_read() {
        let line = Line::parse(OLD).unwrap();
        assert_eq!(line.time(), Some(1_460_751_420_310_000));
        for (name, value) in [
            ("method", "POST"),
            ("path", "/api/v1/locations?a=b"),
            ("path_without_query", "/api/v1/locations"),
            ("protocol", "HTTP/2"),
            ("status", "204"),
            ("bytes_received", "154"),
            ("duration", "226"),
            ("x_forwarded_for", "10.0.35.28, 10.1.0.9"),
            ("remote_address", "10.1.0.9"),
            ("user_agent", "nsq\"2inch"),
            ("authority", "locations"),
            ("upstream_host", "tcp://10.0.2.1:80"),
        ] {
            assert_eq!(line.field(name), Some(value), "{name}");
        }
        assert_eq!((line.field("response_flags"), line.field("route_name")), (None, None));
        assert_eq!(line.field("nothing"), None);
    }

    #[test]
    fn the_new_form_is_read_and_istios_fields_behind_it() {
        let line = Line::parse(NEW).unwrap();
        for (name, value) in [
            ("path", "/"),
            ("status", "429"),
            ("response_flags", "RL"),
            ("bytes_sent", "18"),
            ("authority", "shop.test"),
            ("remote_address", "10.9.8.7"),
            ("upstream_cluster", "outbound|80||shop"),
            ("route_name", "default"),
        ] {
            assert_eq!(line.field(name), Some(value), "{name}");
        }
        assert_eq!((line.field("x_forwarded_for"), line.field("upstream_host")), (None, None));
    }

    #[test]
    fn every_name_is_a_field() {
        let line = Line::parse(NEW).unwrap();
        let missing: Vec<_> = names().filter(|name| line.field(name).is_none()).collect();
        let dashes = [
            "upstream_service_time",
            "x_forwarded_for",
            "upstream_host",
            "upstream_local_address",
            "requested_server_name",
        ];
        assert_eq!(missing, dashes);
    }

    #[test]
    fn no_line_panics_and_a_strange_one_is_refused() {
        for line in [
            "",
            "GET / HTTP/1.1",
            "[2016-04-15T20:17:00.310Z",
            "[2016-04-15T20:17:00.310Z] GET",
            "[2016-04-15T20:17:00.310Z] \"GET / HTTP/1.1\"",
            "[2016-04-15T20:17:00.310Z] \"GET / HTTP/1.1\" 200 -",
            "[x] \"\" - - - -",
        ] {
            assert!(Line::parse(line).is_err(), "{line}");
        }
        for (end, _) in NEW.char_indices() {
            if let Ok(line) = Line::parse(&NEW[..end]) {
                assert!(names().all(|name| line.field(name) != Some("-")));
            }
        }
    }
}
