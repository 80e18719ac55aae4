//! Nodes that a redirect names but the map does not, such as a new node that takes over its first
//! slot: CLUSTER SLOTS lists only owners of slots.
//!
//! Opening a connection sends the password, and a redirect is only an error text. So a redirect is
//! followed only to a node that CLUSTER NODES lists, which is read when a redirect names an unknown
//! node; or, if `REDIS_REDIRECT_NETWORKS` is set, to any node within these networks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::watch;

use super::reconnecting::Reconnecting;
use crate::store::redis::settings::Address;

/// The nodes that are not on the map.
#[derive(Debug, Default)]
pub(super) struct OffMap {
    /// Emptied from time to time: a node that owns slots gets onto the map.
    links: Mutex<HashMap<Address, Arc<Reconnecting>>>,
    members: watch::Sender<Members>,
    /// A redirect named an unknown node since the members were last read.
    wanted: AtomicBool,
    /// The failure to read the members was logged.
    warned: AtomicBool,
}

/// All nodes of the cluster, as one of the nodes lists them.
#[derive(Debug, Default)]
struct Members {
    addresses: HashSet<Address>,
    /// How many attempts to read them were made.
    reads: u64,
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
    pub(super) fn link(
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
    pub(super) fn take(&self, address: &Address) -> Option<Arc<Reconnecting>> {
        self.links.lock().remove(address)
    }

    /// Closes the connections.
    pub(super) fn clear(&self) {
        self.links.lock().clear();
    }

    /// Whether the cluster lists `address`. If the host `has_password` already, a listed port is
    /// enough: a cluster that does not know the addresses by which it is reached from outside lists
    /// others. If the last list did not contain it, calls `read`, which has the list read again,
    /// and waits for that.
    pub(super) async fn is_member(
        &self,
        address: &Address,
        has_password: bool,
        read: impl FnOnce(),
    ) -> bool {
        let mut members = self.members.subscribe();
        let reads = {
            let known = members.borrow();
            if known.have(address, has_password) {
                return true;
            }
            known.reads
        };
        self.wanted.store(true, Ordering::Relaxed);
        read();
        let known = members.wait_for(|known| known.reads > reads).await;
        known.is_ok_and(|known| known.have(address, has_password))
    }

    /// Whether the members have to be read.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Logs why the members cannot be read; once, until they can be read.
    pub(super) fn cannot_read(&self, from: &Address, why: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(redis = %from, "{CANNOT_READ}: {why}");
        }
    }

    /// Stores the addresses that were read; none if they could not be read.
    pub(super) fn learn(&self, addresses: HashSet<Address>) {
        self.wanted.store(false, Ordering::Relaxed);
        if !addresses.is_empty() {
            self.warned.store(false, Ordering::Relaxed);
        }
        self.members.send_modify(|members| {
            members.addresses = addresses;
            members.reads += 1;
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
pub(super) fn members(reply: &Value) -> Result<HashSet<Address>, String> {
    let text = match reply {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::VerbatimString { text, .. } => Some(text.as_str()),
        _ => None,
    };
    let lines = text.ok_or("no list of nodes")?.lines();
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
mod tests {
    use super::*;

    #[test]
    fn members_are_known_by_address_and_by_name() {
        let text = "07c3 10.0.0.4:7004@17004,node-4.local,shard-id=1 slave e7d1 0 1 4 connected\n\
                    67ed 10.0.0.2:7002@17002 master - 0 1426238316232 2 connected 5461-10922\n\
                    6ec2 ::1:7003@17003,,shard-id=2 myself,master - 0 1 1 connected 0-5460\n\
                    bad1 \u{1b}[31m:1@1 master - 0 1 1 connected\n\
                    \n";
        let members = members(&Value::BulkString(text.into())).unwrap();
        let node = |host: &str, port| Address::Tcp(host.into(), port);
        let expected = [
            node("10.0.0.4", 7004),
            node("node-4.local", 7004),
            node("10.0.0.2", 7002),
            node("::1", 7003),
        ];
        assert_eq!(members, HashSet::from(expected));
        assert!(super::members(&Value::Nil).is_err());
    }

    #[tokio::test]
    async fn a_stranger_is_asked_for_once_and_a_member_not_at_all() {
        let (off_map, node) = (OffMap::default(), Address::Tcp("10.0.0.1".into(), 7000));
        let learn = |named: &[Address]| off_map.learn(named.iter().cloned().collect());
        assert!(!off_map.is_member(&node, false, || learn(&[])).await);
        assert!(!off_map.is_wanted());
        assert!(off_map.is_member(&node, false, || learn(std::slice::from_ref(&node))).await);
        assert!(off_map.is_member(&node, false, || panic!("it is known")).await);
        let same_port = Address::Tcp("127.0.0.1".into(), 7000);
        assert!(off_map.is_member(&same_port, true, || panic!("it is known")).await);
        assert!(!off_map.is_member(&same_port, false, || learn(&[])).await);
    }
}
