//! The store on Redis: a cluster, one server, or a master that sentinels monitor. Only this file
//! and its submodules name the Redis client.
//!
//! Every ask is one call of one script on one key. It is sent again only after an error reply,
//! which means that the script changed nothing: **an ask is applied at most once**, with or without
//! tokens to give back. A lost reply costs the tokens of one lease until the window ends. Repeating
//! the ask would cost as many tokens again each time, and a credit applied twice would admit more
//! than the limit.

mod adaptive_timeout;
mod address;
mod call;
mod cluster;
mod connect_limiter;
mod connection;
mod connector;
mod context;
mod fault;
mod heartbeat;
mod log_once;
mod off_map_nodes;
mod open;
mod reconnecting;
mod reply_limit;
mod script;
mod secure;
mod sentinel;
mod settings;
mod slots;
mod stages;
mod stream;
mod threads;
mod trip;

use std::sync::Arc;
use std::time::Duration;

use self::cluster::Cluster;
use self::connector::Connector;
use self::context::{StoreContext, count};
use self::fault::{Fault, Kind};
use self::reconnecting::Reconnecting;
pub use self::settings::{Address, Auth, RedisKind, RedisSettings, parse_host};
pub use self::slots::slot_of;
use self::trip::Trip;
/// The parsers of replies, for `tests/fuzz`.
#[doc(hidden)]
pub use self::{
    script::grant,
    slots::{SLOTS, Slots},
};
use super::{Ask, Grant, GrantFuture, Heartbeat, PodCountFuture, ReadyFuture, Store, StoreError};
use crate::counter::Count;

/// Counts that are stored in Redis.
#[derive(Debug)]
pub struct RedisStore {
    context: Arc<StoreContext>,
    key_prefix: String,
    servers: Servers,
}

#[derive(Debug)]
enum Servers {
    One(Arc<Reconnecting>),
    Cluster(Cluster),
}

// === impl RedisStore ===

impl RedisStore {
    /// Makes a store on the servers of `settings`, whose keys all begin with `key_prefix`. Returns
    /// at once, even if no server is reachable: tasks of the present runtime connect, and keep
    /// trying. Until then asks fail with [`StoreError::Unreachable`], after waiting at most for the
    /// first attempt.
    pub fn spawn(settings: RedisSettings, key_prefix: &str) -> Arc<Self> {
        let context = StoreContext::new(settings);
        let servers = match &context.settings.kind {
            RedisKind::Single => {
                Servers::One(Reconnecting::spawn(Connector::first_server(&context)))
            }
            RedisKind::Cluster => Servers::Cluster(Cluster::spawn(Arc::clone(&context))),
            RedisKind::Sentinel { master } => {
                Servers::One(Reconnecting::spawn(Connector::master(&context, master)))
            }
        };
        let key_prefix = key_prefix.to_owned();
        Arc::new(Self { context, key_prefix, servers })
    }

    async fn carry(&self, ask: &Ask) -> Result<Grant, StoreError> {
        count(&self.context.counters.asks);
        let call =
            script::call(&self.context.scripts, ask, ask.counter().in_store(&self.key_prefix));
        let replied = Trip::new(&call).result(self, |reply| grant(ask, reply)).await;
        replied.map_err(|fault| {
            count(&self.context.counters.errors);
            StoreError::from(fault)
        })
    }

    async fn beats(&self, beat: Heartbeat) -> Result<u32, StoreError> {
        let call =
            heartbeat::call(&self.context.scripts, beat, format!("{}rl:pods", self.key_prefix));
        Ok(Trip::new(&call).result(self, heartbeat::pods).await?)
    }

    fn routes(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    fn mark_slots_stale(&self) {
        if let Servers::Cluster(cluster) = &self.servers {
            cluster.mark_slots_stale();
        }
    }

    /// The fault, with the setting to change if it is the effect of one.
    fn explained(&self, fault: Fault) -> Fault {
        match fault.wrong_setting(self.routes()) {
            Some(hint) if fault.to.is_some() => Fault::new(Kind::Refused, hint),
            Some(hint) => fault.with_hint(hint),
            None => fault,
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

    /// A connection pipelines the commands that reach it at about the same time.
    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(self.carry(ask))
    }

    fn ready(&self) -> ReadyFuture<'_> {
        match &self.servers {
            Servers::One(link) => Box::pin(link.up()),
            Servers::Cluster(cluster) => Box::pin(cluster.ready()),
        }
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        match &self.servers {
            Servers::One(link) => link.silence(),
            Servers::Cluster(cluster) => cluster.silence(shard),
        }
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(self.beats(beat))
    }

    fn owner(&self, ask: &Ask) -> Option<String> {
        match &self.servers {
            Servers::One(link) => {
                link.connection().ok().map(|connection| connection.address.to_string())
            }
            Servers::Cluster(cluster) => {
                let key = ask.counter().in_store(&self.key_prefix);
                cluster.master(slot_of(key.as_bytes())).map(|master| master.to_string())
            }
        }
    }

    /// Counters of asks, of attempts to connect, and of each kind of failed reply.
    fn counts(&self) -> Vec<Count> {
        self.context.counters.counts()
    }

    fn describe(&self) -> String {
        let RedisSettings { kind, addresses, database, .. } = &self.context.settings;
        let first = addresses.first().map(Address::to_string).unwrap_or_default();
        let of = if *database == 0 { String::new() } else { format!(", database {database}") };
        match kind {
            RedisKind::Single => format!("redis {first}{of}"),
            RedisKind::Cluster => format!("cluster {first}"),
            RedisKind::Sentinel { master } => format!("master {master} of sentinel {first}{of}"),
        }
    }
}
