//! How to reach one server: its address, the login, and the timeouts.

use std::fmt;
use std::sync::Arc;

use super::adaptive_timeout::Patience;
use super::connect_limiter::Gates;
use super::connection::Live;
use super::context::{Site, count};
use super::fault::{Fault, Kind};
use super::open::{Peer, open};
use super::sentinel;
use super::stages::Stages;
use crate::store::redis::settings::Address;

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
    /// The server that the sentinels report as the master of this name.
    Master(String),
    /// No address was configured.
    Nowhere,
}

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

    /// The gates that its connections pass.
    pub(super) fn gates(&self) -> &Gates {
        match &self.to {
            Target::Server(address) => self.site.gates(address),
            Target::Master(_) | Target::Nowhere => self.site.own_gates(),
        }
    }

    /// Opens a connection and logs in, or returns the reason for the failure. It takes at most as
    /// long as `patience` allows, however many addresses a name has, and reports the time it took
    /// to `patience`.
    pub(super) async fn open(&self, patience: &Arc<Patience>) -> Result<Live, Fault> {
        count(&self.site.tally.connects);
        let opened = self.try_open(patience).await;
        opened.inspect_err(|fault| {
            count(&self.site.tally.connect_errors);
            match fault.kind {
                // No server answered, so no command was lost.
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
            Target::Master(name) => sentinel::find_master(&self.site, name).await?,
            Target::Nowhere => return Err(Fault::new(Kind::Lost, "no address is configured")),
        };
        let stages = Stages::new();
        let began = self.site.clock.now();
        let within = patience.of_dial();
        let opened = open(&self.site, &address, Peer::Server, Some(&stages), within).await?;
        patience.connected(self.site.clock.now().since(began));
        let (site, patience) = (Arc::clone(&self.site), Arc::clone(patience));
        Ok(Live::new(address, opened, stages, site, patience))
    }

    /// A hint on how to fix `why`.
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

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Target::Server(address) => write!(f, "{address}"),
            Target::Master(name) => write!(f, "master {name}"),
            Target::Nowhere => f.write_str("nowhere"),
        }
    }
}
