//! The record of a pod in the store, for the tools of operators: its name, how far it has followed
//! orders, and fingerprints of the secret and the rules that decide its keys.
//!
//! Nothing here counts or decides. A pod of an older version has no record, and further words in
//! the record of a newer one are skipped.

use std::fmt::Write;
use std::time::Duration;

use ratelease_rules::Rules;
use ratelease_rules::key::{Key, KeyHasher};

use crate::order::place::Place;

/// The record of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRecord {
    /// The number of the pod among the pods that share the store; it is not in the text.
    pub number: u64,
    /// A name that an operator recognises, such as the name of the host: at most [`NAME_BYTES_MAX`]
    /// printable ASCII characters.
    pub name: Box<str>,
    /// The version of the program.
    pub version: Box<str>,
    /// The fingerprint of the pod's secret ([`KeyHasher::fingerprint`]).
    pub secret: u64,
    /// The fingerprint of the secret that this one replaces, if one is being replaced.
    pub previous: Option<u64>,
    /// The fingerprints of the keys in each domain ([`KeyHasher::fingerprint_in`]); `None` while
    /// there are no rules, and of a pod with more than [`DOMAINS_MAX`] domains.
    pub domains: Option<Box<[u32]>>,
    /// The last order of the store that the pod follows; `None` before the first one.
    pub followed: Option<Place>,
    /// Keys of which requests of the pod have slots, and for how long the oldest has: at most
    /// [`SLOTS_MAX`], the longest first.
    pub slots: Vec<(Key, Duration)>,
}

/// The largest name of a pod, in bytes: a host's name may have so many and one less.
pub const NAME_BYTES_MAX: usize = 64;

/// The largest number of domains with fingerprints: 2.3 kB.
pub const DOMAINS_MAX: usize = 256;

/// The largest number of keys of slots in a record: 1.3 kB.
pub const SLOTS_MAX: usize = 32;

/// The largest version that is read, in bytes.
const VERSION_BYTES_MAX: usize = 32;

/// The form of the text. A form that a program does not know says nothing to it.
const MARK: &str = "pod1";

// === impl PodRecord ===

impl PodRecord {
    /// The record of a pod of this name that makes its keys by `hasher`.
    pub fn new(number: u64, name: &str, hasher: &KeyHasher) -> Self {
        Self {
            number,
            name: printable(name, NAME_BYTES_MAX),
            version: env!("CARGO_PKG_VERSION").into(),
            secret: hasher.fingerprint(),
            previous: hasher.previous().map(KeyHasher::fingerprint),
            ..Self::default()
        }
    }

    /// The text that is stored: words, each a name and a value.
    pub fn text(&self) -> String {
        let Self { number: _, name, version, secret, previous, domains, followed, slots } = self;
        let mut text = format!("{MARK} name={name} version={version} secret={secret:016x}");
        // Writing to a string cannot fail.
        let _ = previous.iter().try_for_each(|it| write!(text, " previous={it:016x}"));
        let _ = followed.iter().try_for_each(|it| write!(text, " orders={it}"));
        if let Some(domains) = domains {
            let domains: Vec<_> = domains.iter().map(|it| format!("{it:08x}")).collect();
            let _ = write!(text, " keys={}", domains.join(","));
        }
        let slots: Vec<_> = slots.iter().map(|(key, has)| of_slots(*key, *has)).collect();
        if !slots.is_empty() {
            let _ = write!(text, " slots={}", slots.join(","));
        }
        text
    }

    /// Reads the text of the pod of this number; `None` if it is not one.
    pub fn parse(number: u64, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        (words.next() == Some(MARK)).then_some(())?;
        let mut record = Self { number, ..Self::default() };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            match name {
                "name" => record.name = printable(value, NAME_BYTES_MAX),
                "version" => record.version = printable(value, VERSION_BYTES_MAX),
                "secret" => record.secret = u64::from_str_radix(value, 16).ok()?,
                "previous" => record.previous = Some(u64::from_str_radix(value, 16).ok()?),
                "orders" => record.followed = Some(Place::parse(value)?),
                "keys" => record.domains = Some(listed(value, DOMAINS_MAX, domain)?.into()),
                "slots" => record.slots = listed(value, SLOTS_MAX, slots)?,
                _ => {}
            }
        }
        Some(record)
    }

    /// Whether the pod makes the same keys in `domain` as a program with this secret and the rules
    /// of this fingerprint; `None` if the pod does not say.
    pub fn makes_keys_of(&self, domain: &str, hasher: &KeyHasher, rules: u64) -> Option<bool> {
        let own = hasher.fingerprint_in(domain, rules);
        self.domains.as_ref().map(|domains| domains.contains(&own))
    }
}

/// The fingerprints of the keys that `hasher` makes by `rules` in each of its domains; `None` if
/// there are more than [`DOMAINS_MAX`]. Takes as long as [`Rules::fingerprint`] of all domains.
pub fn fingerprints(rules: &Rules, hasher: &KeyHasher) -> Option<Box<[u32]>> {
    let of = |domain| Some(hasher.fingerprint_in(domain, rules.fingerprint(domain)?));
    (rules.domains().count() <= DOMAINS_MAX).then(|| rules.domains().filter_map(of).collect())
}

/// The characters of `text` that a record may have, and an underscore for each other one.
fn printable(text: &str, bytes_max: usize) -> Box<str> {
    let characters = text.chars().map(|it| if it.is_ascii_graphic() { it } else { '_' });
    characters.take(bytes_max).collect()
}

fn listed<T>(list: &str, most: usize, read: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    list.split(',').filter(|item| !item.is_empty()).take(most).map(read).collect()
}

fn domain(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

fn of_slots(key: Key, has: Duration) -> String {
    let [one, two, three, four] = key.words();
    format!("{one:08x}{two:08x}{three:08x}{four:08x}:{}", has.as_secs())
}

fn slots(text: &str) -> Option<(Key, Duration)> {
    let (key, seconds) = text.split_once(':')?;
    Some((Key::of_hex(key)?, Duration::from_secs(seconds.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::{Options, Source, load};

    fn record() -> PodRecord {
        PodRecord {
            domains: Some([1, u32::MAX].into()),
            followed: Some(Place(1_700_000_000_000, 3)),
            slots: vec![(Key::for_test(1), Duration::from_secs(725))],
            ..PodRecord::new(7, "shop-0", &KeyHasher::new("new").replacing("old"))
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let bare = PodRecord::new(8, "", &KeyHasher::new(""));
        let none = PodRecord { domains: Some(Box::default()), ..bare.clone() };
        for record in [record(), bare, none] {
            let text = record.text();
            assert_eq!(PodRecord::parse(record.number, &text), Some(record), "{text}");
        }
    }

    #[test]
    fn words_of_newer_versions_are_passed_over_and_other_texts_are_none() {
        let newer = format!("{} mood=fine color", record().text());
        assert_eq!(PodRecord::parse(7, &newer), Some(record()));
        for text in ["", "pod2 name=a", "name=a", "pod1 secret=x", "pod1 orders=1", "pod1 slots=1"]
        {
            assert_eq!(PodRecord::parse(7, text), None, "{text}");
        }
    }

    #[test]
    fn a_record_is_bounded_and_printable() {
        let name = format!("a b\n{}", "é".repeat(200));
        let many = PodRecord {
            domains: Some(vec![u32::MAX; DOMAINS_MAX].into()),
            slots: vec![(Key::for_test(1), Duration::MAX); SLOTS_MAX],
            ..PodRecord::new(u64::MAX, &name, &KeyHasher::new(""))
        };
        assert!(many.name.starts_with("a_b__") && many.name.len() == NAME_BYTES_MAX);
        assert!(many.text().len() < 4_400, "{}", many.text().len());
    }

    #[test]
    fn keys_are_the_same_by_secret_domain_and_rules() {
        let text = b"domain: shop\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]".to_vec();
        let source = Source { name: "a.yaml".to_owned(), text };
        let rules = load(&[source], Options::default()).unwrap().rules;
        let hasher = KeyHasher::new("s");
        let shop = rules.fingerprint("shop").unwrap();
        let pod = PodRecord {
            domains: fingerprints(&rules, &hasher),
            ..PodRecord::new(7, "shop-0", &hasher)
        };
        assert_eq!(pod.makes_keys_of("shop", &hasher, shop), Some(true));
        assert_eq!(pod.makes_keys_of("shop", &hasher, shop + 1), Some(false));
        assert_eq!(pod.makes_keys_of("mail", &hasher, shop), Some(false));
        assert_eq!(pod.makes_keys_of("shop", &KeyHasher::new(""), shop), Some(false));
        let silent = PodRecord { domains: None, ..pod };
        assert_eq!(silent.makes_keys_of("shop", &hasher, shop), None);
    }
}
