//! The published rules of each domain, as resources of either type; the selection for each pod; and
//! how the set follows the versions of the database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use prost::Message;
use ratelease_rules::{Source, Weight, domain_of_candidate};
use ratelease_xds::config::config_of;
use ratelease_xds::{CONFIG_TYPE, RULES_TYPE, RulesResource};
use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::selection::NodeInfo;
use crate::document::weigh;
use crate::gate::shadow_tells_at;
use crate::store::{
    Bound, CHANNEL, Choice, Database, Draw, Rollout, RolloutStep, Share, Stage, Store, StoreError,
    StoreResult, TEXTS_MAX, VersionChange,
};

/// The published rules and rollouts of one version.
#[derive(Debug, Clone, Default)]
pub struct PublishedSet {
    /// The version; 0 if nothing was ever published.
    pub version: i64,
    /// When the version was published, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The domains, of which those that did not change are shared with the set before.
    pub domains: BTreeMap<String, Arc<PublishedDomain>>,
    /// The rollouts that are under way, of different domains, with the rules of their pods.
    pub rollouts: Vec<Arc<PublishedRollout>>,
    /// The last version that changed each domain, also of domains that were removed.
    pub changed: BTreeMap<String, i64>,
    /// The last rollout of each domain that has ended, unless a later version published the domain.
    pub ended: BTreeMap<String, Arc<PublishedRollout>>,
    /// The selections of pods that may have all domains.
    pub groups: Groups,
    /// How often domains were selected.
    #[cfg(test)]
    pub selections: Arc<AtomicUsize>,
}

/// The rules that a pod gets of a set.
#[derive(Debug)]
pub struct Selected {
    pub domains: Vec<Arc<PublishedDomain>>,
    /// Their names, in the same order.
    pub names: Arc<[String]>,
    /// Identifies the texts.
    pub content: blake3::Hash,
    /// The last version that changed the pod's rules. A pod that has these texts from an earlier
    /// version is sent this one all the same: otherwise a replica that knows only a version in
    /// between would take its own version for newer than the pod's.
    pub changed: i64,
    /// Bytes of the texts.
    pub bytes: usize,
}

/// The selections of pods that may have all domains, by the rollouts that concern a pod: one under
/// way that chose it, or one that has ended.
#[derive(Debug, Default)]
pub struct Groups(Mutex<HashMap<Vec<i64>, Arc<Selected>>>);

/// Maximum number of these groups; further ones are selected for each pod.
const GROUPS_MAX: usize = 1024;

/// A rollout that is under way, or has ended.
#[derive(Debug, Clone)]
pub struct PublishedRollout {
    /// The number of the rollout.
    pub id: i64,
    /// The version of its last step.
    pub version: i64,
    /// The stage of the rollout.
    pub stage: Stage,
    /// The pods that are chosen.
    pub choice: Choice,
    /// The order in which a percentage chooses pods.
    pub draw: Draw,
    /// The part of each domain's pods that is chosen, if a percentage is. If the rollout has ended,
    /// it is the part that was ever chosen.
    pub shares: Vec<Share>,
    /// The bound above which the rollout is rolled back.
    pub bound: Option<Bound>,
    /// From when on hits are evidence, in milliseconds since the Unix epoch.
    pub tells_at: i64,
    /// The domains that it changes.
    pub names: BTreeSet<String>,
    /// The domains of chosen pods in place of the published ones; `None` for a domain that leaves.
    /// In the stage `shadow` they are candidate rules beside the published ones.
    pub domains: PublishedOverlay,
    /// The candidate rules of the other pods.
    pub others: PublishedOverlay,
    /// Whether the others had candidate rules too when it ended.
    pub was_shadow: bool,
}

/// Domains that pods have instead of those that are published, or beside them.
type PublishedOverlay = BTreeMap<String, Option<Arc<PublishedDomain>>>;

/// The published rules of a domain.
#[derive(Debug)]
pub struct PublishedDomain {
    /// The hash of the text.
    pub hash: String,
    /// The text of the rule file: the end of `rules`.
    text: Bytes,
    rules: Bytes,
    config: SharedConfig,
    /// The weight of the rules in a pod, once it was asked for; `None` if a pod would refuse them.
    weight: OnceLock<Option<Weight>>,
}

/// The resource for pods that do not take rule files, or what its type cannot say. It is made once,
/// on a thread that may block, when a pod first needs it; other streams wait without a thread.
type SharedConfig = Shared<BoxFuture<'static, Result<Bytes, Arc<str>>>>;

// === impl PublishedSet ===

impl PublishedSet {
    /// The domain with the text of this hash, if the set or its rollout has it.
    pub fn find(&self, domain: &str, hash: &str) -> Option<&Arc<PublishedDomain>> {
        let overlays = self.rollouts.iter().flat_map(|it| [&it.domains, &it.others]);
        let rolled_out = overlays.filter_map(|it| it.get(domain)?.as_ref());
        self.domains.get(domain).into_iter().chain(rolled_out).find(|it| it.hash == hash)
    }

    /// Forgets when domains were removed, if that is known of more than `max`.
    fn forget_removed(&mut self, max: usize) {
        if self.changed.len() > self.domains.len() + max {
            self.changed.retain(|name, _| self.domains.contains_key(name));
        }
    }

    /// The rules for this node, of the domains that it is `allowed` (`None` for all). Pods that get
    /// all domains share one selection. Other selections cost as much as the names that limit them.
    pub fn selected(&self, node: &NodeInfo, allowed: Option<&BTreeSet<&str>>) -> Arc<Selected> {
        let chosen = self.chosen(node, allowed);
        let is_concerned = |it: &&Arc<PublishedRollout>| it.concerned(node, allowed);
        let ended: Vec<_> = self.ended.values().filter(is_concerned).map(|it| it.id).collect();
        let select = |names: BTreeSet<&str>| Arc::new(self.select(names, &chosen, &ended));
        match (node.domains(), allowed) {
            (Some(asked), allowed) => {
                let asked = asked.iter().map(String::as_str);
                select(asked.filter(|it| allowed.is_none_or(|all| all.contains(it))).collect())
            }
            (None, Some(allowed)) => select(allowed.clone()),
            (None, None) => {
                let key = chosen.iter().copied().chain([0]).chain(ended.iter().copied());
                self.groups.get_or_select(key.collect(), || select(self.names()))
            }
        }
    }

    /// The names of all domains, of those that were removed, and of those that rollouts add.
    fn names(&self) -> BTreeSet<&str> {
        let added = self.rollouts.iter().flat_map(|it| it.domains.keys().chain(it.others.keys()));
        let names = self.domains.keys().chain(self.changed.keys()).chain(added);
        names.map(String::as_str).collect()
    }

    /// Selects the domains of a pod, given the rollouts that chose it, and the ended ones that
    /// concern it.
    fn select<'s>(
        &'s self,
        mut names: BTreeSet<&'s str>,
        chosen: &[i64],
        ended: &[i64],
    ) -> Selected {
        #[cfg(test)]
        self.selections.fetch_add(1, Ordering::Relaxed);
        let overlays = self.rollouts.iter().flat_map(|it| match chosen.contains(&it.id) {
            true => &it.domains,
            false => &it.others,
        });
        let overlay: BTreeMap<_, _> = overlays.map(|(name, it)| (name.as_str(), it)).collect();
        // Candidate rules belong to their domain.
        let is_of = |it: &&str| domain_of_candidate(it).is_some_and(|of| names.contains(of));
        let beside: Vec<_> = overlay.keys().copied().filter(is_of).collect();
        names.extend(beside);
        let mut domains = Vec::new();
        let mut present = Vec::new();
        let mut hasher = blake3::Hasher::new();
        let mut last = 0;
        let mut bytes = 0;
        for name in names {
            let domain = match overlay.get(name) {
                Some(instead) => instead.as_ref(),
                None => self.domains.get(name),
            };
            let published = self.changed.get(name).copied().unwrap_or_default();
            let ended = self.ended.get(name).filter(|it| ended.contains(&it.id));
            last = last.max(match ended {
                // The pod had this text before it was published.
                Some(ended) if ended.stage == Stage::All && ended.version == published => 0,
                Some(ended) => ended.version.max(published),
                None => published,
            });
            let Some(domain) = domain else { continue };
            for part in [name, &domain.hash] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            bytes += domain.text.len();
            domains.push(Arc::clone(domain));
            present.push(name.to_owned());
        }
        let names = present.into();
        let content = hasher.finalize();
        Selected { domains, names, content, changed: last, bytes }
    }
}

/// A resource of this type, encoded.
fn any(type_url: &str, message: &impl Message) -> Bytes {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }.encode_to_vec().into()
}

// === impl PublishedDomain ===

impl PublishedDomain {
    /// The rules of `domain`, as the text of a rule file.
    pub fn new(domain: &str, hash: String, yaml: String) -> Self {
        let bytes = yaml.len();
        let resource = RulesResource { name: domain.to_owned(), yaml: yaml.into() };
        let rules = any(RULES_TYPE, &resource);
        let text = rules.slice(rules.len() - bytes..);
        let made_of = text.clone();
        let config = async move {
            let made = spawn_blocking(move || config(&made_of)).await;
            made.unwrap_or_else(|error| Err(error.to_string().into()))
        };
        let weight = OnceLock::new();
        Self { hash, text, rules, config: config.boxed().shared(), weight }
    }

    /// The text of the rule file.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The weight in a pod of the rules of `domain`, which these are; `None` if a pod would refuse
    /// them. The first call compiles them.
    pub fn weight(&self, domain: &str) -> Option<Weight> {
        *self.weight.get_or_init(|| weigh(domain, &self.text))
    }

    /// The resource for pods that take rule files.
    pub fn rules(&self) -> &Bytes {
        &self.rules
    }

    /// The resource for others; the error names what their type cannot say.
    pub async fn config(&self) -> Result<Bytes, Arc<str>> {
        self.config.clone().await
    }
}

/// Translates the text of a rule file. Blocks.
fn config(text: &[u8]) -> Result<Bytes, Arc<str>> {
    let source = Source { name: "published".into(), text: text.to_vec() };
    Ok(any(CONFIG_TYPE, &config_of(&source)?))
}

// === impl Groups ===

impl Groups {
    fn get_or_select(
        &self,
        key: Vec<i64>,
        select: impl FnOnce() -> Arc<Selected>,
    ) -> Arc<Selected> {
        let mut groups = self.0.lock();
        if let Some(found) = groups.get(&key) {
            return Arc::clone(found);
        }
        let selected = select();
        if groups.len() < GROUPS_MAX {
            groups.insert(key, Arc::clone(&selected));
        }
        selected
    }
}

/// A copy may be changed, so that nothing is selected of it yet.
impl Clone for Groups {
    fn clone(&self) -> Self {
        Self::default()
    }
}

// The choice of pods.

// === impl PublishedSet ===

impl PublishedSet {
    /// The rollouts that choose this node, of the domains that it is `allowed`.
    pub fn chosen(&self, node: &NodeInfo, allowed: Option<&BTreeSet<&str>>) -> Vec<i64> {
        let chosen = self.rollouts.iter().filter(|it| it.chooses(node, allowed));
        chosen.map(|it| it.id).collect()
    }
}

// === impl PublishedRollout ===

impl PublishedRollout {
    /// A rollout at its last step, in which pods have no domains of their own.
    fn at_last(rollout: &Rollout) -> Self {
        let RolloutStep { version, stage, .. } = *rollout.last();
        let names = rollout.domains.iter().map(|it| it.domain.clone()).collect();
        let shares = match stage.is_open() {
            true => &rollout.steps[rollout.steps.len() - 1..],
            false => &rollout.steps[..],
        };
        // A pod that a step has chosen was below the highest threshold of the same crowds.
        let mut merged = BTreeMap::<_, Share>::new();
        for share in shares.iter().flat_map(|it| &it.shares) {
            let highest = merged.entry((&share.domain, &share.crowds));
            let highest = highest.or_insert_with(|| share.clone());
            highest.threshold = highest.threshold.max(share.threshold);
        }
        let was_shadow = rollout.last_open().is_some_and(|it| it.stage == Stage::Shadow);
        Self {
            id: rollout.id,
            version,
            stage,
            choice: rollout.choice.clone(),
            draw: rollout.into(),
            shares: merged.into_values().collect(),
            bound: rollout.bound,
            tells_at: if stage == Stage::Shadow { shadow_tells_at(rollout) } else { 0 },
            names,
            domains: PublishedOverlay::new(),
            others: PublishedOverlay::new(),
            was_shadow,
        }
    }

    /// Whether the rollout chooses this node, of the domains that it is `allowed`: for one of its
    /// domains. Each replica and each connection finds the same.
    pub fn chooses(&self, node: &NodeInfo, allowed: Option<&BTreeSet<&str>>) -> bool {
        if let Choice::Label(key, value) = &self.choice {
            return node.label(key) == Some(value);
        }
        let place = self.draw.place(node.origin, &node.id);
        let mut shares = self.shares.iter().filter(|it| it.chooses(&place));
        shares.any(|it| serves(node, allowed, &it.domain))
    }

    /// Whether what this node has may have changed when the rollout ended.
    fn concerned(&self, node: &NodeInfo, allowed: Option<&BTreeSet<&str>>) -> bool {
        self.was_shadow || self.chooses(node, allowed)
    }
}

/// Whether a node gets this domain, of those that it is `allowed`.
fn serves(node: &NodeInfo, allowed: Option<&BTreeSet<&str>>, domain: &str) -> bool {
    node.domains().is_none_or(|it| it.contains(domain))
        && allowed.is_none_or(|it| it.contains(domain))
}

// Follows the versions of the database. A notice of PostgreSQL or of this process wakes the
// follower at once; a poll finds what notices miss.

/// Interval of the poll, for a notice that got lost.
const POLL: Duration = Duration::from_secs(1);

/// Maximum time of a poll. A database that hangs is asked again; the next poll goes on with the
/// texts that a poll which was too slow has read.
const POLL_MAX: Duration = Duration::from_secs(10);

/// Maximum number of removed domains whose last change is kept. It only matters to pods that have
/// not heard of the removal.
const REMOVED_MAX: usize = 10_000;

/// Attempts to read a version while others are published.
const ATTEMPTS_MAX: usize = 5;

/// Pause before the database is asked for notices again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Publishes each version to `sender`. `wake` ends the wait for the next poll. Each poll that the
/// database answers is counted in `polls`. It does not return.
pub async fn follow(
    store: Store,
    wake: Arc<Notify>,
    sender: watch::Sender<Arc<PublishedSet>>,
    polls: watch::Sender<u64>,
) {
    let store = store.reserved();
    let mut texts = Texts::default();
    let mut is_away = false;
    loop {
        let known = Arc::clone(&sender.borrow());
        let poll = async {
            store.read_clock().await?;
            load(&store, &known, &mut texts).await
        };
        let loaded = timeout(POLL_MAX, poll).await;
        let loaded = loaded
            .unwrap_or_else(|_| Err(StoreError::Unavailable(format!("silent for {POLL_MAX:?}"))));
        match loaded {
            Ok(set) => {
                is_away = false;
                if let Some(set) = set {
                    info!(version = set.version, domains = set.domains.len(), "new version");
                    sender.send_replace(Arc::new(set));
                }
                polls.send_modify(|count| *count += 1);
            }
            Err(error) if !is_away => {
                is_away = true;
                warn!("{error}; pods keep version {}", known.version);
            }
            Err(_) => {}
        }
        let _ = timeout(POLL, wake.notified()).await;
    }
}

/// Texts by their hashes, which were read for a set: until the whole set is there.
#[derive(Debug, Default)]
struct Texts(HashMap<String, String>);

// === impl Texts ===

impl Texts {
    /// Reads the missing texts of these hashes, many at a time, and forgets all others.
    async fn read(&mut self, store: &Store, wanted: BTreeSet<&str>) -> StoreResult<()> {
        self.0.retain(|hash, _| wanted.contains(&**hash));
        let mut lacking: Vec<_> = wanted.into_iter().collect();
        loop {
            lacking.retain(|hash| !self.0.contains_key(*hash));
            let Some(next) = lacking.chunks(TEXTS_MAX).next() else { return Ok(()) };
            self.0.extend(store.texts(next).await?);
        }
    }

    /// The text of a hash, which was read.
    fn text(&self, hash: &str) -> StoreResult<String> {
        let lost = || StoreError::Internal(format!("the text {hash} was not read"));
        self.0.get(hash).cloned().ok_or_else(lost)
    }
}

/// The set of the last version; `None` if that is the known one. If the attempt fails, `texts`
/// keeps the texts that were read so far.
async fn load(
    store: &Store,
    known: &PublishedSet,
    texts: &mut Texts,
) -> StoreResult<Option<PublishedSet>> {
    for _ in 0..ATTEMPTS_MAX {
        let version = store.last_version().await?;
        // A database that was restored from a backup may have other versions of these numbers.
        let is_known = known.version <= version
            && (known.version == 0 || store.version_time(known.version).await? == known.at);
        if is_known && version == known.version {
            return Ok(None);
        }
        let (former, changes) = match is_known && known.version > 0 {
            true => (known.domains.clone(), store.changes_since(known.version).await?),
            // The state at this version is enough: the whole history is not read.
            false => (BTreeMap::new(), store.state_at(version).await?),
        };
        let rollouts = store.open_rollouts().await?;
        // A database may be restored to the time before its first version.
        let at = if version == 0 { 0 } else { store.version_time(version).await? };
        let former_set = if is_known { known } else { &PublishedSet::default() };
        let changed = changed(former_set, &changes);
        let ended = ended(store, former_set, &changed).await?;
        // All reads are of one version if the last version is unchanged: each change takes a
        // number.
        if store.last_version().await? == version {
            let last = last_texts(&changes);
            texts.read(store, unknown_texts(known, &last, &rollouts)).await?;
            let domains = domains(texts, known, former, last)?;
            let rollouts = rollouts.iter().map(|it| rolled_out(texts, known, it));
            let rollouts = rollouts.collect::<StoreResult<_>>()?;
            let mut set = PublishedSet {
                version,
                at,
                domains,
                rollouts,
                changed,
                ended,
                ..PublishedSet::default()
            };
            set.forget_removed(REMOVED_MAX);
            *texts = Texts::default();
            return Ok(Some(set));
        }
    }
    Err(StoreError::Unavailable("versions are published while they are read".to_owned()))
}

/// The hash of the text that each domain has after these changes; `None` if it leaves.
fn last_texts(changes: &[VersionChange]) -> BTreeMap<&str, Option<&str>> {
    changes.iter().map(|it| (&*it.domain, it.hash.as_deref())).collect()
}

/// The hashes of the texts of domains, and of rollouts, that are not known.
fn unknown_texts<'t>(
    known: &PublishedSet,
    last: &BTreeMap<&'t str, Option<&'t str>>,
    rollouts: &'t [Rollout],
) -> BTreeSet<&'t str> {
    let hashes = |it: &'t Rollout| it.hashes(it.last().stage).chain(it.others(it.last().stage));
    let rolled_out = rollouts.iter().flat_map(hashes);
    let published = last.iter().map(|(domain, hash)| ((*domain).to_owned(), *hash));
    let all = published.chain(rolled_out).filter_map(|(domain, hash)| Some((domain, hash?)));
    all.filter(|(domain, hash)| known.find(domain, hash).is_none()).map(|(_, hash)| hash).collect()
}

/// The domains, of which these have other texts now.
fn domains(
    texts: &Texts,
    known: &PublishedSet,
    mut domains: BTreeMap<String, Arc<PublishedDomain>>,
    last: BTreeMap<&str, Option<&str>>,
) -> StoreResult<BTreeMap<String, Arc<PublishedDomain>>> {
    for (domain, hash) in last {
        match hash {
            Some(hash) => domains.insert(domain.to_owned(), text(texts, known, domain, hash)?),
            None => domains.remove(domain),
        };
    }
    Ok(domains)
}

/// The last version that changed each domain, after these changes.
fn changed(known: &PublishedSet, changes: &[VersionChange]) -> BTreeMap<String, i64> {
    let mut changed = known.changed.clone();
    changed.extend(changes.iter().map(|it| (it.domain.clone(), it.version)));
    changed
}

/// The last rollout of each domain that has ended since this process knew a version. The rollout
/// may have begun after the known version, so that no set ever had it.
async fn ended(
    store: &Store,
    known: &PublishedSet,
    changed: &BTreeMap<String, i64>,
) -> StoreResult<BTreeMap<String, Arc<PublishedRollout>>> {
    let mut all = known.ended.clone();
    if known.version > 0 {
        for rollout in store.rollouts_ended_since(known.version).await? {
            let ended = Arc::new(PublishedRollout::at_last(&rollout));
            all.extend(ended.names.iter().map(|name| (name.clone(), Arc::clone(&ended))));
        }
    }
    all.retain(|name, it| changed.get(name).is_none_or(|published| *published <= it.version));
    Ok(all)
}

/// The rules of both groups of pods while a rollout is under way.
fn rolled_out(
    texts: &Texts,
    known: &PublishedSet,
    rollout: &Rollout,
) -> StoreResult<Arc<PublishedRollout>> {
    let stage = rollout.last().stage;
    let mut published = PublishedRollout::at_last(rollout);
    for (domain, hash) in rollout.hashes(stage) {
        let text = hash.map(|hash| text(texts, known, &domain, hash)).transpose()?;
        published.domains.insert(domain, text);
    }
    for (domain, hash) in rollout.others(stage) {
        let text = hash.map(|hash| text(texts, known, &domain, hash)).transpose()?;
        published.others.insert(domain, text);
    }
    Ok(Arc::new(published))
}

/// The domain with the text of this hash, which is known or was read.
fn text(
    texts: &Texts,
    known: &PublishedSet,
    domain: &str,
    hash: &str,
) -> StoreResult<Arc<PublishedDomain>> {
    if let Some(found) = known.find(domain, hash) {
        return Ok(Arc::clone(found));
    }
    let yaml = texts.text(hash)?;
    Ok(Arc::new(PublishedDomain::new(domain, hash.to_owned(), yaml)))
}

/// Wakes the follower at each notice of PostgreSQL. It does not return.
pub async fn listen(database: Database, wake: Arc<Notify>) {
    let Database::Postgres(url) = database else { return };
    loop {
        if let Ok(mut listener) = PgListener::connect(&url).await
            && listener.listen(CHANNEL).await.is_ok()
        {
            // `None` is a connection that broke, and is there again: a notice may be lost.
            while listener.try_recv().await.is_ok() {
                wake.notify_one();
            }
        }
        sleep(LISTEN_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::push::selection::NodeInfo;
    use crate::store::plan_of_one_stage;
    use crate::store::{
        Author, Choice, NewRollout, PodRow, PublishedText, RolloutTexts, Stage, Write,
    };

    fn rollout(choice: Choice, thresholds: &[(&str, i64)]) -> PublishedRollout {
        let share = |(domain, threshold): &(&str, i64)| {
            let (domain, threshold) = ((*domain).to_owned(), *threshold);
            Share { domain, threshold, crowds: BTreeMap::new(), pods: 0, chosen: 0 }
        };
        PublishedRollout {
            id: 1,
            version: 1,
            stage: Stage::Shadow,
            choice,
            draw: Draw { rollout: 1, seed: Some(1) },
            shares: thresholds.iter().map(share).collect(),
            bound: None,
            tells_at: 0,
            names: BTreeSet::new(),
            domains: PublishedOverlay::new(),
            others: PublishedOverlay::new(),
            was_shadow: true,
        }
    }

    fn node(id: &str) -> NodeInfo {
        NodeInfo::named(id, &[])
    }

    #[test]
    fn a_pod_is_chosen_up_to_the_threshold_of_its_domain() {
        let row = PodRow { node: "pod-1".to_owned(), ..PodRow::default() };
        let draw = Draw { rollout: 1, seed: Some(1) };
        let place = Share::of(draw, "shop", 100, &[row], None).threshold;
        let of = |thresholds: &[(&str, i64)]| rollout(Choice::Percent(50), thresholds);
        let (at, below) = (of(&[("shop", place)]), of(&[("shop", place - 1)]));
        assert!(at.chooses(&node("pod-1"), None) && !below.chooses(&node("pod-1"), None));
        assert!(!of(&[("shop", -1)]).chooses(&node("pod-1"), None));
        let limited = NodeInfo::named("pod-1", &[("domains", "bank,lab")]);
        assert!(!at.chooses(&limited, None), "it does not serve the domain");
        assert!(!at.chooses(&node("pod-1"), Some(&BTreeSet::from(["bank"]))));
        assert!(of(&[("bank", place), ("shop", -1)]).chooses(&limited, None));
    }

    #[test]
    fn the_text_of_a_domain_is_the_one_in_its_resource() {
        for yaml in ["", "domain: shop\n", &"#".repeat(300)] {
            let domain = PublishedDomain::new("shop", "hash".to_owned(), yaml.to_owned());
            let any = Any::decode(&**domain.rules()).unwrap();
            let resource = RulesResource::decode(&*any.value).unwrap();
            assert_eq!((domain.text(), &*resource.yaml), (yaml.as_bytes(), yaml.as_bytes()));
        }
    }

    #[test]
    fn a_label_chooses_nodes_whose_metadata_has_it() {
        let rollout = rollout(Choice::Label("zone".into(), "a".into()), &[]);
        let labelled = |value: &str| NodeInfo::named("", &[("zone", value)]);
        assert!(rollout.chooses(&labelled("a"), None));
        assert!(!rollout.chooses(&labelled("b"), None) && !rollout.chooses(&node("a"), None));
    }

    fn text(domain: &str, yaml: &str) -> PublishedText {
        let (domain, yaml) = (domain.to_owned(), Some(yaml.to_owned()));
        PublishedText { domain, changed: 0, yaml, rules: 0 }
    }

    async fn begin(store: &Store) -> Write {
        let author = Author { name: "test".to_owned(), reason: String::new() };
        store.begin(&author).await.unwrap()
    }

    /// A rollout to all pods of these: one without an id.
    fn to_all(texts: Vec<RolloutTexts>) -> NewRollout {
        let choice = Choice::Percent(100);
        let plan = plan_of_one_stage(Stage::Shadow, &choice);
        let (bound, time_limit, longest_window) = (None, None, 0);
        NewRollout { choice, bound, plan, time_limit, longest_window, texts }
    }

    async fn publish(store: &Store, domain: &str, yaml: &str) {
        let mut write = begin(store).await;
        assert!(write.publish(&[text(domain, yaml)], None).await.unwrap().is_some());
        write.commit().await.unwrap();
    }

    /// A database with versions that publish one domain each.
    async fn store(dir: &std::path::Path, domains: &[&str]) -> Store {
        let file = dir.join(format!("{}.db", domains.join("-")));
        let store = Store::open(&Database::Sqlite(file)).await.unwrap();
        for domain in domains {
            publish(&store, domain, &format!("domain: {domain}\n")).await;
        }
        store
    }

    async fn load_all(store: &Store, known: &PublishedSet) -> StoreResult<Option<PublishedSet>> {
        load(store, known, &mut Texts::default()).await
    }

    /// Ends an attempt after it has waited so many times; `None` then.
    async fn impatient<T>(waits: usize, attempt: impl Future<Output = T>) -> Option<T> {
        let mut attempt = pin!(attempt);
        let mut waited = 0;
        poll_fn(|cx| match attempt.as_mut().poll(cx) {
            Poll::Pending if waited < waits => {
                waited += 1;
                Poll::Pending
            }
            Poll::Pending => Poll::Ready(None),
            Poll::Ready(done) => Poll::Ready(Some(done)),
        })
        .await
    }

    #[tokio::test]
    async fn an_attempt_goes_on_with_the_texts_that_those_before_it_have_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &[]).await;
        // A page has only a few texts of this size.
        let large =
            |at: usize| text(&format!("d{at:02}"), &format!("# {at}{}", "x".repeat(1 << 20)));
        let texts: Vec<_> = (0..40).map(large).collect();
        let mut write = begin(&store).await;
        write.publish(&texts, None).await.unwrap();
        write.commit().await.unwrap();
        let known = PublishedSet::default();
        let mut texts = Texts::default();
        let mut read = vec![0];
        // The least patience with which an attempt reads a page.
        let mut waits = 0;
        while texts.0.is_empty() {
            waits += 1;
            assert!(impatient(waits, load(&store, &known, &mut texts)).await.is_none());
        }
        let set = loop {
            read.push(texts.0.len());
            match impatient(waits + 4, load(&store, &known, &mut texts)).await {
                Some(set) => break set.unwrap().expect("a version"),
                None => assert!(read.len() < 100, "{read:?}"),
            }
        };
        assert!(read.is_sorted() && read.len() > 2, "{read:?}");
        assert_eq!((set.domains.len(), texts.0.len()), (40, 0));
    }

    #[tokio::test]
    async fn a_set_knows_the_last_change_of_each_domain_and_of_versions_that_were_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &["shop", "bank"]).await;
        let known = load_all(&store, &PublishedSet::default()).await.unwrap().expect("a version");
        assert_eq!(known.changed, BTreeMap::from([("bank".into(), 2), ("shop".into(), 1)]));
        publish(&store, "shop", "domain: shop\ndescriptors: []\n").await;
        publish(&store, "shop", "domain: shop\n").await;
        let mut write = begin(&store).await;
        let texts = RolloutTexts {
            shadow: text("bank", "shadow"),
            others: text("bank", "others"),
            draft: text("bank", "enforced"),
        };
        write.begin_rollout(&to_all(vec![texts]), &[PodRow::default()]).await.unwrap();
        let rollout = write.open_rollouts().await.unwrap().remove(0);
        write.end_rollout(&rollout, Stage::Aborted).await.unwrap();
        write.commit().await.unwrap();
        let set = load_all(&store, &known).await.unwrap().expect("a version");
        assert_eq!(set.changed, BTreeMap::from([("bank".into(), 2), ("shop".into(), 4)]));
        let ended = set.ended.get("bank").map(|it| it.version);
        assert_eq!((set.version, ended, set.rollouts.is_empty()), (6, Some(6), true));
        // A pod that the rollout chose is concerned by its end, and one that has `shop` alone by
        // the version that restored its text.
        let node = NodeInfo::default();
        let shop = BTreeSet::from(["shop"]);
        let [before, after] = [&known, &set].map(|it| {
            let [all, shop] = [None, Some(&shop)].map(|allowed| it.selected(&node, allowed));
            ((all.content, shop.content), (all.changed, shop.changed))
        });
        assert_eq!((before.0, before.1, after.1), (after.0, (2, 1), (6, 4)));
    }

    #[tokio::test]
    async fn candidates_are_added_to_what_is_published_and_enforced_rules_replace_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &["shop", "bank"]).await;
        // Nothing of `bank` would be counted, and then it leaves.
        let none = PublishedText { yaml: None, ..text("bank", "") };
        let shop = RolloutTexts {
            shadow: text("shop", "domain: \"shop@candidate\"\n"),
            others: text("shop", "others"),
            draft: text("shop", "draft"),
        };
        let bank = RolloutTexts { shadow: none.clone(), others: none.clone(), draft: none };
        let mut write = begin(&store).await;
        write.begin_rollout(&to_all(vec![shop, bank]), &[PodRow::default()]).await.unwrap();
        write.commit().await.unwrap();
        let set = load_all(&store, &PublishedSet::default()).await.unwrap().expect("a version");
        let node = NodeInfo::default();
        let names = |set: &PublishedSet, allowed: Option<&BTreeSet<&str>>| {
            set.selected(&node, allowed).names.join(" ")
        };
        assert_eq!(names(&set, None), "bank shop shop@candidate");
        assert_eq!(names(&set, Some(&BTreeSet::from(["shop"]))), "shop shop@candidate");
        assert_eq!(names(&set, Some(&BTreeSet::from(["bank"]))), "bank");
        let named = (0..).map(|at| NodeInfo::named(&format!("pod-{at}"), &[]));
        let another = named.into_iter().find(|it| set.chosen(it, None).is_empty()).unwrap();
        let selected = set.selected(&another, None);
        let others: Vec<_> = selected.domains.iter().map(|it| it.text()).collect();
        assert_eq!(selected.names.join(" "), "bank shop shop@candidate");
        assert_eq!(others[2], b"others", "the others count as the published rules do");
        let rollout = &set.rollouts[0];
        assert_eq!(rollout.names, BTreeSet::from(["bank".to_owned(), "shop".to_owned()]));
        let mut write = begin(&store).await;
        let rollout = write.open_rollouts().await.unwrap().remove(0);
        write.take_step(&rollout, 2, &[PodRow::default()]).await.unwrap();
        write.commit().await.unwrap();
        let enforced = load_all(&store, &set).await.unwrap().expect("a version");
        assert_eq!(names(&enforced, None), "shop");
        assert_eq!(enforced.selected(&node, None).domains[0].text(), b"draft");
        assert_eq!(enforced.selected(&another, None).names.join(" "), "bank shop");
    }

    #[tokio::test]
    async fn streams_are_chosen_as_the_step_has_chosen_their_origins() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &["shop"]).await;
        // Ten ids of one address, and four pods of others.
        let pod = |at: i64| PodRow {
            node: format!("pod-{at}"),
            origin: if at < 10 { 99 } else { at },
            ..PodRow::default()
        };
        let pods: Vec<_> = (0..14).map(pod).collect();
        let mut seeds = BTreeSet::new();
        for _ in 0..5 {
            let texts = RolloutTexts {
                shadow: text("shop", "shadow"),
                others: text("shop", "others"),
                draft: text("shop", "enforced"),
            };
            let choice = Choice::Percent(50);
            let plan = plan_of_one_stage(Stage::Shadow, &choice);
            let new = NewRollout { choice, plan, ..to_all(vec![texts]) };
            let mut write = begin(&store).await;
            write.begin_rollout(&new, &pods).await.unwrap();
            write.commit().await.unwrap();
            let set = load_all(&store, &PublishedSet::default()).await.unwrap().unwrap();
            let is_chosen = |row: &&PodRow| {
                let mut node = node(&row.node);
                node.origin = row.origin;
                !set.chosen(&node, None).is_empty()
            };
            let [crowd, others] = [&pods[..10], &pods[10..]].map(|it| it.iter().filter(is_chosen));
            // The crowd is drawn with the odds of one pod.
            assert!([0, 5].contains(&crowd.count()));
            assert_eq!(others.count(), 2);
            let rollout = store.open_rollouts().await.unwrap().remove(0);
            seeds.extend(rollout.seed);
            let mut write = begin(&store).await;
            write.end_rollout(&rollout, Stage::Aborted).await.unwrap();
            write.commit().await.unwrap();
        }
        assert_eq!(seeds.len(), 5, "each draws a number");
    }

    #[tokio::test]
    async fn a_database_that_was_restored_has_no_domain_of_later_versions() {
        let dir = tempfile::tempdir().unwrap();
        let before = store(dir.path(), &["shop", "bank"]).await;
        let known = load_all(&before, &PublishedSet::default()).await.unwrap().expect("a version");
        assert_eq!((known.version, known.domains.len()), (2, 2));
        assert!(load_all(&before, &known).await.unwrap().is_none());
        // There are no versions, or the last ones are lower, the same, and higher.
        for domains in [&[][..], &["shop"], &["shop", "card"], &["shop", "card", "user"]] {
            sleep(Duration::from_millis(2)).await; // the time of a version has whole milliseconds
            let restored = store(dir.path(), domains).await;
            let set = load_all(&restored, &known).await.unwrap().expect("another version");
            let names: BTreeSet<_> = set.domains.keys().map(String::as_str).collect();
            assert_eq!(usize::try_from(set.version), Ok(domains.len()));
            assert_eq!(names, domains.iter().copied().collect());
        }
    }
}
