//! The options of rule files, in one table: name, kind of value, where the option may stand, and
//! meaning.
//!
//! From the table follow the reader, with all its faults; the merge of a file's `defaults`; which
//! options have no effect where they stand; the JSON Schema, from which `docs/rules-list.md` and
//! the API of the control plane are made; and what `/rlconfig` and the tools show of a rule. To
//! add an option that is true or false, add it to `flags!`, and use it where it has its effect.

use std::num::{NonZeroU8, NonZeroU32, NonZeroU64};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::fault::{Findings, Place, excerpt};
use crate::limit::{
    AMOUNT_MAX, Algorithm, FailureMode, Hold, LeaseTerms, Leasing, MAX_DELAY_MAX, POOLS_MAX,
    UNIT_MULTIPLIER_MAX, UnlessSettled, Weekday,
};
use crate::node::{Kind, Meaning, Node};
use crate::reader::{Entry, Parsed, Reader};
use crate::takes::{
    Field, Flag, Fraction, Metadata, Number, Span, Takes, Text, TimeOfDay, Word, limit_hint,
};

/// An option of rule files.
#[derive(Debug)]
pub struct OptionRow {
    /// The name as rule files write it; names are case-sensitive.
    pub name: &'static str,
    /// The meaning, in a sentence.
    pub meaning: &'static str,
    origin: Origin,
    schema: fn() -> Value,
    is_text: fn() -> bool,
}

/// An option of a rule that is true or false.
#[derive(Debug)]
pub struct FlagRow {
    /// The option.
    pub option: OptionRow,
    /// The value where a file gives none.
    pub default: bool,
    /// How a rule whose value is not the default is shown: a word, and a phrase.
    pub shown: (&'static str, &'static str),
    /// Where it stands: in a descriptor, or in a `rate_limit`, and so in `defaults`.
    pub(crate) map: MapKind,
}

/// An option of release 0.2. Files that still have it are loaded.
pub(crate) const STORE_FROM: &str = "store_from";

/// The warning for [`STORE_FROM`].
pub(crate) const STORE_FROM_HAS_GONE: &str = "'store_from' has no effect any more; remove it. \
    Only 'store' counts the limit: when it changes, windows restart, and up to twice the limit is \
    admitted in the window of the change";

/// Who knows an option. The reference ignores options that it knows in a wrong place, and refuses
/// unknown ones everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The reference, and so ratelease.
    Reference,
    /// Only ratelease.
    Ratelease,
}

crate::named! {
    /// The kinds of map in a rule file, by the names of their definitions in the schema.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MapKind {
        /// The top level of a file.
        Root = "file",
        /// An item of `descriptors`.
        Descriptor = "descriptor",
        /// A `rate_limit`.
        RateLimit = "rate_limit",
        /// An item of `replaces`.
        Replaced = "replaced",
        /// The `defaults` of a file.
        Defaults = "defaults",
        /// The terms of a `lease`.
        Lease = "lease",
        /// The `anchor` of a calendar unit.
        Anchor = "anchor",
        /// The terms of a `hold`.
        Hold = "hold",
    }
}

/// The options of a map as they are read.
pub(crate) trait MapOptions<'d> {
    /// The options, besides flags.
    const ROWS: &'static [OptionRow];

    /// Reads a field, if the map has its option.
    fn read(&mut self, reader: &mut Reader<'d, '_>, field: Field<'d>);

    /// Returns the options with the place of each that is given.
    fn places(&self) -> impl Iterator<Item = (&'static OptionRow, Option<Place>)>;
}

/// An option as it is kept by a map.
pub(crate) trait Given {
    /// Returns where its value begins, if the file gives it.
    fn place(&self) -> Option<Place>;
}

/// The value of an option that a file's `defaults` may give too.
pub(crate) trait Merged: Clone {
    /// Returns this value, completed by the value in `defaults`.
    fn over(&self, _defaults: &Self) -> Self {
        self.clone()
    }

    /// Reports values below this one that are out of range.
    fn settle(&mut self, _findings: &Findings) {}
}

/// Makes the options of a map: a struct of the kept values, and their rows. Before `--` are
/// fields that are no options. If the struct is `merged`, a file's `defaults` may have them too.
macro_rules! options {
    (
        $(#[$about:meta])*
        merged struct $Name:ident {
            $( $(#[$extra_about:meta])* $extra:ident: $Extra:ty, )*
            --
            $( $(#[doc = $meaning:literal])+ $origin:ident $option:ident: $Type:ty = $takes:expr; )+
        }
    ) => {
        options! {
            $(#[$about])*
            #[derive(Clone)]
            struct $Name {
                $( $(#[$extra_about])* $extra: $Extra, )*
                --
                $( $(#[doc = $meaning])+ $origin $option: $Type = $takes; )+
            }
        }

        impl Merged for $Name {
            fn over(&self, defaults: &Self) -> Self {
                Self {
                    $( $extra: self.$extra.over(&defaults.$extra), )*
                    $( $option: self.$option.over(&defaults.$option), )+
                }
            }

            fn settle(&mut self, findings: &Findings) {
                $( self.$option.settle(findings); )+
            }
        }
    };
    (
        $(#[$about:meta])*
        struct $Name:ident $(<$life:lifetime>)? {
            $( $(#[$extra_about:meta])* $extra:ident: $Extra:ty, )*
            --
            $( $(#[doc = $meaning:literal])+ $origin:ident $option:ident: $Type:ty = $takes:expr; )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub(crate) struct $Name $(<$life>)? {
            $( $(#[$extra_about])* pub(crate) $extra: $Extra, )*
            $( $(#[doc = $meaning])+ pub(crate) $option: $Type, )+
        }

        impl<'d> MapOptions<'d> for $Name $(<$life>)? {
            const ROWS: &'static [OptionRow] = &[$(
                OptionRow {
                    name: bare(stringify!($option)),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    origin: Origin::$origin,
                    schema: || $takes.schema(),
                    is_text: || $takes.is_text(),
                },
            )+];

            fn read(&mut self, reader: &mut Reader<'d, '_>, field: Field<'d>) {
                match field.name {
                    $( name if name == bare(stringify!($option)) => {
                        $takes.read(reader, field, &mut self.$option);
                    } )+
                    _ => {}
                }
            }

            fn places(&self) -> impl Iterator<Item = (&'static OptionRow, Option<Place>)> {
                Self::ROWS.iter().zip([$( self.$option.place() ),+])
            }
        }
    };
}

/// Makes the options of rules that are true or false: as they are in a rule, as they are read, and
/// their rows.
macro_rules! flags {
    ($(
        $(#[doc = $meaning:literal])+
        $origin:ident $flag:ident in $map:ident = $default:literal, $label:literal: $shown:literal;
    )+) => {
        /// The options of a rule that are true or false.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Flags {
            $( $(#[doc = $meaning])+ pub $flag: bool, )+
        }

        /// The flags that a map gives.
        #[derive(Debug, Default, Clone)]
        pub(crate) struct FlagOptions {
            $( pub(crate) $flag: Parsed<bool>, )+
        }

        impl Flags {
            /// The table of these options.
            pub const ROWS: &'static [FlagRow] = &[$(
                FlagRow {
                    option: OptionRow {
                        name: stringify!($flag),
                        meaning: concat!($($meaning),+).trim_ascii(),
                        origin: Origin::$origin,
                        schema: || Flag.schema(),
                        is_text: || false,
                    },
                    default: $default,
                    shown: ($label, $shown),
                    map: MapKind::$map,
                },
            )+];

            /// Returns each flag with its row.
            pub fn iter(&self) -> impl Iterator<Item = (&'static FlagRow, bool)> {
                Self::ROWS.iter().zip([$( self.$flag ),+])
            }
        }

        impl Default for Flags {
            fn default() -> Self {
                Self { $( $flag: $default, )+ }
            }
        }

        impl FlagOptions {
            /// Reads a field, if it is a flag.
            pub(crate) fn read<'d>(&mut self, reader: &mut Reader<'d, '_>, field: Field<'d>) {
                match field.name {
                    $( name if name == stringify!($flag) => {
                        Flag.read(reader, field, &mut self.$flag);
                    } )+
                    _ => {}
                }
            }

            /// Returns each flag with its row.
            pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static FlagRow, &Parsed<bool>)> {
                Flags::ROWS.iter().zip([$( &self.$flag ),+])
            }

            /// Returns the flags of a rule for which these are given, which `holds` or not.
            pub(crate) fn flags(&self, holds: bool) -> Flags {
                let default = Flags::of_rule(holds);
                Flags { $( $flag: self.$flag.value().copied().unwrap_or(default.$flag), )+ }
            }
        }

        impl Merged for FlagOptions {
            fn over(&self, defaults: &Self) -> Self {
                Self { $( $flag: self.$flag.over(&defaults.$flag), )+ }
            }
        }
    };
}

options! {
    /// A file, which configures one domain.
    struct File<'d> {
        /// Where the first value of the file begins.
        place: Place,
        --
        /// Domain of the requests, as the rate limit filter of Envoy names it.
        Reference domain: Parsed<&'d str> = Text::Required;
        /// Nodes of the next level; a request's next entry selects one.
        Reference descriptors: Option<&'d Node<'d>> = Nested {
            read: |reader, field, kept| reader.replace(kept, field.node),
            schema: || list(MapKind::Descriptor),
        };
        /// Options of every rate_limit of this file that has none of its own.
        Ratelease defaults: LimitOptions = Nested {
            read: |reader, field, kept| reader.defaults(field.node, kept),
            schema: || reference_or_null(MapKind::Defaults),
        };
        /// Name of the store that counts the limit, of those in REDIS_STORES.
        Ratelease store: Parsed<&'d str> = Text::StoreName;
    }
}

options! {
    /// An item of `descriptors`.
    struct Descriptor<'d> {
        place: Place,
        flags: FlagOptions,
        --
        /// Key of the entry.
        Reference key: Parsed<&'d str> = Text::Required;
        /// Value of the entry; * stands for any text. Without it every value matches, and each
        /// has its own count.
        Reference value: Parsed<&'d str> = Text::Any;
        /// The limit of requests whose last entry is at this node.
        Reference rate_limit: Option<RateLimit<'d>> = Nested {
            read: |reader, field, kept| reader.rate_limit(field.node, kept),
            schema: || reference_or_null(MapKind::RateLimit),
        };
        /// Nodes of the next level; a request's next entry selects one.
        Reference descriptors: Option<&'d Node<'d>> = Nested {
            read: |reader, field, kept| reader.replace(kept, field.node),
            schema: || list(MapKind::Descriptor),
        };
        /// Metrics of the rule have the value of this level.
        Reference value_to_metric: Parsed<bool> = Flag;
        /// All values that match this pattern share one count.
        Reference share_threshold: Parsed<bool> = Flag;
        /// Sent to Envoy as dynamic metadata, as the rule passes or denies.
        Reference metadata: Parsed<Map<String, Value>> = Metadata;
    }
}

options! {
    /// A `rate_limit`.
    struct RateLimit<'d> {
        place: Place,
        /// Those that a file's `defaults` may have too.
        options: LimitOptions,
        --
        /// Unit of the window: a month has 30 days, a year 365; those of the calendar begin at
        /// midnight of the first day in their time_zone. With algorithm concurrency there is none.
        Reference unit: Parsed<&'d str> = Text::UnitName;
        /// Requests in a window, or at a time with algorithm concurrency; 0 denies all.
        Reference requests_per_unit: Parsed<u64> = Number { range: 0..=AMOUNT_MAX, check: Ok };
        /// Everything passes and nothing is counted.
        Reference unlimited: Parsed<bool> = Flag;
        /// Name of the rule in answers, and for replaces.
        Reference name: Parsed<&'d str> = Text::Any;
        /// Rules that are set aside in a request that this rule matches too.
        Reference replaces: Vec<Replaced<'d>> = Nested {
            read: |reader, field, kept| *kept = reader.replaces(field.node),
            schema: || list(MapKind::Replaced),
        };
        /// Units in a window, which is ten years at most.
        Ratelease unit_multiplier: Parsed<NonZeroU32> =
            Number { range: 1..=UNIT_MULTIPLIER_MAX.into(), check: unit_multiplier };
        /// Time zone of a calendar unit, as in Europe/Zurich; UTC by default.
        Ratelease time_zone: Parsed<&'d str> = Text::ZoneName;
        /// When the windows of a calendar unit begin; by default on the first day at 00:00.
        Ratelease anchor: Parsed<AnchorOptions> = Nested {
            read: |reader, field, kept| {
                reader.nested_map::<AnchorOptions>(field, MapKind::Anchor, "a map", kept);
            },
            schema: || reference_or_null(MapKind::Anchor),
        };
        /// Requests that a token_bucket holds; requests_per_unit by default.
        Ratelease burst: Parsed<NonZeroU64> = Number { range: 1..=AMOUNT_MAX, check: burst };
        /// Name of the store that counts the limit, of those in REDIS_STORES.
        Ratelease store: Parsed<&'d str> = Text::StoreName;
        /// The hits of a request are held under its id until its cost is known.
        Ratelease hold: Parsed<HoldOptions<'d>> = Nested {
            read: |reader, field, kept| {
                let expected = "a map such as {for: 2m}";
                reader.nested_map::<HoldOptions<'_>>(field, MapKind::Hold, expected, kept);
            },
            schema: || reference_or_null(MapKind::Hold),
        };
    }
}

options! {
    /// An item of `replaces`.
    struct Replaced<'d> {
        place: Place,
        --
        /// Name of a rule that is set aside.
        Reference name: Parsed<&'d str> = Text::Required;
    }
}

options! {
    /// The options of a limit that do not depend on the amount that it allows: of a `rate_limit`,
    /// or of a file's `defaults`.
    merged struct LimitOptions {
        flags: FlagOptions,
        --
        /// How requests are counted; fixed_window by default.
        Ratelease algorithm: Parsed<Algorithm> =
            Word { what: "algorithm", all: &Algorithm::ALL, name: Algorithm::name };
        /// Longest time that a leaky_bucket holds a request; 0 by default.
        Ratelease max_delay: Parsed<u32> = Span { example: "50ms", check: max_delay };
        /// How tokens are leased to pods; with off every decision asks Redis.
        Ratelease lease: Parsed<LeaseOption> = Nested {
            read: |reader, field, kept| reader.lease(field, kept),
            schema: lease_schema,
        };
        /// Pools of each count, on Redis slots of their own.
        Ratelease shards: Parsed<NonZeroU8> = Number { range: 1..=POOLS_MAX.into(), check: shards };
        /// What answers when Redis cannot be asked; local by default.
        Ratelease failure_mode: Parsed<FailureMode> =
            Word { what: "failure mode", all: &FailureMode::ALL, name: FailureMode::name };
    }
}

options! {
    /// The terms of a `lease`. Those that it does not name come from the defaults of the file,
    /// then from the built-in terms.
    merged struct LeaseOptions {
        --
        /// Part of the remaining tokens that one lease may take; 0.25 by default.
        Ratelease fraction: Parsed<f32> = Fraction;
        /// Most tokens of one lease.
        Ratelease max: Parsed<u64> = Number { range: 1..=AMOUNT_MAX, check: lease_max };
        /// Longest duration of a lease, from 100ms to 60s.
        Ratelease ttl: Parsed<Duration> = Span { example: "2s", check: ttl };
    }
}

options! {
    /// The `anchor` of a calendar unit.
    struct AnchorOptions {
        --
        /// Day on which a calendar_week begins; monday by default.
        Ratelease weekday: Parsed<Weekday> =
            Word { what: "weekday", all: &Weekday::ALL, name: Weekday::name };
        /// Month in which a calendar_year begins; 1 by default.
        Ratelease month: Parsed<NonZeroU8> = Number { range: 1..=MONTH_MAX.into(), check: month };
        /// Day on which a calendar_month or calendar_year begins, the last one in a month with
        /// fewer days; 1 by default.
        Ratelease day: Parsed<NonZeroU8> = Number { range: 1..=DAY_MAX.into(), check: day };
        /// Time at which the window begins, in hours and minutes; 00:00 by default.
        Ratelease time: Parsed<u16> = TimeOfDay;
    }
}

/// The months of a year.
const MONTH_MAX: u8 = 12;

/// The days of the longest month.
const DAY_MAX: u8 = 31;

options! {
    /// The terms of a `hold`.
    struct HoldOptions<'d> {
        --
        /// Key of the level whose value is the id of the request, which is no part of the count;
        /// the last level by default.
        Ratelease by: Parsed<&'d str> = Text::Any;
        /// Longest time from the start of a request to its settlement, from 1s to 24h.
        Ratelease r#for: Parsed<Duration> = Span { example: "2m", check: lasts };
        /// What becomes of the hits that no settlement has come for; keep by default.
        Ratelease unless_settled: Parsed<UnlessSettled> =
            Word { what: "end of a hold", all: &UnlessSettled::ALL, name: UnlessSettled::name };
    }
}

flags! {
    /// Whether a denied charge spends what is left of its own count.
    Ratelease charge_denied in RateLimit = true, "denied": "a denied charge spends nothing";
    /// A charge is a cost that has been incurred: it is counted whole and never denied. The limit
    /// denies requests of 0 hits while nothing is left.
    Ratelease settle in RateLimit = false, "settle": "charges are counted whole and never denied";
    /// In a call whose descriptors all have hits of their own, above 0, the charge is a cost that
    /// has been incurred: if the call is denied, it is counted whole all the same.
    Ratelease settle_own_hits in RateLimit = false,
        "own hits": "counted whole in a call of costs, also if that is denied";
    /// What a fixed_window was charged beyond its limit counts against the next windows.
    Ratelease carry_debt in RateLimit = false,
        "carry": "what is charged beyond the limit counts against the next windows";
    /// The limit is counted and reported, and never denies.
    Reference shadow_mode in Descriptor = false, "shadow": "counted and reported, never denied";
    /// The limit denies only if all quota limits of the request deny.
    Reference quota_mode in Descriptor = false,
        "quota": "denies only together with the request's other quota rules";
    /// Metrics of the rule have all keys and values of the request.
    Reference detailed_metric in Descriptor = false,
        "metrics": "with all keys and values of the request";
}

// === impl Flags ===

impl Flags {
    /// Returns the flags of a rule that gives none. If the rule `holds`, a denied estimate spends
    /// nothing, since its request costs nothing either.
    pub fn of_rule(holds: bool) -> Self {
        let flags = Self::default();
        Self { charge_denied: flags.charge_denied && !holds, ..flags }
    }
}

/// A `lease`.
#[derive(Debug, Clone)]
pub(crate) enum LeaseOption {
    Off,
    /// On, with these terms; `lease: on` names none.
    On(LeaseOptions),
}

/// A map or a list, which the reader reads into the form in which it is kept.
/// [`Reader::descriptors`] reads `descriptors`, one item at a time.
struct Nested<'d, K> {
    read: fn(&mut Reader<'d, '_>, Field<'d>, &mut K),
    schema: fn() -> Value,
}

fn month(number: u64) -> Result<NonZeroU8, String> {
    within("month", number, MONTH_MAX)
}

fn day(number: u64) -> Result<NonZeroU8, String> {
    within("day", number, DAY_MAX)
}

/// Returns a number from 1 to `most`.
fn within(name: &str, number: u64, most: u8) -> Result<NonZeroU8, String> {
    let within = u8::try_from(number).ok().filter(|number| *number <= most);
    within
        .and_then(NonZeroU8::new)
        .ok_or_else(|| format!("'{name}' must be from 1 to {most}, found {number}"))
}

/// The name of a raw identifier.
const fn bare(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

fn unit_multiplier(units: u64) -> Result<NonZeroU32, String> {
    let fitting = u32::try_from(units).ok().and_then(NonZeroU32::new);
    fitting.ok_or_else(|| format!("'unit_multiplier' must be at least 1, found {units}"))
}

fn burst(requests: u64) -> Result<NonZeroU64, String> {
    NonZeroU64::new(requests).ok_or_else(|| {
        "'burst' must be at least 1, found 0; left out, it is requests_per_unit".to_owned()
    })
}

/// The delay in microseconds.
fn max_delay(span: Duration) -> Result<u32, String> {
    let micros = u32::try_from(span.as_micros()).ok().filter(|_| span <= MAX_DELAY_MAX);
    micros.ok_or_else(|| format!("'max_delay' must be from 0 to {MAX_DELAY_MAX:?}, found {span:?}"))
}

fn shards(count: u64) -> Result<NonZeroU8, String> {
    within("shards", count, POOLS_MAX)
}

fn lease_max(tokens: u64) -> Result<u64, String> {
    match tokens {
        0 => Err("'max' must be at least 1, found 0; to lease nothing write 'lease: off'".into()),
        _ => Ok(tokens),
    }
}

fn ttl(span: Duration) -> Result<Duration, String> {
    let least = LeaseTerms::TTL_MIN;
    let most = LeaseTerms::TTL_MAX;
    if (least..=most).contains(&span) {
        return Ok(span);
    }
    Err(format!("'ttl' must be from {least:?} to {most:?}, found {span:?}"))
}

fn lasts(span: Duration) -> Result<Duration, String> {
    let least = Hold::LASTS_MIN;
    let most = Hold::LASTS_MAX;
    if (least..=most).contains(&span) {
        return Ok(span);
    }
    Err(format!("'for' must be from 1s to 24h, found {span:?}"))
}

// === impl OptionRow ===

impl OptionRow {
    /// Returns the JSON Schema of the value, without its meaning.
    pub fn schema(&self) -> Value {
        (self.schema)()
    }

    /// Returns whether the value is text, whatever it looks like, as in `name: 007`.
    pub fn is_text(&self) -> bool {
        (self.is_text)()
    }

    /// Returns whether the reference knows the option in this map.
    pub fn is_known_to_reference(&self) -> bool {
        self.origin == Origin::Reference
    }
}

// === impl MapKind ===

impl MapKind {
    /// Returns the options that the map may hold.
    pub fn options(self) -> impl Iterator<Item = &'static OptionRow> {
        let (own, more) = match self {
            MapKind::Root => (File::ROWS, [].as_slice()),
            MapKind::Descriptor => (Descriptor::ROWS, [].as_slice()),
            MapKind::RateLimit => (RateLimit::ROWS, LimitOptions::ROWS),
            MapKind::Replaced => (Replaced::ROWS, [].as_slice()),
            MapKind::Defaults => (LimitOptions::ROWS, [].as_slice()),
            MapKind::Lease => (LeaseOptions::ROWS, [].as_slice()),
            MapKind::Anchor => (AnchorOptions::ROWS, [].as_slice()),
            MapKind::Hold => (HoldOptions::ROWS, [].as_slice()),
        };
        let of_flags = if self == MapKind::Defaults { MapKind::RateLimit } else { self };
        let flags = Flags::ROWS.iter().filter(move |flag| flag.map == of_flags);
        own.iter().chain(more).chain(flags.map(|flag| &flag.option))
    }

    /// Returns the option of this name, if the map may hold it.
    pub fn option(self, name: &str) -> Option<&'static OptionRow> {
        self.options().find(|option| option.name == name)
    }

    /// Returns whether the reference knows this kind of map.
    pub(crate) const fn is_known_to_reference(self) -> bool {
        use MapKind::{Anchor, Defaults, Hold, Lease};
        !matches!(self, Defaults | Lease | Hold | Anchor)
    }

    /// Describes the map, for a message.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            MapKind::Root => "the file's top level",
            MapKind::Descriptor => "a descriptor",
            MapKind::RateLimit => "'rate_limit'",
            MapKind::Replaced => "an item of 'replaces'",
            MapKind::Defaults => "'defaults'",
            MapKind::Lease => "'lease'",
            MapKind::Anchor => "'anchor'",
            MapKind::Hold => "'hold'",
        }
    }

    /// Describes where options of this name stand, for a message.
    pub(crate) fn homes_of(name: &str) -> String {
        let maps = MapKind::ALL.into_iter().filter(|map| map.option(name).is_some());
        maps.map(MapKind::describe).collect::<Vec<_>>().join(" or ")
    }

    /// Returns the message for a name that no map may hold.
    pub(crate) fn refusal(self, name: &str, findings: &Findings) -> String {
        let names: Vec<_> = self.options().map(|option| option.name).collect();
        let all: Vec<_> = all().map(|option| option.name).collect();
        let meant = findings.suggestion(name, &[&names, &all]);
        let shown = excerpt(name);
        format!("unknown key '{shown}'; expected one of {}{meant}", names.join(", "))
    }
}

/// All options of all maps.
fn all() -> impl Iterator<Item = &'static OptionRow> {
    MapKind::ALL.into_iter().flat_map(MapKind::options)
}

/// Returns whether the reference knows an option of this name; `None` if there is none.
pub(crate) fn is_known_to_reference(name: &str) -> Option<bool> {
    all().find(|option| option.name == name).map(OptionRow::is_known_to_reference)
}

// === impl Nested ===

impl<'d, K> Takes<'d> for Nested<'d, K> {
    type Kept = K;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut K) {
        (self.read)(reader, field, kept);
    }

    fn schema(&self) -> Value {
        (self.schema)()
    }
}

/// Without quotes, `off` and `on` are booleans in YAML 1.1.
fn lease_schema() -> Value {
    json!({"anyOf": [
        {"enum": ["off", "on"]}, {"type": ["boolean", "null"]}, reference(MapKind::Lease),
    ]})
}

fn reference_or_null(map: MapKind) -> Value {
    json!({"anyOf": [reference(map), {"type": "null"}]})
}

fn reference(map: MapKind) -> Value {
    json!({"$ref": format!("#/definitions/{}", map.name())})
}

fn list(map: MapKind) -> Value {
    json!({"type": ["array", "null"], "items": reference(map)})
}

// === impl Given ===

impl<T> Given for Parsed<T> {
    fn place(&self) -> Option<Place> {
        self.place()
    }
}

impl Given for Option<&Node<'_>> {
    fn place(&self) -> Option<Place> {
        self.map(|node| node.place)
    }
}

impl Given for Option<RateLimit<'_>> {
    fn place(&self) -> Option<Place> {
        self.as_ref().map(|limit| limit.place)
    }
}

impl Given for Vec<Replaced<'_>> {
    fn place(&self) -> Option<Place> {
        self.first().map(|replaced| replaced.place)
    }
}

impl Given for LimitOptions {
    fn place(&self) -> Option<Place> {
        self.places().find_map(|(_, place)| place)
    }
}

// === impl Merged ===

impl Merged for bool {}
impl Merged for u32 {}
impl Merged for u64 {}
impl Merged for f32 {}
impl Merged for NonZeroU8 {}
impl Merged for Duration {}
impl Merged for Algorithm {}
impl Merged for FailureMode {}

impl Merged for LeaseOption {
    fn over(&self, defaults: &Self) -> Self {
        match (self, defaults) {
            (LeaseOption::On(own), LeaseOption::On(defaults)) => {
                LeaseOption::On(own.over(defaults))
            }
            (own, _) => own.clone(),
        }
    }

    fn settle(&mut self, findings: &Findings) {
        if let LeaseOption::On(terms) = self {
            terms.settle(findings);
        }
    }
}

impl<T: Merged> Merged for Parsed<T> {
    fn over(&self, defaults: &Self) -> Self {
        match (self, defaults) {
            (Parsed::Absent, defaults) => defaults.clone(),
            (Parsed::As(place, own), Parsed::As(_, defaults)) => {
                Parsed::As(*place, own.over(defaults))
            }
            (own, _) => own.clone(),
        }
    }

    fn settle(&mut self, findings: &Findings) {
        match self {
            Parsed::As(_, value) => value.settle(findings),
            Parsed::Refused(place, why) => {
                findings.fault(*place, std::mem::take(why));
                *self = Parsed::Faulty;
            }
            Parsed::Absent | Parsed::Faulty => {}
        }
    }
}

// === impl LeaseOption ===

impl LeaseOption {
    /// Returns the terms in force, where the built-in ones complete these.
    pub(crate) fn leasing(&self) -> Leasing {
        let LeaseOption::On(LeaseOptions { fraction, max, ttl }) = self else {
            return Leasing::Off;
        };
        let built_in = LeaseTerms::default();
        Leasing::On(LeaseTerms {
            fraction: fraction.value().copied().unwrap_or(built_in.fraction),
            max: max.value().copied().unwrap_or(built_in.max),
            ttl: ttl.value().copied().or(built_in.ttl),
        })
    }
}

// Reads the maps of a rule file: each value as written, with its place, checked only for its type
// and range.
//
// Descriptors are read one at a time, and the children of a descriptor only once it has been
// processed. So even with a million descriptors, only one path through them is in memory.

/// Reads the outermost map of a file, except its descriptors.
pub(crate) fn read_file<'d>(reader: &mut Reader<'d, '_>) -> File<'d> {
    let root = reader.root();
    let place = root.map_or(Place::START, |root| root.place);
    let mut file = File { place, ..File::default() };
    if let Some(root) = root
        && let Some(entries) = reader.map(root, "the file")
    {
        for field in reader.options(entries, MapKind::Root) {
            file.read(reader, field);
        }
    } else if root.is_some_and(|root| !is_null(root)) {
        // The wrong type has been reported; a further fault for the missing domain would add
        // nothing.
        file.domain = Parsed::Faulty;
    }
    file
}

fn is_null(node: &Node<'_>) -> bool {
    matches!(node.kind, Kind::Scalar(_, Meaning::Null))
}

// === impl Reader: the maps of a rule file ===

impl<'d> Reader<'d, '_> {
    /// Reads the items of a `descriptors` list one by one and passes each to `take`, which may in
    /// turn read the descriptors below it.
    pub(crate) fn descriptors(
        &mut self,
        list: &'d Node<'d>,
        mut take: impl FnMut(&mut Self, &Descriptor<'d>),
    ) {
        self.inside(list.place, |reader| {
            reader.maps(list, "descriptors", |reader, place, entries| {
                let descriptor = reader.descriptor(place, entries);
                take(reader, &descriptor);
            });
        });
    }

    /// Stores `list`. A list that it replaces is read only to report its faults.
    fn replace(&mut self, descriptors: &mut Option<&'d Node<'d>>, list: &'d Node<'d>) {
        if let Some(replaced) = descriptors.replace(list) {
            self.sift(replaced);
        }
    }

    fn sift(&mut self, list: &'d Node<'d>) {
        self.descriptors(list, |reader, descriptor| {
            descriptor.descriptors.into_iter().for_each(|list| reader.sift(list));
        });
    }

    fn descriptor(&mut self, place: Place, entries: Vec<Entry<'d>>) -> Descriptor<'d> {
        let mut read = Descriptor { place, ..Descriptor::default() };
        for field in self.options(entries, MapKind::Descriptor) {
            read.read(self, field);
            read.flags.read(self, field);
        }
        read
    }

    /// Returns the options that are allowed in a `map` of this kind, and reports the others.
    fn options(&mut self, entries: Vec<Entry<'d>>, map: MapKind) -> Vec<Field<'d>> {
        let mut options: Vec<(&'static str, Entry<'d>)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(name) = self.key_text(entry.key) else { continue };
            let Some(option) = map.option(name) else {
                self.refuse_here(entry, name, map);
                continue;
            };
            // A map has few different options but may repeat one; only the last copy counts.
            let earlier = options.iter().rev().find(|(other, _)| *other == option.name);
            if let Some((_, earlier)) = earlier {
                self.warn_of_duplicate(name, *earlier, entry);
            }
            options.push((option.name, entry));
        }
        options.into_iter().map(|(name, entry)| Field { name, node: entry.value }).collect()
    }

    /// Reports an option that does not belong to this kind of map. One that the reference ignores
    /// there loads with a warning.
    fn refuse_here(&mut self, entry: Entry<'d>, name: &str, map: MapKind) {
        let place = entry.key.place;
        let homes = || MapKind::homes_of(name);
        match is_known_to_reference(name) {
            None if name == STORE_FROM => self.warn(place, STORE_FROM_HAS_GONE),
            None => self.refuse_key(place, name, map),
            Some(is_known) if !(map.is_known_to_reference() && is_known) => {
                self.fault(place, format!("'{name}' cannot stand here; it belongs to {}", homes()));
            }
            Some(_) => {
                let message = format!("'{name}' has no effect here; it belongs to {}", homes());
                self.warn(place, message);
                if name != "metadata" {
                    self.report_unknown_keys(entry.value, map);
                }
            }
        }
    }

    /// Reports a name that a map of this kind may not hold.
    fn refuse_key(&mut self, place: Place, name: &str, map: MapKind) {
        let findings = self.findings;
        findings.fault_with(place, || map.refusal(name, findings));
    }

    /// Returns the text of a map's key; reports a key that is not text.
    fn key_text(&mut self, key: &'d Node<'d>) -> Option<&'d str> {
        match &key.kind {
            Kind::Scalar(text, Meaning::Text | Meaning::Merge) => Some(text),
            Kind::Scalar(text, _) => {
                let shown = excerpt(text);
                let message =
                    format!("key is not of type string: {shown}; expected the name of a setting");
                self.fault(key.place, message);
                None
            }
            _ => {
                let what = key.describe();
                self.fault(key.place, format!("key is not of type string: {what}"));
                None
            }
        }
    }

    /// Checks the names in a value that is ignored, as the reference does.
    fn report_unknown_keys(&mut self, node: &'d Node<'d>, map: MapKind) {
        self.inside(node.place, |reader| match &node.kind {
            Kind::Map(pairs) => {
                for entry in reader.entries(pairs) {
                    let Some(name) = reader.key_text(entry.key) else { continue };
                    match (name, is_known_to_reference(name)) {
                        // The last two may hold fractions.
                        (STORE_FROM | "metadata" | "lease", _) => {}
                        (_, None) => reader.refuse_key(entry.key.place, name, map),
                        _ => reader.report_unknown_keys(entry.value, map),
                    }
                }
            }
            Kind::List(ids) => {
                for item in reader.items(ids) {
                    match item.kind {
                        Kind::Map(_) => reader.report_unknown_keys(item, map),
                        _ => reader.refuse_item(item, "name: …"),
                    }
                }
            }
            Kind::Scalar(text, Meaning::Float(_) | Meaning::Big(_)) => {
                let shown = excerpt(text);
                reader.fault(node.place, format!("error checking config: number {shown} unused"));
            }
            _ => {}
        });
    }

    /// Reads into the limit that is already there, as yaml.v2 does: if a limit was merged in by
    /// `<<`, the file's own `rate_limit` changes only the options that it names. The same holds for
    /// the maps within it.
    fn rate_limit(&mut self, node: &'d Node<'d>, limit: &mut Option<RateLimit<'d>>) {
        if is_null(node) {
            *limit = None;
            return;
        }
        let at = || RateLimit { place: node.place, ..RateLimit::default() };
        let read = limit.get_or_insert_with(at);
        let Kind::Map(pairs) = &node.kind else {
            self.refuse_with(node, "'rate_limit'", "a map", Some(limit_hint(node)));
            // Avoids further reports of the options that are missing.
            read.unit = Parsed::Faulty;
            read.requests_per_unit = Parsed::Faulty;
            return;
        };
        let entries = self.entries(pairs);
        for field in self.options(entries, MapKind::RateLimit) {
            read.read(self, field);
            read.options.read(self, field);
            read.options.flags.read(self, field);
        }
    }

    /// Reads a file's `defaults`.
    fn defaults(&mut self, node: &'d Node<'d>, options: &mut LimitOptions) {
        if is_null(node) {
            *options = LimitOptions::default();
            return;
        }
        let Some(entries) = self.map(node, "'defaults'") else { return };
        for field in self.options(entries, MapKind::Defaults) {
            options.read(self, field);
            options.flags.read(self, field);
        }
    }

    /// Without quotes, `off` and `on` are booleans in YAML 1.1; in quotes they are text.
    fn lease(&mut self, field: Field<'d>, lease: &mut Parsed<LeaseOption>) {
        let node = field.node;
        let word = match &node.kind {
            Kind::Scalar(_, Meaning::Null) => {
                *lease = Parsed::Absent;
                return;
            }
            Kind::Map(pairs) => {
                let entries = self.entries(pairs);
                *lease = Parsed::As(node.place, self.lease_terms(entries, std::mem::take(lease)));
                return;
            }
            Kind::Scalar(_, Meaning::Bool(on)) => Some(*on),
            Kind::Scalar(text, Meaning::Text) if text == "on" => Some(true),
            Kind::Scalar(text, Meaning::Text) if text == "off" => Some(false),
            _ => None,
        };
        *lease = match word {
            Some(true) => {
                Parsed::As(node.place, self.lease_terms(Vec::new(), std::mem::take(lease)))
            }
            Some(false) => Parsed::As(node.place, LeaseOption::Off),
            None => self.refuse(field, "off, on, or a map such as {max: 1000}"),
        };
    }

    fn lease_terms(
        &mut self,
        entries: Vec<Entry<'d>>,
        earlier: Parsed<LeaseOption>,
    ) -> LeaseOption {
        let mut read = match earlier {
            Parsed::As(_, LeaseOption::On(terms)) => terms,
            _ => LeaseOptions::default(),
        };
        for field in self.options(entries, MapKind::Lease) {
            read.read(self, field);
        }
        LeaseOption::On(read)
    }

    /// Reads a map of this kind into the one that is already there.
    fn nested_map<M: MapOptions<'d> + Default>(
        &mut self,
        field: Field<'d>,
        map: MapKind,
        expected: &str,
        kept: &mut Parsed<M>,
    ) {
        let node = field.node;
        if is_null(node) {
            *kept = Parsed::Absent;
            return;
        }
        let Kind::Map(pairs) = &node.kind else {
            *kept = self.refuse(field, expected);
            return;
        };
        let mut read = match std::mem::take(kept) {
            Parsed::As(_, earlier) => earlier,
            _ => M::default(),
        };
        let entries = self.entries(pairs);
        for field in self.options(entries, map) {
            read.read(self, field);
        }
        *kept = Parsed::As(node.place, read);
    }

    fn replaces(&mut self, node: &'d Node<'d>) -> Vec<Replaced<'d>> {
        let mut items = Vec::new();
        self.maps(node, "replaces", |reader, place, entries| {
            let mut read = Replaced { place, ..Replaced::default() };
            for field in reader.options(entries, MapKind::Replaced) {
                read.read(reader, field);
            }
            items.push(read);
        });
        items
    }
}
