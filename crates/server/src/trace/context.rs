//! The parent of a request by W3C's Trace Context (<https://www.w3.org/TR/trace-context/>).

use http::HeaderMap;
use opentelemetry::trace::TraceState;

use super::b3;
use super::parent::{Parent, hex};

const TRACEPARENT: &str = "traceparent";

/// Maximum number of bytes of `tracestate` that are passed on: the length that W3C asks for. The
/// rest is dropped.
const STATE_BYTES_MAX: usize = 512;

// === impl Parent ===

impl Parent {
    /// The parent in `headers`; `None` if there is none, or it is malformed: the request then
    /// begins a trace of its own.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        // Most requests have no parent: checking each header name once costs less than one lookup.
        let may_be = headers
            .keys()
            .any(|name| matches!(name.as_str(), TRACEPARENT | b3::ALL_IN_ONE | b3::TRACE_ID));
        if may_be { Self::of_w3c(headers).or_else(|| b3::parent(headers)) } else { None }
    }

    fn of_w3c(headers: &HeaderMap) -> Option<Self> {
        let mut sent = headers.get_all(TRACEPARENT).iter();
        let (first, second) = (sent.next()?, sent.next());
        if second.is_some() { None } else { Self::parse(first.as_bytes()) }
    }

    /// Parses `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`. Later versions may have more
    /// fields after these.
    fn parse(text: &[u8]) -> Option<Self> {
        let (text, more) = text.split_first_chunk::<55>()?;
        let version: [u8; 1] = hex(text.get(..2)?)?;
        let is_known = match version {
            [0] => more.is_empty(),
            [0xff] => false,
            _ => more.first().is_none_or(|next| *next == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        let trace: [u8; 16] = hex(text.get(3..35)?)?;
        let span: [u8; 8] = hex(text.get(36..52)?)?;
        let [flags] = hex(text.get(53..55)?)?;
        let is_good = is_known && dashes && trace != [0; 16] && span != [0; 8];
        is_good.then_some(Self { trace, span, is_sampled: Some(flags & 1 == 1) })
    }
}

/// The value of `tracestate`, its headers joined; empty if there is none, it is malformed, or it
/// must not be passed on.
pub(super) fn state(headers: &HeaderMap) -> TraceState {
    let parts: Option<Vec<_>> =
        headers.get_all("tracestate").iter().map(|part| part.to_str().ok()).collect();
    let state = parts.unwrap_or_default().join(",");
    let is_short = state.len() <= STATE_BYTES_MAX;
    is_short.then(|| state.parse().ok()).flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_read_with_its_flag() {
        let parent = Parent::parse(GOOD.as_bytes()).expect("a parent");
        assert_eq!((parent.trace[0], parent.trace[15]), (0x0a, 0x9c));
        assert_eq!((parent.span[0], parent.span[7]), (0xb7, 0x31));
        assert_eq!(parent.is_sampled, Some(true));
        let parsed = |from: &str, to: &str| Parent::parse(GOOD.replace(from, to).as_bytes());
        for (flags, is_sampled) in [("31-00", false), ("31-fe", false), ("31-03", true)] {
            let parent = parsed("31-01", flags).expect("a parent");
            assert_eq!(parent.is_sampled, Some(is_sampled), "{flags}");
        }
    }

    #[test]
    fn a_later_version_may_say_more_and_the_first_may_not() {
        let parsed = |text: String| Parent::parse(text.as_bytes()).is_some();
        assert!(parsed(GOOD.replacen("00", "01", 1)));
        assert!(parsed(GOOD.replacen("00", "cc", 1) + "-what.comes"));
        assert!(!parsed(GOOD.replacen("00", "cc", 1) + "what.comes"));
        assert!(!parsed(GOOD.to_owned() + "-what.comes"));
        assert!(!parsed(GOOD.replacen("00", "ff", 1)));
    }

    #[test]
    fn a_malformed_header_is_no_parent() {
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_ascii_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace("b7", "g7"),
        ] {
            assert_eq!(Parent::parse(bad.as_bytes()), None, "{bad:?}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(Parent::of(&headers), None);
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert!(Parent::of(&headers).is_some());
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert_eq!(Parent::of(&headers), None, "two are none");
        let b3 = "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-0";
        headers.append("b3", HeaderValue::from_static(b3));
        let of_b3 = Parent::of(&headers).expect("B3's");
        assert_eq!((of_b3.trace[0], of_b3.is_sampled), (0x80, Some(false)));
        headers.insert("traceparent", HeaderValue::from_static(GOOD));
        assert_eq!(Parent::of(&headers), Parent::parse(GOOD.as_bytes()), "W3C's wins");
    }

    #[test]
    fn a_state_is_joined_and_a_long_one_dropped() {
        let mut headers = HeaderMap::new();
        assert_eq!(state(&headers).header(), "");
        headers.append("tracestate", HeaderValue::from_static("a=1"));
        headers.append("tracestate", HeaderValue::from_static("b=2"));
        assert_eq!(state(&headers).header(), "a=1,b=2");
        let long = format!("c={}", "x".repeat(STATE_BYTES_MAX));
        headers.append("tracestate", HeaderValue::from_str(&long).expect("a value"));
        assert_eq!(state(&headers).header(), "");
    }
}
