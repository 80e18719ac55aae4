//! The nodes of a Redis Cluster: which master owns which slot, and a connection to each master.
//!
//! This module routes commands itself over redis-rs's single connections. redis-rs 1.8.1 has a
//! `ClusterConnection`, but its source (`cluster_handling/async_connection/`) shows:
//!
//! 1. It repeats commands whose outcome is unknown: after an I/O error or a timeout (`request.rs`,
//!    `choose_response`), and all that are in flight when a refresh of the slots fails (`mod.rs`,
//!    `send_refresh_error`, whatever node they went to). `retries(0)` stops that, but also every
//!    redirect, and reports errors of the refresh in place of a command's own.
//! 2. It sends ASKING and the command as two messages on a shared connection
//!    (`get_redirected_connection`); a command of another caller between the two uses the flag up.
//! 3. While it refreshes the slots it serves no shard (`poll_flush` waits for `poll_recover`), and
//!    the refresh pings and connects to every node, including one that vanished silently. Each ask
//!    to a lost shard makes a replica answer MOVED, and so starts a refresh.
//! 4. It never refreshes after a timeout: a master that hangs and was replaced stays in use.
//!    Measured with 3 + 3 nodes and tuned timeouts: 12 s after a master was stopped (SIGSTOP), and
//!    8 s after its replica had taken over, its keys still failed. With this module they are served
//!    after 4.4 s.
//!
//! Here each master has its own [`Reconnecting`], so a failing node affects only its own slots.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::adaptive_timeout::AdaptiveTimeout;
use super::connection::Connection;
use super::connector::Connector;
use super::context::StoreContext;
use super::fault::{Fault, Kind};
use super::log_once::LogOnce;
use super::off_map_nodes::{self, OffMap};
use super::reconnecting::Reconnecting;
use super::slots::Slots;
use crate::backoff::{Backoff, jittered};
use crate::store::SHARDS_MAX;
use crate::store::redis::settings::Address;

/// A cluster whose slot map is kept up to date by a task. Dropping it ends the task.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    context: Arc<StoreContext>,
    /// The timeouts for the configured addresses, used while no master on the map answers.
    timeout: Arc<AdaptiveTimeout>,
    map: watch::Sender<Known>,
    /// Notified when the map may be out of date.
    stale: Notify,
    off_map: OffMap,
}

/// What is known about the cluster.
#[derive(Debug, Clone)]
enum Known {
    /// The first lookup is in progress.
    Unknown,
    Map(Arc<Map>),
    /// The reason why nothing is known.
    Nothing(Arc<str>),
}

#[derive(Debug)]
struct Map {
    slots: Slots,
    /// The connections, by the position of the master.
    links: Vec<Option<Arc<Reconnecting>>>,
}

/// The shard of slots whose owner is unknown, so that their failures do not count against a master.
const UNOWNED: usize = SHARDS_MAX - 1;

/// How often the map is read again even if nothing seems wrong; the time doubles while the reads
/// find nothing new. Redirections and broken connections have it read at once.
const REFRESH_PERIOD_FIRST: Duration = Duration::from_secs(10);
const REFRESH_PERIOD_LAST: Duration = Duration::from_secs(40);
/// Minimum time between two reads of the map; it doubles while they find nothing new.
const REFRESH_GAP_FIRST: Duration = Duration::from_millis(50);
const REFRESH_GAP_LAST: Duration = Duration::from_millis(500);
/// Waits between reads while no node answers.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);
/// The largest number of connected masters that one refresh asks for the map, before it tries the
/// configured addresses.
const ASKED_MAX: usize = 3;

// === impl Cluster ===

impl Cluster {
    /// Starts to look for the cluster at the configured addresses.
    pub(super) fn spawn(context: Arc<StoreContext>) -> Self {
        let shared = Arc::new(Shared {
            timeout: context.timeout(),
            context,
            map: watch::Sender::new(Known::Unknown),
            stale: Notify::new(),
            off_map: OffMap::default(),
        });
        let task = tokio::spawn(keep_up(Arc::clone(&shared))).abort_handle();
        Self { shared, task }
    }

    /// Number of the shard that owns `slot`; [`UNOWNED`] while that is unknown.
    pub(super) fn shard(&self, slot: usize) -> usize {
        match &*self.shared.map.borrow() {
            Known::Map(map) => map.slots.owner(slot).map_or(UNOWNED, |owner| owner % UNOWNED),
            Known::Unknown | Known::Nothing(_) => UNOWNED,
        }
    }

    /// How long the server of `shard` has owed replies and sent nothing; `None` if that is unknown.
    pub(super) fn silence(&self, shard: usize) -> Option<Duration> {
        let Known::Map(map) = &*self.shared.map.borrow() else { return None };
        map.links.get(shard)?.as_ref()?.silence()
    }

    /// The master that owns `slot`; `None` while that is unknown.
    pub(super) fn master(&self, slot: usize) -> Option<Address> {
        let Known::Map(map) = &*self.shared.map.borrow() else { return None };
        map.slots.masters().get(map.slots.owner(slot)?)?.clone()
    }

    /// The connection to the owner of `slot`.
    pub(super) async fn owner(&self, slot: usize) -> Result<Arc<Connection>, Fault> {
        let map = self.map().await?;
        let link = map.slots.owner(slot).and_then(|owner| map.links.get(owner)?.as_ref());
        match link {
            Some(link) => link.first_connection().await,
            None => {
                let text = format!("no node of the cluster owns slot {slot}");
                Err(Fault::new(Kind::NotSent, text))
            }
        }
    }

    /// How long a reply of the owner of `slot` may take at present; `None` while the owner is
    /// unknown.
    pub(super) fn timeout(&self, slot: usize) -> Option<Duration> {
        let Known::Map(map) = &*self.shared.map.borrow() else { return None };
        let link = map.slots.owner(slot).and_then(|owner| map.links.get(owner)?.as_ref());
        link.map(|link| link.timeout())
    }

    /// The connection to the node that a redirect named.
    pub(super) async fn node(&self, address: &Address) -> Result<Arc<Connection>, Fault> {
        if let Some(link) = self.map().await?.link(address) {
            return link.first_connection().await;
        }
        let may_follow = self.shared.may_follow(address).await;
        // To decide that, the map may have been read again.
        let link = match self.map().await?.link(address) {
            Some(link) => link,
            None if may_follow => {
                self.shared.off_map.link(address, || self.shared.connector(address))
            }
            None => {
                let text = format!("redirected to {address}, which is no node of the cluster");
                return Err(Fault::new(Kind::NotSent, text));
            }
        };
        link.first_connection().await
    }

    /// Requests that the map be read again soon.
    pub(super) fn mark_slots_stale(&self) {
        self.shared.stale.notify_one();
    }

    /// Waits until the map is known and every master on it has a connection.
    pub(super) async fn ready(&self) {
        loop {
            let mut map = self.shared.map.subscribe();
            let known = map.wait_for(|known| matches!(known, Known::Map(_))).await;
            let Ok(Known::Map(map)) = known.map(|known| known.clone()) else { return };
            for link in map.links.iter().flatten() {
                link.up().await;
            }
            if map.links.iter().flatten().all(|link| link.connection().is_ok()) {
                return;
            }
        }
    }

    async fn map(&self) -> Result<Arc<Map>, Fault> {
        let mut map = self.shared.map.subscribe();
        // It fails only if the sender is dropped, which `shared` holds.
        let known = map.wait_for(|known| !matches!(known, Known::Unknown)).await;
        match known.as_deref() {
            Ok(Known::Map(map)) => Ok(Arc::clone(map)),
            Ok(Known::Nothing(why)) => Err(Fault::new(Kind::NotSent, &**why)),
            Ok(Known::Unknown) | Err(_) => Err(Fault::new(Kind::NotSent, "still connecting")),
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep_up(shared: Arc<Shared>) {
    let mut outage = LogOnce::default();
    let mut retry = Backoff::new(RETRY_FIRST, RETRY_LAST);
    let mut gap = Backoff::new(REFRESH_GAP_FIRST, REFRESH_GAP_LAST);
    let mut period = Backoff::new(REFRESH_PERIOD_FIRST, REFRESH_PERIOD_LAST);
    loop {
        match shared.refresh().await {
            Ok(changed) => {
                if outage.ends() {
                    tracing::info!("found the Redis Cluster again");
                }
                retry.reset();
                if changed {
                    gap.reset();
                    period.reset();
                }
                // Counts from here, and sets a timer only if it is awaited.
                let spacing = tokio::time::sleep(gap.next_wait());
                tokio::select! {
                    () = shared.stale.notified() => {
                        period.reset();
                        spacing.await;
                    }
                    () = tokio::time::sleep(period.next_wait()) => {
                        gap.reset();
                        shared.off_map.clear();
                    }
                }
            }
            Err(why) => {
                if outage.begins() {
                    tracing::error!("no Redis Cluster: {why}");
                }
                shared.forget(why);
                tokio::time::sleep(retry.next_wait()).await;
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Reads the map from the first node that has one. Returns whether it differs from the last
    /// one.
    async fn refresh(&self) -> Result<bool, String> {
        let before = match &*self.map.borrow() {
            Known::Map(map) => Some(Arc::clone(map)),
            _ => None,
        };
        let slots = self.look_up(before.as_deref()).await?;
        let changed = before.as_ref().is_none_or(|before| before.slots != slots);
        if changed {
            self.publish(slots, before.as_deref());
        }
        // After the map is published: a task that waits for the members looks at the map again.
        if self.off_map.is_wanted() {
            self.off_map.learn(self.read_members(before.as_deref()).await);
        }
        Ok(changed)
    }

    /// Puts `slots` into use, with the existing connections.
    fn publish(&self, slots: Slots, before: Option<&Map>) {
        let links = slots.masters().iter().map(|master| {
            master.as_ref().map(|address| {
                let known = before.and_then(|before| before.link(address));
                let known = known.or_else(|| self.off_map.take(address));
                known.unwrap_or_else(|| self.connector(address))
            })
        });
        let links = links.collect();
        self.map.send_replace(Known::Map(Arc::new(Map { slots, links })));
    }

    async fn look_up(&self, before: Option<&Map>) -> Result<Slots, String> {
        let slots_before = before.map(|map| &map.slots);
        for node in connected(before) {
            if let Ok(reply) = node.send_for_list(&cluster("SLOTS")).await
                && let Ok(slots) = Slots::parse(&reply, &node.address, slots_before)
            {
                return Ok(slots);
            }
        }
        let mut why = "no address is configured".to_owned();
        for address in &self.context.settings.addresses {
            match self.look_up_at(address, slots_before).await {
                Ok(slots) => return Ok(slots),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn look_up_at(&self, seed: &Address, before: Option<&Slots>) -> Result<Slots, String> {
        let connector = Connector::server(&self.context, seed.clone());
        connector.limiters().again.pass(&self.context.clock).await;
        let opened = connector.open(&self.timeout).await;
        let node =
            opened.map_err(|why| format!("{seed}: {}; {}", why.text, connector.advice(&why)))?;
        let reply = node.send_for_list(&cluster("SLOTS")).await;
        let reply = reply.map_err(|fault| {
            if fault.text.contains("cluster support disabled") {
                format!("{seed} is no node of a cluster; set REDIS_TYPE=single for one server")
            } else {
                format!("{seed}: {}", crate::store::StoreError::from(fault))
            }
        })?;
        Slots::parse(&reply, seed, before).map_err(|why| format!("{seed}: {why}"))
    }

    /// Handles that no node answers. A known map stays in use: its links know which nodes are up.
    fn forget(&self, why: String) {
        self.map.send_if_modified(|known| {
            let had_map = matches!(known, Known::Map(_));
            if !had_map {
                *known = Known::Nothing(why.into());
            }
            !had_map
        });
    }

    fn connector(&self, address: &Address) -> Arc<Reconnecting> {
        Reconnecting::spawn(Connector::server(&self.context, address.clone()))
    }

    /// Whether a redirect to `address`, which is not on the map, may be followed. If networks are
    /// configured, connecting is limited to them.
    async fn may_follow(&self, address: &Address) -> bool {
        self.context.settings.redirect_networks.is_some()
            || self.context.settings.addresses.contains(address)
            || {
                let has_password = self.is_host_of_a_master(address);
                self.off_map.is_member(address, has_password, || self.stale.notify_one()).await
            }
    }

    fn is_host_of_a_master(&self, node: &Address) -> bool {
        let Known::Map(map) = &*self.map.borrow() else { return false };
        map.slots.masters().iter().flatten().any(|master| master.is_on_the_host_of(node))
    }

    /// All nodes of the cluster; empty if no node lists them.
    async fn read_members(&self, map: Option<&Map>) -> HashSet<Address> {
        for node in connected(map) {
            let reply = node.send_for_list(&cluster("NODES")).await;
            let members = reply.map_err(|fault| fault.text);
            match members.and_then(|reply| off_map_nodes::members(&reply)) {
                Ok(members) => return members,
                Err(why) => self.off_map.cannot_read(&node.address, &why),
            }
        }
        HashSet::new()
    }
}

/// Some of the connected masters, in random order: a different node is asked each time, so that one
/// with an outdated view is not believed forever.
fn connected(map: Option<&Map>) -> impl Iterator<Item = Arc<Connection>> {
    let mut links: Vec<_> = map.iter().flat_map(|map| map.links.iter().flatten()).collect();
    links.sort_by_cached_key(|_| jittered(Duration::from_secs(1)));
    links.into_iter().filter_map(|link| link.connection().ok()).take(ASKED_MAX)
}

// === impl Map ===

impl Map {
    fn link(&self, address: &Address) -> Option<Arc<Reconnecting>> {
        let at = self.slots.masters().iter().position(|other| other.as_ref() == Some(address))?;
        self.links.get(at)?.clone()
    }
}

/// CLUSTER SLOTS or CLUSTER NODES, which every version has and which `+cluster|slots` and
/// `+cluster|nodes` allow.
fn cluster(what: &str) -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(what);
    command
}
