//! The clauses of the contract that every algorithm keeps, and those of each one.

use ratelease_engine::store::{Ask, Return, Store};
use ratelease_rules::{Algorithm, Unit};

use std::time::Duration;

use super::{ask_by, granted, until};

type By = (Algorithm, Unit);

pub async fn keeps_the_contract(store: &dyn Store, by: By) {
    lends_what_is_wanted_or_left(store, by).await;
    grants_a_need_whole_or_not_at_all(store, by).await;
    a_look_takes_nothing(store, by).await;
    takes_the_largest_numbers(store, by).await;
    a_grant_says_when_there_is_more(store, by).await;
    if let Algorithm::LeakyBucket { .. } = by.0 {
        slots_go_by(store, by).await;
        slots_are_lent_in_their_order(store, by).await;
        return;
    }
    a_denial_spends_what_is_left_where_it_may(store, by).await;
    a_return_is_credited(store, by).await;
    a_return_of_another_epoch_is_not(store, by).await;
    a_refund_is_credited(store, by).await;
    credits_go_before_the_rest(store, by).await;
    a_lease_lasts_no_longer_than_it_may(store, by).await;
    match by.0 {
        Algorithm::TokenBucket { .. } => a_late_return_is_not_credited(store, by).await,
        Algorithm::SlidingLog => a_second_return_is_not_credited(store, by).await,
        _ => {}
    }
}

async fn lends_what_is_wanted_or_left(store: &dyn Store, by: By) {
    let ask = ask_by(by, 4, 0);
    let mut lent = Vec::new();
    for want in [4, 100, 4] {
        let grant = granted(store, Ask { want, ..ask }).await;
        lent.push((grant.tokens, grant.left));
    }
    assert_eq!(lent, [(4, 6), (6, 0), (0, 0)], "{by:?}");
}

async fn grants_a_need_whole_or_not_at_all(store: &dyn Store, by: By) {
    let ask = Ask { charge_denied: false, ..ask_by(by, 0, 7) };
    assert_eq!(granted(store, ask).await.tokens, 7, "{by:?}: a need above the want is granted");
    let denied = granted(store, ask).await;
    assert_eq!((denied.tokens, denied.left), (0, 3), "{by:?}");
    assert_eq!(granted(store, Ask { need: 3, want: 5, ..ask }).await.tokens, 3, "{by:?}");
}

async fn a_look_takes_nothing(store: &dyn Store, by: By) {
    let ask = ask_by(by, 0, 0);
    for _ in 0..3 {
        let look = granted(store, ask).await;
        assert_eq!((look.tokens, look.left, look.overdrawn), (0, 10, false), "{by:?}");
    }
}

async fn takes_the_largest_numbers(store: &dyn Store, by: By) {
    let ask = ask_by(by, u64::MAX, 0);
    assert_eq!(granted(store, ask).await.tokens, 10, "{by:?}");
    let back = Some(Return { tokens: u64::MAX, epoch: Some(u64::MAX) });
    let denied = granted(store, Ask { need: u64::MAX, back, ttl: Duration::MAX, ..ask }).await;
    assert_eq!((denied.tokens, denied.left, denied.overdrawn), (0, 0, true), "{by:?}");
}

async fn a_grant_says_when_there_is_more(store: &dyn Store, by: By) {
    let ask = ask_by(by, 10, 0);
    let empty = granted(store, ask).await;
    let window = ask.limit.window();
    assert!(!empty.retry_after.is_zero() && empty.retry_after <= 2 * window, "{by:?}");
    assert!(!empty.reset_after.is_zero() && empty.reset_after <= 2 * window, "{by:?}");
    let look = granted(store, ask_by(by, 0, 0)).await;
    assert_eq!(look.retry_after, Duration::ZERO, "{by:?}");
}

async fn a_denial_spends_what_is_left_where_it_may(store: &dyn Store, by: By) {
    let ask = ask_by(by, 0, 11);
    let spared = granted(store, Ask { charge_denied: false, ..ask }).await;
    assert_eq!((spared.tokens, spared.left, spared.overdrawn), (0, 10, false), "{by:?}");
    let charged = granted(store, ask).await;
    assert_eq!((charged.tokens, charged.left, charged.overdrawn), (0, 0, true), "{by:?}");
    let look = granted(store, Ask { need: 0, ..ask }).await;
    assert!(look.overdrawn, "{by:?}");
    let back = Some(Return { tokens: 1, epoch: None });
    let mended = granted(store, Ask { need: 0, back, ..ask }).await;
    assert_eq!((mended.left, mended.overdrawn), (1, false), "{by:?}");
}

async fn a_return_is_credited(store: &dyn Store, by: By) {
    let ask = ask_by(by, 8, 0);
    let lent = granted(store, ask).await;
    let back = Some(Return { tokens: 5, epoch: Some(lent.epoch) });
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 7, "{by:?}");
    let back = Some(Return { tokens: 50, epoch: Some(lent.epoch) });
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 10, "{by:?}: no more");
}

async fn a_return_of_another_epoch_is_not(store: &dyn Store, by: By) {
    let ask = ask_by(by, 8, 0);
    let lent = granted(store, ask).await.epoch;
    // In microseconds: farther away than the lease may last.
    for epoch in [0, lent.saturating_sub(61_000_000), lent + 61_000_000, u64::MAX] {
        let back = Some(Return { tokens: 5, epoch: Some(epoch) });
        let left = granted(store, Ask { want: 0, back, ..ask }).await.left;
        assert_eq!(left, 2, "{by:?}: {epoch}");
    }
}

async fn a_refund_is_credited(store: &dyn Store, by: By) {
    let ask = ask_by(by, 8, 0);
    granted(store, ask).await;
    let back = Some(Return { tokens: 3, epoch: None });
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 5, "{by:?}");
}

async fn credits_go_before_the_rest(store: &dyn Store, by: By) {
    let ask = ask_by(by, 10, 0);
    let lent = granted(store, ask).await;
    let back = Some(Return { tokens: 6, epoch: Some(lent.epoch) });
    let swapped = granted(store, Ask { want: 2, need: 5, back, ..ask }).await;
    assert_eq!((swapped.tokens, swapped.left, swapped.overdrawn), (5, 1, false), "{by:?}");
}

async fn a_lease_lasts_no_longer_than_it_may(store: &dyn Store, by: By) {
    for seconds in [0, 2] {
        let ttl = Duration::from_secs(seconds);
        let grant = granted(store, Ask { ttl, ..ask_by(by, 1, 0) }).await;
        assert_eq!((grant.ends_after, grant.starts_after), (ttl, Duration::ZERO), "{by:?}");
    }
}

async fn a_late_return_is_not_credited(store: &dyn Store, by: By) {
    let ask = Ask { ttl: Duration::from_millis(1), ..ask_by(by, 8, 0) };
    let lent = granted(store, ask).await;
    let look = Ask { want: 0, ..ask };
    until(10, "the lease is over", async || granted(store, look).await.epoch > lent.epoch + 1_000)
        .await;
    let back = Some(Return { tokens: 5, epoch: Some(lent.epoch) });
    assert_eq!(granted(store, Ask { back, ..look }).await.left, 2, "{by:?}");
}

async fn a_second_return_is_not_credited(store: &dyn Store, by: By) {
    // A return names its lease by the microsecond: two of the same one look alike.
    let (ask, first, second) = loop {
        let ask = ask_by(by, 3, 0);
        let (first, second) = (granted(store, ask).await, granted(store, ask).await);
        if first.epoch != second.epoch {
            break (ask, first, second);
        }
    };
    let back = Some(Return { tokens: 3, epoch: Some(first.epoch) });
    let once = granted(store, Ask { want: 0, back, ..ask }).await;
    assert_eq!(once.left, second.left + 3);
    assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, once.left);
}

async fn slots_go_by(store: &dyn Store, by: By) {
    let ask = ask_by(by, 8, 0);
    let lent = granted(store, ask).await;
    for epoch in [None, Some(lent.epoch)] {
        let back = Some(Return { tokens: 5, epoch });
        assert_eq!(granted(store, Ask { want: 0, back, ..ask }).await.left, 2, "{epoch:?}");
    }
    let denied = granted(store, Ask { need: 3, ..ask }).await;
    assert_eq!((denied.tokens, denied.left), (0, 2), "a denial spends no slot");
}

async fn slots_are_lent_in_their_order(store: &dyn Store, by: By) {
    let ask = ask_by(by, 3, 0);
    let slot = Duration::from_secs(360);
    let (first, second) = (granted(store, ask).await, granted(store, ask).await);
    let passed = Duration::from_micros(second.epoch - first.epoch);
    assert_eq!(first.starts_after, Duration::ZERO);
    assert_eq!(second.starts_after, 3 * slot - passed);
    assert_eq!(second.ends_after, 7 * slot - passed);
}
