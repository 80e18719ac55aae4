//! The flags of `serve`, and definitions that all flags share.

use clap::Args;

use super::hot_keys::HotKeysFlags;
use super::leases::LeaseFlags;
use super::listeners::ListenerFlags;
use super::logging::LoggingFlags;
use super::metrics::MetricsFlags;
use super::responses::ResponseFlags;
use super::rules::RulesFlags;
use super::store::{PerSecondFlags, StoreFlags};
use super::tracing::TracingFlags;

/// Flags of `serve`, unchecked, each with what the environment or its default said in its stead.
#[derive(Debug, Args)]
pub struct ServeFlags {
    #[command(flatten)]
    pub(super) listeners: ListenerFlags,
    #[command(flatten)]
    pub(super) rules: RulesFlags,
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
