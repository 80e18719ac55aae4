//! The counts of one rule for one descriptor: their keys, and what the store holds of them.

use crate::app;
use crate::cli::out::Trouble;
use crate::key::Key;
use crate::limiter::Charge;
use crate::rules::{Limit, Share};
use crate::settings::StoreSettings;
use crate::store::redis::slot_of;
use crate::store::{Ask, Grant, StoreError};
use crate::telemetry::trace::Tracer;

/// One count.
pub(super) struct Count {
    /// The key of all the shares together.
    whole: Key,
    limit: Limit,
    pub(super) share: Share,
    /// The count's own key.
    pub(super) key: Key,
    /// As the store has it, once [`look`] has filled it in.
    pub(super) in_store: String,
    /// Of a cluster.
    pub(super) slot: usize,
    /// The server that owns it, where a Redis was given and knows.
    pub(super) server: Option<String>,
    /// What the store holds of it, where a Redis was given.
    pub(super) now: Option<Result<Grant, StoreError>>,
}

// === impl Count ===

impl Count {
    /// Those that `charge` may be charged to: one a share.
    pub(super) fn of(charge: &Charge<'_>) -> Vec<Self> {
        let shards = charge.applied.rule.map_or(Share::WHOLE.of, |rule| rule.shards);
        let shares = (0..shards.get()).map(|at| Share { at, of: shards });
        let count = |share: Share| Self {
            whole: charge.own,
            limit: charge.applied.limit,
            share,
            key: charge.own.of_share(share.at),
            in_store: String::new(),
            slot: 0,
            server: None,
            now: None,
        };
        shares.map(count).collect()
    }

    /// What the count is held to.
    pub(super) fn terms(&self) -> Limit {
        self.limit.of_share(self.share)
    }

    fn ask(&self) -> Ask {
        Ask { share: self.share, ..Ask::look(self.whole, self.limit) }
    }
}

/// Fills in where each of `counts` lives and, if `store` is a Redis, what it holds. Nothing is
/// taken. `prefix` is that of the keys where the store has none of its own.
pub(super) fn look(
    store: StoreSettings,
    prefix: &str,
    counts: &mut [&mut Count],
) -> Result<(), Trouble> {
    for count in counts.iter_mut() {
        count.in_store = count.key.in_store(prefix);
        count.slot = slot_of(count.in_store.as_bytes());
    }
    if store == StoreSettings::Memory || counts.is_empty() {
        return Ok(());
    }
    let asks: Vec<Ask> = counts.iter().map(|count| count.ask()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Trouble::new(format_args!("cannot look at Redis: {error}")))?;
    let (replies, servers): (Vec<_>, Vec<_>) = runtime.block_on(async {
        let store = app::open(store, &Tracer::default());
        let replies = store.exchange(&asks).await;
        (replies, asks.iter().map(|ask| store.owner(ask)).collect())
    });
    for ((count, reply), server) in counts.iter_mut().zip(replies).zip(servers) {
        count.now = Some(reply);
        count.server = server;
    }
    Ok(())
}
