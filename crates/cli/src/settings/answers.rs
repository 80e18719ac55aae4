//! Settings for decisions and answers: headers, modes, leases and buffers, hot keys.

use std::num::NonZeroU32;
use std::time::Duration;

use ratelease_engine::secret::Secret;
use ratelease_engine::store::PODS_MAX;
use ratelease_rules::key::KeyHasher;

use super::fault::{Expected, Fault, Faults};
use super::table::{Section, Sections, Values, optional, secret, setting, switch};
use super::value;
use crate::settings;

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
    /// The headers of an answer, as asked for.
    pub(super) struct AskedHeaders in "Answers" {
        /// Headers of answers, separated by commas: reference (the three named below), x-ratelimit,
        /// retry-after (on denials), ietf (RateLimit-Policy, RateLimit) [default: none]
        "RESPONSE_HEADERS" => asked: Vec<&'static str> = optional("LIST", asked).added();
        /// Answer with the three headers below, like the word reference in --response-headers
        "LIMIT_RESPONSE_HEADERS_ENABLED" => are_on: bool = switch(false);
        /// Name of the header with the limit
        "LIMIT_LIMIT_HEADER" => limit: String =
            setting("NAME", "RateLimit-Limit", value::header_name);
        /// Name of the header with the remaining tokens
        "LIMIT_REMAINING_HEADER" => remaining: String =
            setting("NAME", "RateLimit-Remaining", value::header_name);
        /// Name of the header with the seconds until the limit is reset
        "LIMIT_RESET_HEADER" => reset: String =
            setting("NAME", "RateLimit-Reset", value::header_name);
    }
}

/// The words of `RESPONSE_HEADERS`.
const REFERENCE: &str = "reference";
const X_RATELIMIT: &str = "x-ratelimit";
const RETRY_AFTER: &str = "retry-after";
const IETF: &str = "ietf";

fn asked(list: &str) -> Result<Vec<&'static str>, Expected> {
    let known = [REFERENCE, X_RATELIMIT, RETRY_AFTER, IETF];
    let words = list.split(',').map(str::trim);
    let words = words.map(|word| known.into_iter().find(|known| *known == word));
    words.collect::<Option<_>>().ok_or_else(|| {
        let what = "some of reference, x-ratelimit, retry-after, ietf, separated by commas";
        Expected::new(what).example("x-ratelimit,retry-after")
    })
}

// === impl Headers ===

impl Headers {
    /// Reads the settings; `None` for no headers at all.
    pub(super) fn read(values: Values<'_>, faults: &mut Faults) -> Option<Self> {
        let AskedHeaders { asked, are_on, limit, remaining, reset } =
            AskedHeaders::read(values, faults);
        let is_asked = |word| asked.contains(&word);
        let names = HeaderNames { limit, remaining, reset };
        let headers = Self {
            reference: (are_on || is_asked(REFERENCE)).then_some(names),
            x_ratelimit: is_asked(X_RATELIMIT),
            retry_after: is_asked(RETRY_AFTER),
            ietf: is_asked(IETF),
        };
        headers.check(faults);
        (are_on || !asked.is_empty()).then_some(headers)
    }

    /// Reports a header that would appear twice with two meanings.
    fn check(&self, faults: &mut Faults) {
        let Some(names) = &self.reference else { return };
        let named = [
            ("LIMIT_LIMIT_HEADER", &names.limit),
            ("LIMIT_REMAINING_HEADER", &names.remaining),
            ("LIMIT_RESET_HEADER", &names.reset),
        ];
        let named = named.into_iter().filter(|(env, _)| !faults.has(env)).collect::<Vec<_>>();
        for (at, (env, name)) in named.iter().enumerate() {
            let mut before = named.iter().take(at);
            if let Some((other, _)) = before.find(|(_, other)| name.eq_ignore_ascii_case(other)) {
                let problem = format!("{other} names this header too");
                faults.add(Fault::new(*env, problem, "name another header").with_found(name));
            }
            let taken = self.others().find(|(other, _)| name.eq_ignore_ascii_case(other));
            if let Some((_, word)) = taken {
                let problem = format!("RESPONSE_HEADERS has {word}, which sends this header too");
                let fix = "name another header, or ask for only one of the two";
                faults.add(Fault::new(*env, problem, fix).with_found(name));
            }
        }
    }

    /// Returns the headers other than the reference's, each with the word that asked for it.
    fn others(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let x = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
        let x = self.x_ratelimit.then_some(x.map(|name| (name, X_RATELIMIT)));
        let retry = self.retry_after.then_some(("Retry-After", RETRY_AFTER));
        let ietf = self.ietf.then_some(["RateLimit-Policy", "RateLimit"].map(|it| (it, IETF)));
        x.into_iter().flatten().chain(retry).chain(ietf.into_iter().flatten())
    }
}

settings! {
    /// What answers contain, besides headers.
    #[derive(Copy)]
    pub struct Responses in "Answers" {
        /// Deny nothing; count and report as usual
        "SHADOW_MODE" => shadow_mode: bool = switch(false);
        /// Deny a request only if all of its rules are exhausted
        "QUOTA_MODE" => quota_mode: bool = switch(false);
        /// Add dynamic metadata to answers: the descriptors, and the metadata of the rules
        "RESPONSE_DYNAMIC_METADATA" => dynamic_metadata: bool = switch(false);
        /// Share of a limit, 0 to 1, above which its use counts as near the limit
        "NEAR_LIMIT_RATIO" => near_limit_ratio: f32 = setting("RATIO", "0.8", value::ratio);
    }
}

/// Maximum of the wait for a lease: past it any caller has given up.
const MAX_WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum drain; Kubernetes' longest usual grace period is far below.
const DRAIN_MAX: Duration = Duration::from_secs(3600);
/// Minimum memory for buffers: some two hundred keys.
const BUFFER_MEMORY_MIN: usize = 64 * value::KIB;
/// Maximum memory for buffers: that of a whole machine.
const BUFFER_MEMORY_MAX: usize = 64 * value::GIB;

settings! {
    /// How tokens are leased, and given back at the end.
    #[derive(Eq)]
    pub struct Leases in "Leases" {
        /// Maximum time, a duration, for which a request waits for a lease if its caller sets no
        /// deadline
        "LEASE_MAX_WAIT" => max_wait: Duration =
            setting("SPAN", "5ms", wait).alias("max-wait").added();
        /// Maximum wait, a duration, if the caller sets a deadline (grpc-timeout); at least
        /// --lease-max-wait
        "LEASE_WAIT_LIMIT" => wait_limit: Duration = setting("SPAN", "15ms", wait).added();
        /// Number of pods of each domain, 1 to 10000, assumed until Redis reports it
        "PODS_EXPECTED" => pods_expected: u32 = setting("COUNT", "16", pods).added();
        /// Memory for the buffers of keys, a size; when it is full, idle keys are evicted
        "BUFFER_MEMORY" => buffer_bytes_max: usize = setting("SIZE", "64MiB", |text| {
            value::size_within(text, BUFFER_MEMORY_MIN..=BUFFER_MEMORY_MAX)
        })
        .added();
        /// Secret with which keys are hashed, the same in all pods; only as a variable, because
        /// flags show in ps [default: built in]
        "KEY_SECRET" => key_secret: Secret = secret("SECRET").added();
        /// The secret that KEY_SECRET replaces, or none if there was no secret, until all pods have
        /// KEY_SECRET and the longest window has ended since; only as a variable [default: no secret
        /// is being replaced]
        "KEY_SECRET_PREVIOUS" => previous_key_secret: Secret = secret("SECRET").added();
        /// Time, a duration, from the close of an Envoy's last connection until the slots and holds of
        /// its requests are released; 0 for never
        "START_GRACE" => start_grace: Option<Duration> =
            setting("SPAN", "3s", value::duration_or_never).added();
        /// Maximum time, a duration, for requests in flight and for giving back leases after a
        /// signal
        "DRAIN_TIMEOUT" => drain: Duration =
            setting("SPAN", "10s", |text| value::duration_within(text, Duration::ZERO..=DRAIN_MAX))
                .alias("drain")
                .added();
    }
}

// === impl Leases ===

/// The word of `KEY_SECRET_PREVIOUS` for pods without a `KEY_SECRET`.
const NO_SECRET: &str = "none";

impl Leases {
    /// The hasher of keys: of one secret, or of two while one replaces the other.
    pub fn hasher(&self) -> KeyHasher {
        let hasher = KeyHasher::new(self.key_secret.reveal());
        match self.previous_key_secret.reveal() {
            "" => hasher,
            NO_SECRET => hasher.replacing(""),
            previous => hasher.replacing(previous),
        }
    }

    /// Reads the settings, and reports a secret that would replace itself.
    pub fn read_checked(values: Values<'_>, faults: &mut Faults) -> Self {
        let leases = Self::read(values, faults);
        leases.check(faults);
        leases
    }

    fn check(&self, faults: &mut Faults) {
        let previous = self.previous_key_secret.reveal();
        let replaced = if previous == NO_SECRET { "" } else { previous };
        if !previous.is_empty() && replaced == self.key_secret.reveal() {
            let problem = "KEY_SECRET is the same, so that no secret is replaced";
            let fix = "set KEY_SECRET to the new secret, or unset this";
            faults.add(Fault::new("KEY_SECRET_PREVIOUS", problem, fix));
        }
    }
}

/// The settings of every command that has to name the same counts as the pods.
#[derive(Debug)]
pub enum Key {}

impl Sections for Key {
    const SECTIONS: &'static [Section<'static>] =
        &[Leases::SECTION.only(&["KEY_SECRET", "KEY_SECRET_PREVIOUS"])];
}

fn wait(text: &str) -> Result<Duration, Expected> {
    value::duration_within(text, Duration::ZERO..=MAX_WAIT_MAX)
}

fn pods(text: &str) -> Result<u32, Expected> {
    let pods = value::count_within(text, 1..=PODS_MAX)?;
    Ok(u32::try_from(pods).unwrap_or(u32::MAX))
}

/// Maximum of `sample`: with fewer samples, the counts of a minute would be too small to be useful.
const SAMPLE_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

settings! {
    /// How the hottest keys are counted.
    #[derive(Copy, Eq)]
    pub struct HotKeys in "Hot keys" {
        /// Count the keys that are requested and denied most often, for /status, /hotkeys and /live
        "HOT_KEYS" => is_on: bool = switch(true).added();
        /// On average, count one decision in this many
        "HOT_KEYS_SAMPLE" => sample: NonZeroU32 =
            setting("COUNT", "4", |text| value::count_within(text, NonZeroU32::MIN..=SAMPLE_MAX))
                .added();
        /// Show the entries of the hottest keys, which contain clients' values, to the control plane
        /// too
        "HOT_KEYS_VALUES" => values: bool = switch(false).added();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_selects_headers_in_any_order() {
        let all = asked("ietf, reference,x-ratelimit ,retry-after").unwrap();
        assert_eq!(all, [IETF, REFERENCE, X_RATELIMIT, RETRY_AFTER]);
        assert_eq!(asked("retry-after").unwrap(), [RETRY_AFTER]);
        for list in ["", ",", "ietf,", "IETF", "x_ratelimit", "all"] {
            assert!(asked(list).is_err(), "{list}");
        }
    }
}
