//! A master and a replica, monitored by one sentinel.

use std::time::Duration;

use ratelease_engine::store::redis::{RedisKind, RedisSettings};

use super::redis::tcp;
use super::redis_server::Server;
use super::wait_for;

pub struct Sentinel {
    pub master: Server,
    pub replica: Server,
    pub sentinel: Server,
}

/// The name of the master in the sentinel.
const NAME: &str = "counts";
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Sentinel ===

impl Sentinel {
    pub fn start() -> Self {
        let master = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {port}")]);
        // A sentinel writes to its configuration file, so it needs one.
        let file = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds {NAME} 1000\n\
             sentinel failover-timeout {NAME} 3000\n"
        );
        let sentinel = Server::start_with_file(&["--sentinel"], &file);
        wait_for("the replica is in step and known", PATIENCE, || {
            let up = replica.info("replication").get("master_link_status")? == "up";
            let known: Vec<redis::Value> =
                sentinel.try_command(&["SENTINEL", "REPLICAS", NAME]).ok()?;
            (up && known.len() == 1).then_some(())
        });
        Self { master, replica, sentinel }
    }

    pub fn config(&self) -> RedisSettings {
        let kind = RedisKind::Sentinel { master: NAME.into() };
        RedisSettings::new(kind, vec![tcp(self.sentinel.port())])
    }
}
