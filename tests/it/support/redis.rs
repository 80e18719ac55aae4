//! Redis as the store's configuration names it: the addresses of a test's servers.

pub use super::redis_cluster::Cluster;
pub use super::redis_sentinel::Sentinel;
pub use super::redis_server::Server;

use ratelease_engine::store::redis::{Address, RedisKind, RedisSettings};

/// One server on TCP and on a Unix socket.
pub struct Single {
    pub server: Server,
}

impl Single {
    pub fn start() -> Self {
        Self { server: Server::start(&["--unixsocket", "{dir}/socket"]) }
    }

    pub fn address(&self) -> Address {
        tcp(self.server.port())
    }

    pub fn socket(&self) -> Address {
        Address::Unix(self.server.dir().join("socket"))
    }

    pub fn config(&self) -> RedisSettings {
        RedisSettings::new(RedisKind::Single, vec![self.address()])
    }
}

/// A port of this machine.
pub fn tcp(port: u16) -> Address {
    Address::Tcp("127.0.0.1".into(), port)
}
