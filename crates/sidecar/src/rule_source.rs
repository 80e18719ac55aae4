//! Where the rules come from.
//!
//! [`directory`] reads and compiles the files of the rules directory, [`watch`] loads them again
//! when they change and puts them in force as `CurrentRules`, [`xds`] takes them from an xDS server
//! instead, and [`snapshot`] keeps the last good ones for a start that finds none. `memory` says
//! how much they may take. May use the rules, the engine and the settings. [`service`] decides by
//! the rules in force; [`admin`] shows them.
//!
//! [`service`]: ratelease_server::service
//! [`admin`]: crate::admin

pub mod directory;
mod memory;
pub mod snapshot;
pub mod watch;
pub mod xds;

use watch::Watcher;
use xds::{XdsStatus, XdsWatch};

/// What keeps the rules up to date; dropping it ends that.
#[derive(Debug)]
pub enum RuleWatch {
    /// A watch of the rules directory.
    Files(Watcher),
    /// A client of an xDS server.
    Xds(XdsWatch),
}

// === impl RuleWatch ===

impl RuleWatch {
    /// Ends it: the caller goes on while its threads end.
    pub fn stop(&self) {
        match self {
            Self::Files(watcher) => watcher.stop(),
            Self::Xds(watch) => watch.stop(),
        }
    }

    /// The state of the xDS stream, if there is one.
    pub fn xds_status(&self) -> Option<XdsStatus> {
        match self {
            Self::Files(_) => None,
            Self::Xds(watch) => Some(watch.status()),
        }
    }
}
