//! Compiles a `rate_limit`: its amounts, and the options of the limit.

use std::num::{NonZeroU8, NonZeroU32};

use super::{Compiler, RulePath};
use crate::fault::{Findings, Place, excerpt};
use crate::limit::{
    Algorithm, Anchor, Calendar, FILL_SECONDS_MAX, FailureMode, Hold, Leasing, Limit, Unit,
    UnlessSettled, WINDOW_SECONDS_MAX, Zone,
};
use crate::options::{
    AnchorOptions, FlagOptions, Flags, HoldOptions, LeaseOption, LimitOptions, MapOptions, Merged,
    RateLimit,
};
use crate::reader::Parsed;
use crate::request::ENTRIES_MAX;
use crate::rule::{Allowance, Level, LevelMatch};

/// The result of a `rate_limit` combined with its file's `defaults`.
pub(super) struct CompiledLimit {
    pub(super) allowance: Allowance,
    pub(super) leasing: Leasing,
    pub(super) shards: NonZeroU8,
    pub(super) hold: Option<Hold>,
    pub(super) flags: Flags,
    pub(super) failure_mode: FailureMode,
}

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns `None` if `limit` is faulty, after reporting the fault. `flags` are the flags of the
    /// descriptor, and `rule_path` ends with its level.
    pub(super) fn compiled_limit(
        &self,
        given: &RateLimit<'_>,
        flags: &FlagOptions,
        rule_path: &RulePath,
    ) -> Option<CompiledLimit> {
        if given.unlimited.is_faulty() {
            return None;
        }
        if given.unlimited.is_true() {
            return self.unlimited(given, flags);
        }
        let own = self.settled(&given.options);
        let in_force = own.over(&self.defaults);
        let kind = match &in_force.algorithm {
            Parsed::Absent => Some(Algorithm::default()),
            other => other.value().copied(),
        };
        let findings = self.findings;
        let counted = Counted { compiler: self, findings, given, own, in_force, kind, rule_path };
        counted.compiled(flags)
    }

    /// Returns options whose values out of range have been reported.
    pub(super) fn settled(&self, options: &LimitOptions) -> LimitOptions {
        let mut settled = options.clone();
        settled.settle(self.findings);
        settled
    }

    fn unlimited(&self, limit: &RateLimit<'_>, flags: &FlagOptions) -> Option<CompiledLimit> {
        let unit = limit.unit.text();
        let place = limit.unit.place_or(limit.place);
        if limit.unit.is_faulty() {
            return None;
        }
        if Unit::parse_any(unit).is_some() {
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
            hold: None,
            flags: flags.flags(false),
            failure_mode: FailureMode::default(),
        })
    }

    /// Warns of the options that have no effect beside `unlimited: true`: those that the reference
    /// does not have.
    fn warn_of_idle(&self, limit: &RateLimit<'_>) {
        let flags = limit.options.flags.iter().map(|(row, flag)| (&row.option, flag.place()));
        for (option, place) in limit.places().chain(limit.options.places()).chain(flags) {
            if let Some(place) = place.filter(|_| !option.is_known_to_reference()) {
                let message = format!("'{}' has no effect with 'unlimited'", option.name);
                self.findings.warn(place, message);
            }
        }
    }
}

/// A `rate_limit` that counts requests, while it is compiled.
struct Counted<'c> {
    compiler: &'c Compiler<'c>,
    findings: &'c Findings,
    given: &'c RateLimit<'c>,
    /// The options that it has itself.
    own: LimitOptions,
    /// The options in force: its own, completed by the file's `defaults`.
    in_force: LimitOptions,
    /// The algorithm of the limit, without amounts; `None` if the algorithm is faulty.
    kind: Option<Algorithm>,
    rule_path: &'c RulePath,
}

// === impl Counted ===

impl Counted<'_> {
    /// Compiles the limit; `flags` are the flags of the descriptor.
    fn compiled(&self, flags: &FlagOptions) -> Option<CompiledLimit> {
        let allowed = self.limit();
        let leasing = self.leasing();
        let shards = self.shards(allowed);
        let hold = self.hold()?;
        let mut flags = flags.over(&self.in_force.flags).flags(hold.is_some());
        self.clear_refused_flags(&mut flags);
        if hold.is_some() {
            let why = "'settle' has no effect with 'hold', whose settlements are marked by their \
                       last entry, ratelease.settle; remove one of them";
            self.refuse_flag(&self.own.flags.settle, &mut flags.settle, why.to_owned());
        }
        Some(CompiledLimit {
            allowance: Allowance::Limited(allowed?),
            leasing,
            shards,
            hold,
            flags,
            failure_mode: self.in_force.failure_mode.value().copied().unwrap_or_default(),
        })
    }

    /// Applies `check` to the value. If `check` refuses it, or if it is out of range anyway, that
    /// is reported.
    fn within<T: Clone, U>(
        &self,
        given: &Parsed<T>,
        check: impl FnOnce(T) -> Result<U, String>,
    ) -> Parsed<U> {
        let checked = given.clone().checked(check);
        if let Parsed::Refused(place, why) = checked {
            self.findings.fault(place, why);
            return Parsed::Faulty;
        }
        checked
    }

    fn limit(&self) -> Option<Limit> {
        let (unit, unit_multiplier, calendar) = self.window();
        let requests_per_unit = self.requests_per_unit();
        let algorithm = self.algorithm(requests_per_unit);
        let store = self.compiler.store_of_limit(self.given);
        let built = Limit {
            requests_per_unit: requests_per_unit?,
            unit: unit?,
            unit_multiplier: unit_multiplier?,
            calendar: calendar?,
            algorithm: algorithm?,
            store: store?,
        };
        if let Parsed::As(place, _) = self.given.burst
            && let Err(why) = check_fill(built)
        {
            self.findings.fault(place, why);
        }
        let has_months = self.compiler.options.calendar_months;
        Some(if has_months { built.with_calendar_month() } else { built })
    }

    /// Returns the unit of the window, their number, and the calendar that it follows.
    #[allow(clippy::type_complexity, reason = "each is None if it is faulty")]
    fn window(&self) -> (Option<Unit>, Option<NonZeroU32>, Option<Option<Calendar>>) {
        let limit = self.given;
        let Some(kind) = self.kind.filter(|kind| !kind.has_window()) else {
            let unit = self.unit();
            let unit_multiplier = self.unit_multiplier(unit);
            let calendar = self.calendar(unit);
            return (unit.map(|(unit, _)| unit), unit_multiplier, calendar);
        };
        for (option, place) in [
            ("unit", limit.unit.place()),
            ("unit_multiplier", limit.unit_multiplier.place()),
            ("time_zone", limit.time_zone.place()),
            ("anchor", limit.anchor.place()),
        ] {
            self.refuse_of_window(kind, option, place);
        }
        (Some(Unit::Second), Some(NonZeroU32::MIN), Some(None))
    }

    /// Refuses an option, if it is given at `place`, for an algorithm that has no window.
    fn refuse_of_window(&self, kind: Algorithm, option: &str, place: Option<Place>) {
        if let Some((place, why)) = place.zip(kind.refuses_window(option)) {
            self.findings.fault(place, why);
        }
    }

    /// Returns the unit; `true` for one of the calendar.
    fn unit(&self) -> Option<(Unit, bool)> {
        let given = &self.given.unit;
        if given.is_faulty() {
            return None;
        }
        let unit = Unit::parse_any(given.text());
        if unit.is_none() {
            let place = given.place_or(self.given.place);
            self.findings.fault(place, unit_refusal(given.text(), self.findings));
        }
        unit
    }

    /// Returns the calendar of a limit whose `unit` is one of the calendar.
    fn calendar(&self, unit: Option<(Unit, bool)>) -> Option<Option<Calendar>> {
        let limit = self.given;
        let zone = self.zone();
        let anchor = self.anchor(unit);
        let (unit, is_calendar) = unit?;
        if !is_calendar {
            let places = [("time_zone", limit.time_zone.place()), ("anchor", limit.anchor.place())];
            let places = places.into_iter().filter_map(|(name, place)| Some((name, place?)));
            let faults: Vec<_> = places.collect();
            for (name, place) in &faults {
                self.findings.fault(*place, needs_calendar(name, unit));
            }
            return faults.is_empty().then_some(None);
        }
        if let Some(kind) = self.kind.filter(|kind| *kind != Algorithm::FixedWindow) {
            let place = self.own.algorithm.place_or(limit.unit.place_or(limit.place));
            let name = unit.name().to_ascii_lowercase();
            let message = format!(
                "calendar_{name} is a fixed window, and this limit is a {}; write 'algorithm: \
                 fixed_window', or 'unit: {name}'",
                kind.name()
            );
            self.findings.fault(place, message);
            return None;
        }
        Some(Some(Calendar::new(zone?, anchor?, unit)))
    }

    fn zone(&self) -> Option<Zone> {
        let name = match &self.given.time_zone {
            Parsed::Absent => Zone::DEFAULT,
            given => given.value()?,
        };
        let zone = Zone::find(name);
        if zone.is_none() {
            let shown = excerpt(name);
            let meant = self.findings.suggestion(name, &[&Zone::names()]);
            let message = format!(
                "unknown time zone '{shown}'; expected a name of the IANA database, such as \
                 Europe/Zurich{meant}"
            );
            self.findings.fault(self.given.time_zone.place_or(self.given.place), message);
        }
        zone
    }

    fn anchor(&self, unit: Option<(Unit, bool)>) -> Option<Anchor> {
        let given = match &self.given.anchor {
            Parsed::Absent => return Some(Anchor::FIRST),
            given => given.value()?,
        };
        let AnchorOptions { weekday, month, day, time } = given;
        let of = |units: &'static [Unit]| (units, unit);
        let weekday =
            self.within(weekday, |weekday| belongs("weekday", weekday, of(&[Unit::Week])));
        let month = self.within(month, |month| belongs("month", month, of(&[Unit::Year])));
        let months = of(&[Unit::Month, Unit::Year]);
        let day = self.within(day, |day| belongs("day", day, months));
        let time = self.within(time, Ok);
        let is_faulty = weekday.is_faulty() || month.is_faulty() || day.is_faulty();
        let day = weekday.value().map(|weekday| weekday.number()).or(day.value().copied());
        (!is_faulty && !time.is_faulty()).then(|| Anchor {
            month: month.value().copied().unwrap_or(Anchor::FIRST.month),
            day: day.unwrap_or(Anchor::FIRST.day),
            minute: time.value().copied().unwrap_or(Anchor::FIRST.minute),
        })
    }

    fn unit_multiplier(&self, unit: Option<(Unit, bool)>) -> Option<NonZeroU32> {
        match self.within(&self.given.unit_multiplier, |units| multiplier(units, unit)) {
            Parsed::Absent => Some(NonZeroU32::MIN),
            Parsed::As(_, units) => Some(units),
            Parsed::Faulty | Parsed::Refused(..) => None,
        }
    }

    fn requests_per_unit(&self) -> Option<u64> {
        let within = |requests| {
            let refusal = self.kind.and_then(|kind| kind.refuses_requests(requests));
            refusal.map_or(Ok(requests), Err)
        };
        match self.within(&self.given.requests_per_unit, within) {
            Parsed::As(_, requests) => Some(requests),
            Parsed::Faulty | Parsed::Refused(..) => None,
            Parsed::Absent => {
                let message =
                    "no 'requests_per_unit': every request is denied; write 0 to mean that";
                self.findings.warn(self.given.place, message);
                Some(0)
            }
        }
    }

    /// Returns the algorithm with its amounts.
    fn algorithm(&self, requests_per_unit: Option<u64>) -> Option<Algorithm> {
        let burst = self.burst();
        self.within(&self.own.max_delay, |_| {
            let refusal = self.kind.and_then(|kind| kind.refuses_option("max_delay"));
            refusal.map_or(Ok(()), Err)
        });
        let max_delay_us = self.in_force.max_delay.value().copied().unwrap_or_default();
        let burst = burst.or(requests_per_unit).unwrap_or_default();
        Some(self.kind?.with_burst(burst).with_max_delay_us(max_delay_us))
    }

    /// Returns the burst that `limit` gives; one that another algorithm has no use for is refused
    /// for that reason, whatever it is.
    fn burst(&self) -> Option<u64> {
        if let Some(place) = self.given.burst.place()
            && let Some(message) = self.kind.and_then(|kind| kind.refuses_option("burst"))
        {
            self.findings.fault(place, message);
            return None;
        }
        self.within(&self.given.burst, |burst| Ok(burst.get())).value().copied()
    }

    fn leasing(&self) -> Leasing {
        if let Some(kind) = self.kind.filter(|kind| !kind.has_window()) {
            self.refuse_of_window(kind, "lease", self.own.lease.place());
            return Leasing::default();
        }
        if let Some(kind) = self.kind.filter(|kind| !kind.is_leased()) {
            if let Parsed::As(place, LeaseOption::On(_)) = self.own.lease {
                let name = kind.name();
                let message =
                    format!("{name} is never leased; remove 'lease', or write 'lease: off'");
                self.findings.fault(place, message);
            }
            return Leasing::Off;
        }
        self.in_force.lease.value().map_or_else(Leasing::default, LeaseOption::leasing)
    }

    /// Clears flags that the algorithm cannot have; one that the limit itself gives is reported.
    fn clear_refused_flags(&self, flags: &mut Flags) {
        let Some(kind) = self.kind else { return };
        let own = &self.own.flags;
        if !kind.has_window() {
            let why = "a start that is denied takes no slot; remove 'charge_denied'".to_owned();
            self.refuse_flag(&own.charge_denied, &mut flags.charge_denied, why);
        }
        let refused = kind.refuses_settlements("settle").or_else(|| kind.refuses_window("settle"));
        if let Some(why) = refused {
            self.refuse_flag(&own.settle, &mut flags.settle, why);
        }
        if kind != Algorithm::FixedWindow {
            let why = format!(
                "'carry_debt' belongs to fixed_window, and this limit is a {}; remove it",
                kind.name()
            );
            self.refuse_flag(&own.carry_debt, &mut flags.carry_debt, why);
        }
    }

    fn refuse_flag(&self, own: &Parsed<bool>, flag: &mut bool, why: String) {
        *flag = false;
        if let Some(place) = own.place().filter(|_| own.is_true()) {
            self.findings.fault(place, why);
        }
    }

    /// Returns the number of pools, at most as many as the limit has tokens: further pools would
    /// always be empty, and asking them would be wasted.
    fn shards(&self, limit: Option<Limit>) -> NonZeroU8 {
        if let Some(kind) = self.kind
            && let Some(why) = kind.has_no_pools()
        {
            self.within(&self.own.shards, |shards| match shards {
                NonZeroU8::MIN => Ok(()),
                _ => Err(format!("{} {why}; remove 'shards'", kind.name())),
            });
            return NonZeroU8::MIN;
        }
        let shards = self.in_force.shards.value().copied().unwrap_or(NonZeroU8::MIN);
        let Some(limit) = limit else { return shards };
        let tokens = limit.capacity().min(limit.requests_per_unit);
        let tokens = u8::try_from(tokens).unwrap_or(u8::MAX);
        let useful = shards.min(NonZeroU8::new(tokens).unwrap_or(NonZeroU8::MIN));
        if let Parsed::As(place, own) = self.own.shards
            && own > useful
        {
            let message = format!("'shards' is more than the limit has tokens; {useful} are used");
            self.findings.warn(place, message);
        }
        useful
    }

    /// Returns the hold of the limit, if it has one; `None` if that is faulty.
    fn hold(&self) -> Option<Option<Hold>> {
        let is_of_slots = self.kind.is_some_and(|kind| !kind.has_window());
        let (place, terms) = match &self.given.hold {
            Parsed::Absent if is_of_slots => {
                let message = "concurrency needs a 'hold', which says how long a request may last \
                               at most; add one, such as 'hold: {for: 5m}'";
                self.findings.fault(self.given.place, message);
                return None;
            }
            Parsed::Absent => return Some(None),
            Parsed::Faulty | Parsed::Refused(..) => return None,
            Parsed::As(place, terms) => (*place, terms),
        };
        let refused = self.kind.and_then(|kind| kind.refuses_settlements("hold"));
        let is_refused = refused.map(|why| self.findings.fault(place, why)).is_some();
        let lasts = self.within(&terms.r#for, Ok);
        if matches!(lasts, Parsed::Absent) {
            let message = "'hold' has no 'for'; add how long a request may last, such as 'for: 2m'";
            self.findings.fault(place, message);
        }
        let level = self.level_of_id(terms, place);
        let unless_settled = match self.within(&terms.unless_settled, Ok) {
            Parsed::Absent if is_of_slots => Some(UnlessSettled::Release),
            Parsed::As(place, UnlessSettled::Keep) if is_of_slots => {
                let message = "concurrency gives slots back after 'for'; remove 'unless_settled'";
                self.findings.fault(place, message);
                return None;
            }
            Parsed::Absent => Some(UnlessSettled::default()),
            given => given.value().copied(),
        };
        let hold = Hold::new(level?, *lasts.value()?, unless_settled?);
        (!is_refused).then_some(Some(hold))
    }

    /// Returns the index of the level that has the id of the request as its value.
    fn level_of_id(&self, terms: &HoldOptions<'_>, place: Place) -> Option<u8> {
        if terms.by.is_faulty() {
            return None;
        }
        let place = terms.by.place_or(place);
        let found = match terms.by.text() {
            "" => self.rule_path.iter().enumerate().last(),
            key => {
                let levels = self.rule_path.iter().enumerate();
                levels.filter(|(_, (level, text))| is_of(key, level, text)).last()
            }
        };
        let refusal = match found {
            None => {
                let keys: Vec<_> = self.rule_path.iter().map(|(_, text)| text).collect();
                let shown = excerpt(terms.by.text());
                let meant = self.findings.suggestion(terms.by.text(), &[&keys]);
                format!("no level of this rule has the key '{shown}'{meant}")
            }
            Some((at, (level, text))) => match refused_as_id(level) {
                Some(why) => {
                    let shown = excerpt(text);
                    format!(
                        "the level '{shown}' cannot be the id of a request: it {why}; name a \
                         level that has only a key, as in hold: {{by: request_id, for: 2m}}"
                    )
                }
                None if at < ENTRIES_MAX => return u8::try_from(at).ok(),
                None => format!("no request has more than {ENTRIES_MAX} entries"),
            },
        };
        self.findings.fault(place, refusal);
        None
    }
}

/// Whether a level with this text has this key, or may have it, besides a value.
fn is_of(key: &str, level: &Level, text: &str) -> bool {
    let is_key = level.matched == LevelMatch::Key;
    text.strip_prefix(key).is_some_and(|rest| rest.is_empty() || (!is_key && rest.starts_with('_')))
}

/// Why the value of a level cannot be the id of a request.
fn refused_as_id(level: &Level) -> Option<&'static str> {
    match level.matched {
        LevelMatch::Value => Some("has a value, which all requests share"),
        LevelMatch::Wildcard(_) => Some("has a wildcard"),
        LevelMatch::Key if level.value_to_metric => {
            Some("has 'value_to_metric', which would make a metric of each request")
        }
        LevelMatch::Key => None,
    }
}

fn unit_refusal(unit: &str, findings: &Findings) -> String {
    let names = Unit::names();
    let candidates: Vec<&str> = names.iter().map(String::as_str).collect();
    let shown = excerpt(unit);
    let meant = findings.suggestion(unit, &[&candidates]);
    format!("invalid rate limit unit '{shown}'; expected one of {}{meant}", names.join(", "))
}

/// Why an option of calendar units cannot stand beside `unit`.
fn needs_calendar(option: &str, unit: Unit) -> String {
    let unit = if Unit::OF_CALENDAR.contains(&unit) { unit } else { Unit::Day };
    let name = unit.name().to_ascii_lowercase();
    format!("'{option}' needs a unit of the calendar; write 'unit: calendar_{name}', or remove it")
}

/// Returns the value of an option of an anchor, if the unit of the calendar is one of those that
/// have it.
fn belongs<T>(
    option: &str,
    value: T,
    (units, unit): (&[Unit], Option<(Unit, bool)>),
) -> Result<T, String> {
    match unit {
        Some((unit, true)) if !units.contains(&unit) => {
            let name = |unit: &Unit| format!("calendar_{}", unit.name().to_ascii_lowercase());
            let names: Vec<_> = units.iter().map(name).collect();
            let (names, unit) = (names.join(" and "), name(&unit));
            Err(format!("'{option}' belongs to {names}, and this unit is {unit}; remove it"))
        }
        _ => Ok(value),
    }
}

fn multiplier(units: NonZeroU32, unit: Option<(Unit, bool)>) -> Result<NonZeroU32, String> {
    match unit {
        Some((_, true)) if units != NonZeroU32::MIN => {
            Err("a window of the calendar is one unit; remove 'unit_multiplier'".to_owned())
        }
        Some((unit, false)) if u64::from(units.get()) * unit.seconds() > WINDOW_SECONDS_MAX => {
            let name = unit.name().to_ascii_lowercase();
            let most = WINDOW_SECONDS_MAX / unit.seconds();
            Err(format!(
                "'unit_multiplier' makes a window of more than ten years; for unit {name} it must \
                 be at most {most}, found {units}"
            ))
        }
        _ => Ok(units),
    }
}

/// Refuses a bucket that would take longer than `FILL_SECONDS_MAX` to fill.
fn check_fill(limit: Limit) -> Result<(), String> {
    let burst = limit.capacity();
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
