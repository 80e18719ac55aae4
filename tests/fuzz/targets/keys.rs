//! The encoding behind keys: different inputs never have the same bytes.

use std::cell::RefCell;
use std::collections::HashMap;

use ratelease_rules::key::{Key, KeyHasher, KeyPart};

use crate::rng::Rng;
use crate::run;

/// The inputs of a key.
#[derive(Debug, Clone, PartialEq)]
struct Count {
    domain: String,
    identity: u64,
    entries: Vec<(String, bool, String)>,
    /// The same as bytes, for messages.
    shown: Vec<u8>,
}

/// Maximum number of keys that are compared with each other.
const KEPT_MAX: usize = 50_000;

/// Bytes that the encoding itself uses, and letters.
const BYTES: [char; 12] =
    ['a', 'b', 'd', 'k', 'v', 's', '\0', '\u{1}', '\u{2}', '_', '\u{7f}', 'é'];

#[test]
fn no_two_counts_have_one_key() {
    let hasher = KeyHasher::new("secret");
    let seen: RefCell<HashMap<Key, Count>> = RefCell::default();
    run::generated("keys", 20_000, count, |count| {
        let parts = count.entries.iter().map(|(key, is_shared, text)| {
            (&**key, if *is_shared { KeyPart::Shared(text) } else { KeyPart::Value(text) })
        });
        let parts: Vec<_> = parts.collect();
        let key = hasher.key(&count.domain, count.identity, parts.iter().copied());
        assert_eq!(key, hasher.key(&count.domain, count.identity, parts.into_iter()));
        let mut seen = seen.borrow_mut();
        match seen.get(&key) {
            Some(other) => assert_eq!(other, count, "both have the key {key:?}"),
            None if seen.len() < KEPT_MAX => drop(seen.insert(key, count.clone())),
            None => {}
        }
        true
    });
}

fn count(rng: &mut Rng) -> Count {
    let domain = text(rng);
    let entries = (0..rng.below(4)).map(|_| (text(rng), rng.percent(30), text(rng)));
    let entries = entries.collect();
    let identity = rng.below(3);
    let shown = format!("{domain:?} {identity} {entries:?}").into();
    Count { domain, identity, entries, shown }
}

/// A short text, or one around a length at which the encoding changes: 255 bytes of a part, 256 in
/// all.
fn text(rng: &mut Rng) -> String {
    let length = match rng.below(8) {
        0 => rng.within(245..265),
        1 => rng.below(70),
        _ => rng.below(4),
    };
    (0..length).map(|_| rng.pick(&BYTES)).collect()
}

impl AsRef<[u8]> for Count {
    fn as_ref(&self) -> &[u8] {
        &self.shown
    }
}
