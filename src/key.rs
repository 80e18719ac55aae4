//! A key names one count: domain, matched entries and the rule's identity, hashed to 128 bits.
//!
//! The hash is BLAKE3 in keyed mode, cut to 128 bits, over an injective encoding: each part carries
//! its kind and its length, so no two different inputs encode alike. With a secret of one's own no
//! client can aim a value at a slot of the cluster or find two values that share a count; with the
//! built-in secret, which anybody can read, collisions still cost 2^64 hashes. Nothing of a
//! client's value reaches Redis, and a long value costs no memory there.

use std::fmt;

/// Name of one count, in local tables and in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 16]);

/// Turns descriptors into keys. Pods that share counts share its secret.
#[derive(Clone)]
pub struct KeyHasher {
    secret: [u8; 32],
}

/// An entry's value as the count sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The value on the request.
    Value(&'a str),
    /// The pattern of a rule with `share_threshold`: one count for all values that match.
    Shared(&'a str),
}

// === impl KeyHasher ===

impl KeyHasher {
    /// A hasher from a secret of any length; an empty one is the built-in secret.
    pub fn new(secret: &str) -> Self {
        // The context string is BLAKE3's domain separation; changing it restarts every count.
        Self { secret: blake3::derive_key("ratelease 2026-11 key of counts", secret.as_bytes()) }
    }

    /// The key of a count in `domain`, for a rule of this `identity` (what must differ for two
    /// rules on the same entries to count apart), and the entries in order.
    pub fn key<'a>(
        &self,
        domain: &str,
        identity: u64,
        parts: impl Iterator<Item = (&'a str, Part<'a>)>,
    ) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        let mut write = |kind: u8, text: &str| {
            let mut head = [kind; 9];
            head[1..].copy_from_slice(&(text.len() as u64).to_le_bytes());
            hasher.update(&head);
            hasher.update(text.as_bytes());
        };
        write(b'd', domain);
        for (key, part) in parts {
            write(b'k', key);
            match part {
                Part::Value(text) => write(b'v', text),
                Part::Shared(text) => write(b's', text),
            }
        }
        hasher.update(&identity.to_le_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Key(key)
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher(secret)")
    }
}

// === impl Key ===

impl Key {
    /// The key in the store, `rl:{…}` behind `prefix`. The braces make all the hash the slot's tag.
    pub fn in_store(self, prefix: &str) -> String {
        format!("{prefix}rl:{{{self}}}")
    }

    /// The first 64 bits; uniform, so any part of them serves to spread keys.
    pub fn bits(self) -> u64 {
        let mut bits = [0; 8];
        bits.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(bits)
    }

    /// A key for tests, told apart by `n`.
    #[doc(hidden)]
    pub fn for_test(n: u64) -> Self {
        KeyHasher::new("test").key("test", n, std::iter::empty())
    }
}

/// 22 characters: 128 bits, six to a character, in the alphabet of RFC 4648 §5 (base64url).
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bits = u128::from_be_bytes(self.0);
        let mut text = [0; 22];
        for (at, character) in text.iter_mut().enumerate() {
            // The last character holds the two bits that are left, on its high side.
            let six = if at < 21 { bits >> (122 - 6 * at) } else { bits << 4 };
            *character = ALPHABET[(six & 63) as usize];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}
