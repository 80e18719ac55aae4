//! What is shown of a rollout: its steps, the hits of both groups of pods side by side, and what a
//! reader should know before the next step.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::paging::time;
use super::problem::Problem;
use super::rollout_input::{BoundInput, LabelInput, PodsInput};
use crate::auth::Caller;
use crate::push::ROLLBACK_AUTHOR;
use crate::store::{
    Choice, CountKey, HitCount, PodRow, Rollout, RolloutStep, Stage, Store, StoreError,
};

/// Domains without hits that a warning names.
const NAMED_MAX: usize = 5;

/// Rollouts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RolloutList {
    /// The rollouts, the latest first.
    pub(super) rollouts: Vec<RolloutView>,
}

/// A rollout.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RolloutView {
    /// Its number.
    rollout: i64,
    /// `shadow`, `enforced`, `all`, `aborted` or `rolled_back`.
    stage: &'static str,
    /// The version of its last step.
    version: i64,
    /// Which pods are chosen.
    choice: PodsInput,
    /// When it is rolled back.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<BoundInput>,
    /// The pods that are connected and get a domain that the token may use, while it is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodGroups>,
    /// The domains that the token may use, and their hits in the last stage in which pods ran
    /// different rules.
    domains: Vec<DomainView>,
    /// What was done, in order.
    steps: Vec<StepView>,
    /// Why the hits may say less than they seem to.
    warnings: Vec<String>,
}

/// Pods of both groups.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct PodGroups {
    /// The chosen ones.
    chosen: PodGroup,
    /// The others.
    others: PodGroup,
}

/// Pods that are connected.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct PodGroup {
    /// Their number.
    connected: usize,
    /// Those that run the version of the step.
    current: usize,
    /// Those that refused it.
    refused: usize,
    /// Those that report no hits: of other programs, or of earlier releases.
    without_reports: usize,
}

/// A domain of a rollout.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DomainView {
    /// Its name.
    domain: String,
    /// Hits on the chosen pods since the stage began.
    chosen: HitView,
    /// Hits on the others.
    others: HitView,
    /// The share that the chosen pods denied in the last 30 s, as the bound weighs them; absent
    /// without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    recent_denied_share: Option<f64>,
}

/// Hits of limits.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HitView {
    /// All of them.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// Those that would have been denied, but for shadow mode.
    shadow_denied: u64,
    /// The share that was denied, 0 to 1; absent without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    denied_share: Option<f64>,
    /// The share that would have been denied, 0 to 1; absent without hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow_denied_share: Option<f64>,
}

/// A step of a rollout.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StepView {
    /// The stage that it led to.
    stage: &'static str,
    /// Its version.
    version: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: String,
    /// Which token; `rollout` for the control plane itself.
    author: String,
    /// Why.
    reason: String,
}

/// Whether a token may see a rollout: it may use one of its domains.
pub(super) fn is_seen_by(caller: &Caller, rollout: &Rollout) -> bool {
    rollout.domains.iter().any(|it| caller.may_use(&it.domain))
}

/// The reason of a step or a version that `caller` may see. The control plane's reason for a roll
/// back names domains and their hits, which a token of other domains does not see.
pub(super) fn reason_for(caller: &Caller, author: &str, reason: String) -> String {
    match caller.domains() {
        Some(_) if author == ROLLBACK_AUTHOR => "chosen pods denied too much".to_owned(),
        _ => reason,
    }
}

/// What `caller` may see of a rollout.
pub(super) async fn view(
    app: &App,
    caller: &Caller,
    rollout: &Rollout,
) -> Result<RolloutView, Problem> {
    let stage = rollout.last().map_or(Stage::Aborted, |step| step.stage);
    let version = rollout.last_open().map_or(0, |step| step.version);
    let Counts { all, recent, weighed, unread } = Counts::read(&app.store, version).await?;
    let names = rollout.domains.iter().map(|it| &*it.domain).filter(|it| caller.may_use(it));
    let domains: Vec<_> = names.map(|it| DomainView::new(it, version, &all, &recent)).collect();
    let mut warnings = Vec::new();
    let mut pods = None;
    if stage.is_open() {
        let rows = app.store.connected_pods(caller.domains()).await?;
        let groups = PodGroups::of(&rows, rollout.id, version);
        warnings = groups.warnings(rollout, &rows, &domains);
        let sees_all = domains.len() == rollout.domains.len();
        warnings.extend(exceeding_of(rollout, &weighed).filter(|_| sees_all));
        pods = Some(groups);
    }
    warnings.extend(unread);
    let bound =
        rollout.bound.map(|it| BoundInput { denied_share: it.denied_share, hits_min: it.hits_min });
    Ok(RolloutView {
        rollout: rollout.id,
        stage: stage.name(),
        version: rollout.last().map_or(0, |step| step.version),
        choice: PodsInput::from(&rollout.choice),
        bound,
        pods,
        domains,
        steps: rollout.steps.iter().map(|it| StepView::new(it, caller)).collect(),
        warnings,
    })
}

/// The hits of a step.
#[derive(Default)]
struct Counts {
    all: BTreeMap<CountKey, HitCount>,
    recent: BTreeMap<CountKey, HitCount>,
    weighed: BTreeMap<CountKey, HitCount>,
    /// Why they cannot be read.
    unread: Option<String>,
}

/// Which domains would deny more than the bound allows once the chosen pods enforce the rules, in
/// words; `None` if there are none, or no bound.
pub(super) async fn exceeding(app: &App, rollout: &Rollout) -> Result<Option<String>, Problem> {
    let version = rollout.last().map_or(0, |step| step.version);
    Ok(exceeding_of(rollout, &app.store.weighed_hits(version).await?))
}

fn exceeding_of(rollout: &Rollout, hits: &BTreeMap<CountKey, HitCount>) -> Option<String> {
    let bound = rollout.bound?;
    if rollout.last()?.stage != Stage::Shadow {
        return None;
    }
    let mut all = Vec::new();
    for (key, count) in hits.iter().filter(|(key, _)| key.is_chosen) {
        let HitCount { hits, denied, shadow } = *count;
        let both = HitCount { hits, denied: denied.saturating_add(shadow), shadow: 0 };
        let share = both.denied_share().filter(|share| *share > bound.denied_share);
        let is_counted = i64::try_from(hits).is_ok_and(|hits| hits >= bound.hits_min);
        if share.is_some() && is_counted {
            let domain = ratelease_rules::excerpt(&key.domain);
            all.push(format!("'{domain}': {} of {hits} hits", both.denied));
        }
    }
    let bound = bound.denied_share;
    (!all.is_empty()).then(|| {
        format!("the chosen pods would deny more than the share {bound}: {}", all.join(", "))
    })
}

// === impl Counts ===

impl Counts {
    /// Reads the hits. Rows that cannot be read must not hide the rollout, nor a list of rollouts.
    async fn read(store: &Store, version: i64) -> Result<Self, Problem> {
        let read = async {
            let (all, recent) = (store.hits(version).await?, store.recent_hits(version).await?);
            Ok(Self { all, recent, weighed: store.weighed_hits(version).await?, unread: None })
        };
        match read.await {
            Err(StoreError::Internal(why)) => {
                let unread = Some(format!("the hits cannot be read: {why}"));
                Ok(Self { unread, ..Self::default() })
            }
            read => Ok(read?),
        }
    }
}

// === impl PodGroups ===

impl PodGroups {
    /// Counts pods. A pod has a row for each type of resources.
    fn of(rows: &[PodRow], rollout: i64, version: i64) -> Self {
        let mut pods = BTreeMap::<(&str, &str), Vec<&PodRow>>::new();
        for row in rows {
            pods.entry((&row.replica, &row.peer)).or_default().push(row);
        }
        let mut groups = Self::default();
        for rows in pods.values() {
            let is_chosen = rows.iter().any(|row| row.chosen_by == rollout);
            let group = if is_chosen { &mut groups.chosen } else { &mut groups.others };
            group.connected += 1;
            group.current += usize::from(rows.iter().all(|row| row.accepted >= version));
            group.refused += usize::from(rows.iter().any(|row| row.refused >= version));
            group.without_reports += usize::from(rows.iter().all(|row| !row.reports));
        }
        groups
    }

    fn warnings(&self, rollout: &Rollout, rows: &[PodRow], domains: &[DomainView]) -> Vec<String> {
        let mut warnings = Vec::new();
        let Self { chosen, others } = self;
        if chosen.connected == 0 {
            warnings.push("no chosen pod is connected".to_owned());
        }
        for (name, group) in [("chosen", chosen), ("other", others)] {
            let PodGroup { connected, refused, without_reports: silent, .. } = group;
            if *silent > 0 {
                warnings.push(format!(
                    "{silent} of {connected} {name} pods report no hits, which are missing here: \
                     they are of another program or an earlier release, or count no decisions"
                ));
            }
            if *refused > 0 {
                warnings.push(format!(
                    "{refused} of {connected} {name} pods refused the version; /v1/pods shows why"
                ));
            }
        }
        if let (Choice::Percent(_), Some(id)) = (&rollout.choice, shared_id(rows)) {
            let id = ratelease_rules::excerpt(id);
            warnings.push(format!(
                "several pods have the node id '{id}', so that a percentage chooses all of them \
                 or none; give each its own CONFIG_GRPC_XDS_NODE_ID"
            ));
        }
        let silent = domains.iter().filter(|it| it.chosen.hits == 0);
        let silent: Vec<_> = silent.map(|it| ratelease_rules::excerpt(&it.domain)).collect();
        if !silent.is_empty() && chosen.connected > 0 {
            let (count, first) = (silent.len(), silent[..silent.len().min(NAMED_MAX)].join(", "));
            warnings.push(format!("no hits yet on the chosen pods of {count} domains: {first}"));
        }
        warnings
    }
}

/// An id that pods of different addresses have. Only those of one replica are compared: a pod may
/// be shown for another one that it has left.
fn shared_id(rows: &[PodRow]) -> Option<&str> {
    let mut peers = BTreeMap::new();
    for row in rows {
        let at = &*row.peer;
        if *peers.entry((&*row.replica, &*row.node)).or_insert(at) != at {
            return Some(&row.node);
        }
    }
    None
}

// === impl DomainView ===

impl DomainView {
    fn new(
        domain: &str,
        version: i64,
        all: &BTreeMap<CountKey, HitCount>,
        recent: &BTreeMap<CountKey, HitCount>,
    ) -> Self {
        let key = |is_chosen| CountKey { version, domain: domain.to_owned(), is_chosen };
        let of = |is_chosen| all.get(&key(is_chosen)).copied().unwrap_or_default();
        Self {
            domain: domain.to_owned(),
            chosen: of(true).into(),
            others: of(false).into(),
            recent_denied_share: recent.get(&key(true)).and_then(HitCount::denied_share),
        }
    }
}

impl From<HitCount> for HitView {
    fn from(count: HitCount) -> Self {
        Self {
            hits: count.hits,
            denied: count.denied,
            shadow_denied: count.shadow,
            denied_share: count.denied_share(),
            shadow_denied_share: count.shadow_share(),
        }
    }
}

impl StepView {
    fn new(step: &RolloutStep, caller: &Caller) -> Self {
        let RolloutStep { version, stage, at, author, reason } = step.clone();
        let reason = reason_for(caller, &author, reason);
        Self { stage: stage.name(), version, at: time(at), author, reason }
    }
}

impl From<&Choice> for PodsInput {
    fn from(choice: &Choice) -> Self {
        match choice {
            Choice::Percent(percent) => Self { percent: Some((*percent).into()), label: None },
            Choice::Label(key, value) => {
                let label = LabelInput { key: key.clone(), value: value.clone() };
                Self { percent: None, label: Some(label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: &str, peer: &str, chosen_by: i64, accepted: i64) -> PodRow {
        let (node, peer, reports) = (node.to_owned(), peer.to_owned(), chosen_by > 0);
        PodRow { node, peer, chosen_by, accepted, reports, ..PodRow::default() }
    }

    #[test]
    fn pods_are_counted_once_and_by_what_they_were_sent() {
        let rows = [row("a", "1", 7, 9), row("a", "1", 7, 9), row("b", "2", 0, 9)];
        let PodGroups { chosen, others } = PodGroups::of(&rows, 7, 9);
        assert_eq!((chosen.connected, chosen.current, chosen.without_reports), (1, 1, 0));
        assert_eq!((others.connected, others.current, others.without_reports), (1, 1, 1));
        let behind = PodGroups::of(&[row("a", "1", 7, 9), row("a", "1", 7, 8)], 7, 9);
        assert_eq!(behind.chosen.current, 0, "one of its types is behind");
        assert_eq!(PodGroups::of(&rows, 8, 9).chosen.connected, 0, "chosen by another rollout");
    }

    #[test]
    fn an_id_of_several_pods_is_found() {
        assert_eq!(shared_id(&[row("a", "1", 0, 0), row("a", "1", 0, 0)]), None);
        assert_eq!(shared_id(&[row("a", "1", 0, 0), row("b", "2", 0, 0)]), None);
        let (one, other) = (row("a", "1", 0, 0), row("a", "2", 0, 0));
        assert_eq!(shared_id(&[one.clone(), other.clone()]), Some("a"));
        let moved = PodRow { replica: "gone".into(), ..other };
        assert_eq!(shared_id(&[one, moved]), None);
    }
}
