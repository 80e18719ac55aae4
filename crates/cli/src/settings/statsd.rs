//! Settings for counts that are pushed to statsd or DogStatsD, as the reference pushes them.

use std::ops::RangeInclusive;
use std::time::Duration;

use regex_lite::Regex;

use super::fault::{Expected, Fault, Faults};
use super::table::{Values, optional, setting, switch};
use super::value::{self, HostPort};
use crate::settings;

/// Maximum number of tags, of mogrifiers, and of the tags of one mogrifier.
const TAGS_MAX: usize = 64;
const MOGRIFIERS_MAX: usize = 64;

/// Range of the time between pushes.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Variables that Datadog's client library adds as tags to what the reference sends to DogStatsD,
/// with the names of these tags.
pub(crate) const DATADOG_TAGS: [(&str, &str); 4] = [
    ("DD_ENTITY_ID", "dd.internal.entity_id"),
    ("DD_ENV", "env"),
    ("DD_SERVICE", "service"),
    ("DD_VERSION", "version"),
];

/// A name and its value.
pub type Tag = (String, String);

/// Where counts are pushed, and how they are written there.
#[derive(Debug, Clone, PartialEq)]
pub struct Statsd {
    /// The server.
    pub address: HostPort,
    /// How it is reached.
    pub protocol: StatsdProtocol,
    /// How metrics are written.
    pub dialect: StatsdDialect,
    /// Tags of all metrics, by name.
    pub tags: Vec<Tag>,
    /// Time between pushes.
    pub interval: Duration,
}

/// The transport of statsd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsdProtocol {
    /// A connection that stays open.
    Tcp,
    /// Datagrams, which may be lost.
    Udp,
}

/// How a metric and its tags are written.
#[derive(Debug, Clone, PartialEq)]
pub enum StatsdDialect {
    /// Tags are parts of the name, as in `hits.__zone=a`.
    Statsd,
    /// Tags follow the value; these rules rename metrics, the first that matches.
    DogStatsd(Vec<Mogrifier>),
}

/// Renames metrics whose name matches, and makes tags of parts of the name.
#[derive(Debug, Clone)]
pub struct Mogrifier {
    /// Selects metrics, and parts of their names.
    pub pattern: Regex,
    /// The new name, where `$1` stands for the first part.
    pub name: String,
    /// Tags; their values are such texts too.
    pub tags: Vec<Tag>,
}

settings! {
    /// Where counts are pushed.
    pub(super) struct Pushed in "statsd" {
        /// Push the reference's counts to statsd
        "USE_STATSD" => has_statsd: bool = switch(false);
        /// Push the reference's counts to DogStatsD, over UDP
        "USE_DOG_STATSD" => has_dog_statsd: bool = switch(false);
        /// Rules that rename metrics for DogStatsD, first match first: each NAME has
        /// DOG_STATSD_MOGRIFIER_NAME_PATTERN, _NAME and _TAGS
        "USE_DOG_STATSD_MOGRIFIERS" => mogrifiers: Vec<String> = optional("NAME,NAME", names);
        /// Host of statsd or DogStatsD
        "STATSD_HOST" => host: String = setting("HOST", "localhost", value::host);
        /// Its port
        "STATSD_PORT" => port: u16 = setting("PORT", "8125", value::port);
        /// Protocol of statsd: tcp or udp
        "STATSD_PROTOCOL" => protocol: StatsdProtocol = setting("PROTOCOL", "tcp", protocol);
        /// Tags of all metrics there
        "EXTRA_TAGS" => tags: Vec<Tag> = optional("KEY:VALUE,KEY:VALUE", tags);
        /// Time between pushes
        "STATS_FLUSH_INTERVAL" => interval: Duration =
            setting("DURATION", "10s", |text| value::duration_within(text, INTERVAL));
    }
}

// === impl Statsd ===

impl Statsd {
    /// Warns of a push that is asked for while nothing is counted: as in the reference, there is
    /// none.
    pub(super) fn warning(values: Values<'_>) -> Option<String> {
        let asked = Pushed::read(values, &mut Faults::default());
        let name = match (asked.has_statsd, asked.has_dog_statsd) {
            (true, _) => "USE_STATSD",
            (false, true) => "USE_DOG_STATSD",
            (false, false) => return None,
        };
        Some(format!(
            "{name}: nothing is pushed, since DISABLE_STATS=true prevails; unset one of them"
        ))
    }

    /// Reads the settings; `None` if nothing is pushed. `env` has the variables without flags.
    pub(super) fn read(
        values: Values<'_>,
        env: &dyn Fn(&str) -> Option<String>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let given = Pushed::read(values, faults);
        if given.has_statsd && given.has_dog_statsd {
            let problem = "statsd and DogStatsD are asked for, and one address is given";
            let fix = "set USE_STATSD=false or USE_DOG_STATSD=false";
            faults.add(Fault::new("USE_DOG_STATSD", problem, fix).with_found("true"));
        }
        if !given.has_statsd && !given.has_dog_statsd {
            return None;
        }
        let mut tags = given.tags;
        let (protocol, dialect) = if given.has_dog_statsd {
            let names = given.mogrifiers.iter();
            let mogrifiers = names.filter_map(|name| Mogrifier::read(name, env, faults)).collect();
            let of_client = DATADOG_TAGS.into_iter().filter_map(|(variable, tag)| {
                let value = env(variable).filter(|value| !value.is_empty())?;
                Some((tag.to_owned(), value))
            });
            tags = of_client.chain(tags).collect();
            (StatsdProtocol::Udp, StatsdDialect::DogStatsd(mogrifiers))
        } else {
            (given.protocol, StatsdDialect::Statsd)
        };
        let address = HostPort::new(given.host, given.port);
        Some(Self { address, protocol, dialect, tags, interval: given.interval })
    }
}

// === impl Mogrifier ===

impl Mogrifier {
    /// Reads the variables of the mogrifier `name`; `None` if one of them is faulty.
    fn read(name: &str, env: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) -> Option<Self> {
        let prefix = format!("DOG_STATSD_MOGRIFIER_{}", name.to_ascii_uppercase());
        let variable = |suffix| format!("{prefix}_{suffix}");
        let given = |suffix| env(&variable(suffix)).unwrap_or_default();
        let (pattern, new_name, tags) = (given("PATTERN"), given("NAME"), given("TAGS"));
        let mut refuse = |suffix, problem: String, fix: &str, found: &str| {
            let variable = variable(suffix);
            let fix = format!("as in {variable}={fix}");
            faults.add(Fault::new(variable, problem, fix).with_found(found));
        };
        // A value of a client may have dots: the first and the last part exclude them.
        let example = r"^ratelimit\.service\.rate_limit\.([^.]*)\.(.*)\.([^.]*)$";
        let compiled = match Regex::new(&pattern) {
            Ok(compiled) if !pattern.is_empty() => Some(compiled),
            Ok(_) => {
                refuse("PATTERN", "expected a regular expression".to_owned(), example, &pattern);
                None
            }
            Err(error) => {
                let problem = format!("expected a regular expression: {error}");
                refuse("PATTERN", problem, example, &pattern);
                None
            }
        };
        let is_named = !new_name.is_empty();
        if !is_named {
            let problem = "expected the new name of the metric".to_owned();
            refuse("NAME", problem, "ratelimit.service.rate_limit.$3", &new_name);
        }
        let read = pairs(&tags).filter(|tags| tags.iter().all(|(_, value)| !value.is_empty()));
        if read.is_none() {
            let problem = format!("expected at most {TAGS_MAX} tags as key:value,key:value");
            refuse("TAGS", problem, "domain:$1,key1:$2", &tags);
        }
        let (pattern, tags) = (compiled?, read?);
        is_named.then_some(Self { pattern, name: new_name, tags })
    }
}

/// Compares the texts: two patterns of one text select the same.
impl PartialEq for Mogrifier {
    fn eq(&self, other: &Self) -> bool {
        let texts = |it: &Self| (it.pattern.as_str().to_owned(), it.name.clone());
        texts(self) == texts(other) && self.tags == other.tags
    }
}

fn protocol(text: &str) -> Result<StatsdProtocol, Expected> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(StatsdProtocol::Tcp),
        "udp" => Ok(StatsdProtocol::Udp),
        _ => Err(Expected::new("tcp or udp").example("udp")),
    }
}

/// Parses the names of mogrifiers.
fn names(text: &str) -> Result<Vec<String>, Expected> {
    let good = |name: &&str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let names: Vec<_> = text.split(',').map(str::trim).collect();
    if names.len() <= MOGRIFIERS_MAX && names.iter().all(good) {
        return Ok(names.into_iter().map(str::to_owned).collect());
    }
    let expected = format!("at most {MOGRIFIERS_MAX} names (letters, digits and _) with commas");
    Err(Expected::new(expected).example("HITS"))
}

/// Parses tags. Like the reference's, they are sorted by name, those without a value are left out,
/// and in a value `.`, `:` and `|` become `_`. A name may not have what separates tags.
fn tags(text: &str) -> Result<Vec<Tag>, Expected> {
    let separates = |c: char| c.is_control() || ".:|,=#".contains(c);
    let good = |(name, value): &Tag| {
        !name.is_empty() && !name.contains(separates) && !value.contains(char::is_control)
    };
    let read = pairs(text).filter(|tags| tags.iter().all(good));
    let mut tags = read.ok_or_else(|| {
        let what = format!("at most {TAGS_MAX} tags as key:value,key:value");
        Expected::new(what).example("zone:a,team:shop")
    })?;
    tags.retain(|(_, value)| !value.is_empty());
    tags.iter_mut().for_each(|(_, value)| *value = value.replace(['.', ':', '|'], "_"));
    tags.sort();
    tags.dedup_by(|later, kept| later.0 == kept.0);
    Ok(tags)
}

/// Parses `key:value,key:value`; a value may contain colons. `None` if a colon is missing, or there
/// are too many.
fn pairs(text: &str) -> Option<Vec<Tag>> {
    let pairs = text.split(',').filter(|_| !text.trim().is_empty()).map(|pair| {
        let (key, value) = pair.split_once(':')?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    });
    pairs.collect::<Option<Vec<_>>>().filter(|pairs| pairs.len() <= TAGS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str, value: &str) -> Tag {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn tags_are_sorted_and_separators_in_values_replaced() {
        for (text, expected) in [
            ("zone:b,team:shop", Some(vec![tag("team", "shop"), tag("zone", "b")])),
            ("version:v1.2:3|4", Some(vec![tag("version", "v1_2_3_4")])),
            ("a:,b:1", Some(vec![tag("b", "1")])),
            ("", Some(vec![])),
            ("zone", None),
            ("zone:a,", None),
            (":a", None),
            ("a.b:c", None),
            ("a:b\nc", None),
        ] {
            assert_eq!(tags(text).ok(), expected, "{text:?}");
        }
        let many: Vec<_> = (0..=TAGS_MAX).map(|at| format!("k{at}:v")).collect();
        assert!(tags(&many.join(",")).is_err());
        assert!(tags(&many[1..].join(",")).is_ok());
    }

    #[test]
    fn every_fault_of_a_mogrifier_is_reported_with_its_variable() {
        let env = |name: &str| match name {
            "DOG_STATSD_MOGRIFIER_HITS_PATTERN" => Some(r"^a\.(.*)$".to_owned()),
            "DOG_STATSD_MOGRIFIER_HITS_NAME" => Some("a".to_owned()),
            "DOG_STATSD_MOGRIFIER_HITS_TAGS" => Some("key:$1".to_owned()),
            "DOG_STATSD_MOGRIFIER_BAD_PATTERN" => Some("(".to_owned()),
            "DOG_STATSD_MOGRIFIER_BAD_TAGS" => Some("key:".to_owned()),
            _ => None,
        };
        let mut faults = Faults::default();
        let hits = Mogrifier::read("hits", &env, &mut faults).unwrap();
        assert_eq!(hits.tags, [tag("key", "$1")]);
        assert_eq!(faults, Faults::default());
        assert_eq!(Mogrifier::read("BAD", &env, &mut faults), None);
        let found = faults.iter().map(|fault| fault.name.as_str()).collect::<Vec<_>>();
        let expected =
            ["PATTERN", "NAME", "TAGS"].map(|it| format!("DOG_STATSD_MOGRIFIER_BAD_{it}"));
        assert_eq!(found, expected);
    }
}
