//! The flags of `serve`.

use clap::Args;

use super::grpc_tls::GrpcTlsFlags;
use super::hot_keys::HotKeysFlags;
use super::leases::LeaseFlags;
use super::listeners::{ListenerFlags, ListenerTable};
use super::logging::{LoggingFlags, LoggingTable};
use super::metrics::MetricsFlags;
use super::responses::ResponseFlags;
use super::rules::{ReadingTable, RulesFlags};
use super::store::{PerSecondFlags, StoreFlags};
use super::table::{Group, Row};
use super::tracing::TracingFlags;
use super::xds::{XdsFlags, XdsTable};

/// Flags of `serve`, not parsed yet; the environment and the defaults have supplied those that were
/// not given.
#[derive(Debug, Args)]
pub struct ServeFlags {
    #[command(flatten)]
    pub(super) listeners: ListenerFlags,
    #[command(flatten)]
    pub(super) grpc_tls: GrpcTlsFlags,
    #[command(flatten)]
    pub(super) rules: RulesFlags,
    #[command(flatten)]
    pub(super) xds: XdsFlags,
    #[command(flatten)]
    pub(super) store: StoreFlags,
    #[command(flatten)]
    pub(super) per_second: PerSecondFlags,
    #[command(flatten)]
    pub(super) responses: ResponseFlags,
    #[command(flatten)]
    pub(super) leases: LeaseFlags,
    #[command(flatten)]
    pub(super) hot_keys: HotKeysFlags,
    #[command(flatten)]
    pub(super) logging: LoggingFlags,
    #[command(flatten)]
    pub(super) tracing: TracingFlags,
    #[command(flatten)]
    pub(super) metrics: MetricsFlags,
}

/// The groups that have defaults of their own under the name `ratelimit`.
const GROUPS: [&[Row]; 4] =
    [ListenerTable::ROWS, ReadingTable::ROWS, XdsTable::ROWS, LoggingTable::ROWS];

/// Returns the default of the variable `name` under the name `ratelimit`, if it differs.
pub(crate) fn reference_default(name: &str) -> Option<&'static str> {
    GROUPS.into_iter().flatten().find(|row| row.name == name)?.reference_default
}
