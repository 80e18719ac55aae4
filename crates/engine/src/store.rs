//! The store owns each key's count. The lease client asks it for tokens and gives unspent ones
//! back.

pub mod memory;
pub mod redis;
pub mod stores;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::key::{Key, POOLS_FROM};
use ratelease_rules::{DEFAULT_STORE, POOLS_MAX};

use crate::algorithm::concurrency::Holder;
use crate::counter::Count;
use crate::order::{Follow, Order, StoreOrders};
use crate::pod::PodRecord;
use crate::store::memory::MemoryStore;
use crate::store::redis::{RedisSettings, RedisStore};
use crate::store::stores::{NamedStore, Stores};

pub use crate::ask::{Ask, Deposit, Grant, Purpose, Return, Slots};

/// Owner of every key's count.
///
/// # Contract
///
/// Each ask is one atomic step on one count ([`Ask::counter`]), taken at the store's own time (the
/// only wall clock) by the arithmetic of its limit's algorithm, [`crate::algorithm`]:
///
/// 1. [`Ask::back`] is credited first, never more than was debited. A late return of a lease,
///    identified by its epoch, credits nothing. A leaky bucket credits nothing at all, since its
///    slots pass whether they are used or not.
/// 2. If [`Ask::need`] is more than the tokens left, nothing is granted and, where
///    [`Ask::charge_denied`] is set, the tokens left are spent (except for a leaky bucket: a slot
///    that this charge did not get serves the next charge). Otherwise `min(max(want, need), left)`
///    tokens are granted, debited *before* the reply leaves, so that the tokens handed out never
///    exceed the limit, even if the reply is lost.
/// 3. Every count expires by itself once it is equivalent to no count.
///
/// # Pools
///
/// A key's own count always holds the whole limit. A key that is split over several slots also has
/// pools: each holds tokens that a pod leased from the count and put there for other pods. An ask
/// with [`Ask::pool`] is a step of that pool alone, by [`crate::algorithm::pool`]:
///
/// 1. [`Ask::deposit`] is put in. If the pool is empty or holds tokens of the same epoch, the
///    tokens are added, and all of them end at the earliest end of their leases. For a fixed or
///    sliding window, whose epochs are windows, tokens of a newer window replace the tokens of an
///    older one, and a deposit of an older window is dropped. For a token bucket, whose epochs are
///    times, tokens of all epochs are added up, and the pool keeps the oldest epoch. A deposit of
///    no tokens, or for less than a millisecond, changes nothing. A lease that has yet to start
///    must not be put in.
/// 2. If [`Ask::need`] is at most the number of tokens in the pool, `held`, the pool lends
///    `min(max(want, need), held)` tokens, otherwise none. A pool never denies:
///    [`Ask::charge_denied`] and [`Ask::next_window`] are ignored, and [`Grant::overdrawn`] is
///    never set.
/// 3. [`Ask::back`] is ignored: tokens return to the key's own count.
///
/// A leaky bucket has no pools, since its slots are spaced; a sliding log is never leased, so that
/// there is nothing to put in.
///
/// # The next window
///
/// An ask of a fixed window with [`Ask::next_window`] takes from the window after the present one,
/// whose count then starts at the number of tokens leased ahead. The present window is left as it
/// is, and a denial there spends nothing. With or without `next_window`, a return is credited to
/// the window that its epoch names, the present one or the next, and a refund to the present one.
/// The other algorithms ignore `next_window`.
///
/// # Slots
///
/// A count of slots ([`crate::algorithm::concurrency`]) keeps the slots that each pod holds, as an
/// ask states them ([`Ask::slots`]). So of the clauses above only the second applies, without the
/// spending; [`Ask::back`] is ignored, and an ask without slots is a look. Such a count has no
/// pools.
///
/// # Lost replies
///
/// A reply that is lost leaves its tokens debited; slots are free again with the pod's next ask. An
/// implementation may repeat an ask that it knows was not taken. It never repeats one whose outcome
/// it does not know, since a credit applied twice would admit more than the limit.
pub trait Store: Send + Sync + 'static {
    /// The shard that owns the key of `ask`, below [`SHARDS_MAX`], or below
    /// [`stores::SHARDS_OF_ALL_MAX`] where there are several stores; asks of one shard are sent
    /// together. Advisory: a stale answer costs time, never correctness.
    fn shard(&self, ask: &Ask) -> usize;

    /// The key of the other name that the ask visits, since the count moves between two names while
    /// a secret is replaced; `None` if there is none. Advisory, as [`Store::shard`] is.
    fn other_name(&self, _ask: &Ask) -> Option<Key> {
        None
    }

    /// Sends one ask to its shard. The ask is answered within a deadline of the store's own, and
    /// independently of other asks.
    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a>;

    /// Waits until every server that holds counts is connected; waits forever if one never is.
    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(std::future::ready(()))
    }

    /// How long the server of `shard` has owed replies and sent nothing. Zero while the server owes
    /// none, since any ask still out then waits for another server. `None` where that is not known.
    fn silence(&self, _shard: usize) -> Option<Duration> {
        None
    }

    /// Notes that a pod is alive, or that it leaves, and returns the number of live pods.
    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_>;

    /// Deletes the count, or the pool, that `ask` names.
    fn clear<'a>(&'a self, _ask: &'a Ask) -> OrderFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// Gives an order for the key that `ask` names to all pods that share its count.
    fn order<'a>(&'a self, _ask: &'a Ask, _order: Order) -> OrderFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// Follows the orders: first reports which keys are blocked, each time that it has connected,
    /// then each order as it is given. Never returns.
    fn follow_orders<'a>(&'a self, _follow: Follow<'a>) -> ReadyFuture<'a> {
        Box::pin(std::future::pending())
    }

    /// Reads the orders of the store that counts `ask`, or of every store.
    fn read_orders<'a>(&'a self, _ask: Option<&'a Ask>) -> OrdersFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// The numbers of the live pods, at most [`PODS_MAX`].
    fn pods(&self) -> PodsFuture<'_> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// The record of the pod of this number in the store that counts `ask`; `None` if there is
    /// none.
    fn read_pod<'a>(&'a self, _ask: &'a Ask, _pod: u64) -> PodFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// The pods that hold slots of the count that `ask` names.
    fn holders<'a>(&'a self, _ask: &'a Ask) -> HoldersFuture<'a> {
        Box::pin(std::future::ready(Err(StoreError::Refused(NO_ORDERS.to_owned()))))
    }

    /// Event counters since the store was made; each only grows. Empty where nothing can happen.
    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }

    /// The address of the server that owns the counts of `shard`, for display; `None` where that is
    /// not known at present.
    fn server(&self, _shard: usize) -> Option<String> {
        None
    }

    /// The name of the store that `shard` belongs to, for metrics and pages.
    fn store_name(&self, _shard: usize) -> String {
        DEFAULT_STORE.to_owned()
    }

    /// Where the counts are, for display, such as `memory` or `cluster 127.0.0.1:7000`. Never
    /// contains a password.
    fn describe(&self) -> String;
}

/// The result of [`Store::lend`].
pub type GrantFuture<'a> = Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>>;

/// Why a store whose counts are of one process takes no orders.
const NO_ORDERS: &str = "its counts are of one process, which follows no orders";

/// The result of [`Store::order`] and [`Store::clear`].
pub type OrderFuture<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// The result of [`Store::read_orders`]: the orders of each store.
pub type OrdersFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<StoreOrders>, StoreError>> + Send + 'a>>;

/// The result of [`Store::pods`].
pub type PodsFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<u64>, StoreError>> + Send + 'a>>;

/// The result of [`Store::read_pod`].
pub type PodFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<PodRecord>, StoreError>> + Send + 'a>>;

/// The result of [`Store::holders`].
pub type HoldersFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Holder>, StoreError>> + Send + 'a>>;

/// The result of [`Store::ready`].
pub type ReadyFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The result of [`Store::beat`]: the number of live pods, including this one unless it leaves.
pub type PodCountFuture<'a> = Pin<Box<dyn Future<Output = Result<u32, StoreError>> + Send + 'a>>;

/// A pod's heartbeat. Pods that share counts see each other's heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// The pod, by a number that it drew itself.
    pub pod: u64,
    /// How long the pod counts as alive without another heartbeat.
    pub lasts: Duration,
    /// The pod leaves now, and has given back its tokens.
    pub leaves: bool,
    /// The domain whose pods are counted, as a keyed hash; `None` counts the pods of all domains.
    pub domain: Option<Key>,
}

/// The largest number of pods that one store counts; it counts further ones only after some have
/// gone.
pub const PODS_MAX: usize = 10_000;

/// The largest number of shards of one store: twice the masters of a large Redis Cluster.
pub const SHARDS_MAX: usize = 2048;

const _: () = assert!(POOLS_MAX <= POOLS_FROM);

/// Why an ask has no grant. A variant that is not marked as *not applied* does not
/// say whether the store applied the ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection to the shard, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// No reply within the deadline of the ask.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store answered that it cannot take the ask (not applied).
    #[error("the store refused the ask: {0}")]
    Refused(String),
    /// Too many asks are waiting for this shard (not applied).
    #[error("too many asks are waiting for the store")]
    QueueFull,
    /// There is no room here for a further key or a further waiting request (not applied). It says
    /// nothing about the store.
    #[error("no room for further keys or waiting requests")]
    NoRoom,
    /// The lease client is closed, since the pod leaves (not applied).
    #[error("the limiter is closed")]
    Closed,
    /// The shard's budget of asks is spent, and this one could be dropped (not applied). It says
    /// nothing about the shard.
    #[error("not sent: the shard's budget of asks is spent")]
    Shed,
    /// The shard named another node for the key, and that node did not answer; other keys of the
    /// shard are served.
    #[error("the node that takes over the key did not answer: {0}")]
    RedirectFailed(String),
    /// The key holds a value of another program, which is left as it is; other keys are served (not
    /// applied).
    #[error("the store holds another program's value under this key")]
    ForeignValue,
    /// The count is, or was, under another name while a secret is being replaced, and the shard of
    /// that name failed, or the name is not known. It says nothing about the shard that was asked.
    #[error("the count has another name: {fault}")]
    Elsewhere {
        /// The key that has this name; `None` if it is not known.
        at: Option<Key>,
        /// The failure of the other name's shard.
        fault: Box<StoreError>,
        /// Whether the ask was certainly not applied.
        is_not_applied: bool,
    },
    /// The store holds as many keys as it may, and serves only those (not applied).
    #[error("the store is full: {0}")]
    Full(String),
    /// The shard's breaker is open: nothing was sent (not applied).
    #[error("the circuit breaker is open: the last replies were errors or late")]
    Unavailable,
    /// The reply is not one that the script can give.
    #[error("the store gave an unexpected reply: {0}")]
    MalformedReply(String),
}

// === impl StoreError ===

impl StoreError {
    /// Whether the ask was certainly not applied, so that the pod still holds the tokens of its
    /// return.
    pub fn is_not_applied(&self) -> bool {
        match self {
            // The ask was not sent.
            Self::QueueFull | Self::NoRoom | Self::Closed | Self::Unavailable | Self::Shed => true,
            // The store said so.
            Self::Refused(_) | Self::ForeignValue | Self::Full(_) => true,
            Self::Elsewhere { is_not_applied, .. } => *is_not_applied,
            _ => false,
        }
    }

    /// Whether this pod has no room for the ask, or for a request that would wait for it: the store
    /// may be well.
    pub fn is_lack_of_room(&self) -> bool {
        matches!(self, Self::QueueFull | Self::NoRoom)
    }

    /// Whether the error concerns this key alone: the store answers, and serves other keys.
    pub fn concerns_one_key(&self) -> bool {
        matches!(self, Self::ForeignValue | Self::Full(_) | Self::RedirectFailed(_))
    }
}

// === Which store owns the counts, and how to open it ===

/// The settings that say which store owns the counts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // there is one a process
pub enum StoreSettings {
    /// The memory of this process: counts are not shared and are lost when it exits.
    Memory,
    /// Redis.
    Redis {
        /// The Redis of all limits, except those that the others take.
        main: RedisSettings,
        /// The Redis of limits with unit SECOND that name no store.
        per_second: Option<RedisSettings>,
        /// The Redis of each named store, in the order of the stores' numbers.
        named: Vec<NamedRedis>,
        /// Prefix of every key; at most 64 bytes, without braces.
        key_prefix: String,
    },
}

/// The Redis of a named store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRedis {
    /// The store's name in rules.
    pub name: Box<str>,
    /// The Redis of this store.
    pub redis: RedisSettings,
}

/// Opens the store of these settings. A store on Redis starts to connect, on the present runtime.
pub fn open(settings: StoreSettings) -> Arc<dyn Store> {
    match settings {
        StoreSettings::Memory => Arc::new(MemoryStore::system()),
        StoreSettings::Redis { main, per_second, named, key_prefix } => {
            let open = |redis| RedisStore::spawn(redis, &key_prefix) as Arc<dyn Store>;
            let main = open(main);
            if per_second.is_none() && named.is_empty() {
                return main;
            }
            let named = named.into_iter().map(|NamedRedis { name, redis }| {
                let store = open(redis);
                NamedStore { name, store }
            });
            let named = named.collect();
            Arc::new(Stores::new(main, per_second.map(open), named))
        }
    }
}

// === impl StoreSettings ===

impl StoreSettings {
    /// Returns the settings with the limit of each Redis' connections changed by `part`, which is
    /// given the limit and the number of Redis that there are.
    #[must_use]
    pub fn with_connections(self, part: impl Fn(usize, usize) -> usize) -> Self {
        let Self::Redis { main, per_second, named, key_prefix } = self else { return self };
        let count = 1 + usize::from(per_second.is_some()) + named.len();
        let changed = |redis: RedisSettings| {
            let connections_max = part(redis.connections_max, count);
            RedisSettings { connections_max, ..redis }
        };
        let of_named = |it: NamedRedis| NamedRedis { redis: changed(it.redis), ..it };
        Self::Redis {
            main: changed(main),
            per_second: per_second.map(changed),
            named: named.into_iter().map(of_named).collect(),
            key_prefix,
        }
    }

    /// Returns every Redis that is used.
    pub fn all_redis(&self) -> impl Iterator<Item = &RedisSettings> {
        let (main, per_second, named) = match self {
            Self::Memory => (None, None, &[][..]),
            Self::Redis { main, per_second, named, .. } => {
                (Some(main), per_second.as_ref(), &named[..])
            }
        };
        main.into_iter().chain(per_second).chain(named.iter().map(|it| &it.redis))
    }
}
