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
use crate::store::{CHANNEL, Database, Rollout, Store, StoreError, StoreResult, VersionChange};

/// Interval of the poll, for a notice that got lost.
const POLL: Duration = Duration::from_secs(1);

/// Maximum time of a poll. A database that hangs is asked again.
const POLL_MAX: Duration = Duration::from_secs(10);

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
        let (rollout, at) = (store.open_rollout().await?, store.version_time(version).await?);
        // What was read is of one version: each change of it takes a number.
        if store.last_version().await? == version {
            let domains = domains(store, known, former, changes).await?;
            let rollout = rolled_out(store, known, rollout).await?;
            return Ok(Some(PublishedSet { version, at, domains, rollout }));
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

    use super::*;
    use crate::store::{Author, PublishedText};

    /// A database with versions that publish one domain each.
    async fn store(dir: &std::path::Path, domains: &[&str]) -> Store {
        let store = Store::open(&Database::Sqlite(dir.join(domains.join("-")))).await.unwrap();
        for domain in domains {
            let author = Author { name: "test".to_owned(), reason: String::new() };
            let mut write = store.begin(&author).await.unwrap();
            let (domain, yaml) = ((*domain).to_owned(), Some(format!("domain: {domain}\n")));
            let text = PublishedText { domain, changed: 0, yaml, rules: 0 };
            assert!(write.publish(&[text], None).await.unwrap().is_some());
            write.commit().await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn a_database_that_was_restored_has_no_domain_of_later_versions() {
        let dir = tempfile::tempdir().unwrap();
        let before = store(dir.path(), &["shop", "bank"]).await;
        let known = load(&before, &PublishedSet::default()).await.unwrap().expect("a version");
        assert_eq!((known.version, known.domains.len()), (2, 2));
        assert!(load(&before, &known).await.unwrap().is_none());
        // The last versions are lower, the same, and higher.
        for domains in [&["shop"][..], &["shop", "card"], &["shop", "card", "user"]] {
            sleep(Duration::from_millis(2)).await; // the time of a version has whole milliseconds
            let restored = store(dir.path(), domains).await;
            let set = load(&restored, &known).await.unwrap().expect("another version");
            let names: BTreeSet<_> = set.domains.keys().map(String::as_str).collect();
            assert_eq!(usize::try_from(set.version), Ok(domains.len()));
            assert_eq!(names, domains.iter().copied().collect());
        }
    }
}
