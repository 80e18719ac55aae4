//! The store on Redis: a cluster, one server, or a master that sentinels monitor. Only this file
//! and its submodules name the Redis client.
//!
//! Every ask is one call of one script on one key, but for a count that moves (`renames`). It is
//! sent again only after a reply which says that the script changed nothing: **an ask is applied at
//! most once**, with or without tokens to give back. A lost reply costs the tokens of one lease
//! until the window ends. Repeating the ask would cost as many tokens again each time, and a credit
//! applied twice would admit more than the limit.

mod cluster;
mod connection;
mod context;
mod fault;
mod following;
mod orders;
mod pods;
mod renames;
mod settings;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::key::Key;
use redis::{Cmd, Value};

use crate::algorithm::{self, Script, steps, time_outside};
use crate::backoff::Backoff;
use crate::counter::Count;
use crate::order::{Follow, Order};
use crate::store::redis::cluster::Cluster;
use crate::store::redis::connection::{Connection, Connector, Reconnecting};
use crate::store::redis::context::{LEAST_MAX, StoreContext, count};
use crate::store::redis::fault::{Elsewhere, Fault, Kind, Next};
use crate::store::redis::renames::{HOPS_MAX, Renames};
use crate::store::{
    Ask, Grant, GrantFuture, Heartbeat, HoldersFuture, OrderFuture, OrdersFuture, PODS_MAX,
    PodCountFuture, PodFuture, PodsFuture, ReadyFuture, Store, StoreError,
};

pub use self::cluster::slot_of;
/// The parsers of replies, for `tests/fuzz`.
#[doc(hidden)]
pub use self::cluster::{SLOTS, Slots};
pub use self::settings::{Address, Auth, Login, RedisKind, RedisSettings, parse_host};

/// Counts that are stored in Redis.
#[derive(Debug)]
pub struct RedisStore {
    context: Arc<StoreContext>,
    key_prefix: String,
    servers: Servers,
    renames: Renames,
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
        Arc::new(Self { context, key_prefix, servers, renames: Renames::default() })
    }

    async fn carry(&self, ask: &Ask) -> Result<Grant, StoreError> {
        count(&self.context.counters.asks);
        self.granted(ask).await.map_err(|fault| {
            count(&self.context.counters.errors);
            StoreError::from(fault)
        })
    }

    /// Sends `ask` to where its count is.
    async fn granted(&self, ask: &Ask) -> Result<Grant, Fault> {
        let (mut key, mut before) = (self.key_of(ask).await?, None);
        for _ in 0..HOPS_MAX {
            match self.granted_at(key, ask).await {
                // The ask has changed nothing. Without a mark the key's own name is right again.
                Err(fault) if fault.kind == Kind::Renamed => {
                    let to = self.followed(ask, key, before).await?.unwrap_or(ask.key);
                    before = Some(std::mem::replace(&mut key, to));
                }
                outcome => {
                    return outcome.map_err(|fault| self.at_name(ask, key, Elsewhere::Ask, fault));
                }
            }
        }
        Err(Fault::new(Kind::Renamed, "the count moves back and forth between two names"))
    }

    /// Sends `ask` to the count of `key`, and once more if the script was not told of the window
    /// that the server is in: it has changed nothing, and has replied with the server's time.
    async fn granted_at(&self, key: Key, ask: &Ask) -> Result<Grant, Fault> {
        let key = Ask { key, ..*ask }.counter().in_store(&self.key_prefix);
        let read = |reply: &Value| match numbers(reply).as_deref().and_then(time_outside) {
            Some(time_us) if ask.pool.is_none() && ask.limit.calendar.is_some() => Ok(Err(time_us)),
            _ => grant(ask, reply).map(Ok),
        };
        let call = call(ask, key, self.context.server_time_us());
        let time_us = match Trip::new(&call).result(self, read).await? {
            Ok(grant) => return Ok(grant),
            Err(time_us) => time_us,
        };
        self.context.note_server_time_us(time_us);
        let call = Call { arguments: (steps(ask).arguments)(ask, time_us), ..call };
        Trip::new(&call).result(self, |reply| grant(ask, reply)).await
    }

    async fn beats(&self, beat: Heartbeat) -> Result<u32, StoreError> {
        let call = call_of_beat(beat, format!("{}rl:pods", self.key_prefix));
        Ok(Trip::new(&call).result(self, pods).await?)
    }

    /// How long a reply of the owner of `slot` may take at present.
    fn reply_time(&self, slot: usize) -> Duration {
        let time = match &self.servers {
            Servers::One(link) => Some(link.timeout()),
            Servers::Cluster(cluster) => cluster.timeout(slot),
        };
        time.unwrap_or(self.context.settings.timeout)
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

    fn other_name(&self, ask: &Ask) -> Option<Key> {
        self.renames.other_name(ask, self.context.clock.now())
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

    fn clear<'a>(&'a self, ask: &'a Ask) -> OrderFuture<'a> {
        Box::pin(self.clear_count(ask))
    }

    fn order<'a>(&'a self, ask: &'a Ask, order: Order) -> OrderFuture<'a> {
        Box::pin(async move {
            for key in ask.keys() {
                self.give_order(key, &order).await?;
            }
            Ok(())
        })
    }

    fn follow_orders<'a>(&'a self, follow: Follow<'a>) -> ReadyFuture<'a> {
        Box::pin(self.follow(follow))
    }

    fn read_orders<'a>(&'a self, _ask: Option<&'a Ask>) -> OrdersFuture<'a> {
        Box::pin(async move { Ok(vec![self.orders().await?]) })
    }

    fn pods(&self) -> PodsFuture<'_> {
        Box::pin(self.live_pods())
    }

    fn read_pod<'a>(&'a self, _ask: &'a Ask, pod: u64) -> PodFuture<'a> {
        Box::pin(self.record_of(pod))
    }

    fn holders<'a>(&'a self, ask: &'a Ask) -> HoldersFuture<'a> {
        Box::pin(self.slots_of(ask))
    }

    fn server(&self, shard: usize) -> Option<String> {
        match &self.servers {
            Servers::One(link) => {
                link.connection().ok().map(|connection| connection.address.to_string())
            }
            Servers::Cluster(cluster) => cluster.master(shard).map(|master| master.to_string()),
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

// === Sends one call, and handles redirects and repeats according to each reply ===

/// The deadline of one call, including all redirects and repeats, is this many replies at the
/// server's known speed plus the waits between. Leases are asked for ahead, so no request waits for
/// all of this.
const REPLIES: u32 = 3;

/// The sum of the waits between repeats, which the deadline allows in addition to the replies.
const WAITS: Duration = Duration::from_millis(50);

/// The upper bound of the deadline for slow servers: below the time that the lease client allows an
/// ask, above the longest silence.
const DEADLINE_MAX: Duration = Duration::from_secs(9);
const _: () = assert!(LEAST_MAX.as_millis() < DEADLINE_MAX.as_millis());

/// The largest number of times that one call is sent. The longest sequence without a fault takes
/// four: moved, still moving, unknown script there, script in full.
const SENDS_MAX: u32 = 7;

/// The number of these sends that repeat a call to a server that cannot serve the key just now.
const REPEATS_MAX: u32 = 3;

/// The wait before the first such repeat.
const REPEAT_FIRST: Duration = Duration::from_millis(2);

/// The longest wait before such a repeat.
const REPEAT_LAST: Duration = Duration::from_millis(50);

/// A call, and its next destination.
#[derive(Debug)]
struct Trip<'a> {
    call: &'a Call,
    /// The slot of its key, computed once since it takes a checksum.
    slot: usize,
    route: Route,
    in_full: bool,
}

/// The next destination of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Route {
    Owner,
    Moved(Address),
    Asking(Address),
}

// === impl Trip ===

impl<'a> Trip<'a> {
    fn new(call: &'a Call) -> Self {
        Self { call, slot: slot_of(call.key.as_bytes()), route: Route::Owner, in_full: false }
    }

    /// Sends the call and returns its result, which `read` makes from the reply, within the
    /// deadline.
    async fn result<T>(
        mut self,
        store: &RedisStore,
        read: impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let result = tokio::time::timeout(self.deadline(store), self.follow(store, &read)).await;
        let result = result.unwrap_or_else(|_| {
            store.context.note_fault(Kind::TimedOut);
            store.mark_slots_stale();
            Err(Fault::timed_out())
        });
        let redirected = self.route != Route::Owner;
        result.map_err(|fault| Fault { redirected, ..fault })
    }

    /// Sends the call to its destination and follows the replies until one contains the result.
    async fn follow<T>(
        &mut self,
        store: &RedisStore,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut repeats = 0;
        let mut wait = Backoff::new(REPEAT_FIRST, REPEAT_LAST);
        let mut last = Fault::timed_out();
        for _ in 0..SENDS_MAX {
            last = match self.send(store, read).await {
                Ok(result) => return Ok(result),
                Err(fault) => fault,
            };
            match (last.kind.meaning().next, &last.to) {
                (Next::InFull, _) => self.in_full = true,
                (Next::There, Some(to)) if store.routes() => self.route = Route::Moved(to.clone()),
                (Next::ThereAsking, Some(to)) if store.routes() => {
                    self.route = Route::Asking(to.clone());
                }
                (Next::Again, _) if repeats < REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(wait.next_wait()).await;
                    self.route = Route::Owner;
                }
                _ => break,
            }
        }
        Err(store.explained(last))
    }

    async fn send<T>(
        &self,
        store: &RedisStore,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let read = |reply: Value| read(&reply);
        let command = if self.in_full { self.call.in_full() } else { self.call.by_name() };
        let connected = self.connected(store).await;
        let is_long = self.call.is_long;
        let _limit = connected.as_ref().ok().filter(|_| is_long).map(|it| it.await_long_reply());
        let result = match (&connected, &self.route) {
            (Ok(connection), Route::Asking(_)) => connection.send_asking(&command, read).await,
            (Ok(connection), Route::Owner | Route::Moved(_)) => {
                connection.send(&command, read).await
            }
            (Err(fault), _) => Err(fault.clone()),
        };
        result.inspect_err(|fault| {
            if fault.kind == Kind::NotSent {
                store.context.note_fault(fault.kind);
            }
            if fault.kind.meaning().map_may_be_stale {
                store.mark_slots_stale();
            }
        })
    }

    async fn connected(&self, store: &RedisStore) -> Result<Arc<Connection>, Fault> {
        let connection =
            tokio::time::timeout(store.context.settings.timeout, self.server(store)).await;
        connection.unwrap_or_else(|_| Err(Fault::new(Kind::NotSent, "still connecting")))
    }

    async fn server(&self, store: &RedisStore) -> Result<Arc<Connection>, Fault> {
        match (&store.servers, &self.route) {
            (Servers::One(link), _) => link.first_connection().await,
            (Servers::Cluster(cluster), Route::Owner) => cluster.owner(self.slot).await,
            (Servers::Cluster(cluster), Route::Moved(to) | Route::Asking(to)) => {
                cluster.node(to).await
            }
        }
    }

    fn deadline(&self, store: &RedisStore) -> Duration {
        (REPLIES * store.reply_time(self.slot) + WAITS).min(DEADLINE_MAX)
    }
}

// === Converts an ask to a call of its script, and the script's reply to a grant ===

/// The call for `ask`, on the `key` of its count, for a server whose time is about `server_us`.
fn call(ask: &Ask, key: String, server_us: u64) -> Call {
    let steps = steps(ask);
    Call::new(steps.script, key, (steps.arguments)(ask, server_us))
}

/// Reads the reply; for `tests/fuzz` too. A reply that the script cannot have given is treated as
/// garbled: it is better to lose a lease than to spend tokens that were not debited.
#[doc(hidden)]
pub fn grant(ask: &Ask, reply: &Value) -> Result<Grant, Fault> {
    let grant = numbers(reply).and_then(|numbers| (steps(ask).reply)(ask, &numbers));
    let possible = |grant: &Grant| {
        grant.tokens <= ask.want.max(ask.need)
            && (grant.tokens == 0 || grant.tokens >= ask.need)
            && !(grant.overdrawn && grant.left > 0)
    };
    grant.filter(possible).ok_or_else(|| Fault::malformed(reply))
}

/// A span as scripts and commands take it.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

fn numbers(reply: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = reply else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect()
}

/// A call of one script on one key, which can be sent several times.
#[derive(Debug)]
struct Call {
    script: &'static Script,
    key: String,
    /// A second key, of the same slot.
    second_key: Option<String>,
    arguments: Vec<u64>,
    /// An argument after the numbers.
    text: Option<Vec<u8>>,
    /// The reply may be as long as a list of nodes.
    is_long: bool,
}

/// The commands that load all scripts into a server, one for each; their replies are not read.
fn loads() -> impl Iterator<Item = Cmd> {
    algorithm::scripts().into_iter().chain([&BEAT]).map(|script| {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text).set_no_response(true);
        load
    })
}

// === impl Call ===

impl Call {
    fn new(script: &'static Script, key: String, arguments: Vec<u64>) -> Self {
        Self { script, key, second_key: None, arguments, text: None, is_long: false }
    }

    /// Calls the script by its hash; a server that does not know it replies NOSCRIPT.
    fn by_name(&self) -> Cmd {
        let hash = |text: &str| redis::Script::new(text).get_hash().to_owned();
        self.command("EVALSHA", self.script.hash(hash))
    }

    /// Calls the script with its text, after which the server knows it by hash too.
    fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1 + usize::from(self.second_key.is_some()));
        command.arg(&self.key).arg(&self.second_key).arg(&self.arguments).arg(&self.text);
        command
    }
}

// === Converts a pod's heartbeat to a call of its script, and the reply to a number of pods ===

static BEAT: Script = Script::new(include_str!("beat.lua"));

/// Some 143 000 years: doubles represent it exactly, even with the present time added.
const LASTS_MS_MAX: u64 = 1 << 52;

/// The call for `beat`. `key` is the key for the pods of all domains; the key of each domain begins
/// with it.
fn call_of_beat(beat: Heartbeat, key: String) -> Call {
    let key = match beat.domain {
        Some(domain) => format!("{key}:{domain}"),
        None => key,
    };
    let lasts_ms = u64::try_from(beat.lasts.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    let arguments =
        vec![beat.pod, lasts_ms.min(LASTS_MS_MAX), u64::from(beat.leaves), PODS_MAX as u64];
    Call::new(&BEAT, key, arguments)
}

/// Reads the reply: the number of live pods.
fn pods(reply: &Value) -> Result<u32, Fault> {
    let alive = match reply {
        Value::Int(alive) => u32::try_from(*alive).ok(),
        _ => None,
    };
    alive.filter(|alive| *alive as usize <= PODS_MAX).ok_or_else(|| Fault::malformed(reply))
}

#[cfg(test)]
mod tests;
