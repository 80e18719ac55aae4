//! The store on Redis: a cluster, one server, or a master that sentinels watch over. This file and
//! those beneath it are the only ones that name the Redis client.
//!
//! Every ask is one call of one script on one key. It is sent again only after an error reply,
//! which says that the script changed nothing: **an ask is applied at most once**, with or without
//! tokens to give back. A lost reply costs the tokens of one lease until the window ends; repeating
//! would cost as many again each time, and a credit twice would admit more than the limit.

mod address;
mod backoff;
mod call;
mod cluster;
mod dial;
mod fault;
mod link;
mod pulse;
mod slots;
mod step;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use self::backoff::Backoff;
use self::call::{Call, Scripts};
use self::cluster::Cluster;
use self::dial::Dial;
use self::fault::Fault;
use self::link::{Link, Live};
use self::slots::slot_of;
use super::{Ask, Beat, Beaten, Grant, Replies, Store, StoreError};
use crate::settings::redis::{Address, RedisKind, RedisSettings};

/// Counts in Redis.
#[derive(Debug)]
pub struct RedisStore {
    settings: Arc<RedisSettings>,
    key_prefix: String,
    servers: Servers,
    scripts: Scripts,
    counters: Counters,
}

/// What a [`RedisStore`] has met since it began; each only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RedisCounts {
    /// Asks carried, or tried to.
    pub asks: u64,
    /// Asks that ended in an error.
    pub errors: u64,
    /// Replies NOSCRIPT: a server had not seen the script yet.
    pub noscripts: u64,
    /// Replies MOVED and ASK: the slot was on another node.
    pub redirects: u64,
    /// Replies TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN and READONLY.
    pub not_nows: u64,
}

#[derive(Debug)]
enum Servers {
    One(Arc<Link>),
    Cluster(Cluster),
}

#[derive(Debug, Default)]
struct Counters {
    asks: AtomicU64,
    errors: AtomicU64,
    noscripts: AtomicU64,
    redirects: AtomicU64,
    not_nows: AtomicU64,
}

/// Where a call goes next.
enum Route {
    Owner,
    Moved(Address),
    Asking(Address),
}

/// For one ask, whatever redirects and repeats it takes: so many replies, and the waits between.
/// Leases are asked for ahead, so that no request waits for all of this.
const ASK_REPLIES: u32 = 3;
const ASK_WAITS: Duration = Duration::from_millis(50);
/// Whatever the time-out of a reply is: below what the lease desk allows a batch.
const ASK_DEADLINE_MAX: Duration = Duration::from_secs(9);
/// Times that one ask is sent at most. The longest way that is not a fault takes four: moved, still
/// moving on, unknown script there, script in full.
const SENDS_MAX: u32 = 7;
/// Of these, repeats to a server that cannot serve the key just now, and the waits before them.
const REPEATS_MAX: u32 = 3;
const REPEAT_FIRST: Duration = Duration::from_millis(2);
const REPEAT_LAST: Duration = Duration::from_millis(50);

// === impl RedisStore ===

impl RedisStore {
    /// A store on the servers of `settings`, whose keys all begin with `key_prefix`. Returns at
    /// once, whether the servers are there or not: tasks of the present runtime connect, and go on
    /// trying. Until then asks are [`StoreError::Unreachable`], after waiting for the first attempt
    /// at most.
    pub fn spawn(settings: RedisSettings, key_prefix: &str) -> Arc<Self> {
        let settings = Arc::new(settings);
        let servers = match &settings.kind {
            RedisKind::Single => Servers::One(Link::spawn(Dial::first_server(&settings))),
            RedisKind::Cluster => Servers::Cluster(Cluster::spawn(Arc::clone(&settings))),
            RedisKind::Sentinel { master } => {
                Servers::One(Link::spawn(Dial::master(&settings, master)))
            }
        };
        let (scripts, counters) = (Scripts::default(), Counters::default());
        Arc::new(Self { settings, key_prefix: key_prefix.to_owned(), servers, scripts, counters })
    }

    /// Waits until every server that holds counts is connected; for ever, if one never is.
    pub async fn ready(&self) {
        match &self.servers {
            Servers::One(link) => link.up().await,
            Servers::Cluster(cluster) => cluster.ready().await,
        }
    }

    /// What it has met so far.
    pub fn counts(&self) -> RedisCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RedisCounts {
            asks: read(&self.counters.asks),
            errors: read(&self.counters.errors),
            noscripts: read(&self.counters.noscripts),
            redirects: read(&self.counters.redirects),
            not_nows: read(&self.counters.not_nows),
        }
    }

    async fn carry(&self, ask: &Ask) -> Result<Grant, StoreError> {
        count(&self.counters.asks);
        let call = step::call(&self.scripts, ask, ask.counter().in_store(&self.key_prefix));
        let reply = self.answer(&call).await;
        reply.and_then(|reply| step::grant(ask, &reply)).map_err(|fault| {
            count(&self.counters.errors);
            StoreError::from(fault)
        })
    }

    async fn beats(&self, beat: Beat) -> Result<u32, StoreError> {
        let call = pulse::call(&self.scripts, beat, format!("{}rl:pods", self.key_prefix));
        let reply = self.answer(&call).await;
        Ok(reply.and_then(|reply| pulse::pods(&reply))?)
    }

    async fn answer(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let reply = tokio::time::timeout(self.ask_deadline(), self.take(call)).await;
        reply.unwrap_or(Err(Fault::TimedOut))
    }

    /// Sends `call` where it belongs, following the replies, until one has its value.
    async fn take(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let mut route = Route::Owner;
        let mut in_full = false;
        let mut repeats = 0;
        let mut wait = Backoff::new(REPEAT_FIRST, REPEAT_LAST);
        let mut last = Fault::TimedOut;
        for _ in 0..SENDS_MAX {
            let fault = match self.send(call, &route, in_full).await {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            last = fault.clone();
            match fault {
                // Just to this server: SCRIPT LOAD through redis-rs goes to every node.
                Fault::NoScript => {
                    count(&self.counters.noscripts);
                    in_full = true;
                }
                Fault::Moved(to) if self.routes() => {
                    count(&self.counters.redirects);
                    route = Route::Moved(to);
                }
                Fault::Ask(to) if self.routes() => {
                    count(&self.counters.redirects);
                    route = Route::Asking(to);
                }
                Fault::NotNow(_) => {
                    count(&self.counters.not_nows);
                    repeats += 1;
                    if repeats > REPEATS_MAX {
                        break;
                    }
                    tokio::time::sleep(wait.next()).await;
                    route = Route::Owner;
                }
                _ => break,
            }
        }
        Err(self.explained(last))
    }

    async fn send(&self, call: &Call<'_>, route: &Route, in_full: bool) -> Result<Value, Fault> {
        let live = tokio::time::timeout(self.settings.timeout, self.server(call, route)).await;
        let live = live.unwrap_or_else(|_| Err(Fault::NotSent("still connecting".into())));
        let live = live.inspect_err(|_| self.suspect())?;
        let command = if in_full { call.in_full() } else { call.by_name() };
        let reply = match route {
            Route::Asking(_) => live.send_asking(&command).await,
            Route::Owner | Route::Moved(_) => live.send(&command).await,
        };
        match &reply {
            Ok(_) | Err(Fault::NoScript | Fault::Ask(_) | Fault::Refused(_)) => {}
            Err(Fault::NotNow(why)) if why.contains("READONLY") => {
                // It is a replica now.
                live.give_up();
                self.suspect();
            }
            Err(_) => self.suspect(),
        }
        reply
    }

    async fn server(&self, call: &Call<'_>, route: &Route) -> Result<Arc<Live>, Fault> {
        match (&self.servers, route) {
            (Servers::One(link), _) => link.dialled().await,
            (Servers::Cluster(cluster), Route::Owner) => {
                cluster.owner(slot_of(call.key().as_bytes())).await
            }
            (Servers::Cluster(cluster), Route::Moved(to) | Route::Asking(to)) => {
                cluster.node(to).await
            }
        }
    }

    fn ask_deadline(&self) -> Duration {
        (ASK_REPLIES * self.settings.timeout + ASK_WAITS).min(ASK_DEADLINE_MAX)
    }

    fn routes(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    fn suspect(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.suspect();
        }
    }

    fn explained(&self, fault: Fault) -> Fault {
        match fault {
            Fault::Moved(_) | Fault::Ask(_) if !self.routes() => Fault::Refused(
                "the server is a node of a Redis Cluster; set REDIS_TYPE=cluster".into(),
            ),
            fault => fault,
        }
    }
}

impl Store for RedisStore {
    fn shard(&self, ask: &Ask) -> usize {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => {
                let key = ask.counter().in_store(&self.key_prefix);
                cluster.shard(slot_of(key.as_bytes()))
            }
        }
    }

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        // Each connection pipelines what reaches it at about the same time.
        Box::pin(join_all(asks.iter().map(|ask| self.carry(ask))))
    }

    fn beat(&self, beat: Beat) -> Beaten<'_> {
        Box::pin(self.beats(beat))
    }

    fn describe(&self) -> String {
        let first = self.settings.addresses.first().map(Address::to_string).unwrap_or_default();
        match &self.settings.kind {
            RedisKind::Single => format!("redis {first}"),
            RedisKind::Cluster => format!("cluster {first}"),
            RedisKind::Sentinel { master } => format!("master {master} of sentinel {first}"),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
