//! The start of what keeps the rules up to date: a watch of files, or a client of an xDS server.

use std::sync::Arc;

use ratelease_cli::settings::{RulesSource, Xds};
use ratelease_engine::time::Clock;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::metrics::Meters;
use tokio::runtime::Handle;
use tracing::error;

use super::error::BuildError;
use crate::rule_source::RuleWatch;
use crate::rule_source::directory::Directory;
use crate::rule_source::snapshot::Snapshot;
use crate::rule_source::watch::{WatchPaths, Watcher};
use crate::rule_source::xds::XdsWatch;

/// What both kinds of sources need.
pub(super) struct RuleParts<'a> {
    pub(super) published: &'a Arc<CurrentRules>,
    pub(super) snapshot: Option<Arc<Snapshot>>,
    pub(super) clock: Clock,
    /// The hits that an xDS server may ask for.
    pub(super) meters: Option<Meters>,
}

// === impl RuleParts ===

impl RuleParts<'_> {
    /// Starts to keep the rules up to date, from the xDS server if there is one.
    ///
    /// # Errors
    /// Fails if a thread cannot be started, or if the rules cannot be read and no setting allows a
    /// start without them.
    pub(super) async fn watch(
        self,
        xds: Option<Xds>,
        source: &RulesSource,
        runtime: &Handle,
    ) -> Result<RuleWatch, BuildError> {
        match xds {
            None => self.watch_files(source).await,
            Some(xds) => self.follow(xds, source, runtime),
        }
    }

    /// Starts to watch the rules. Bad rules are logged and leave the process without any, as in the
    /// reference implementation; rules that cannot be read at all are more likely a mistake in the
    /// settings.
    async fn watch_files(self, source: &RulesSource) -> Result<RuleWatch, BuildError> {
        let Self { published, snapshot, .. } = self;
        let paths = WatchPaths { dir: source.dir.clone(), root: source.watch_root.clone() };
        let load = Directory::new(source.clone());
        let started = Watcher::spawn(paths, load, Arc::clone(published), snapshot).await;
        let (watcher, first) =
            started.map_err(|error| BuildError::new(format!("cannot watch the rules: {error}")))?;
        if let Err(failed) = first {
            let has_rules = published.current().is_some();
            if failed.is_unread && !source.force_start && !has_rules {
                let hint = "name the directory with --rules or RUNTIME_ROOT, or start without \
                            rules by FORCE_START_WITHOUT_INITIAL_CONFIG=true";
                return Err(BuildError::new(format!("{failed}; {hint}")));
            }
            if has_rules {
                error!("the rules of the snapshot are in force until these faults are fixed");
            } else {
                error!(
                    "no rules are in force: every call fails, so that Envoy's failure_mode_deny \
                     decides, and /readyz says no, until these faults are fixed"
                );
            }
            failed.faults.iter().for_each(|fault| error!("rules: {fault}"));
        }
        Ok(RuleWatch::Files(watcher))
    }

    /// Starts to follow an xDS server.
    fn follow(
        self,
        xds: Xds,
        source: &RulesSource,
        runtime: &Handle,
    ) -> Result<RuleWatch, BuildError> {
        let Self { published, snapshot, clock, meters } = self;
        let options = source.options.clone();
        let watch = XdsWatch::start(xds, options, published, snapshot, clock, meters, runtime);
        let watch = watch
            .map_err(|error| BuildError::new(format!("cannot follow the xDS server: {error}")))?;
        Ok(RuleWatch::Xds(watch))
    }
}
