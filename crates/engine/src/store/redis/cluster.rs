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

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, watch};

use crate::backoff::{Backoff, jittered};
use crate::store::SHARDS_MAX;
use crate::store::redis::connection::{Connection, Connector, Reconnecting, Task};
use crate::store::redis::context::{AdaptiveTimeout, StoreContext};
use crate::store::redis::fault::{Fault, Kind, LogOnce};
use crate::store::redis::settings::Address;
use crate::store::redis::text;

/// A cluster whose slot map is kept up to date by a task. Dropping it ends the task.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    _task: Task,
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

/// The state of the lookup of the cluster.
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

/// How often the map is read again at first, even if nothing seems wrong; the time doubles while
/// the reads find nothing new. Redirections and broken connections have it read at once.
const REFRESH_PERIOD_FIRST: Duration = Duration::from_secs(10);

/// The longest time after which the map is read again, even if nothing seems wrong.
const REFRESH_PERIOD_LAST: Duration = Duration::from_secs(40);

/// Minimum time between two reads of the map at first; it doubles while they find nothing new.
const REFRESH_GAP_FIRST: Duration = Duration::from_millis(50);

/// The largest minimum time between two reads of the map.
const REFRESH_GAP_LAST: Duration = Duration::from_millis(500);

/// The first wait between two reads while no node answers.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// The longest wait between two reads while no node answers.
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
        let _task = Task::spawn(keep_up(Arc::clone(&shared)));
        Self { shared, _task }
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

    /// The master of `shard`; `None` while that is unknown.
    pub(super) fn master(&self, shard: usize) -> Option<Address> {
        let Known::Map(map) = &*self.shared.map.borrow() else { return None };
        map.slots.masters().get(shard)?.clone()
    }

    /// The connection to the owner of `slot`.
    pub(super) async fn owner(&self, slot: usize) -> Result<Arc<Connection>, Fault> {
        let map = self.map().await?;
        match map.owner(slot) {
            Some(link) => link.first_connection().await,
            None => {
                let text = format!("no node of the cluster owns slot {slot}");
                Err(Fault::new(Kind::NotSent, text))
            }
        }
    }

    /// Waits until the owner of `slot`, whichever that is by then, has a connection that is not
    /// `than`.
    pub(super) async fn renewed(&self, slot: usize, than: &Weak<Connection>) {
        let mut map = self.shared.map.subscribe();
        loop {
            let link = match &*map.borrow_and_update() {
                Known::Map(map) => map.owner(slot).cloned(),
                Known::Unknown | Known::Nothing(_) => None,
            };
            let renewed = async {
                match &link {
                    Some(link) => link.renewed(than).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = renewed => return,
                // An error would mean that the sender is gone, which `shared` holds.
                _ = map.changed() => {}
            }
        }
    }

    /// How long a reply of the owner of `slot` may take at present; `None` while the owner is
    /// unknown.
    pub(super) fn timeout(&self, slot: usize) -> Option<Duration> {
        let Known::Map(map) = &*self.shared.map.borrow() else { return None };
        Some(map.owner(slot)?.timeout())
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
        // The wait fails only if the sender is dropped, which `shared` holds.
        let known = map.wait_for(|known| !matches!(known, Known::Unknown)).await;
        match known.as_deref() {
            Ok(Known::Map(map)) => Ok(Arc::clone(map)),
            Ok(Known::Nothing(why)) => Err(Fault::new(Kind::NotSent, &**why)),
            Ok(Known::Unknown) | Err(_) => Err(Fault::new(Kind::NotSent, "still connecting")),
        }
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
            let read = self.off_map.begin_read();
            self.off_map.learn(read, self.read_members(before.as_deref()).await);
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
            let listed = reply.map_err(|fault| fault.text);
            match listed.and_then(|reply| members(&reply)) {
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
    fn owner(&self, slot: usize) -> Option<&Arc<Reconnecting>> {
        self.links.get(self.slots.owner(slot)?)?.as_ref()
    }

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

// === The map of which master owns which slot, as reported by one node of the cluster ===

/// Slots of a cluster; the specification fixes the number.
pub const SLOTS: usize = 16_384;

/// Owners of the slots.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots {
    /// For each slot the position of its owner in `masters`; [`NOBODY`] if the slot has no owner.
    owners: Box<[u16]>,
    /// `None` in the place of a master that is gone.
    masters: Vec<Option<Address>>,
}

const NOBODY: u16 = u16::MAX;

/// Maximum number of slots in all ranges of a map. Each slot has one owner, so that there are
/// [`SLOTS`] at most; a map of thousands of whole ranges would take long to read.
const NAMED_MAX: usize = 4 * SLOTS;

/// The largest number of masters in one cluster: Redis's specification recommends at most about a
/// thousand nodes, and it is the number of the lease client's queues that one store may have. Each
/// master takes a connection.
const MASTERS_MAX: usize = 1024;
const _: () = assert!(MASTERS_MAX * 2 <= SHARDS_MAX);

/// The slot of a key: the CRC-16 (XMODEM) of its hash tag, which is the part in the first braces,
/// if there is one.
pub fn slot_of(key: &[u8]) -> usize {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let rest = key.get(open..)?;
        let tag = rest.get(..rest.iter().position(|byte| *byte == b'}')?)?;
        (!tag.is_empty()).then_some(tag)
    };
    usize::from(crc16(tag().unwrap_or(key))) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        u16::from_be_bytes([low, 0]) ^ CRC16_OF_BYTE[usize::from(high ^ byte)]
    })
}

/// The checksum of each single byte. An ask computes two checksums, each of some twenty bytes.
static CRC16_OF_BYTE: [u16; 256] = {
    const POLYNOMIAL: u16 = 0x1021;
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

// === impl Slots ===

impl Slots {
    /// Reads the reply to CLUSTER SLOTS from the node at `from`. Masters that `before` contains
    /// keep their position, and new ones take the positions of masters that are gone, so that a
    /// shard keeps its number across a failover.
    pub fn parse(reply: &Value, from: &Address, before: Option<&Slots>) -> Result<Self, String> {
        let Value::Array(ranges) = reply else { return Err("no list of slots".into()) };
        let ranges: Vec<_> = ranges.iter().filter_map(|range| read_range(range, from)).collect();
        if ranges.is_empty() {
            return Err("no node of the cluster owns a slot yet".into());
        }
        let named = ranges.iter().map(|(first, last, _)| last - first + 1).sum::<usize>();
        if named > NAMED_MAX {
            return Err(format!("ranges of {named} slots in all, where a cluster has {SLOTS}"));
        }
        let named: BTreeSet<&Address> = ranges.iter().map(|(_, _, master)| master).collect();
        if named.len() > MASTERS_MAX {
            return Err(format!("more than {MASTERS_MAX} masters, which Redis does not support"));
        }
        let masters = arrange(named.into_iter().collect(), before);
        let positions: HashMap<_, _> = masters
            .iter()
            .zip(0_u16..)
            .filter_map(|(master, at)| Some((master.as_ref()?, at)))
            .collect();
        let mut owners = vec![NOBODY; SLOTS];
        for (first, last, master) in &ranges {
            let Some(&owner) = positions.get(master) else { continue };
            if let Some(slots) = owners.get_mut(*first..=*last) {
                slots.fill(owner);
            }
        }
        Ok(Self { owners: owners.into(), masters })
    }

    /// The position of the master that owns `slot`.
    pub fn owner(&self, slot: usize) -> Option<usize> {
        self.owners.get(slot).filter(|owner| **owner != NOBODY).map(|owner| usize::from(*owner))
    }

    /// The masters by position.
    pub fn masters(&self) -> &[Option<Address>] {
        &self.masters
    }
}

/// The masters in use, each at its previous position if it had one.
fn arrange(mut named: Vec<&Address>, before: Option<&Slots>) -> Vec<Option<Address>> {
    let mut masters = before.map_or_else(Vec::new, |before| before.masters.clone());
    for master in &mut masters {
        match master.as_ref().and_then(|old| named.iter().position(|new| *new == old)) {
            Some(at) => drop(named.remove(at)),
            None => *master = None,
        }
    }
    for new in named {
        match masters.iter_mut().find(|master| master.is_none()) {
            Some(master) => *master = Some(new.clone()),
            None => masters.push(Some(new.clone())),
        }
    }
    masters
}

/// Reads `[first, last, [host, port, …], replicas…]`.
fn read_range(range: &Value, from: &Address) -> Option<(usize, usize, Address)> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        // The node does not know its own name: use the address that we asked.
        Value::Nil => "",
        host => text(host)?,
    };
    let first = usize::try_from(*first).ok()?;
    let last = usize::try_from(*last).ok()?;
    if first > last || last >= SLOTS {
        return None;
    }
    // A node writes `?` for a host that it does not know.
    let master = Address::of_node(host, u16::try_from(*port).ok()?)?.or_host_of(from);
    Some((first, last, master))
}

// Nodes that a redirect names but the map does not, such as a new node that takes over its first
// slot: CLUSTER SLOTS lists only owners of slots.
//
// Opening a connection sends the password, and a redirect is only an error text. So a redirect is
// followed only to a node that CLUSTER NODES lists, which is read when a redirect names an unknown
// node; or, if `REDIS_REDIRECT_NETWORKS` is set, to any node within these networks.

/// The nodes that are not on the map.
#[derive(Debug, Default)]
struct OffMap {
    /// Emptied from time to time: a node that owns slots gets onto the map.
    links: Mutex<HashMap<Address, Arc<Reconnecting>>>,
    members: watch::Sender<Members>,
    /// A redirect named an unknown node since the last read of the members began.
    wanted: AtomicBool,
    /// Number of reads of the members that have begun.
    begun: AtomicU64,
    /// The failure to read the members was logged.
    warned: AtomicBool,
}

/// All nodes of the cluster, as one of the nodes lists them.
#[derive(Debug, Default)]
struct Members {
    addresses: HashSet<Address>,
    /// The number of the read that found them.
    read: u64,
}

/// The largest number of nodes outside the map that are connected at once.
const LINKS_MAX: usize = 64;

const CANNOT_READ: &str = "a redirect led off the map, and the nodes of the cluster cannot be \
                           listed (allow the user +cluster|nodes, or set REDIS_REDIRECT_NETWORKS)";

/// The largest number of node names that are read from a cluster; each node has at most two. The
/// number of masters is limited too.
const MEMBERS_MAX: usize = 1 << 14;

// === impl OffMap ===

impl OffMap {
    /// The connection to `address`; `connector` makes it if there is none.
    fn link(
        &self,
        address: &Address,
        connector: impl FnOnce() -> Arc<Reconnecting>,
    ) -> Arc<Reconnecting> {
        let mut links = self.links.lock();
        if links.len() >= LINKS_MAX && !links.contains_key(address) {
            links.clear();
        }
        Arc::clone(links.entry(address.clone()).or_insert_with(connector))
    }

    /// Removes and returns the connection to `address`, if there is one, since the address is on
    /// the map now.
    fn take(&self, address: &Address) -> Option<Arc<Reconnecting>> {
        self.links.lock().remove(address)
    }

    /// Closes the connections.
    fn clear(&self) {
        self.links.lock().clear();
    }

    /// Whether the cluster lists `address`. If the host `has_password` already, a listed port is
    /// enough: a cluster that does not know the addresses by which it is reached from outside lists
    /// others. If the last list did not contain it, calls `read`, which has the list read again,
    /// and waits for that.
    async fn is_member(&self, address: &Address, has_password: bool, read: impl FnOnce()) -> bool {
        let mut members = self.members.subscribe();
        if members.borrow().have(address, has_password) {
            return true;
        }
        // A read that is under way may have been answered before the node joined.
        let last = self.begun.load(Ordering::SeqCst);
        self.wanted.store(true, Ordering::SeqCst);
        read();
        let known = members.wait_for(|known| known.read > last).await;
        known.is_ok_and(|known| known.have(address, has_password))
    }

    /// Whether the members have to be read.
    fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Notes that the members are read now, for all that wanted it until now. Returns the number of
    /// the read.
    fn begin_read(&self) -> u64 {
        self.wanted.store(false, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Logs why the members cannot be read; once, until they can be read.
    fn cannot_read(&self, from: &Address, why: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(redis = %from, "{CANNOT_READ}: {why}");
        }
    }

    /// Stores the addresses that the read of this number found; none if they could not be read.
    fn learn(&self, read: u64, addresses: HashSet<Address>) {
        if !addresses.is_empty() {
            self.warned.store(false, Ordering::Relaxed);
        }
        self.members.send_modify(|members| {
            members.addresses = addresses;
            members.read = read;
        });
    }
}

// === impl Members ===

impl Members {
    fn have(&self, node: &Address, has_password: bool) -> bool {
        let has_port_of = |other: &Address| match (node, other) {
            (Address::Tcp(_, port), Address::Tcp(_, other)) => port == other,
            _ => false,
        };
        self.addresses.contains(node) || has_password && self.addresses.iter().any(has_port_of)
    }
}

/// The nodes of a reply to CLUSTER NODES, by address and by name. Each line is a node; its second
/// word is `ip:port@bus-port,name,…`.
fn members(reply: &Value) -> Result<HashSet<Address>, String> {
    let lines = text(reply).ok_or("no list of nodes")?.lines();
    let named = lines.filter_map(|line| line.split(' ').nth(1)).flat_map(names);
    Ok(named.take(MEMBERS_MAX).collect())
}

fn names(word: &str) -> impl Iterator<Item = Address> {
    let (address, rest) = word.split_once('@').unwrap_or((word, ""));
    let by_address = Address::parse_redirect(address);
    let name = rest.split(',').nth(1).filter(|name| !name.is_empty());
    let by_name = match (&by_address, name) {
        (Some(Address::Tcp(_, port)), Some(name)) => Address::of_node(name, *port),
        _ => None,
    };
    by_address.into_iter().chain(by_name)
}

#[cfg(test)]
mod tests;
