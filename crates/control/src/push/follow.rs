//! Follows the versions of the database. A notice of PostgreSQL or of this process wakes the
//! follower at once; a poll finds what notices miss.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::published::{PublishedDomain, PublishedSet};
use crate::store::{CHANNEL, Database, Store, StoreError, StoreResult, VersionChange};

/// Interval of the poll, for a notice that got lost.
const POLL: Duration = Duration::from_secs(1);

/// Maximum time of a poll. A database that hangs is asked again.
const POLL_MAX: Duration = Duration::from_secs(10);

/// Pause before the database is asked for notices again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Publishes each version to `sender`. `wake` ends the wait for the next poll. It does not return.
pub async fn follow(store: Store, wake: Arc<Notify>, sender: watch::Sender<Arc<PublishedSet>>) {
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

/// The set after `known`; `None` if there is no newer version.
async fn load(store: &Store, known: &PublishedSet) -> StoreResult<Option<PublishedSet>> {
    let changes = match known.version {
        // Not the whole history, only what is left of it.
        0 => store.state_at(i64::MAX).await?,
        version => store.changes_since(version).await?,
    };
    let Some(last) = changes.iter().max_by_key(|change| change.version) else { return Ok(None) };
    let mut set = PublishedSet { version: last.version, at: last.at, ..known.clone() };
    for VersionChange { domain, hash, .. } in changes {
        match hash {
            Some(hash) if set.domains.get(&domain).is_some_and(|it| it.hash == hash) => {}
            Some(hash) => {
                let yaml = store.text(&hash).await?;
                let published = PublishedDomain::new(&domain, hash, yaml);
                set.domains.insert(domain, Arc::new(published));
            }
            None => {
                set.domains.remove(&domain);
            }
        }
    }
    Ok(Some(set))
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
