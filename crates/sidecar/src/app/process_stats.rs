//! The sources of the event counts that the debug port shows, besides those of decisions.

use std::sync::Arc;

use ratelease_cli::settings::EffectiveSetting;
use ratelease_engine::limiter::Limiter;
use tokio::runtime::RuntimeMetrics;

use super::ConnectionLimits;
use super::stats_sources::StatsSources;
use crate::admin::history::History;
use crate::admin::metrics::MetricsSources;
use crate::admin::status::{Start, Status};
use crate::certificates::CertificateCounts;
use crate::rule_source::snapshot::Snapshot;
use crate::rule_source::xds::XdsStatus;
use crate::supervise::Supervisor;
use crate::telemetry::LogWriter;
use ratelease_server::accept::OpenConnections;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::metrics::counter::{Count, Counter, ListenerName};
use ratelease_server::observe::Observers;
use ratelease_server::service::DecisionService;

/// The sources of the event counts that `/status` and `/metrics` show.
pub(super) struct ProcessStats {
    pub(super) limiter: Limiter,
    pub(super) service: DecisionService,
    pub(super) published: Arc<CurrentRules>,
    pub(super) supervisor: Supervisor,
    pub(super) open: ConnectionLimits,
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) log: Option<LogWriter>,
    pub(super) observers: Observers,
    pub(super) runtimes: Vec<RuntimeMetrics>,
    pub(super) certificates: Option<CertificateCounts>,
    pub(super) xds: Option<XdsStatus>,
}

// === impl ProcessStats ===

impl ProcessStats {
    /// Event counts since the process began, and current levels. A name may occur twice.
    fn counts(&self) -> Vec<Count> {
        let ConnectionLimits { grpc, http, debug, metrics } = &self.open;
        let of_all = |count: fn(&OpenConnections) -> u64| {
            [grpc, http, debug, metrics].into_iter().map(count).sum::<u64>()
        };
        let mut counts = vec![
            (Counter::TaskRestarts, self.supervisor.restarts()),
            (Counter::TasksReady, self.tasks_ready()),
            (Counter::LoaderPanics, self.published.panics()),
            (Counter::Connections(ListenerName::Grpc), grpc.count() as u64),
            (Counter::Connections(ListenerName::Http), http.count() as u64),
            (Counter::Connections(ListenerName::Debug), debug.count() as u64),
            (Counter::Connections(ListenerName::Metrics), metrics.count() as u64),
            (Counter::ConnectionsRefused, of_all(OpenConnections::refused)),
            (Counter::ConnectionsEvicted, of_all(OpenConnections::evicted)),
            (Counter::ConnectionsThrottled, of_all(OpenConnections::violations)),
        ];
        counts.extend(self.limiter.counts().into_iter().map(|(of, count)| (of.into(), count)));
        counts.extend(self.service.counts());
        counts.extend(self.snapshot.iter().flat_map(|snapshot| snapshot.counts()));
        counts.extend(self.log.iter().flat_map(LogWriter::counts));
        counts.extend(self.observers.counts());
        counts.extend(self.xds.iter().flat_map(XdsStatus::counts));
        counts.extend(self.certificates.iter().flat_map(CertificateCounts::counts));
        counts
    }

    /// Tasks that another thread has woken, and that wait for theirs.
    fn tasks_ready(&self) -> u64 {
        self.runtimes.iter().map(|runtime| runtime.global_queue_depth() as u64).sum()
    }

    /// Everything that the debug port shows.
    pub(super) fn sources(
        self,
        stats: StatsSources,
        start: Start,
        store: String,
        settings: Vec<EffectiveSetting>,
    ) -> MetricsSources {
        let meters = stats.meters.clone();
        let (asked, tallied) = (self.limiter.clone(), self.limiter.clone());
        let status = Status {
            start,
            published: Arc::clone(&self.published),
            xds: self.xds.clone(),
            store,
            shards: Arc::new(move || asked.shards()),
            counts: Arc::new(move || self.counts()),
            stats: Arc::new(stats),
            history: History::default(),
            settings: settings.into(),
        };
        MetricsSources {
            meters,
            status,
            shard_counters: Arc::new(move || tallied.shard_counters()),
            more: Vec::new(),
        }
    }
}
