//! The options of a limit, as one map of a rule file gives them. A value out of range is reported.

use std::num::NonZeroU8;
use std::time::Duration;

use super::Compiler;
use crate::failure::FailureMode;
use crate::fault::{Findings, excerpt};
use crate::file;
use crate::lease::{LeaseTerms, Leasing};
use crate::limit::{Algorithm, MAX_DELAY_MAX, POOLS_MAX};
use crate::parsed::Parsed;

/// The options of a limit, from a rule or from its file's `defaults`.
#[derive(Debug, Default, Clone)]
pub(super) struct LimitOptions {
    /// The amounts are not filled in yet.
    pub(super) algorithm: Parsed<Algorithm>,
    /// In microseconds.
    pub(super) max_delay: Parsed<u32>,
    pub(super) lease: Parsed<LeaseOption>,
    pub(super) shards: Parsed<NonZeroU8>,
    pub(super) charge_denied: Parsed<bool>,
    pub(super) failure_mode: Parsed<FailureMode>,
}

/// A `lease` setting. Terms that it does not name come from the next source: the defaults of the
/// file, then the built-in terms.
#[derive(Debug, Clone, Copy)]
pub(super) enum LeaseOption {
    Off,
    On { fraction: Option<f32>, max: Option<u32>, ttl: Option<Duration> },
}

// === impl Compiler ===

impl Compiler<'_> {
    pub(super) fn options(&mut self, read: &file::LimitFields<'_>) -> LimitOptions {
        let findings = self.findings;
        LimitOptions {
            algorithm: self.within(&read.algorithm, |name| algorithm(name, findings)),
            max_delay: self.within(&read.max_delay, max_delay),
            lease: self.lease(&read.lease),
            shards: self.within(&read.shards, shards),
            charge_denied: self.within(&read.charge_denied, Ok),
            failure_mode: self.within(&read.failure_mode, |name| failure_mode(name, findings)),
        }
    }

    fn lease(&mut self, read: &Parsed<file::LeaseField>) -> Parsed<LeaseOption> {
        match read {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty => Parsed::Faulty,
            Parsed::As(place, file::LeaseField::Off) => Parsed::As(*place, LeaseOption::Off),
            Parsed::As(place, file::LeaseField::On(terms)) => {
                let lease = LeaseOption::On {
                    fraction: self.within(&terms.fraction, fraction).value().copied(),
                    max: self.within(&terms.max, lease_max).value().copied(),
                    ttl: self.within(&terms.ttl, ttl).value().copied(),
                };
                Parsed::As(*place, lease)
            }
        }
    }

    /// Applies `check` to the value. If `check` refuses it, its error is reported.
    pub(super) fn within<T: Copy, U>(
        &mut self,
        given: &Parsed<T>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Parsed<U> {
        match given {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty => Parsed::Faulty,
            Parsed::As(place, value) => match check(*value) {
                Ok(value) => Parsed::As(*place, value),
                Err(why) => {
                    self.findings.fault(*place, why);
                    Parsed::Faulty
                }
            },
        }
    }
}

/// Returns the algorithm called `name`; like units, names are case-insensitive.
fn algorithm(name: &str, findings: &Findings) -> Result<Algorithm, String> {
    let named = |algorithm: &Algorithm| algorithm.name().eq_ignore_ascii_case(name);
    let found = Algorithm::ALL.into_iter().find(named);
    let names = Algorithm::ALL.map(Algorithm::name);
    found.ok_or_else(|| unknown("algorithm", name, &names, findings))
}

/// Returns the failure mode called `name`; like units, names are case-insensitive.
fn failure_mode(name: &str, findings: &Findings) -> Result<FailureMode, String> {
    let named = |mode: &FailureMode| mode.name().eq_ignore_ascii_case(name);
    let found = FailureMode::ALL.into_iter().find(named);
    let names = FailureMode::ALL.map(FailureMode::name);
    found.ok_or_else(|| unknown("failure mode", name, &names, findings))
}

fn unknown(what: &str, name: &str, names: &[&str], findings: &Findings) -> String {
    let (shown, meant) = (excerpt(name), findings.suggestion(name, &[names]));
    format!("unknown {what} '{shown}'; expected one of {}{meant}", names.join(", "))
}

fn max_delay(span: Duration) -> Result<u32, String> {
    let micros = u32::try_from(span.as_micros()).ok().filter(|_| span <= MAX_DELAY_MAX);
    micros.ok_or_else(|| format!("'max_delay' must be from 0 to {MAX_DELAY_MAX:?}, found {span:?}"))
}

fn shards(count: u32) -> Result<NonZeroU8, String> {
    let within = u8::try_from(count).ok().filter(|count| *count <= POOLS_MAX);
    within
        .and_then(NonZeroU8::new)
        .ok_or_else(|| format!("'shards' must be from 1 to {POOLS_MAX}, found {count}"))
}

fn fraction(number: f64) -> Result<f32, String> {
    #[allow(clippy::cast_possible_truncation, reason = "checked for 0; the rest is rounding")]
    let rounded = number as f32;
    if rounded > 0.0 && number <= 1.0 {
        return Ok(rounded);
    }
    Err(format!("'fraction' must be above 0 and at most 1, found {number:?}"))
}

fn lease_max(tokens: u32) -> Result<u32, String> {
    match tokens {
        0 => Err("'max' must be at least 1, found 0; to lease nothing write 'lease: off'".into()),
        _ => Ok(tokens),
    }
}

fn ttl(span: Duration) -> Result<Duration, String> {
    let (least, most) = (LeaseTerms::TTL_MIN, LeaseTerms::TTL_MAX);
    if (least..=most).contains(&span) {
        return Ok(span);
    }
    Err(format!("'ttl' must be from {least:?} to {most:?}, found {span:?}"))
}

// === impl LeaseOption ===

impl LeaseOption {
    /// Returns the terms in force. Each comes from `own`, else from `default`, else is the built-in
    /// one.
    pub(super) fn resolve(own: Option<&LeaseOption>, default: Option<&LeaseOption>) -> Leasing {
        let none = LeaseOption::On { fraction: None, max: None, ttl: None };
        let (own, default) = match own {
            Some(own) => (own, default.unwrap_or(&none)),
            None => (default.unwrap_or(&none), &none),
        };
        let LeaseOption::On { fraction, max, ttl } = *own else { return Leasing::Off };
        let (or_fraction, or_max, or_ttl) = match *default {
            LeaseOption::On { fraction, max, ttl } => (fraction, max, ttl),
            LeaseOption::Off => (None, None, None),
        };
        let built_in = LeaseTerms::default();
        Leasing::On(LeaseTerms {
            fraction: fraction.or(or_fraction).unwrap_or(built_in.fraction),
            max: max.or(or_max).unwrap_or(built_in.max),
            ttl: ttl.or(or_ttl).or(built_in.ttl),
        })
    }
}
