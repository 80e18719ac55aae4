//! Debts that a fixed window carries over, while other limits ask for the same count.

use futures_util::future::join_all;
use ratelease_engine::store::{Ask, Grant, Return, Store};
use ratelease_rules::{Limit, Unit};

use std::time::Duration;

use super::{ask, connected, fresh_key, granted, patient, until};
use crate::support::redis::Cluster;

/// What the rule asks: ten a second, and a debt is carried over.
fn by_rule() -> Ask {
    Ask { carry_debt: true, ..Ask::look(fresh_key(), Limit::fixed_window(10, Unit::Second)) }
}

fn under(requests: u64, ask: Ask) -> Ask {
    Ask { limit: Limit::fixed_window(requests, Unit::Second), ..ask }
}

/// The reply to `ask` in the first window after that of `before`.
async fn in_a_later_window(store: &dyn Store, ask: Ask, before: Grant) -> Grant {
    let look = Ask { want: 0, need: 0, owed: 0, ..ask };
    until(10, "the window ends", async || granted(store, look).await.epoch > before.epoch).await;
    granted(store, ask).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_says_when_a_debt_has_been_paid() {
    let store = connected(patient(Cluster::shared().config())).await;
    let rule = by_rule();
    let first = granted(&*store, Ask { owed: 100, ..rule }).await;
    let nine = Duration::from_secs(9);
    assert!(first.retry_after > nine && first.retry_after <= Duration::from_secs(10), "{first:?}");
    let later = in_a_later_window(&*store, Ask { need: 1, ..rule }, first).await;
    let passed = later.epoch - first.epoch;
    assert_eq!((later.tokens, later.left), (0, 0));
    assert_eq!(later.retry_after.as_secs(), 10 - passed - 1, "{later:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debt_outlives_limits_of_zero_and_overrides() {
    let store = connected(patient(Cluster::shared().config())).await;
    let others = [0, 3, 50].into_iter().flat_map(|requests| [(requests, true), (requests, false)]);
    let outlives = async |(requests, carry_debt)| {
        let rule = by_rule();
        let other = Ask { carry_debt, ..under(requests, rule) };
        let first = granted(&*store, Ask { owed: 1_000, ..rule }).await;
        let second = in_a_later_window(&*store, Ask { owed: 1, ..other }, first).await;
        let third = in_a_later_window(&*store, Ask { want: 1, need: 1, ..other }, second).await;
        let fourth = in_a_later_window(&*store, Ask { need: 1, ..rule }, third).await;
        let granted = (third.tokens, fourth.tokens, fourth.left);
        assert_eq!(granted, (0, 0, 0), "{requests}, {carry_debt}");
    };
    join_all(others.map(outlives)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_under_a_lowered_limit_frees_what_came_back() {
    let store = connected(patient(Cluster::shared().config())).await;
    let usual = ask(100, 100, 0);
    let lease = granted(&*store, usual).await;
    let back = Some(Return { tokens: 1, epoch: Some(lease.epoch) });
    let lowered = Limit { requests_per_unit: 99, ..usual.limit };
    let returned = granted(&*store, Ask { want: 0, limit: lowered, back, ..usual }).await;
    assert_eq!(returned.left, 0, "99 of 99 are out");
    assert_eq!(granted(&*store, Ask { want: 0, ..usual }).await.left, 1);
}
