//! Refunds, whatever they contain, never make more available than a fresh key has.

use ratelease_engine::store::{Ask, Return, Store};
use ratelease_rules::Algorithm;

use super::{ALGORITHMS, ask_by, granted};

const LIMIT: u64 = 10;

pub async fn keep_the_contract(store: &dyn Store) {
    for by in ALGORITHMS {
        for tokens in [1, 5, LIMIT, LIMIT + 1, u64::from(u32::MAX), 1 << 53, u64::MAX] {
            let ask = ask_by(by, 0, 0);
            let back = Some(Return { tokens, epoch: None });
            let refund = Ask { back, ..ask };
            for _ in 0..3 {
                let unknown = granted(store, refund).await;
                assert_eq!((unknown.tokens, unknown.left), (0, LIMIT), "{by:?}: {tokens}");
            }
            granted(store, Ask { want: 4, ..ask }).await;
            // The slots of a leaky bucket pass with time.
            let slots = matches!(by.0, Algorithm::LeakyBucket { .. });
            let credited = if slots { 0 } else { tokens.min(4) };
            let left = LIMIT - 4 + credited;
            assert_eq!(granted(store, refund).await.left, left, "{by:?}: {tokens}");
            let once_more = granted(store, refund).await.left;
            assert!(once_more <= LIMIT && once_more >= left, "{by:?}: {tokens}");
            let all = granted(store, Ask { want: u64::MAX, ..refund }).await;
            assert!(all.tokens <= LIMIT && all.left == 0, "{by:?}: {tokens}: {all:?}");
            spent_by_a_denial(store, refund, tokens, slots).await;
        }
    }
}

/// A key that a denied charge has spent.
async fn spent_by_a_denial(store: &dyn Store, refund: Ask, tokens: u64, slots: bool) {
    let ask = Ask { key: super::fresh_key(), ..refund };
    granted(store, Ask { back: None, need: LIMIT + 1, ..ask }).await;
    let left = if slots { LIMIT } else { tokens.min(LIMIT) };
    assert_eq!(granted(store, ask).await.left, left, "{tokens} of {ask:?}");
}
