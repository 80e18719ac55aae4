//! Every clause of the contract, against `&dyn Store`.

use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::stores::{NamedStore, SHARDS_OF_ALL_MAX, Stores};
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Return, Store};
use ratelease_rules::{AMOUNT_MAX, Limit, StoreId, StoreNames, Unit};

use std::sync::Arc;
use std::time::Duration;

use super::{
    ALGORITHMS, ahead, algorithms, ask, connected, exchange, granted, one, patient, pools, refunds,
    slots, within,
};
use crate::support::now;
use crate::support::redis::{Cluster, Sentinel, Single};

#[tokio::test]
async fn memory_keeps_the_contract() {
    keeps_the_contract(&MemoryStore::system()).await;
}

#[tokio::test]
async fn two_stores_in_one_keep_the_contract() {
    let memory = || Arc::new(MemoryStore::system());
    keeps_the_contract(&Stores::new(memory(), Some(memory()), Vec::new())).await;
}

#[tokio::test]
async fn a_named_store_keeps_the_contract() {
    let owner = StoreNames::parse("premium").unwrap().find("premium").unwrap();
    let memory = || Arc::new(MemoryStore::system());
    let named = NamedStore { name: "premium".into(), store: memory() };
    let stores = Stores::new(memory(), Some(memory()), vec![named]);
    keeps_the_contract(&Under { stores, store: owner }).await;
}

/// Asks under limits that this store counts.
struct Under {
    stores: Stores,
    store: StoreId,
}

impl Under {
    fn under(&self, ask: &Ask) -> Ask {
        Ask { limit: Limit { store: self.store, ..ask.limit }, ..*ask }
    }
}

impl Store for Under {
    fn shard(&self, ask: &Ask) -> usize {
        self.stores.shard(&self.under(ask))
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move { self.stores.lend(&self.under(ask)).await })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.stores.beat(beat)
    }

    fn describe(&self) -> String {
        self.stores.describe()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_contract() {
    let store = connected(patient(Cluster::shared().config())).await;
    keeps_the_contract(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_keeps_the_contract_over_tcp_and_unix_socket() {
    let single = Single::start();
    let mut config = single.config();
    keeps_the_contract(&*connected(patient(config.clone())).await).await;
    config.addresses = vec![single.socket()];
    keeps_the_contract(&*connected(patient(config)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_under_sentinels_keeps_the_contract() {
    let sentinel = Sentinel::start();
    keeps_the_contract(&*connected(patient(sentinel.config())).await).await;
}

/// Checks every clause.
pub(super) async fn keeps_the_contract(store: &dyn Store) {
    lends_what_is_wanted_or_left(store).await;
    grants_a_need_whole_or_not_at_all(store).await;
    a_denial_overdraws_where_it_may(store).await;
    a_look_takes_nothing(store).await;
    a_return_of_this_window_is_credited(store).await;
    a_return_of_another_window_is_not(store).await;
    a_refund_goes_to_the_present_window(store).await;
    credits_go_before_the_rest(store).await;
    a_lowered_limit_counts_the_tokens_that_are_leased(store).await;
    a_return_under_a_past_limit_credits_what_it_brings(store).await;
    takes_the_largest_numbers(store).await;
    names_the_window_of_every_unit(store).await;
    replies_in_order(store).await;
    begins_anew_with_each_window(store).await;
    for by in ALGORITHMS {
        algorithms::keeps_the_contract(store, by).await;
    }
    ahead::keeps_the_contract(store).await;
    pools::keep_the_contract(store).await;
    refunds::keep_the_contract(store).await;
    slots::keep_the_contract(store).await;
}

async fn lends_what_is_wanted_or_left(store: &dyn Store) {
    let ask = ask(10, 4, 0);
    let first = granted(store, ask).await;
    assert_eq!((first.tokens, first.left, first.overdrawn), (4, 6, false));
    let second = granted(store, Ask { want: 100, ..ask }).await;
    assert_eq!((second.tokens, second.left, second.overdrawn), (6, 0, false));
    let third = granted(store, ask).await;
    assert_eq!((third.tokens, third.left, third.overdrawn), (0, 0, false));
}

async fn grants_a_need_whole_or_not_at_all(store: &dyn Store) {
    let ask = Ask { charge_denied: false, ..ask(10, 0, 7) };
    assert_eq!(granted(store, ask).await.tokens, 7, "a need above the want is granted");
    let denied = granted(store, ask).await;
    assert_eq!((denied.tokens, denied.left, denied.overdrawn), (0, 3, false));
    assert_eq!(granted(store, Ask { need: 3, want: 5, ..ask }).await.tokens, 3);
}

async fn a_denial_overdraws_where_it_may(store: &dyn Store) {
    let ask = ask(10, 0, 11);
    let spared = granted(store, Ask { charge_denied: false, ..ask }).await;
    assert_eq!((spared.tokens, spared.left, spared.overdrawn), (0, 10, false));
    let charged = granted(store, ask).await;
    assert_eq!((charged.tokens, charged.left, charged.overdrawn), (0, 0, true));
    let look = granted(store, Ask { need: 0, ..ask }).await;
    assert!(look.overdrawn, "it stays overdrawn");
    let again = granted(store, ask).await;
    assert!(again.overdrawn);
    let back = Some(Return { tokens: 1, epoch: Some(again.epoch) });
    let mended = granted(store, Ask { need: 0, back, ..ask }).await;
    assert_eq!((mended.left, mended.overdrawn), (1, false), "one is back, however often denied");
}

async fn a_look_takes_nothing(store: &dyn Store) {
    let ask = ask(10, 0, 0);
    for _ in 0..3 {
        let look = granted(store, ask).await;
        assert_eq!((look.tokens, look.left, look.overdrawn), (0, 10, false));
    }
}

async fn a_return_of_this_window_is_credited(store: &dyn Store) {
    let ask = ask(10, 8, 0);
    let lent = granted(store, ask).await;
    let back = Some(Return { tokens: 5, epoch: Some(lent.epoch) });
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 7);
    let back = Some(Return { tokens: 50, epoch: Some(lent.epoch) });
    let full = granted(store, Ask { want: 0, back, ..ask }).await;
    assert_eq!(full.left, 10, "never more than the limit");
}

async fn a_return_of_another_window_is_not(store: &dyn Store) {
    let ask = ask(10, 8, 0);
    let lent = granted(store, ask).await;
    for window in [0, lent.epoch - 1, lent.epoch + 1, lent.epoch + (1 << 32), u64::MAX] {
        let back = Some(Return { tokens: 5, epoch: Some(window) });
        assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 2, "window {window}");
    }
}

async fn a_refund_goes_to_the_present_window(store: &dyn Store) {
    let ask = ask(10, 8, 0);
    granted(store, ask).await;
    let back = Some(Return { tokens: 3, epoch: None });
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 5);
}

async fn credits_go_before_the_rest(store: &dyn Store) {
    let ask = ask(10, 10, 0);
    let lent = granted(store, ask).await;
    let back = Some(Return { tokens: 6, epoch: Some(lent.epoch) });
    let swapped = granted(store, Ask { want: 2, need: 5, back, ..ask }).await;
    assert_eq!((swapped.tokens, swapped.left, swapped.overdrawn), (5, 1, false));
}

async fn a_lowered_limit_counts_the_tokens_that_are_leased(store: &dyn Store) {
    let mut ask = ask(10, 8, 0);
    granted(store, ask).await;
    ask.limit.requests_per_unit = 5;
    let shrunk = granted(store, ask).await;
    assert_eq!((shrunk.tokens, shrunk.left, shrunk.overdrawn), (0, 0, true));
    ask.limit.requests_per_unit = 20;
    assert_eq!(granted(store, Ask { want: 0, ..ask }).await.left, 12);
}

/// While a fleet adopts new rules, pods lease and give back under the old limit and the new.
async fn a_return_under_a_past_limit_credits_what_it_brings(store: &dyn Store) {
    let mut ask = ask(5, 3, 0);
    let lent = granted(store, ask).await;
    ask.limit.requests_per_unit = 100;
    assert_eq!(granted(store, Ask { want: 50, ..ask }).await.left, 47);
    for (window, left) in [(Some(lent.epoch), 49), (None, 51)] {
        ask.limit.requests_per_unit = 5;
        granted(store, Ask { want: 0, back: Some(Return { tokens: 2, epoch: window }), ..ask })
            .await;
        ask.limit.requests_per_unit = 100;
        assert_eq!(granted(store, Ask { want: 0, ..ask }).await.left, left, "{window:?}");
    }
}

async fn takes_the_largest_numbers(store: &dyn Store) {
    let ask = ask(AMOUNT_MAX, u64::MAX, 0);
    let all = granted(store, ask).await;
    assert_eq!((all.tokens, all.left), (AMOUNT_MAX, 0));
    let denied = granted(store, Ask { need: u64::MAX, ..ask }).await;
    assert!(denied.overdrawn);
    let back = Some(Return { tokens: u64::MAX, epoch: Some(all.epoch) });
    let empty = granted(store, Ask { want: 0, back, ..ask }).await;
    assert_eq!((empty.left, empty.overdrawn), (AMOUNT_MAX, false));
}

async fn names_the_window_of_every_unit(store: &dyn Store) {
    for unit in Unit::ALL {
        let mut ask = ask(10, 1, 0);
        ask.limit.unit = unit;
        let grant = granted(store, ask).await;
        assert!(grant.reset_after > Duration::ZERO && grant.reset_after <= ask.limit.window());
        // Servers of this machine share its wall clock.
        #[allow(clippy::disallowed_methods)]
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let starts = grant.epoch * unit.seconds();
        let ends = starts + unit.seconds();
        assert!((starts..ends + 5).contains(&now.as_secs()), "{unit:?}: {grant:?} at {now:?}");
        assert!(store.shard(&ask) < SHARDS_OF_ALL_MAX);
    }
}

async fn replies_in_order(store: &dyn Store) {
    assert!(exchange(store, &[]).await.is_empty());
    let asks: Vec<_> = (0..300).map(|at| ask(1_000, at, 0)).collect();
    for (at, reply) in exchange(store, &asks).await.into_iter().enumerate() {
        assert_eq!(reply.unwrap().tokens, at as u64);
    }
}

/// In real time, over windows of a second: none leases more than the limit, and one that is not
/// missed, as the first one may be, leases all of it.
async fn begins_anew_with_each_window(store: &dyn Store) {
    let mut ask = ask(10, 3, 0);
    ask.limit.unit = Unit::Second;
    let mut lent = std::collections::BTreeMap::new();
    let start = now();
    let all =
        |lent: &std::collections::BTreeMap<_, u64>| lent.values().filter(|it| **it == 10).count();
    within(10, "two windows lease all of it", async {
        while all(&lent) < 2 {
            let before = now();
            let grant = one(store, ask).await.unwrap();
            *lent.entry(grant.epoch).or_insert(0) += grant.tokens;
            // A window must end when the first grant said it would.
            let ends = before + grant.reset_after;
            assert!(ends <= start + Duration::from_secs(10));
            if grant.left == 0 {
                tokio::time::sleep_until((ends + Duration::from_millis(5)).into()).await;
            }
        }
    })
    .await;
    assert!(lent.values().all(|tokens| *tokens <= 10), "{lent:?}");
}
