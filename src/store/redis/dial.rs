//! How one server is reached: where it is, who we are there, how long it may take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError,
};

use super::fault::{Fault, Kind};
use super::live::{Live, Stages};
use super::patience::Patience;
use super::site::{Site, count};
use crate::settings::redis::Address;

/// Opens connections to one server.
#[derive(Debug, Clone)]
pub(super) struct Dial {
    site: Arc<Site>,
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
    pub(super) fn server(site: &Arc<Site>, address: Address) -> Self {
        Self { site: Arc::clone(site), to: Target::Server(address) }
    }

    pub(super) fn first_server(site: &Arc<Site>) -> Self {
        let to = site.settings.addresses.first().cloned().map_or(Target::Nowhere, Target::Server);
        Self { site: Arc::clone(site), to }
    }

    pub(super) fn master(site: &Arc<Site>, name: &str) -> Self {
        Self { site: Arc::clone(site), to: Target::Master(name.to_owned()) }
    }

    pub(super) fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// A connection, logged in; else why not. It takes no longer than `patience` has for it,
    /// however many addresses a name has, and tells it what it took.
    pub(super) async fn open(&self, patience: &Arc<Patience>) -> Result<Live, Fault> {
        count(&self.site.tally.connects);
        let opened = self.try_open(patience).await;
        opened.inspect_err(|fault| {
            count(&self.site.tally.connect_errors);
            match fault.kind {
                // Nobody there: no command was lost.
                Kind::Lost => {}
                Kind::TimedOut => patience.dialled_in_vain(),
                kind => {
                    self.site.meet(kind);
                }
            }
        })
    }

    async fn try_open(&self, patience: &Arc<Patience>) -> Result<Live, Fault> {
        let address = match &self.to {
            Target::Server(address) => address.clone(),
            Target::Master(name) => self.find_master(name).await?,
            Target::Nowhere => return Err(Fault::new(Kind::Lost, "no address is configured")),
        };
        let stages = Stages::new();
        // Replies have deadlines of our own: `Live`.
        let open = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience.of_dial()))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(UNWRITTEN_MAX)
            .set_push_sender(stages.on_push());
        let began = self.site.clock.now();
        // redis-rs never puts a password into an error.
        let in_words = |error: RedisError| Fault::of(&error, &address);
        let client = self.client(&address).map_err(in_words)?;
        let connection = client.get_multiplexed_async_connection_with_config(&open).await;
        let connection = connection.map_err(in_words)?;
        patience.connected(self.site.clock.now().since(began));
        let (site, patience) = (Arc::clone(&self.site), Arc::clone(patience));
        Ok(Live::new(address, connection, stages, site, patience))
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
        if let Some(username) = &self.site.settings.username {
            login = login.set_username(username);
        }
        match (&self.site.settings.password, &self.site.settings.username) {
            (Some(password), _) => login.set_password(password.reveal()),
            (None, Some(_)) => login.set_password(""),
            (None, None) => login,
        }
    }

    /// Asks the sentinels, and the server that they name whether it is a master indeed.
    async fn find_master(&self, name: &str) -> Result<Address, Fault> {
        let in_words = |error: RedisError| Fault::of(&error, &Address::Tcp(String::new(), 0));
        let sentinels = self.site.settings.addresses.iter().map(connection_addr);
        let mut builder = SentinelClientBuilder::new(sentinels, name, SentinelServerType::Master)
            .map_err(in_words)?;
        if let Some(password) = &self.site.settings.sentinel_password {
            builder = builder.set_client_to_sentinel_password(password.reveal());
        }
        if let Some(username) = &self.site.settings.sentinel_username {
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
        let silent = |_| Fault::new(Kind::Lost, "the sentinels did not answer in time");
        let found = found.map_err(silent)?;
        match found.map_err(in_words)?.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Ok(Address::Tcp(host.clone(), *port)),
            other => {
                let text = format!("the sentinels named {other}, which is no TCP address");
                Err(Fault::new(Kind::Refused, text))
            }
        }
    }

    /// What might mend `why`.
    pub(super) fn advice(&self, why: &Fault) -> &'static str {
        match (why.kind.meaning().mend, &self.to) {
            (Some(mend), _) if why.kind != Kind::Refused => mend,
            (_, Target::Master(_)) => {
                "check the sentinels' addresses and the master's name (REDIS_URL); retrying"
            }
            _ => "check that Redis runs there and can be reached (REDIS_URL); retrying",
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
