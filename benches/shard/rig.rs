//! One `redis-server`, and stores with a connection each to it.

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

/// Maximum time for all connections to be accepted.
const CONNECTS_MAX: Duration = Duration::from_secs(10);

impl Rig {
    /// Starts the server, and one store per connection.
    pub async fn start(connections: usize) -> Self {
        let server = Server::start(&[]);
        let address = tcp(server.port());
        let mut settings = RedisSettings::new(RedisKind::Single, vec![address]);
        // A busy machine must not break a connection.
        settings.timeout = Duration::from_secs(8);
        let stores: Vec<_> =
            (0..connections).map(|_| RedisStore::spawn(settings.clone(), "")).collect();
        for store in &stores {
            let ready = tokio::time::timeout(CONNECTS_MAX, store.ready()).await;
            ready.expect("redis-server takes connections");
        }
        Self { server, stores }
    }

    /// The version that redis-server reports.
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

    /// CPU time of the process, in user mode and system mode.
    pub fn cpu(&self) -> Duration {
        let info = self.server.info("cpu");
        let seconds = |name: &str| info[name].parse::<f64>().expect("seconds");
        Duration::from_secs_f64(seconds("used_cpu_user") + seconds("used_cpu_sys"))
    }
}
