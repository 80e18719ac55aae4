//! The decisions of the floor that decides. A pod on the embedded store makes them, with the rules
//! of `scripts/bench`, metrics and hot keys.

use std::num::NonZeroU32;
use std::sync::Arc;

use ratelease_cli::settings;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::time::Clock;
use ratelease_rules::{self as rules, Source};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::hot_keys::HotKeys;
use ratelease_server::metrics::Meters;
use ratelease_server::observe::Observers;
use ratelease_server::service::DecisionService;

const RULES: &str = include_str!("rules.yaml");

/// A service that decides by those rules. Its tasks run in the runtime that this is called in.
pub(crate) fn service() -> DecisionService {
    let clock = Clock::start();
    let limiter = Limiter::new(Arc::new(MemoryStore::system()), clock, Options::default());
    let source = Source { name: "shop.yaml".into(), text: RULES.into() };
    #[allow(clippy::expect_used, reason = "the text is above")]
    let loaded = rules::load(&[source], rules::Options::default()).expect("rules without a fault");
    let published = Arc::new(CurrentRules::new());
    published.put_in_force(Arc::new(loaded.rules));
    const SAMPLE: NonZeroU32 = NonZeroU32::new(4).unwrap();
    let hot_keys = settings::HotKeys { is_on: true, sample: SAMPLE, values: false };
    let observers = Observers {
        meters: Some(Meters::default()),
        hot_keys: HotKeys::new(hot_keys, clock),
        ..Observers::default()
    };
    DecisionService::new(limiter, published, None, 4096).observed_by(observers)
}
