//! A key names one count: domain, matched entries and the rule's identity, hashed to 128 bits.
//!
//! The hash is BLAKE3 in keyed mode, cut to 128 bits, over an injective encoding: each part carries
//! its kind and its length, so no two different inputs have the same encoding. With a secret of the
//! operator's own, no client can choose a value that lands on a given slot of the cluster, or find
//! two values that share a count. With the built-in secret, which is public, finding such a
//! collision still costs 2^64 hashes. No part of a client's value reaches Redis, and a long value
//! costs no memory there.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use foldhash::fast::FixedState;

use crate::request::Entry;

/// The name of one count, in local tables and in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 16]);

/// The id of a request: a hash of its text under a secret of this process, so that no client can
/// choose an id that stands for another. It has no meaning in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

/// The name of the hold of one descriptor: the id of the request, and a hash of the other entries
/// of the descriptor. The start and the end of a request have the same, whatever the rules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldId {
    /// The id of the request.
    pub request: RequestId,
    /// A hash of the domain and of the entries but for the id, under the same secret.
    pub descriptor: u64,
}

/// Added to the numbers of pools, so that no pool has the key of a share: earlier versions numbered
/// their shares from 0.
pub const POOLS_FROM: u8 = 1 << 7;

/// Turns descriptors into keys. Pods that share counts share its secret.
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 32],
    /// Makes the keys that the same counts had under the secret before.
    previous: Option<Box<KeyHasher>>,
    /// The secret of this process, for the ids of requests: SipHash.
    ids: RandomState,
}

/// The value of an entry, as it enters the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPart<'a> {
    /// The value on the request.
    Value(&'a str),
    /// The pattern of a rule with `share_threshold`: one count for all values that match.
    Shared(&'a str),
}

/// The requests that an overflow key counts: see [`KeyHasher::overflow_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowScope<'a> {
    /// The rule of this path.
    Rule(&'a str),
    /// Overrides in this domain with this number of requests.
    Override(&'a str, u32),
}

// === impl KeyHasher ===

impl KeyHasher {
    /// Makes a hasher from a secret of any length; an empty one selects the built-in secret.
    pub fn new(secret: &str) -> Self {
        // The context string is BLAKE3's domain separation; changing it restarts every count.
        let secret = blake3::derive_key("ratelease 2026-11 key of counts", secret.as_bytes());
        Self { secret, previous: None, ids: RandomState::new() }
    }

    /// Returns the hasher of pods that replace the secret `previous` by its own.
    #[must_use]
    pub fn replacing(self, previous: &str) -> Self {
        Self { previous: Some(Box::new(Self::new(previous))), ..self }
    }

    /// Returns the hasher of the secret that this one's replaces, if one is being replaced.
    pub fn previous(&self) -> Option<&Self> {
        self.previous.as_deref()
    }

    /// Returns the key of a count in `domain` for these entries, in order. `identity` holds what
    /// makes two rules on the same entries count separately.
    pub fn key<'a>(
        &self,
        domain: &str,
        identity: u64,
        parts: impl Iterator<Item = (&'a str, KeyPart<'a>)>,
    ) -> Key {
        let mut encoding = Encoding::new(&self.secret);
        encoding.part(b'd', domain);
        for (key, part) in parts {
            encoding.part(b'k', key);
            match part {
                KeyPart::Value(text) => encoding.part(b'v', text),
                KeyPart::Shared(text) => encoding.part(b's', text),
            }
        }
        encoding.write(&identity.to_le_bytes());
        Key::of(&encoding)
    }

    /// Returns what stands for the request of this `id`.
    pub fn request_id(&self, id: &str) -> RequestId {
        let mut hasher = self.ids.build_hasher();
        hasher.write(id.as_bytes());
        RequestId(hasher.finish())
    }

    /// Returns what stands for a descriptor of these `entries` in `domain`, of which the one at
    /// `level` has the id of the request; `None` if there is no such entry, or its value is no id.
    pub fn hold_id(&self, domain: &str, entries: &[Entry<'_>], level: usize) -> Option<HoldId> {
        let id = entries.get(level).filter(|entry| is_request_id(entry.value))?;
        let mut hasher = self.ids.build_hasher();
        let mut part = |text: &str| {
            hasher.write_usize(text.len()); // so that adjacent parts cannot be confused
            hasher.write(text.as_bytes());
        };
        part(domain);
        for (at, entry) in entries.iter().enumerate() {
            part(entry.key);
            if at != level {
                part(entry.value);
            }
        }
        Some(HoldId { request: self.request_id(id.value), descriptor: hasher.finish() })
    }

    /// Returns the fingerprint of the secret: the same for two hashers of the same secret, whatever
    /// secret either replaces. The secret can be found from it only by trying, as from a key.
    pub fn fingerprint(&self) -> u64 {
        let mut encoding = Encoding::new(&self.secret);
        encoding.part(b'f', "");
        Key::of(&encoding).bits()
    }

    /// Returns a fingerprint of the keys that are made in `domain` by rules of this
    /// [`fingerprint`](crate::Rules::fingerprint): of 32 bits, since a pod lists one for each
    /// domain.
    #[allow(clippy::cast_possible_truncation, reason = "any bits are as good as others")]
    pub fn fingerprint_in(&self, domain: &str, rules: u64) -> u32 {
        let mut encoding = Encoding::new(&self.secret);
        encoding.part(b'g', domain);
        encoding.write(&rules.to_le_bytes());
        Key::of(&encoding).bits() as u32
    }

    /// Returns the key under which a pod counts requests for which it has no room to keep separate
    /// keys. It never equals the key of a descriptor, whose encoding begins differently.
    pub fn overflow_key(&self, scope: OverflowScope<'_>, identity: u64) -> Key {
        let mut encoding = Encoding::new(&self.secret);
        match scope {
            OverflowScope::Rule(path) => encoding.part(b'r', path),
            OverflowScope::Override(domain, requests) => {
                encoding.part(b'o', domain);
                encoding.write(&requests.to_le_bytes());
            }
        }
        encoding.write(&identity.to_le_bytes());
        Key::of(&encoding)
    }
}

/// Whether `text` names a request: it is not empty, and not what Envoy writes where there is no
/// value.
fn is_request_id(text: &str) -> bool {
    !text.is_empty() && text != "-"
}

// === impl RequestId ===

impl RequestId {
    /// Returns 64 bits. They are uniform, and no client can choose them.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }
}

// === impl Encoding ===

/// The bytes to hash. Except for very long values they are few, and are hashed in one call:
/// BLAKE3's state is costly to set up and to feed in pieces.
struct Encoding<'a> {
    secret: &'a [u8; 32],
    held: [u8; HELD_MAX],
    len: usize,
    /// Takes over once the bytes do not fit into `held`. Boxed because it is large.
    spilled: Option<Box<blake3::Hasher>>,
}

/// Four blocks of BLAKE3. Domain, keys and values of most descriptors fit into one or two.
const HELD_MAX: usize = 256;

impl<'a> Encoding<'a> {
    #[inline]
    fn new(secret: &'a [u8; 32]) -> Self {
        Self { secret, held: [0; HELD_MAX], len: 0, spilled: None }
    }

    /// Appends kind, length and text. The length marks the end of the text, so that adjacent parts
    /// cannot be confused.
    #[inline]
    fn part(&mut self, kind: u8, text: &str) {
        let text = text.as_bytes();
        if let Ok(length) = u8::try_from(text.len())
            && length < u8::MAX
            && self.spilled.is_none()
            && let Some(place) = self.held.get_mut(self.len..self.len + 2 + text.len())
            && let [kind_at, length_at, place @ ..] = place
        {
            (*kind_at, *length_at) = (kind, length);
            copy(text, place);
            self.len += 2 + text.len();
        } else {
            self.long_part(kind, text);
        }
    }

    #[cold]
    fn long_part(&mut self, kind: u8, text: &[u8]) {
        match u8::try_from(text.len()) {
            Ok(length) if length < u8::MAX => self.write(&[kind, length]),
            _ => {
                self.write(&[kind, u8::MAX]);
                self.write(&(text.len() as u64).to_le_bytes());
            }
        }
        self.write(text);
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        if let Some(free) = self.held.get_mut(self.len..self.len + bytes.len())
            && self.spilled.is_none()
        {
            copy(bytes, free);
            self.len += bytes.len();
            return;
        }
        let Self { secret, held, len, spilled } = self;
        let hasher = spilled.get_or_insert_with(|| {
            let mut hasher = Box::new(blake3::Hasher::new_keyed(secret));
            hasher.update(&held[..*len]);
            hasher
        });
        hasher.update(bytes);
    }

    /// Returns a stand-in for the secret, and the bytes to hash; `None` if they did not fit into
    /// `held`.
    #[inline]
    fn short(&self) -> Option<(u64, &[u8])> {
        let secret = u64::from_le_bytes(*self.secret.first_chunk()?);
        self.spilled.is_none().then_some((secret, self.held.get(..self.len)?))
    }

    fn finish(&self) -> blake3::Hash {
        match &self.spilled {
            None => blake3::keyed_hash(self.secret, &self.held[..self.len]),
            Some(hasher) => hasher.finalize(),
        }
    }
}

/// Like `copy_from_slice`, for slices of equal length. Most parts are so short that a call costs
/// more than the copy; these are copied as two pieces, possibly overlapping, whose length is known
/// at compile time.
#[inline]
fn copy(from: &[u8], to: &mut [u8]) {
    let copied = match from.len() {
        8..=16 => by_ends::<8>(from, to),
        4..8 => by_ends::<4>(from, to),
        2..4 => by_ends::<2>(from, to),
        _ => None,
    };
    if copied.is_none() {
        to.copy_from_slice(from);
    }
}

#[inline]
fn by_ends<const N: usize>(from: &[u8], to: &mut [u8]) -> Option<()> {
    *to.first_chunk_mut::<N>()? = *from.first_chunk()?;
    *to.last_chunk_mut::<N>()? = *from.last_chunk()?;
    Some(())
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher(secret)")
    }
}

// === impl Key ===

impl Key {
    #[inline]
    fn of(encoding: &Encoding<'_>) -> Self {
        let make = || {
            let hash = encoding.finish();
            let mut key = [0; 16];
            key.copy_from_slice(&hash.as_bytes()[..16]);
            Self(key)
        };
        match encoding.short() {
            Some((secret, bytes)) => recent_key(secret, bytes, make),
            None => make(),
        }
    }

    /// Returns the key in the store: `rl:{…}` after `prefix`. The braces make the whole hash the
    /// slot's hash tag.
    pub fn in_store(self, prefix: &str) -> String {
        format!("{prefix}rl:{{{self}}}")
    }

    /// Returns the key of pool `at` (0 to 127) of this key. It differs from the key itself and lies
    /// on a slot of its own.
    #[must_use]
    pub fn of_pool(self, at: u8) -> Self {
        // 2^64 / golden ratio. An odd factor maps different pools to different numbers.
        let mark = u64::from(POOLS_FROM | at).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        let mut bytes = self.0;
        for (byte, mark) in bytes.iter_mut().zip(mark) {
            *byte ^= mark;
        }
        Self(bytes)
    }

    /// Returns the first 64 bits. They are uniform, so any part of them can be used to spread keys.
    #[inline]
    pub fn bits(self) -> u64 {
        let mut bits = [0; 8];
        bits.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(bits)
    }

    /// Returns the key as four words, the first bits first.
    pub fn words(self) -> [u32; 4] {
        std::array::from_fn(|at| {
            self.0[4 * at..4 * at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
        })
    }

    /// Reads the words of a key, each as eight lower-case hexadecimal digits.
    pub fn of_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 2 * bytes.len() || !text.bytes().all(is_digit) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Returns a key for tests; different `n` give different keys.
    #[doc(hidden)]
    pub fn for_test(n: u64) -> Self {
        KeyHasher::new("test").key("test", n, std::iter::empty())
    }
}

/// Length of a key's text: 128 bits, six to a character.
const TEXT_LEN: usize = 22;

/// In base64url without padding (RFC 4648 §5).
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; TEXT_LEN];
        URL_SAFE_NO_PAD.encode_slice(self.0, &mut text).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

// A cache of the keys that a thread made last. A hot key is made again and again, and comparing
// its encoding takes less time than hashing it: some 30 ns instead of 120.
//
// The cache does not change any key: an entry is used only for the same bytes and the same secret.

/// Keys in the cache of a thread: some 50 KiB, so that they stay in the core's own caches. Each key
/// has one place, and a new key replaces the old key of that place. A client that aims many keys at
/// one place only causes keys to be hashed, as they would be without the cache.
const RECENT_KEYS: usize = 512;

/// Longer encodings are always hashed: they are rare, and every place is as large as the longest.
const RECENT_BYTES_MAX: usize = 72;

thread_local! {
    /// Empty until the thread makes its first key.
    static RECENT: RefCell<Vec<Made>> = const { RefCell::new(Vec::new()) };
}

/// A key and the bytes and secret it was made from.
#[derive(Clone, Copy)]
struct Made {
    secret: u64,
    len: u8,
    bytes: [u8; RECENT_BYTES_MAX],
    key: Key,
}

/// Returns the key that `make` makes from `bytes`; `secret` identifies the secret.
#[inline]
fn recent_key(secret: u64, bytes: &[u8], make: impl Fn() -> Key) -> Key {
    let Some(len) =
        u8::try_from(bytes.len()).ok().filter(|len| usize::from(*len) <= RECENT_BYTES_MAX)
    else {
        return make();
    };
    let looked_up = RECENT.try_with(|recent| {
        let mut recent = recent.try_borrow_mut().ok()?;
        if recent.is_empty() {
            let nothing =
                Made { secret: 0, len: u8::MAX, bytes: [0; RECENT_BYTES_MAX], key: Key([0; 16]) };
            recent.resize(RECENT_KEYS, nothing);
        }
        let place = recent.get_mut(place_of(bytes))?;
        let is_known = place.len == len
            && place.secret == secret
            && place.bytes.get(..bytes.len()) == Some(bytes);
        if !is_known {
            (place.secret, place.len, place.key) = (secret, len, make());
            place.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        }
        Some(place.key)
    });
    // Reached while the thread ends, or if `make` were to make another key, which it never does.
    looked_up.ok().flatten().unwrap_or_else(make)
}

#[allow(clippy::cast_possible_truncation, reason = "a remainder of RECENT_KEYS fits")]
#[inline]
fn place_of(bytes: &[u8]) -> usize {
    (FixedState::default().hash_one(bytes) % RECENT_KEYS as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key(secret: &str, domain: &str, identity: u64, entries: &[(&str, KeyPart<'_>)]) -> Key {
        KeyHasher::new(secret).key(domain, identity, entries.iter().copied())
    }

    #[test]
    fn no_two_descriptors_share_a_key() {
        use KeyPart::{Shared, Value};
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        type Case<'a> = (&'a str, u64, &'a [(&'a str, KeyPart<'a>)]);
        let cases: [Case<'_>; 14] = [
            ("d", 60, &[]),
            ("d", 1, &[]),
            ("", 60, &[("d", Value(""))]),
            ("d", 60, &[("k_v", Value("x"))]),
            ("d", 60, &[("k", Value("v_x"))]),
            ("d_k", 60, &[("v", Value("x"))]),
            ("d", 60, &[("k", Value("v")), ("x", Value(""))]),
            ("d", 60, &[("k1", Value("x_k2_y")), ("k2", Value("z"))]),
            ("d", 60, &[("k1", Value("x")), ("k2", Value("y_k2_z"))]),
            ("d", 60, &[("k", Value("a*"))]),
            ("d", 60, &[("k", Shared("a*"))]),
            ("d", 60, &[("k", Value("\u{1}v\u{1}x"))]),
            ("d", 60, &[("k", Value(&long))]),
            ("d", 60, &[("k", Value(&longer))]),
        ];
        let keys: HashSet<_> = cases.iter().map(|(d, i, parts)| key("", d, *i, parts)).collect();
        assert_eq!(keys.len(), cases.len());
    }

    #[test]
    fn overflow_keys_are_apart_from_each_other_and_from_those_of_descriptors() {
        let hasher = KeyHasher::new("");
        let owners = [
            (OverflowScope::Rule("d"), 60),
            (OverflowScope::Rule("d"), 1),
            (OverflowScope::Rule("d.k"), 60),
            (OverflowScope::Override("d", 5), 60),
            (OverflowScope::Override("d", 6), 60),
            (OverflowScope::Override("d.k", 5), 60),
        ];
        let overflows = owners.map(|(owner, identity)| hasher.overflow_key(owner, identity));
        let own = [key("", "d", 60, &[]), key("", "d", 60, &[("k", KeyPart::Value(""))])];
        let keys: HashSet<_> = overflows.iter().chain(&own).collect();
        assert_eq!(keys.len(), owners.len() + own.len());
    }

    /// Pods of different versions share counts, so a key must not change between versions.
    #[test]
    fn keys_do_not_change_between_versions() {
        let parts = [("user", KeyPart::Value("alice"))];
        assert_eq!(key("", "shop", 60, &parts).in_store("p:"), "p:rl:{SIkqHKtZuP__J8Xf1wKPgA}");
        let long = "x".repeat(20_000);
        let parts = [("user", KeyPart::Value(long.as_str()))];
        let own = key("", "shop", 60, &parts);
        assert_eq!(own.to_string(), "usCMpKEe3l9KRRL-gXFxmA");
        let pools = [0, 1, 63].map(|at| own.of_pool(at).to_string());
        let expected =
            ["OsqyAR7CYkRKRRL-gXFxmA", "L0YEgNhIKuZKRRL-gXFxmA", "EVMeXMTPvVRKRRL-gXFxmA"];
        assert_eq!(pools, expected);
    }

    #[test]
    fn holds_of_different_requests_and_descriptors_have_different_ids() {
        let hasher = KeyHasher::new("");
        let long = "x".repeat(64 << 10);
        let of = |domain: &str, pairs: &[(&str, &str)], level: usize| {
            let entries: Vec<_> = pairs.iter().map(|(key, value)| Entry { key, value }).collect();
            hasher.hold_id(domain, &entries, level)
        };
        let ids = [
            of("d", &[("user", "a"), ("id", "1")], 1),
            of("d", &[("user", "a"), ("id", "2")], 1),
            of("d", &[("user", "b"), ("id", "1")], 1),
            of("d", &[("user", "ai"), ("d", "1")], 1),
            of("e", &[("user", "a"), ("id", "1")], 1),
            of("d", &[("user", "a"), ("id", &long)], 1),
            of("d", &[("user", "a"), ("id", &long[1..])], 1),
        ];
        let all: HashSet<_> = ids.iter().map(|id| id.unwrap()).collect();
        assert_eq!(all.len(), ids.len());
        let [first, .., third] = [ids[0], ids[1], ids[2]].map(Option::unwrap);
        assert_eq!(first.request, third.request, "one request may have several descriptors");
        assert_eq!(ids[0], of("d", &[("user", "a"), ("id", "1")], 1));
        assert_eq!(of("d", &[("id", "")], 0), None);
        assert_eq!(of("d", &[("id", "1")], 1), None);
    }

    #[test]
    fn fingerprints_are_of_the_secret_the_domain_and_the_rules() {
        let hasher = KeyHasher::new("s");
        let own = [hasher.fingerprint(), KeyHasher::new("").fingerprint()];
        assert_ne!(own[0], own[1]);
        assert_eq!(hasher.clone().replacing("t").fingerprint(), own[0]);
        // Pods and tools of two releases agree.
        assert_eq!(own[1], 14_892_334_707_484_577_656);
        let others = [("d", 1), ("d", 2), ("e", 1), ("", 1)];
        let in_domains: HashSet<_> = others
            .iter()
            .flat_map(|(domain, rules)| {
                [&hasher, &KeyHasher::new("")].map(|it| it.fingerprint_in(domain, *rules))
            })
            .collect();
        assert_eq!(in_domains.len(), 2 * others.len());
    }

    #[test]
    fn a_secret_changes_every_key() {
        let parts = [("user", KeyPart::Value("alice"))];
        assert_ne!(key("", "shop", 60, &parts), key("s", "shop", 60, &parts));
    }

    /// However the bytes are split, BLAKE3 hashes the same bytes.
    #[test]
    fn spilling_changes_nothing() {
        let secret = [7; 32];
        for len in (0..40).chain([253, 254, 255, 256, 257, 5_000]) {
            let text = "y".repeat(len);
            let mut encoding = Encoding::new(&secret);
            encoding.part(b'v', &text);
            encoding.write(b"end");
            let mut bytes = vec![b'v'];
            match u8::try_from(len) {
                Ok(len) if len < 255 => bytes.push(len),
                _ => {
                    bytes.push(255);
                    bytes.extend((len as u64).to_le_bytes());
                }
            }
            bytes.extend(text.as_bytes());
            bytes.extend(b"end");
            assert_eq!(encoding.finish(), blake3::keyed_hash(&secret, &bytes), "length {len}");
        }
    }
}

#[cfg(test)]
mod recent_tests {
    use std::cell::Cell;

    use super::*;

    fn made(secret: u64, bytes: &[u8], as_number: u8, times: &Cell<u32>) -> Key {
        recent_key(secret, bytes, || {
            times.set(times.get() + 1);
            Key([as_number; 16])
        })
    }

    #[test]
    fn a_key_is_reused_only_for_the_same_bytes_and_secret() {
        let times = Cell::new(0);
        for _ in 0..3 {
            assert_eq!(made(1, b"alice", 1, &times), Key([1; 16]));
        }
        assert_eq!(times.get(), 1);
        assert_eq!(made(2, b"alice", 2, &times), Key([2; 16]), "another secret");
        assert_eq!(made(1, b"alice", 3, &times), Key([3; 16]), "the other took its place");
        assert_eq!(made(1, b"alic", 4, &times), Key([4; 16]), "a part is something else");
        assert_eq!(made(1, b"", 5, &times), Key([5; 16]));
        assert_eq!(times.get(), 5);
    }

    #[test]
    fn long_keys_are_not_cached_and_those_that_just_fit_are() {
        let times = Cell::new(0);
        for (length, more) in [(RECENT_BYTES_MAX, 1), (RECENT_BYTES_MAX + 1, 2), (300, 2)] {
            let before = times.get();
            let bytes = vec![7; length];
            (0..2).for_each(|_| assert_eq!(made(1, &bytes, 9, &times), Key([9; 16])));
            assert_eq!(times.get(), before + more, "{length} bytes");
        }
    }

    #[test]
    fn keys_that_share_a_cache_slot_are_distinguished() {
        let times = Cell::new(0);
        for round in 0..2 {
            for at in 0..4 * RECENT_KEYS {
                let number = u8::try_from(at % 251).unwrap();
                let found = made(1, format!("key-{at}").as_bytes(), number, &times);
                assert_eq!(found, Key([number; 16]), "{at} in round {round}");
            }
        }
    }
}
