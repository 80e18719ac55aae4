//! The parent of a request in the headers of Zipkin's tracers
//! (<https://github.com/openzipkin/b3-propagation>): a single header, or several.

use http::{HeaderMap, HeaderValue};

use super::parent::{Parent, hex};

/// The single header.
pub(super) const ALL_IN_ONE: &str = "b3";

/// The header without which the several headers are ignored.
pub(super) const TRACE_ID: &str = "x-b3-traceid";

/// The parent in `headers`; `None` if there is none, or it is malformed.
pub(super) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let of = |name| headers.get(name).map(HeaderValue::as_bytes);
    let several = || {
        let is_debugged = of("x-b3-flags") == Some(b"1");
        let sampled = if is_debugged { Some(&b"d"[..]) } else { of("x-b3-sampled") };
        parse(of(TRACE_ID)?, of("x-b3-spanid")?, sampled)
    };
    of(ALL_IN_ONE).and_then(parse_one).or_else(several)
}

/// Parses `<trace>-<span>-<sampled>-<parent>`, of which the last two may be left out.
fn parse_one(text: &[u8]) -> Option<Parent> {
    let mut parts = text.split(|byte| *byte == b'-');
    parse(parts.next()?, parts.next()?, parts.next())
}

/// A trace id has 16 or 32 digits: a short id is the lower half of a long one.
fn parse(trace: &[u8], span: &[u8], sampled: Option<&[u8]>) -> Option<Parent> {
    let trace = if trace.len() == 16 {
        let lower: [u8; 8] = hex(trace)?;
        u128::from(u64::from_be_bytes(lower)).to_be_bytes()
    } else {
        hex(trace)?
    };
    let span = hex(span)?;
    let is_sampled = match sampled {
        None => None,
        // `d` means debug.
        Some(b"1" | b"d" | b"true") => Some(true),
        Some(b"0" | b"false") => Some(false),
        Some(_) => return None,
    };
    (trace != [0; 16] && span != [0; 8]).then_some(Parent { trace, span, is_sampled })
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &str = "e457b5a2e4d86bd1";

    fn of(headers: &[(&'static str, &str)]) -> Option<Parent> {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        parent(&headers.iter().map(header).collect())
    }

    fn expected(is_sampled: Option<bool>) -> Option<Parent> {
        let (trace, span) = (hex(TRACE.as_bytes())?, hex(SPAN.as_bytes())?);
        Some(Parent { trace, span, is_sampled })
    }

    #[test]
    fn one_header_or_several_name_the_parent() {
        for (sampled, is_sampled) in
            [("1", true), ("d", true), ("0", false), ("true", true), ("false", false)]
        {
            let one = format!("{TRACE}-{SPAN}-{sampled}");
            assert_eq!(of(&[("b3", &one)]), expected(Some(is_sampled)), "{one}");
            let one = format!("{one}-05e3ac9a4f6e3b90");
            assert_eq!(of(&[("b3", &one)]), expected(Some(is_sampled)), "{one}");
            let several =
                [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", sampled)];
            assert_eq!(of(&several), expected(Some(is_sampled)), "{sampled}");
        }
        let debugged = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-flags", "1")];
        assert_eq!(of(&debugged), expected(Some(true)));
        assert_eq!(of(&debugged[..2]), expected(None), "left to us");
        assert_eq!(of(&[("b3", &format!("{TRACE}-{SPAN}"))]), expected(None));
    }

    #[test]
    fn a_short_trace_is_the_lower_half_of_a_long_one() {
        let short = of(&[("b3", &format!("64fe8b2a57d3eff7-{SPAN}-1"))]).expect("a parent");
        assert_eq!(short.trace[..8], [0; 8]);
        assert_eq!(short.trace[8..], hex::<16>(TRACE.as_bytes()).expect("digits")[8..]);
    }

    #[test]
    fn a_malformed_header_is_no_parent() {
        let zeros = "0".repeat(16);
        for bad in [
            "",
            "0",
            "-",
            TRACE,
            &format!("{TRACE}-{SPAN}-2"),
            &format!("{TRACE}-{zeros}-1"),
            &format!("{zeros}-{SPAN}-1"),
            &format!("{}-{SPAN}-1", &TRACE[1..]),
            &format!("{}-{SPAN}-1", TRACE.to_ascii_uppercase()),
        ] {
            assert_eq!(of(&[("b3", bad)]), None, "{bad:?}");
        }
        assert_eq!(of(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")]), None);
        assert_eq!(of(&[]), None);
    }
}
