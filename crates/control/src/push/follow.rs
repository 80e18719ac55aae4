//! Follows the versions of the database. A notice of PostgreSQL or of this process wakes the
//! follower at once; a poll finds what notices miss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::published::{PublishedDomain, PublishedRollout, PublishedSet};
use crate::store::{
    CHANNEL, Database, Rollout, RolloutStep, Store, StoreError, StoreResult, VersionChange,
};

/// Interval of the poll, for a notice that got lost.
const POLL: Duration = Duration::from_secs(1);

/// Maximum time of a poll. A database that hangs is asked again.
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
    let mut is_away = false;
    loop {
        let known = Arc::clone(&sender.borrow());
        let loaded = timeout(POLL_MAX, load(&store, &known)).await;
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

/// The set of the last version; `None` if that is the known one.
async fn load(store: &Store, known: &PublishedSet) -> StoreResult<Option<PublishedSet>> {
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
            // Not the whole history, only what is left of it.
            false => (BTreeMap::new(), store.state_at(version).await?),
        };
        let rollout = store.open_rollout().await?;
        // A database may be restored to the time before its first version.
        let at = if version == 0 { 0 } else { store.version_time(version).await? };
        let former_set = if is_known { known } else { &PublishedSet::default() };
        let changed = changed(former_set, &changes);
        let ended = ended(store, former_set).await?;
        // What was read is of one version: each change of it takes a number.
        if store.last_version().await? == version {
            let domains = domains(store, known, former, changes).await?;
            let rollout = rolled_out(store, known, rollout).await?;
            let mut set = PublishedSet {
                version,
                at,
                domains,
                rollout,
                changed,
                ended,
                ..PublishedSet::default()
            };
            set.forget_removed(REMOVED_MAX);
            return Ok(Some(set));
        }
    }
    Err(StoreError::Unavailable("versions are published while they are read".to_owned()))
}

/// The domains after these changes of `domains`.
async fn domains(
    store: &Store,
    known: &PublishedSet,
    mut domains: BTreeMap<String, Arc<PublishedDomain>>,
    changes: Vec<VersionChange>,
) -> StoreResult<BTreeMap<String, Arc<PublishedDomain>>> {
    for VersionChange { domain, hash, .. } in changes {
        match hash {
            Some(hash) => {
                let published = text(store, known, &domain, &hash).await?;
                domains.insert(domain, published);
            }
            None => {
                domains.remove(&domain);
            }
        }
    }
    Ok(domains)
}

/// The last version that changed each domain, after these changes.
fn changed(known: &PublishedSet, changes: &[VersionChange]) -> BTreeMap<String, i64> {
    let mut changed = known.changed.clone();
    changed.extend(changes.iter().map(|it| (it.domain.clone(), it.version)));
    changed
}

/// The last rollout that has ended since this process knows a version. It may have begun since the
/// known one, so that no set ever had it.
async fn ended(store: &Store, known: &PublishedSet) -> StoreResult<Option<Arc<PublishedRollout>>> {
    let last = store.rollouts(None, i64::MAX, 1).await?.pop().filter(|_| known.version > 0);
    let step = last.as_ref().and_then(Rollout::last);
    let is_new = |step: &&RolloutStep| !step.stage.is_open() && step.version > known.version;
    let (Some(last), Some(step)) = (&last, step.filter(is_new)) else {
        return Ok(known.ended.clone());
    };
    let domains = last.domains.iter().map(|it| (it.domain.clone(), None)).collect();
    let (id, choice, bound) = (last.id, last.choice.clone(), last.bound);
    let (version, stage) = (step.version, step.stage);
    Ok(Some(Arc::new(PublishedRollout { id, version, stage, choice, bound, domains })))
}

/// What chosen pods have instead.
async fn rolled_out(
    store: &Store,
    known: &PublishedSet,
    rollout: Option<Rollout>,
) -> StoreResult<Option<Arc<PublishedRollout>>> {
    let Some(rollout) = rollout else { return Ok(None) };
    let Some(step) = rollout.last() else { return Ok(None) };
    let mut domains = BTreeMap::new();
    for (domain, hash) in rollout.hashes(step.stage) {
        let published = match hash {
            Some(hash) => Some(text(store, known, domain, hash).await?),
            None => None,
        };
        domains.insert(domain.to_owned(), published);
    }
    Ok(Some(Arc::new(PublishedRollout {
        id: rollout.id,
        version: step.version,
        stage: step.stage,
        choice: rollout.choice.clone(),
        bound: rollout.bound,
        domains,
    })))
}

/// The domain with the text of this hash, which is read unless it is known.
async fn text(
    store: &Store,
    known: &PublishedSet,
    domain: &str,
    hash: &str,
) -> StoreResult<Arc<PublishedDomain>> {
    if let Some(found) = known.find(domain, hash) {
        return Ok(Arc::clone(found));
    }
    let yaml = store.text(hash).await?;
    Ok(Arc::new(PublishedDomain::new(domain, hash.to_owned(), yaml)))
}

/// Wakes the follower at each notice of PostgreSQL. It does not return.
pub(crate) async fn listen(database: Database, wake: Arc<Notify>) {
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
    use std::collections::BTreeSet;

    use super::super::node::NodeInfo;
    use super::*;
    use crate::store::{Author, Choice, NewRollout, PublishedText, Stage, Write};

    fn text(domain: &str, yaml: &str) -> PublishedText {
        let (domain, yaml) = (domain.to_owned(), Some(yaml.to_owned()));
        PublishedText { domain, changed: 0, yaml, rules: 0 }
    }

    async fn begin(store: &Store) -> Write {
        let author = Author { name: "test".to_owned(), reason: String::new() };
        store.begin(&author).await.unwrap()
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

    #[tokio::test]
    async fn a_set_knows_the_last_change_of_each_domain_and_of_versions_that_were_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path(), &["shop", "bank"]).await;
        let known = load(&store, &PublishedSet::default()).await.unwrap().expect("a version");
        assert_eq!(known.changed, BTreeMap::from([("bank".into(), 2), ("shop".into(), 1)]));
        publish(&store, "shop", "domain: shop\ndescriptors: []\n").await;
        publish(&store, "shop", "domain: shop\n").await;
        let mut write = begin(&store).await;
        let texts = vec![(text("bank", "shadow"), text("bank", "enforced"))];
        let (choice, stage) = (Choice::Percent(100), Stage::Shadow);
        let new = NewRollout { choice, bound: None, stage, texts };
        write.begin_rollout(&new).await.unwrap();
        let rollout = write.open_rollout().await.unwrap().unwrap();
        write.step_rollout(&rollout, Stage::Aborted).await.unwrap();
        write.commit().await.unwrap();
        let set = load(&store, &known).await.unwrap().expect("a version");
        assert_eq!(set.changed, BTreeMap::from([("bank".into(), 2), ("shop".into(), 4)]));
        let ended = set.ended.as_deref().map(|it| (it.version, it.domains.contains_key("bank")));
        assert_eq!((set.version, ended, set.rollout.is_none()), (6, Some((6, true)), true));
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
    async fn a_database_that_was_restored_has_no_domain_of_later_versions() {
        let dir = tempfile::tempdir().unwrap();
        let before = store(dir.path(), &["shop", "bank"]).await;
        let known = load(&before, &PublishedSet::default()).await.unwrap().expect("a version");
        assert_eq!((known.version, known.domains.len()), (2, 2));
        assert!(load(&before, &known).await.unwrap().is_none());
        // There are no versions, or the last ones are lower, the same, and higher.
        for domains in [&[][..], &["shop"], &["shop", "card"], &["shop", "card", "user"]] {
            sleep(Duration::from_millis(2)).await; // the time of a version has whole milliseconds
            let restored = store(dir.path(), domains).await;
            let set = load(&restored, &known).await.unwrap().expect("another version");
            let names: BTreeSet<_> = set.domains.keys().map(String::as_str).collect();
            assert_eq!(usize::try_from(set.version), Ok(domains.len()));
            assert_eq!(names, domains.iter().copied().collect());
        }
    }
}
