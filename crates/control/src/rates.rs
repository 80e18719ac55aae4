//! **Rates**: how many requests a token may make, and how many tokens that are not valid an address
//! may send.
//!
//! The engine counts them: token buckets in its in-memory store. Each store holds a bounded number
//! of keys, because addresses are chosen by clients without a token; a full one drops the key that
//! expires soonest.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use ratelease_engine::ask::Ask;
use ratelease_engine::store::memory::MemoryStore;
use ratelease_rules::key::{KeyHasher, KeyPart};
use ratelease_rules::{Algorithm, Limit, StoreId, Unit};

use crate::permits::{Permit, Permits};
use crate::store::LIST_CONNECTIONS_MAX;

/// Maximum number of tokens, and of addresses, that are counted at a time.
const KEYS_MAX: usize = 1 << 14;

/// Maximum number of tokens that are remembered as valid.
const KNOWN_MAX: usize = 4096;

/// Maximum number of requests at a time of one token. Further ones wait.
const REQUESTS_MAX: u32 = 64;

/// Maximum number of requests at a time that read or compile whole domains, each of which may take
/// some 100 MiB: of all tokens, and of one.
const LONG_MAX: usize = 3;
const LONG_OF_TOKEN_MAX: u32 = 2;

/// The same that are kept for tokens of access admin, besides those.
const LONG_OF_ADMINS_MAX: usize = 1;

/// Maximum KiB of the bodies that are on their way or handled, of all tokens and of one. A body of
/// a few KiB is not counted.
const BODIES_KIB_MAX: usize = 160 << 10;
const BODIES_OF_TOKEN_KIB_MAX: u32 = 64 << 10;

/// Maximum number of requests at a time that read from the database and change nothing, as many as
/// there are connections for them: of all tokens, and of one.
const READS_OF_TOKEN_MAX: u32 = 3;

/// How many requests there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSettings {
    /// Requests a minute of one token. A sixth of it may come at once.
    pub token_requests: NonZeroU32,
    /// Requests a minute of one address whose token is not valid. All of them may come at once.
    pub failed_tokens: NonZeroU32,
    /// Versions a minute that one token may publish. All of them may come at once.
    pub token_versions: NonZeroU32,
}

/// Counts requests. Bounded in memory.
pub struct Rates {
    hasher: KeyHasher,
    tokens: MemoryStore,
    token_limit: Limit,
    addresses: MemoryStore,
    address_limit: Limit,
    /// Versions of tokens, and KiB of the texts that these change.
    versions: MemoryStore,
    version_limit: Limit,
    published: MemoryStore,
    known: Mutex<KnownTokens>,
    lookups: Permits,
    /// Requests that are handled at a time.
    pub requests: Permits,
    /// Those of them that read a few rows.
    pub reads: Permits,
    /// Those of them that are about whole domains.
    pub long: Permits,
    /// Further ones of those, for tokens of access admin.
    pub long_of_admins: Permits,
    /// KiB of the bodies of requests.
    pub bodies: Permits,
    /// Those of them that publish, one of each token: they wait for each other, in order.
    pub publishers: Permits,
}

/// Tokens that were valid when they were last used, the oldest first. Only valid ones enter, so
/// that an unauthenticated client cannot displace them.
#[derive(Default)]
struct KnownTokens {
    all: HashSet<blake3::Hash>,
    order: VecDeque<blake3::Hash>,
}

/// KiB of texts that a token may publish at once, and in a minute after that. Every pod that has the
/// domains compiles them: 5000 rules, which is all that a token may have by default, stop a pod of
/// 200m for some 70 ms, and this is 20 times as much. A larger version takes all of it.
pub const PUBLISHED_KIB_MAX: u32 = 8 << 10;
pub const PUBLISHED_KIB_A_MINUTE: u32 = 240;

/// Why a token may not publish yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Whether it has published too many bytes, and not too many versions.
    pub of_bytes: bool,
    pub retry_after: Duration,
}

/// What is left of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests that may come at once.
    pub limit: u32,
    /// Requests that are left.
    pub remaining: u64,
    /// Time until the whole limit is there again.
    pub reset_after: Duration,
    /// Time until one more request is allowed; `None` if this one is.
    pub retry_after: Option<Duration>,
}

// === impl RateSettings ===

impl Default for RateSettings {
    fn default() -> Self {
        Self { token_requests: number(6000), failed_tokens: number(60), token_versions: number(60) }
    }
}

// === impl Rates ===

impl Rates {
    /// Counts from now on.
    pub fn new(settings: RateSettings) -> Self {
        let store = || {
            let now = || {
                let now = Timestamp::now().as_microsecond();
                Duration::from_micros(u64::try_from(now).unwrap_or_default())
            };
            MemoryStore::new(Arc::new(now), KEYS_MAX).giving_way()
        };
        let RateSettings { token_requests, failed_tokens, token_versions } = settings;
        Self {
            hasher: KeyHasher::new(""),
            tokens: store(),
            token_limit: a_minute(token_requests, (token_requests.get() / 6).max(1)),
            addresses: store(),
            address_limit: a_minute(failed_tokens, failed_tokens.get()),
            versions: store(),
            version_limit: a_minute(token_versions, token_versions.get()),
            published: store(),
            known: Mutex::default(),
            lookups: Permits::new(usize::MAX, 1),
            requests: Permits::new(usize::MAX, REQUESTS_MAX),
            reads: Permits::new(LIST_CONNECTIONS_MAX as usize, READS_OF_TOKEN_MAX),
            long: Permits::new(LONG_MAX, LONG_OF_TOKEN_MAX),
            long_of_admins: Permits::new(LONG_OF_ADMINS_MAX, 1),
            bodies: Permits::new(BODIES_KIB_MAX, BODIES_OF_TOKEN_KIB_MAX),
            publishers: Permits::new(usize::MAX, 1),
        }
    }

    /// Counts a request of the token of this id.
    pub fn take_request(&self, token: &str) -> Quota {
        self.take(&self.tokens, self.token_limit, token, 1)
    }

    /// Counts a version of the token of this id that changes texts of so many bytes, unless it is one
    /// too many.
    pub fn take_version(&self, token: &str, bytes: usize) -> Result<(), Excess> {
        let refused = |of_bytes, quota: Quota| match quota.retry_after {
            Some(retry_after) => Err(Excess { of_bytes, retry_after }),
            None => Ok(()),
        };
        refused(false, self.take(&self.versions, self.version_limit, token, 1))?;
        let kib = (bytes as u64).div_ceil(1024).clamp(1, PUBLISHED_KIB_MAX.into());
        let kib_limit = a_minute(number(PUBLISHED_KIB_A_MINUTE), PUBLISHED_KIB_MAX);
        refused(true, self.take(&self.published, kib_limit, token, kib))
    }

    /// Counts a token of this address that is not valid, and is not known as valid any more.
    pub fn take_failure(&self, address: IpAddr, token: &str) -> Quota {
        self.known.lock().remove(hash(token));
        self.take(&self.addresses, self.address_limit, &client(address), 1)
    }

    /// Whether a token of this address is to be looked at: one that was valid before always is, so
    /// that no other client behind the same proxy keeps others out. The quota says how long to wait.
    pub fn admits(&self, address: IpAddr, token: &str) -> Result<(), Quota> {
        let quota = self.take(&self.addresses, self.address_limit, &client(address), 0);
        let is_admitted = quota.remaining > 0 || self.is_known(token);
        if is_admitted { Ok(()) } else { Err(quota) }
    }

    /// Whether a token was valid when it was last used.
    pub fn is_known(&self, token: &str) -> bool {
        self.known.lock().all.contains(&hash(token))
    }

    /// Waits until no other token of this address that is not known is looked up: else many at a
    /// time would all be admitted before the first is counted.
    pub async fn take_lookup(&self, address: IpAddr) -> Permit {
        self.lookups.take(client(address).as_str()).await
    }

    /// Notes that a token is valid.
    pub fn note_valid(&self, token: &str) {
        self.known.lock().add(hash(token));
    }

    fn take(&self, store: &MemoryStore, limit: Limit, name: &str, hits: u64) -> Quota {
        let parts = [("of", KeyPart::Value(name))].into_iter();
        let key = self.hasher.key("control", limit.identity(), parts);
        let ask = Ask { want: hits, need: hits, ..Ask::look(key, limit) };
        let most = u32::try_from(limit.capacity()).unwrap_or(u32::MAX);
        let Ok(grant) = store.take(&ask) else {
            // It gives way when it is full, so that it never refuses.
            return Quota {
                limit: most,
                remaining: 0,
                reset_after: Duration::ZERO,
                retry_after: None,
            };
        };
        let is_denied = grant.tokens < hits || hits == 0 && grant.left == 0;
        Quota {
            limit: most,
            remaining: grant.left,
            reset_after: grant.reset_after,
            retry_after: is_denied.then_some(grant.retry_after),
        }
    }
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.tokens.keys();
        let addresses = self.addresses.keys();
        f.debug_struct("Rates").field("tokens", &tokens).field("addresses", &addresses).finish()
    }
}

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

fn a_minute(requests: NonZeroU32, burst: u32) -> Limit {
    Limit {
        requests_per_unit: requests.get().into(),
        unit: Unit::Minute,
        unit_multiplier: NonZeroU32::MIN,
        calendar: None,
        algorithm: Algorithm::token_bucket(burst.into()),
        store: StoreId::DEFAULT,
    }
}

/// The client of an address: of IPv6, the network, because a host may use any address in it.
pub fn client(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

fn hash(token: &str) -> blake3::Hash {
    blake3::hash(token.as_bytes())
}

// === impl KnownTokens ===

impl KnownTokens {
    fn remove(&mut self, token: blake3::Hash) {
        if self.all.remove(&token) {
            self.order.retain(|it| *it != token);
        }
    }

    fn add(&mut self, token: blake3::Hash) {
        if !self.all.insert(token) {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn rates(token_requests: u32, failed_tokens: u32) -> Rates {
        let number = |number| NonZeroU32::new(number).unwrap();
        let (token_requests, failed_tokens) = (number(token_requests), number(failed_tokens));
        Rates::new(RateSettings { token_requests, failed_tokens, ..RateSettings::default() })
    }

    #[test]
    fn each_token_has_a_count_of_its_own() {
        let rates = rates(12, 1);
        let taken: Vec<_> = (0..3).map(|_| rates.take_request("a").retry_after.is_none()).collect();
        assert_eq!(taken, [true, true, false], "a sixth may come at once");
        let other = rates.take_request("b");
        assert_eq!((other.limit, other.remaining, other.retry_after), (2, 1, None));
        let wait = rates.take_request("a").retry_after.unwrap();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(5), "{wait:?}");
    }

    #[test]
    fn an_address_with_too_many_failures_is_refused_except_for_known_tokens() {
        let (rates, here) = (rates(1, 2), IpAddr::from(Ipv4Addr::LOCALHOST));
        rates.note_valid("known");
        for _ in 0..2 {
            assert_eq!(rates.admits(here, "guess"), Ok(()));
            rates.take_failure(here, "guess");
        }
        let quota = rates.admits(here, "guess").unwrap_err();
        assert!(quota.retry_after.unwrap() > Duration::from_secs(20), "{quota:?}");
        assert_eq!(rates.admits(here, "known"), Ok(()));
        assert_eq!(rates.admits(Ipv4Addr::new(10, 0, 0, 1).into(), "guess"), Ok(()));
        rates.take_failure(here, "known");
        assert!(rates.admits(here, "known").is_err(), "it was revoked");
        assert!(rates.known.lock().order.is_empty());
    }

    #[test]
    fn addresses_that_a_stranger_chooses_take_bounded_memory() {
        let rates = rates(1, 1);
        for at in 0..3 * u32::try_from(KEYS_MAX).unwrap() {
            rates.take_failure(Ipv4Addr::from(at).into(), "guess");
        }
        assert!(rates.addresses.keys() <= KEYS_MAX, "{rates:?}");
        for at in 0..2 * KNOWN_MAX {
            rates.note_valid(&at.to_string());
        }
        assert_eq!(rates.known.lock().all.len(), KNOWN_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let address = |last| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, last));
        assert_eq!(client(address(1)), client(address(2)));
        assert_eq!(client(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()), "127.0.0.1");
    }

    #[test]
    fn a_token_publishes_so_many_versions_and_bytes_and_others_go_on() {
        let few = RateSettings { token_versions: number(3), ..RateSettings::default() };
        let rates = Rates::new(few);
        for _ in 0..3 {
            assert_eq!(rates.take_version("evil", 1), Ok(()));
        }
        let excess = rates.take_version("evil", 1).unwrap_err();
        assert!(!excess.of_bytes && excess.retry_after <= Duration::from_secs(20), "{excess:?}");
        let rates = Rates::new(RateSettings::default());
        for _ in 0..2 {
            assert_eq!(rates.take_version("evil", 4 << 20), Ok(()));
        }
        let excess = rates.take_version("evil", 120 << 10).unwrap_err();
        assert!(excess.of_bytes && excess.retry_after <= Duration::from_secs(30), "{excess:?}");
        assert_eq!(rates.take_version("shop", 4 << 20), Ok(()));
    }
}
