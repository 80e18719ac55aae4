//! The store on Redis: a cluster, one server, or a master that sentinels watch over. This file and
//! those beneath it are the only ones that name the Redis client.
//!
//! Every ask is one call of one script on one key. It is sent again only after an error reply,
//! which says that the script changed nothing: **an ask is applied at most once**, with or without
//! tokens to give back. A lost reply costs the tokens of one lease until the window ends; repeating
//! would cost as many again each time, and a credit twice would admit more than the limit.

mod address;
mod call;
mod cluster;
mod dial;
mod fault;
mod gate;
mod link;
mod live;
mod outage;
mod patience;
mod pulse;
mod site;
mod slots;
mod step;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use self::call::{Call, Scripts};
use self::cluster::Cluster;
use self::dial::Dial;
use self::fault::{Fault, Kind, Next};
use self::link::Link;
use self::live::Live;
use self::patience::LEAST_MAX;
use self::site::{Site, count};
pub(crate) use self::slots::slot_of;
use super::{Ask, Beat, Beaten, Count, Grant, Replies, Store, StoreError};
use crate::backoff::Backoff;
use crate::settings::redis::{Address, RedisKind, RedisSettings};

/// Counts in Redis.
#[derive(Debug)]
pub struct RedisStore {
    site: Arc<Site>,
    key_prefix: String,
    servers: Servers,
    scripts: Scripts,
}

#[derive(Debug)]
enum Servers {
    One(Arc<Link>),
    Cluster(Cluster),
}

/// Where a call goes next.
enum Route {
    Owner,
    Moved(Address),
    Asking(Address),
}

/// For one ask, whatever redirects and repeats it takes: so many replies as slow as its server is
/// known to be, and the waits between. Leases are asked for ahead, so that no request waits for all
/// of this.
const ASK_REPLIES: u32 = 3;
const ASK_WAITS: Duration = Duration::from_millis(50);
/// However slow the server is: below what the lease desk allows a batch, above the longest silence.
const ASK_DEADLINE_MAX: Duration = Duration::from_secs(9);
const _: () = assert!(LEAST_MAX.as_millis() < ASK_DEADLINE_MAX.as_millis());
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
        let site = Site::new(settings);
        let servers = match &site.settings.kind {
            RedisKind::Single => Servers::One(Link::spawn(Dial::first_server(&site))),
            RedisKind::Cluster => Servers::Cluster(Cluster::spawn(Arc::clone(&site))),
            RedisKind::Sentinel { master } => {
                Servers::One(Link::spawn(Dial::master(&site, master)))
            }
        };
        let key_prefix = key_prefix.to_owned();
        Arc::new(Self { site, key_prefix, servers, scripts: Scripts::default() })
    }

    /// Waits until every server that holds counts is connected; for ever, if one never is.
    pub async fn ready(&self) {
        match &self.servers {
            Servers::One(link) => link.up().await,
            Servers::Cluster(cluster) => cluster.ready().await,
        }
    }

    async fn carry(&self, ask: &Ask) -> Result<Grant, StoreError> {
        count(&self.site.tally.asks);
        let call = step::call(&self.scripts, ask, ask.counter().in_store(&self.key_prefix));
        let grant = self.answer(&call, |reply| step::grant(ask, reply)).await;
        grant.map_err(|fault| {
            count(&self.site.tally.errors);
            StoreError::from(fault)
        })
    }

    async fn beats(&self, beat: Beat) -> Result<u32, StoreError> {
        let call = pulse::call(&self.scripts, beat, format!("{}rl:pods", self.key_prefix));
        Ok(self.answer(&call, pulse::pods).await?)
    }

    /// The result of `call`, which `read` makes of its reply, within the deadline.
    async fn answer<T>(
        &self,
        call: &Call<'_>,
        read: impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let result = tokio::time::timeout(self.deadline(call), self.take(call, &read)).await;
        result.unwrap_or_else(|_| {
            self.site.meet(Kind::TimedOut);
            self.suspect();
            Err(Fault::timed_out())
        })
    }

    /// Sends `call` where it belongs, following the replies, until one has its result.
    async fn take<T>(
        &self,
        call: &Call<'_>,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut route = Route::Owner;
        let mut in_full = false;
        let mut repeats = 0;
        let mut wait = Backoff::new(REPEAT_FIRST, REPEAT_LAST);
        let mut last = Fault::timed_out();
        for _ in 0..SENDS_MAX {
            last = match self.send(call, &route, in_full, read).await {
                Ok(result) => return Ok(result),
                Err(fault) => fault,
            };
            match (last.kind.meaning().next, &last.to) {
                // Just to this server: SCRIPT LOAD through redis-rs goes to every node.
                (Next::InFull, _) => in_full = true,
                (Next::There, Some(to)) if self.routes() => route = Route::Moved(to.clone()),
                (Next::ThereAsking, Some(to)) if self.routes() => route = Route::Asking(to.clone()),
                (Next::Again, _) if repeats < REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(wait.next()).await;
                    route = Route::Owner;
                }
                _ => break,
            }
        }
        Err(self.explained(last))
    }

    async fn send<T>(
        &self,
        call: &Call<'_>,
        route: &Route,
        in_full: bool,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let read = |reply: Value| read(&reply);
        let command = if in_full { call.in_full() } else { call.by_name() };
        let result = match (self.connected(call, route).await, route) {
            (Ok(live), Route::Asking(_)) => live.send_asking(&command, read).await,
            (Ok(live), Route::Owner | Route::Moved(_)) => live.send(&command, read).await,
            (Err(fault), _) => Err(fault),
        };
        result.inspect_err(|fault| {
            if fault.kind == Kind::NotSent {
                self.site.meet(fault.kind);
            }
            if fault.kind.meaning().map_is_suspect {
                self.suspect();
            }
        })
    }

    async fn connected(&self, call: &Call<'_>, route: &Route) -> Result<Arc<Live>, Fault> {
        let live = tokio::time::timeout(self.site.settings.timeout, self.server(call, route)).await;
        live.unwrap_or_else(|_| Err(Fault::new(Kind::NotSent, "still connecting")))
    }

    async fn server(&self, call: &Call<'_>, route: &Route) -> Result<Arc<Live>, Fault> {
        match (&self.servers, route) {
            (Servers::One(link), _) => link.dialled().await,
            (Servers::Cluster(cluster), Route::Owner) => cluster.owner(slot(call)).await,
            (Servers::Cluster(cluster), Route::Moved(to) | Route::Asking(to)) => {
                cluster.node(to).await
            }
        }
    }

    fn deadline(&self, call: &Call<'_>) -> Duration {
        let reply = match &self.servers {
            Servers::One(link) => Some(link.patience()),
            Servers::Cluster(cluster) => cluster.patience(slot(call)),
        };
        let reply = reply.unwrap_or(self.site.settings.timeout);
        (ASK_REPLIES * reply + ASK_WAITS).min(ASK_DEADLINE_MAX)
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
        match fault.kind {
            Kind::Moved | Kind::Ask if !self.routes() => Fault::new(
                Kind::Refused,
                "the server is a node of a Redis Cluster; set REDIS_TYPE=cluster",
            ),
            _ => fault,
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

    fn owner(&self, ask: &Ask) -> Option<String> {
        match &self.servers {
            Servers::One(link) => link.live().ok().map(|live| live.address.to_string()),
            Servers::Cluster(cluster) => {
                let key = ask.counter().in_store(&self.key_prefix);
                cluster.master(slot_of(key.as_bytes())).map(|master| master.to_string())
            }
        }
    }

    /// Asks, attempts to connect, and each kind of answer that is no result.
    fn counts(&self) -> Vec<Count> {
        self.site.tally.counts()
    }

    fn describe(&self) -> String {
        let first =
            self.site.settings.addresses.first().map(Address::to_string).unwrap_or_default();
        match &self.site.settings.kind {
            RedisKind::Single => format!("redis {first}"),
            RedisKind::Cluster => format!("cluster {first}"),
            RedisKind::Sentinel { master } => format!("master {master} of sentinel {first}"),
        }
    }
}

fn slot(call: &Call<'_>) -> usize {
    slot_of(call.key().as_bytes())
}
