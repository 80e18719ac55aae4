//! A cache of the keys that a thread made last. A hot key is made again and again, and comparing
//! its encoding takes less time than hashing it: some 30 ns instead of 120.
//!
//! The cache does not change any key: an entry is used only for the same bytes and the same secret.

use std::cell::RefCell;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::Key;

/// Keys in the cache of a thread: some 50 KiB, so that they stay in the core's own caches. Each key
/// has one place, and a new key replaces what was there. A client that aims many keys at one place
/// only causes keys to be hashed, as they would be without the cache.
const PLACES: usize = 512;

/// Longer encodings are always hashed: they are rare, and every place is as large as the longest.
const BYTES_MAX: usize = 72;

thread_local! {
    /// Empty until the thread makes its first key.
    static RECENT: RefCell<Vec<Made>> = const { RefCell::new(Vec::new()) };
}

/// A key and the bytes and secret it was made from.
#[derive(Clone, Copy)]
struct Made {
    secret: u64,
    len: u8,
    bytes: [u8; BYTES_MAX],
    key: Key,
}

/// Returns the key that `make` makes from `bytes`; `secret` identifies the secret.
#[inline]
pub(super) fn key(secret: u64, bytes: &[u8], make: impl Fn() -> Key) -> Key {
    let Some(len) = u8::try_from(bytes.len()).ok().filter(|len| usize::from(*len) <= BYTES_MAX)
    else {
        return make();
    };
    let looked_up = RECENT.try_with(|recent| {
        let mut recent = recent.try_borrow_mut().ok()?;
        if recent.is_empty() {
            let nothing =
                Made { secret: 0, len: u8::MAX, bytes: [0; BYTES_MAX], key: Key([0; 16]) };
            recent.resize(PLACES, nothing);
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

#[allow(clippy::cast_possible_truncation, reason = "a remainder of PLACES fits")]
#[inline]
fn place_of(bytes: &[u8]) -> usize {
    (FixedState::default().hash_one(bytes) % PLACES as u64) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn made(secret: u64, bytes: &[u8], as_number: u8, times: &Cell<u32>) -> Key {
        key(secret, bytes, || {
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
        for (length, more) in [(BYTES_MAX, 1), (BYTES_MAX + 1, 2), (300, 2)] {
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
            for at in 0..4 * PLACES {
                let number = u8::try_from(at % 251).unwrap();
                let found = made(1, format!("key-{at}").as_bytes(), number, &times);
                assert_eq!(found, Key([number; 16]), "{at} in round {round}");
            }
        }
    }
}
