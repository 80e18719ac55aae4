//! How one server is reached: where it is, who we are there, how long it may take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError,
};

use crate::settings::redis::{Address, RedisSettings};

/// Opens connections to one server.
#[derive(Debug, Clone)]
pub(super) struct Dial {
    settings: Arc<RedisSettings>,
    to: Target,
}

#[derive(Debug, Clone)]
enum Target {
    /// The server at this address.
    Server(Address),
    /// Whichever server the sentinels call the master of this name.
    Master(String),
    /// No address was configured.
    Nowhere,
}

/// Commands of one connection that may wait to be written; the rest wait for their place. It is as
/// many as the lease desk sends to a shard at once.
const UNWRITTEN_MAX: usize = 256;

// === impl Dial ===

impl Dial {
    pub(super) fn server(settings: &Arc<RedisSettings>, address: Address) -> Self {
        Self { settings: Arc::clone(settings), to: Target::Server(address) }
    }

    pub(super) fn first_server(settings: &Arc<RedisSettings>) -> Self {
        let to = settings.addresses.first().cloned().map_or(Target::Nowhere, Target::Server);
        Self { settings: Arc::clone(settings), to }
    }

    pub(super) fn master(settings: &Arc<RedisSettings>, name: &str) -> Self {
        Self { settings: Arc::clone(settings), to: Target::Master(name.to_owned()) }
    }

    /// A connection, logged in, and the address it leads to; else why not, in words.
    pub(super) async fn open(
        &self,
        on_push: impl AsyncPushSender,
    ) -> Result<(Address, MultiplexedConnection), String> {
        let address = match &self.to {
            Target::Server(address) => address.clone(),
            Target::Master(name) => self.find_master(name).await?,
            Target::Nowhere => return Err("no address is configured".into()),
        };
        let open = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.timeout))
            .set_response_timeout(Some(self.settings.timeout))
            .set_pipeline_buffer_size(UNWRITTEN_MAX)
            .set_push_sender(on_push);
        let connection = self.client(&address).map_err(in_words)?;
        let connection = connection.get_multiplexed_async_connection_with_config(&open).await;
        connection.map(|connection| (address, connection)).map_err(in_words)
    }

    fn client(&self, address: &Address) -> Result<Client, RedisError> {
        let address = connection_addr(address);
        // Asks are small and latency is all: no waiting for a fuller packet.
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = address.into_connection_info()?;
        Client::open(info.set_tcp_settings(tcp).set_redis_settings(self.login()))
    }

    /// RESP3: its HELLO logs in and speaks up in one command that either succeeds or ends the
    /// attempt, so that a wrong password never leaves us there as another user; and redis-rs tells
    /// of a closed connection only there. In RESP2 it would skip the login of a user without
    /// a password, and drop the user's name for a server that knows no names.
    fn login(&self) -> RedisConnectionInfo {
        // CLIENT SETINFO is left out: servers before 7.2 do not know it, and an access list may
        // well not name it.
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if let Some(username) = &self.settings.username {
            login = login.set_username(username);
        }
        match (&self.settings.password, &self.settings.username) {
            (Some(password), _) => login.set_password(password.reveal()),
            (None, Some(_)) => login.set_password(""),
            (None, None) => login,
        }
    }

    /// Asks the sentinels, and the server that they name whether it is a master indeed.
    async fn find_master(&self, name: &str) -> Result<Address, String> {
        let sentinels = self.settings.addresses.iter().map(connection_addr);
        let mut builder = SentinelClientBuilder::new(sentinels, name, SentinelServerType::Master)
            .map_err(in_words)?;
        if let Some(password) = &self.settings.sentinel_password {
            builder = builder.set_client_to_sentinel_password(password.reveal());
        }
        if let Some(username) = &self.settings.sentinel_username {
            builder = builder.set_client_to_sentinel_username(username.as_str());
        }
        if let Some(username) = self.login().username() {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = self.login().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        let mut client = builder.build().map_err(in_words)?;
        // redis-rs asks several sentinels at once, each with time-outs of its own; this bounds all.
        let found = tokio::time::timeout(FIND_TIMEOUT, client.async_get_client()).await;
        let found = found.map_err(|_| "the sentinels did not answer in time".to_owned())?;
        match found.map_err(in_words)?.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Ok(Address::Tcp(host.clone(), *port)),
            other => Err(format!("the sentinels named {other}, which is no TCP address")),
        }
    }

    /// What might mend `why`.
    pub(super) fn advice(&self, why: &str) -> &'static str {
        let login = ["WRONGPASS", "NOAUTH", "NOPERM", "AuthenticationFailed"];
        if login.iter().any(|code| why.contains(code)) {
            "check the user name and password for Redis (REDIS_AUTH)"
        } else if matches!(self.to, Target::Master(_)) {
            "check the sentinels' addresses and the master's name (REDIS_URL); retrying"
        } else {
            "check that Redis runs there and can be reached (REDIS_URL); retrying"
        }
    }
}

/// For finding the master: a sentinel that is gone costs redis-rs a second before the next is
/// heard.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Target::Server(address) => write!(f, "{address}"),
            Target::Master(name) => write!(f, "master {name}"),
            Target::Nowhere => f.write_str("nowhere"),
        }
    }
}

fn connection_addr(address: &Address) -> ConnectionAddr {
    match address {
        Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
    }
}

/// A closure for `map_err`. redis-rs never puts a password into an error.
fn in_words(error: RedisError) -> String {
    if error.is_timeout() { "no answer in time".to_owned() } else { error.to_string() }
}
