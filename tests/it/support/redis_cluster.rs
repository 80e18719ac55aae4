//! A Redis Cluster of real processes.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use ratelease_engine::store::redis::{Address, RedisKind, RedisSettings};

use super::proxy::{Fault, Proxy};
use super::redis::tcp;
use super::redis_server::Server;
use super::wait_for;

/// Masters first, then replicas: node `masters + i` begins as the replica of node `i % masters`.
pub struct Cluster {
    pub nodes: Vec<Server>,
    /// One proxy in front of each node, by position, if there are any: clients are directed to
    /// them.
    pub proxies: Vec<Proxy>,
    /// One proxy in front of the bus of each node, used by the other nodes, if there are any.
    buses: Vec<Proxy>,
    ids: Vec<String>,
    masters: usize,
}

/// The properties of a separate cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    pub masters: usize,
    pub replicas_each: usize,
    /// Short by default, so that a failover takes some 4 s; production clusters have 15 000.
    pub node_timeout_ms: u32,
    /// `cluster-require-full-coverage`: whether all slots are unavailable when one is.
    pub full_coverage: bool,
    /// The address of the machine for the proxies in front of the nodes, if there are any.
    pub proxies: Option<[u8; 4]>,
    /// Whether there are proxies between the nodes too, so that one can be cut off from the others.
    pub can_part: bool,
    /// Further arguments for the command line of each node.
    pub further: Vec<String>,
    /// The environment of the node at this position, such as one with another clock.
    pub env_of: Option<(usize, Vec<(&'static str, String)>)>,
}

/// Maximum time to join. Joining takes one or two rounds of gossip, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOTS: usize = 16_384;

// === impl Cluster ===

impl Cluster {
    /// Three masters with a replica each, for every test of this binary that does not break them.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::start(3, 1))
    }

    /// Starts a separate cluster, with every node in agreement and every replica in sync: a replica
    /// that was never in sync with its master could not be elected.
    pub fn start(masters: usize, replicas_each: usize) -> Self {
        Self::start_with(&ClusterOptions::new(masters, replicas_each))
    }

    /// As [`Cluster::start`], with these options.
    pub fn start_with(options: &ClusterOptions) -> Self {
        let masters = options.masters;
        let size = masters * (1 + options.replicas_each);
        let proxies: Vec<_> =
            options.proxies.iter().flat_map(|ip| (0..size).map(|_| Proxy::start_at(*ip))).collect();
        let buses: Vec<_> =
            (0..size).filter(|_| options.can_part).map(|_| Proxy::start()).collect();
        let starting: Vec<_> = (0..size)
            .map(|at| {
                let mut arguments = options.arguments(proxies.get(at));
                arguments.extend(options.further.iter().cloned());
                arguments.extend(buses.get(at).into_iter().flat_map(|bus| behind_bus(at, bus)));
                let env = options.env_of.clone().filter(|(of, _)| *of == at);
                let env = env.map_or_else(Vec::new, |(_, env)| env);
                thread::spawn(move || {
                    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                    Server::start_with_env(&arguments, &env)
                })
            })
            .collect();
        let nodes: Vec<_> = starting.into_iter().map(|node| node.join().unwrap()).collect();
        for (proxy, node) in proxies.iter().zip(&nodes) {
            proxy.lead_to(node.port());
        }
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"])).collect();
        for (bus, node) in buses.iter().zip(&nodes) {
            bus.lead_to(bus_port(node));
        }
        let cluster = Self { nodes, proxies, buses, ids, masters };
        cluster.assign_slots();
        cluster.meet();
        cluster.replicate();
        cluster.wait_until_ok();
        cluster
    }

    fn assign_slots(&self) {
        for at in 0..self.masters {
            let bound = |at: usize| (SLOTS * at / self.masters).to_string();
            let last = (SLOTS * (at + 1) / self.masters - 1).to_string();
            let node = &self.nodes[at];
            node.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", &bound(at), &last]);
            node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
    }

    fn meet(&self) {
        let size = self.nodes.len().to_string();
        for other in &self.nodes[1..] {
            let (port, bus) = (other.port().to_string(), bus_port(other).to_string());
            self.nodes[0].command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        for node in &self.nodes {
            wait_for("the nodes know each other", PATIENCE, || {
                (*cluster_info(node).get("cluster_known_nodes")? == size).then_some(())
            });
        }
    }

    fn replicate(&self) {
        for at in self.masters..self.nodes.len() {
            let master = &self.ids[at % self.masters];
            // Refused until the node has learnt that its master is one.
            wait_for("a replica may follow its master", PATIENCE, || {
                self.nodes[at].try_command::<()>(&["CLUSTER", "REPLICATE", master]).ok()
            });
        }
    }

    /// Waits until every running node considers the cluster healthy and every replica is in sync.
    pub fn wait_until_ok(&self) {
        for node in &self.nodes {
            let ok = || self.is_ok_at(node);
            wait_for("the cluster is well and in step", PATIENCE, ok);
        }
    }

    /// Whether every node does so at present.
    pub fn is_ok(&self) -> bool {
        self.nodes.iter().all(|node| self.is_ok_at(node).is_some())
    }

    fn is_ok_at(&self, node: &Server) -> Option<()> {
        node.try_command::<()>(&["PING"]).ok()?;
        let replication = node.info("replication");
        let in_step =
            replication.get("role")? == "master" || replication.get("master_link_status")? == "up";
        let slots: Vec<redis::Value> = node.command(&["CLUSTER", "SLOTS"]);
        let complete =
            slots.len() >= self.masters && slots.iter().all(|range| self.has_replicas(range));
        let ok = cluster_info(node).get("cluster_state")? == "ok";
        (ok && in_step && complete).then_some(())
    }

    /// Checks a range of slots: `[first, last, master, replicas…]`
    fn has_replicas(&self, range: &redis::Value) -> bool {
        let replicas = self.nodes.len() / self.masters - 1;
        matches!(range, redis::Value::Array(parts) if parts.len() >= 3 + replicas)
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.nodes.iter().map(|node| tcp(node.port())).collect()
    }

    /// The addresses of the nodes for clients: those of the proxies, if there are any.
    pub fn places(&self) -> Vec<SocketAddr> {
        let place = |(at, node): (usize, &Server)| match self.proxies.get(at) {
            Some(proxy) => proxy.addr,
            None => SocketAddr::from(([127, 0, 0, 1], node.port())),
        };
        self.nodes.iter().enumerate().map(place).collect()
    }

    pub fn config(&self) -> RedisSettings {
        RedisSettings::new(RedisKind::Cluster, self.addresses())
    }

    pub fn slot(&self, key: &str) -> u16 {
        self.nodes[0].command(&["CLUSTER", "KEYSLOT", key])
    }

    /// Position in `nodes` of the master that owns the slot of `key`, as node `asked` sees it.
    pub fn slot_owner(&self, asked: usize, key: &str) -> usize {
        let slot = i64::from(self.slot(key));
        let ranges: Vec<(i64, i64, redis::Value)> = self.nodes[asked]
            .command::<Vec<Vec<redis::Value>>>(&["CLUSTER", "SLOTS"])
            .into_iter()
            .map(|range| {
                let mut parts = range.into_iter();
                let mut bound = || redis::from_redis_value(parts.next().unwrap()).unwrap();
                (bound(), bound(), parts.next().unwrap())
            })
            .collect();
        let owner = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let (_, _, master) = owner.expect("the slot has an owner");
        let redis::Value::Array(master) = master else { panic!("{master:?}") };
        let port: u16 = redis::from_redis_value(master[1].clone()).unwrap();
        self.places().iter().position(|place| place.port() == port).unwrap()
    }

    /// The node that holds `key`, as long as all masters are healthy.
    pub fn owner(&self, key: &str) -> &Server {
        &self.nodes[self.slot_owner(0, key)]
    }

    /// Bytes that `key` takes at its node, including its name.
    pub fn memory_usage(&self, key: &str) -> u64 {
        self.owner(key).command(&["MEMORY", "USAGE", key])
    }

    /// Begins to move a slot: from now on, the node redirects absent keys and keeps present ones.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let set = |at: usize, way: &str, other: usize| {
            let words = ["CLUSTER", "SETSLOT", &slot, way, &self.ids[other]];
            self.nodes[at].command::<()>(&words);
        };
        set(to, "IMPORTING", from);
        set(from, "MIGRATING", to);
    }

    /// Moves the keys of a slot, and then the slot itself.
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        self.move_keys(slot, from, to);
        let slot = slot.to_string();
        for at in [to, from].into_iter().chain(0..self.masters) {
            self.nodes[at].command::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
        }
    }

    /// Moves the keys of a slot whose move has begun: the node redirects requests for them by ASK
    /// until the slot follows.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let port = self.nodes[to].port().to_string();
        loop {
            let words = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
            let keys: Vec<String> = self.nodes[from].command(&words);
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.nodes[from].command::<String>(&words);
        }
    }

    /// Moves one slot with its keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.finish_move(slot, from, to);
    }

    /// Cuts a node off from the others, in both directions; clients still reach all of them.
    pub fn part(&self, at: usize) {
        let others: Vec<_> = (0..self.nodes.len()).filter(|other| *other != at).collect();
        let all: Vec<_> = others.iter().map(|other| source(*other)).collect();
        for proxy in [&self.buses[at], &self.proxies[at]] {
            proxy.set_from(Fault::Hole, &all);
        }
        for other in others {
            for proxy in [&self.buses[other], &self.proxies[other]] {
                proxy.set_from(Fault::Hole, &[source(at)]);
            }
        }
    }

    /// Undoes [`Cluster::part`].
    pub fn join(&self) {
        self.buses.iter().chain(&self.proxies).for_each(|proxy| proxy.set(Fault::None));
    }

    /// Number of calls of `command` on all nodes.
    pub fn calls(&self, command: &str) -> u64 {
        self.nodes.iter().map(|node| node.calls(command)).sum()
    }
}

// === impl ClusterOptions ===

impl ClusterOptions {
    pub fn new(masters: usize, replicas_each: usize) -> Self {
        Self {
            masters,
            replicas_each,
            node_timeout_ms: 2000,
            full_coverage: false,
            proxies: None,
            can_part: false,
            further: Vec::new(),
            env_of: None,
        }
    }

    /// Adds a proxy in front of each node.
    #[must_use]
    pub fn proxied(self) -> Self {
        Self { proxies: Some([127, 0, 0, 1]), ..self }
    }

    /// Adds proxies in front of each node and between all nodes: see [`Cluster::part`].
    #[must_use]
    pub fn that_can_part(self) -> Self {
        Self { can_part: true, ..self.proxied() }
    }

    /// Arguments for the command line of a node behind `proxy`.
    fn arguments(&self, proxy: Option<&Proxy>) -> Vec<String> {
        let coverage = if self.full_coverage { "yes" } else { "no" };
        let timeout = self.node_timeout_ms.to_string();
        let mut pairs = vec![
            ("--cluster-enabled", "yes".to_owned()),
            ("--cluster-port", "{free}".to_owned()),
            ("--cluster-node-timeout", timeout),
            ("--cluster-require-full-coverage", coverage.to_owned()),
            ("--repl-diskless-sync-delay", "0".to_owned()),
            ("--repl-ping-replica-period", "1".to_owned()),
        ];
        if let Some(proxy) = proxy {
            pairs.push(("--cluster-announce-port", proxy.port().to_string()));
            // The node announces no address: a client keeps the address that it connected to.
            pairs.push(("--cluster-preferred-endpoint-type", "unknown-endpoint".to_owned()));
        }
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}

/// Arguments for the command line of a node whose bus is reached through `bus`. The node connects
/// to others from an address of its own, so that their proxies can recognise it.
fn behind_bus(at: usize, bus: &Proxy) -> [String; 6] {
    let source = source(at).to_string();
    let port = bus.port().to_string();
    [
        "--cluster-announce-bus-port",
        &port,
        "--cluster-announce-ip",
        "127.0.0.1",
        "--bind-source-addr",
        &source,
    ]
    .map(str::to_owned)
}

/// The source address of the node at this position.
fn source(at: usize) -> IpAddr {
    IpAddr::from([127, 0, 1, u8::try_from(at + 1).expect("few nodes")])
}

fn bus_port(node: &Server) -> u16 {
    let reported: Vec<String> = node.command(&["CONFIG", "GET", "cluster-port"]);
    reported[1].parse().expect("a port")
}

fn cluster_info(node: &Server) -> std::collections::HashMap<String, String> {
    let text: String = node.command(&["CLUSTER", "INFO"]);
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
