//! How to reach one server: its address, the login, and the timeouts.

use std::fmt;
use std::sync::Arc;

use super::adaptive_timeout::AdaptiveTimeout;
use super::connect_limiter::ConnectLimiters;
use super::connection::Connection;
use super::context::{StoreContext, count};
use super::fault::{Fault, Kind};
use super::open::{Peer, open};
use super::sentinel;
use super::stages::Stages;
use crate::store::redis::settings::Address;

/// Opens connections to one server.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    context: Arc<StoreContext>,
    to: Target,
}

#[derive(Debug, Clone)]
enum Target {
    /// The server at this address.
    Server(Address),
    /// The server that the sentinels report as the master of this name.
    Master(String),
    /// No address was configured.
    Nowhere,
}

// === impl Connector ===

impl Connector {
    pub(super) fn server(context: &Arc<StoreContext>, address: Address) -> Self {
        Self { context: Arc::clone(context), to: Target::Server(address) }
    }

    pub(super) fn first_server(context: &Arc<StoreContext>) -> Self {
        let to =
            context.settings.addresses.first().cloned().map_or(Target::Nowhere, Target::Server);
        Self { context: Arc::clone(context), to }
    }

    pub(super) fn master(context: &Arc<StoreContext>, name: &str) -> Self {
        Self { context: Arc::clone(context), to: Target::Master(name.to_owned()) }
    }

    pub(super) fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    /// The limiters that its connections pass.
    pub(super) fn limiters(&self) -> &ConnectLimiters {
        match &self.to {
            Target::Server(address) => self.context.limiters(address),
            Target::Master(_) | Target::Nowhere => self.context.configured_limiters(),
        }
    }

    /// Opens a connection and logs in, or returns the reason for the failure. It takes at most as
    /// long as `timeout` allows, however many addresses a name has, and reports the time it took
    /// to `timeout`.
    pub(super) async fn open(&self, timeout: &Arc<AdaptiveTimeout>) -> Result<Connection, Fault> {
        count(&self.context.counters.connects);
        let opened = self.try_open(timeout).await;
        opened.inspect_err(|fault| {
            count(&self.context.counters.connect_errors);
            match fault.kind {
                // No server answered, so no command was lost.
                Kind::Lost => {}
                Kind::TimedOut => timeout.note_failed_connect(),
                kind => {
                    self.context.note_fault(kind);
                }
            }
        })
    }

    async fn try_open(&self, timeout: &Arc<AdaptiveTimeout>) -> Result<Connection, Fault> {
        let address = match &self.to {
            Target::Server(address) => address.clone(),
            Target::Master(name) => sentinel::find_master(&self.context, name).await?,
            Target::Nowhere => return Err(Fault::new(Kind::Lost, "no address is configured")),
        };
        let stages = Stages::new();
        let began = self.context.clock.now();
        let within = timeout.for_connect();
        let opened = open(&self.context, &address, Peer::Server, Some(&stages), within).await?;
        timeout.connected(self.context.clock.now().since(began));
        let (context, timeout) = (Arc::clone(&self.context), Arc::clone(timeout));
        Ok(Connection::new(address, opened, stages, context, timeout))
    }

    /// A hint on how to fix `why`.
    pub(super) fn advice(&self, why: &Fault) -> &'static str {
        match (why.kind.meaning().hint, &self.to) {
            (Some(hint), _) if why.kind != Kind::Refused => hint,
            (_, Target::Master(_)) => {
                "check the sentinels' addresses and the master's name (REDIS_URL); retrying"
            }
            _ => "check that Redis runs there and can be reached (REDIS_URL); retrying",
        }
    }
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Target::Server(address) => write!(f, "{address}"),
            Target::Master(name) => write!(f, "master {name}"),
            Target::Nowhere => f.write_str("nowhere"),
        }
    }
}
