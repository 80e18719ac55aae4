//! Compiles a `rate_limit`: what it allows, and the options of the limit.

use std::num::{NonZeroU8, NonZeroU32};

use super::Compiler;
use super::limit_options::{LeaseOption, LimitOptions};
use crate::failure::FailureMode;
use crate::fault::{Findings, excerpt};
use crate::field::Field;
use crate::file::{LimitFields, RateLimit};
use crate::lease::Leasing;
use crate::limit::{
    Algorithm, FILL_SECONDS_MAX, Limit, SLIDING_LOG_MAX, SLIDING_WINDOW_MAX, Unit,
    WINDOW_SECONDS_MAX,
};
use crate::parsed::Parsed;
use crate::rule::Allowance;

/// The result of a `rate_limit` combined with its file's `defaults`.
pub(super) struct CompiledLimit {
    pub(super) allowance: Allowance,
    pub(super) leasing: Leasing,
    pub(super) shards: NonZeroU8,
    pub(super) charge_denied: bool,
    pub(super) failure_mode: FailureMode,
}

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns `None` if `limit` is faulty, after reporting the fault.
    pub(super) fn compiled_limit(&mut self, limit: &RateLimit<'_>) -> Option<CompiledLimit> {
        if limit.unlimited.is_faulty() {
            return None;
        }
        if limit.unlimited.is_true() {
            return self.unlimited(limit);
        }
        let own = self.options(&limit.options);
        let kind = self.kind(&own);
        let allowed = self.limit(limit, &own, kind);
        let leasing = self.leasing(&own, kind);
        let shards = self.shards(&own, kind, allowed);
        let charge_denied = own.charge_denied.or(&self.defaults.charge_denied);
        let failure_mode = own.failure_mode.or(&self.defaults.failure_mode);
        Some(CompiledLimit {
            allowance: Allowance::Limited(allowed?),
            leasing,
            shards,
            charge_denied: charge_denied.value().copied().unwrap_or(true),
            failure_mode: failure_mode.value().copied().unwrap_or_default(),
        })
    }

    fn unlimited(&mut self, limit: &RateLimit<'_>) -> Option<CompiledLimit> {
        let unit = limit.unit.text();
        let place = limit.unit.place_or(limit.place);
        if limit.unit.is_faulty() {
            return None;
        }
        if Unit::parse(unit).is_some() {
            let message =
                "should not specify rate limit unit when unlimited; remove 'unit' or 'unlimited'";
            self.findings.fault(place, message);
            return None;
        }
        if !unit.is_empty() {
            let shown = excerpt(unit);
            self.findings.warn(place, format!("unit '{shown}' has no effect with 'unlimited'"));
        }
        self.warn_of_idle(limit);
        Some(CompiledLimit {
            allowance: Allowance::Unlimited,
            leasing: Leasing::default(),
            shards: NonZeroU8::MIN,
            charge_denied: true,
            failure_mode: FailureMode::default(),
        })
    }

    /// Warns of the options that have no effect beside `unlimited: true`.
    fn warn_of_idle(&mut self, limit: &RateLimit<'_>) {
        // Without `..`, so that a new field does not compile until it is considered here.
        let RateLimit {
            place: _,
            unit: _,
            requests_per_unit: _,
            unlimited: _,
            name: _,
            replaces: _,
            unit_multiplier,
            burst,
            options:
                LimitFields { algorithm, max_delay, lease, shards, charge_denied, failure_mode },
            store,
        } = limit;
        let idle = [
            (Field::UnitMultiplier, unit_multiplier.place()),
            (Field::Burst, burst.place()),
            (Field::Algorithm, algorithm.place()),
            (Field::MaxDelay, max_delay.place()),
            (Field::Lease, lease.place()),
            (Field::Shards, shards.place()),
            (Field::ChargeDenied, charge_denied.place()),
            (Field::FailureMode, failure_mode.place()),
            (Field::Store, store.place()),
        ];
        for (field, place) in idle {
            if let Some(place) = place {
                let message = format!("'{}' has no effect with 'unlimited'", field.name());
                self.findings.warn(place, message);
            }
        }
    }

    /// Returns the algorithm in force, its amounts not yet filled in. `None` if it is faulty.
    fn kind(&self, own: &LimitOptions) -> Option<Algorithm> {
        match own.algorithm.or(&self.defaults.algorithm) {
            Parsed::Absent => Some(Algorithm::FixedWindow),
            Parsed::Faulty => None,
            Parsed::As(_, algorithm) => Some(*algorithm),
        }
    }

    fn limit(
        &mut self,
        limit: &RateLimit<'_>,
        own: &LimitOptions,
        kind: Option<Algorithm>,
    ) -> Option<Limit> {
        let unit = self.unit(limit);
        let unit_multiplier = self.unit_multiplier(limit, unit);
        let requests_per_unit = self.requests_per_unit(limit, kind);
        let algorithm = self.algorithm(limit, own, kind, requests_per_unit);
        let store = self.store_of_limit(limit);
        let built = Limit {
            requests_per_unit: requests_per_unit?,
            unit: unit?,
            unit_multiplier: unit_multiplier?,
            algorithm: algorithm?,
            store: store?,
        };
        self.within(&limit.burst, |_| check_fill(built));
        Some(built)
    }

    fn unit(&mut self, limit: &RateLimit<'_>) -> Option<Unit> {
        if limit.unit.is_faulty() {
            return None;
        }
        let unit = Unit::parse(limit.unit.text());
        if unit.is_none() {
            let place = limit.unit.place_or(limit.place);
            self.findings.fault(place, unit_refusal(limit.unit.text(), self.findings));
        }
        unit
    }

    fn unit_multiplier(&mut self, limit: &RateLimit<'_>, unit: Option<Unit>) -> Option<NonZeroU32> {
        match self.within(&limit.unit_multiplier, |units| multiplier(units, unit)) {
            Parsed::Absent => Some(NonZeroU32::MIN),
            Parsed::Faulty => None,
            Parsed::As(_, units) => Some(units),
        }
    }

    fn requests_per_unit(&mut self, limit: &RateLimit<'_>, kind: Option<Algorithm>) -> Option<u32> {
        match self.within(&limit.requests_per_unit, |requests| check_requests(requests, kind)) {
            Parsed::As(_, requests) => Some(requests),
            Parsed::Faulty => None,
            Parsed::Absent => {
                let message =
                    "no 'requests_per_unit': every request is denied; write 0 to mean that";
                self.findings.warn(limit.place, message);
                Some(0)
            }
        }
    }

    /// Returns the algorithm with its amounts.
    fn algorithm(
        &mut self,
        limit: &RateLimit<'_>,
        own: &LimitOptions,
        kind: Option<Algorithm>,
        requests_per_unit: Option<u32>,
    ) -> Option<Algorithm> {
        let burst = self.within(&limit.burst, |burst| check_burst(burst, kind));
        self.within(&own.max_delay, |_| check_delays(kind));
        Some(match kind? {
            Algorithm::TokenBucket { .. } => {
                Algorithm::TokenBucket { burst: burst.value().copied().or(requests_per_unit)? }
            }
            Algorithm::LeakyBucket { .. } => {
                let max_delay = own.max_delay.or(&self.defaults.max_delay);
                let max_delay_us = max_delay.value().copied().unwrap_or_default();
                Algorithm::LeakyBucket { max_delay_us }
            }
            other => other,
        })
    }

    fn leasing(&mut self, own: &LimitOptions, kind: Option<Algorithm>) -> Leasing {
        if kind == Some(Algorithm::SlidingLog) {
            self.within(&own.lease, |lease| match lease {
                LeaseOption::Off => Ok(()),
                LeaseOption::On { .. } => {
                    Err("sliding_log is never leased; remove 'lease', or write 'lease: off'".into())
                }
            });
            return Leasing::Off;
        }
        LeaseOption::resolve(own.lease.value(), self.defaults.lease.value())
    }

    /// Returns the number of pools, at most as many as the limit has tokens: further pools would
    /// always be empty, and asking them would be wasted.
    fn shards(
        &mut self,
        own: &LimitOptions,
        kind: Option<Algorithm>,
        limit: Option<Limit>,
    ) -> NonZeroU8 {
        if let Some(Algorithm::LeakyBucket { .. }) = kind {
            self.within(&own.shards, |shards| match shards {
                NonZeroU8::MIN => Ok(()),
                _ => Err("leaky_bucket is one queue and cannot be split; remove 'shards'".into()),
            });
            return NonZeroU8::MIN;
        }
        let shards = own.shards.or(&self.defaults.shards).value().copied();
        let shards = shards.unwrap_or(NonZeroU8::MIN);
        let Some(limit) = limit else { return shards };
        let tokens = limit.capacity().min(limit.requests_per_unit.into());
        let tokens = u8::try_from(tokens).unwrap_or(u8::MAX);
        let useful = shards.min(NonZeroU8::new(tokens).unwrap_or(NonZeroU8::MIN));
        if let Parsed::As(place, own) = own.shards
            && own > useful
        {
            let message = format!("'shards' is more than the limit has tokens; {useful} are used");
            self.findings.warn(place, message);
        }
        useful
    }
}

fn unit_refusal(unit: &str, findings: &Findings) -> String {
    let names = Unit::ALL.map(|unit| unit.name().to_ascii_lowercase());
    let candidates: Vec<&str> = names.iter().map(String::as_str).collect();
    let (shown, meant) = (excerpt(unit), findings.suggestion(unit, &[&candidates]));
    format!("invalid rate limit unit '{shown}'; expected one of {}{meant}", names.join(", "))
}

fn multiplier(units: u32, unit: Option<Unit>) -> Result<NonZeroU32, String> {
    let Some(units) = NonZeroU32::new(units) else {
        return Err("'unit_multiplier' must be at least 1, found 0".to_owned());
    };
    match unit {
        Some(unit) if u64::from(units.get()) * unit.seconds() > WINDOW_SECONDS_MAX => {
            let (name, most) =
                (unit.name().to_ascii_lowercase(), WINDOW_SECONDS_MAX / unit.seconds());
            Err(format!(
                "'unit_multiplier' makes a window of more than ten years; for unit {name} it must \
                 be at most {most}, found {units}"
            ))
        }
        _ => Ok(units),
    }
}

fn check_requests(requests: u32, kind: Option<Algorithm>) -> Result<u32, String> {
    let (most, why) = match kind {
        Some(Algorithm::SlidingLog) => {
            (SLIDING_LOG_MAX, "which keeps the time of each; sliding_window does not")
        }
        Some(Algorithm::SlidingWindow) => {
            (SLIDING_WINDOW_MAX, "which counts to nine digits; token_bucket takes more")
        }
        _ => return Ok(requests),
    };
    if requests <= most {
        return Ok(requests);
    }
    let name = kind.map(Algorithm::name).unwrap_or_default();
    Err(format!("'requests_per_unit' must be at most {most} with {name}, {why}; found {requests}"))
}

fn check_burst(burst: u32, kind: Option<Algorithm>) -> Result<u32, String> {
    match kind {
        Some(Algorithm::TokenBucket { .. }) | None if burst > 0 => Ok(burst),
        Some(Algorithm::TokenBucket { .. }) | None => {
            Err("'burst' must be at least 1, found 0; left out, it is requests_per_unit".to_owned())
        }
        Some(other) => Err(format!(
            "'burst' belongs to token_bucket, and this limit is a {}; write 'algorithm: \
             token_bucket', or remove it",
            other.name()
        )),
    }
}

fn check_delays(kind: Option<Algorithm>) -> Result<(), String> {
    match kind {
        Some(Algorithm::LeakyBucket { .. }) | None => Ok(()),
        Some(other) => Err(format!(
            "'max_delay' belongs to leaky_bucket, and this limit is a {}; write 'algorithm: \
             leaky_bucket', or remove it",
            other.name()
        )),
    }
}

/// Refuses a bucket that would take longer than `FILL_SECONDS_MAX` to fill.
fn check_fill(limit: Limit) -> Result<(), String> {
    let Algorithm::TokenBucket { burst } = limit.algorithm else { return Ok(()) };
    let requests = limit.requests_per_unit;
    let needed = u128::from(burst) * u128::from(limit.window_seconds());
    if needed <= u128::from(FILL_SECONDS_MAX) * u128::from(requests) {
        return Ok(());
    }
    Err(format!(
        "a burst of {burst} takes more than a hundred years to fill at {requests} a window; lower \
         it, or raise 'requests_per_unit'"
    ))
}
