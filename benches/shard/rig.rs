//! One `redis-server` and the stores that ask it, each with a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::store::Store;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::redis::{RedisKind, RedisSettings};

use crate::support::redis::{Server, tcp};

pub struct Rig {
    server: Server,
    pub stores: Vec<Arc<RedisStore>>,
}

/// Connections are refused for no longer than this.
const CONNECTS_MAX: Duration = Duration::from_secs(10);

impl Rig {
    /// Starts the server, and as many stores as there are to be connections.
    pub async fn start(connections: usize) -> Self {
        let server = Server::start(&[]);
        let address = tcp(server.port());
        let mut settings = RedisSettings::new(RedisKind::Single, vec![address]);
        // A machine that is busy elsewhere must not break a connection.
        settings.timeout = Duration::from_secs(8);
        let stores: Vec<_> =
            (0..connections).map(|_| RedisStore::spawn(settings.clone(), "")).collect();
        for store in &stores {
            let ready = tokio::time::timeout(CONNECTS_MAX, store.ready()).await;
            ready.expect("redis-server takes connections");
        }
        Self { server, stores }
    }

    /// What redis-server calls itself.
    pub fn version(&self) -> String {
        self.server.info("server")["redis_version"].clone()
    }

    /// Removes every key.
    pub fn clear(&self) {
        self.server.command::<()>(&["FLUSHALL", "SYNC"]);
        self.server.command::<()>(&["MEMORY", "PURGE"]);
    }

    /// Bytes that Redis has allocated for itself and all data.
    pub fn used_memory(&self) -> u64 {
        self.server.info("memory")["used_memory"].parse().expect("a number")
    }

    pub fn keys(&self) -> u64 {
        self.server.command(&["DBSIZE"])
    }

    /// CPU that the process has used, in the user's mode and the system's.
    pub fn cpu(&self) -> Duration {
        let info = self.server.info("cpu");
        let seconds = |name: &str| info[name].parse::<f64>().expect("seconds");
        Duration::from_secs_f64(seconds("used_cpu_user") + seconds("used_cpu_sys"))
    }
}
