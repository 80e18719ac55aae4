//! Settings for the headers of an answer.

use super::fault::{Expected, Fault, Faults};
use super::group::Flags;
use super::table::{OptionalSetting, Setting, optional, setting, settings, switch};
use super::value;

/// The headers of an answer; at least one is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The reference's three headers, under these names.
    pub reference: Option<HeaderNames>,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as Envoy's `DRAFT_VERSION_03` has them.
    pub x_ratelimit: bool,
    /// `Retry-After`, on denials.
    pub retry_after: bool,
    /// `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11).
    pub ietf: bool,
}

/// Names of the reference's three headers, in the case that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderNames {
    /// Header of the limit.
    pub limit: String,
    /// Header of the remaining tokens.
    pub remaining: String,
    /// Header of the seconds until the limit is reset.
    pub reset: String,
}

settings! {
    /// Settings for the headers of an answer.
    pub(super) group HeaderTable("Answers");

    /// Headers of answers, separated by commas: reference (the three named below), x-ratelimit,
    /// retry-after (on denials), ietf (RateLimit-Policy, RateLimit) [default: none]
    RESPONSE_HEADERS: OptionalSetting<Asked> = optional("LIST", asked);
    /// Answer with the three headers below, like the word reference in --response-headers
    LIMIT_RESPONSE_HEADERS_ENABLED: Setting<bool> = switch(false);
    /// Name of the header with the limit
    LIMIT_LIMIT_HEADER: Setting<String> = setting("NAME", "RateLimit-Limit", value::header_name);
    /// Name of the header with the remaining tokens
    LIMIT_REMAINING_HEADER: Setting<String> =
        setting("NAME", "RateLimit-Remaining", value::header_name);
    /// Name of the header with the seconds until the limit is reset
    LIMIT_RESET_HEADER: Setting<String> = setting("NAME", "RateLimit-Reset", value::header_name);
}

/// Flags for the headers of an answer.
pub(super) type HeaderFlags = Flags<HeaderTable>;

/// The headers that a list asks for.
#[derive(Debug, Default)]
struct Asked {
    reference: bool,
    x_ratelimit: bool,
    retry_after: bool,
    ietf: bool,
}

// === impl HeaderFlags ===

impl HeaderFlags {
    /// Resolves the flags. `Some(None)` means no headers at all.
    pub(super) fn resolve(&self, faults: &mut Faults) -> Option<Option<Headers>> {
        let asked = self.optional(&RESPONSE_HEADERS, faults);
        let enabled = self.get(&LIMIT_RESPONSE_HEADERS_ENABLED, faults);
        let limit = self.get(&LIMIT_LIMIT_HEADER, faults);
        let remaining = self.get(&LIMIT_REMAINING_HEADER, faults);
        let reset = self.get(&LIMIT_RESET_HEADER, faults);
        let names = HeaderNames { limit: limit?, remaining: remaining?, reset: reset? };
        let Asked { reference, x_ratelimit, retry_after, ietf } = asked?.unwrap_or_default();
        let reference = (reference || enabled?).then_some(names);
        let is_any = reference.is_some() || x_ratelimit || retry_after || ietf;
        let headers = Headers { reference, x_ratelimit, retry_after, ietf };
        headers.check(faults);
        Some(is_any.then_some(headers))
    }
}

fn asked(list: &str) -> Result<Asked, Expected> {
    let mut asked = Asked::default();
    for word in list.split(',').map(str::trim) {
        match word {
            "reference" => asked.reference = true,
            "x-ratelimit" => asked.x_ratelimit = true,
            "retry-after" => asked.retry_after = true,
            "ietf" => asked.ietf = true,
            _ => {
                let what = "some of reference, x-ratelimit, retry-after, ietf, separated by commas";
                return Err(Expected::new(what).example("x-ratelimit,retry-after"));
            }
        }
    }
    Ok(asked)
}

// === impl Headers ===

impl Headers {
    /// Reports a header that would appear twice with two meanings.
    fn check(&self, faults: &mut Faults) {
        let Some(names) = &self.reference else { return };
        let named = [
            ("LIMIT_LIMIT_HEADER", &names.limit),
            ("LIMIT_REMAINING_HEADER", &names.remaining),
            ("LIMIT_RESET_HEADER", &names.reset),
        ];
        for (at, (env, name)) in named.into_iter().enumerate() {
            let mut before = named.iter().take(at);
            if let Some((other, _)) = before.find(|(_, other)| name.eq_ignore_ascii_case(other)) {
                let problem = format!("{other} names this header too");
                faults.add(Fault::new(env, problem, "name another header").with_found(name));
            }
            let taken = self.others().find(|(other, _)| name.eq_ignore_ascii_case(other));
            if let Some((_, word)) = taken {
                let problem = format!("RESPONSE_HEADERS has {word}, which sends this header too");
                let mend = "name another header, or ask for only one of the two";
                faults.add(Fault::new(env, problem, mend).with_found(name));
            }
        }
    }

    /// Returns the headers other than the reference's, each with the word that asked for it.
    fn others(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let x = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
        let x = self.x_ratelimit.then_some(x.map(|name| (name, "x-ratelimit")));
        let retry = self.retry_after.then_some(("Retry-After", "retry-after"));
        let ietf = self.ietf.then_some(["RateLimit-Policy", "RateLimit"].map(|it| (it, "ietf")));
        x.into_iter().flatten().chain(retry).chain(ietf.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_selects_headers_in_any_order() {
        let all = asked("ietf, reference,x-ratelimit ,retry-after").unwrap();
        assert!(all.reference && all.x_ratelimit && all.retry_after && all.ietf);
        let one = asked("retry-after").unwrap();
        assert!(!one.reference && !one.x_ratelimit && one.retry_after && !one.ietf);
        for list in ["", ",", "ietf,", "IETF", "x_ratelimit", "all"] {
            assert!(asked(list).is_err(), "{list}");
        }
    }
}
