//! **The engine inside Envoy**: an HTTP filter as a dynamic module, `libratelease.so`, which
//! decides in the worker thread that has the request. `docs/module.md` is for its users.
//!
//! ```text
//! Envoy ─▶ envoy-abi ─▶ filter ─▶ actions ─▶ DecisionService ─▶ answer ─▶ Envoy
//!                          └─ has to wait ─▶ wait: the engine's thread ─▶ scheduler ─▶ filter
//! ```
//!
//! # Modules
//!
//! `actions` makes descriptors of a stream, as Envoy's own rate limit filter does, and sees the
//! stream through a trait that `filter` implements. `config` reads the configurations that Envoy
//! hands over. `engine` is the sidecar's app within this process with its pages, and `filter` asks
//! it. `wait` has a request wait there; `owned` is such a request. `answer` gives the stream its
//! verdict. `runtime` reads the values of Envoy's runtime.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "`pub` in a private module is what another file uses")]

pub mod actions;
mod answer;
mod config;
mod engine;
mod filter;
mod owned;
mod runtime;
mod wait;

use std::sync::Arc;

use ratelease_envoy_abi::{
    self as abi, Bootstrap, BootstrapHost, Config, ConfigScheduler, Level, Module, Setup,
};

use config::{FilterConfig, RouteConfig};
use engine::Engine;
use filter::RateFilter;

/// The module.
pub struct RateleaseModule;

/// The extension of the bootstrap configuration.
pub struct Extension {
    /// `None` while Envoy only checks its configuration.
    engine: Option<Arc<Engine>>,
    /// Kept until its event has come.
    _scheduler: Option<ConfigScheduler>,
}

/// Why there are no pages on Envoy's admin port.
const NO_PAGES: &str = "no pages on Envoy's admin port, which hands over no DEBUG_TOKEN; they are on \
                        DEBUG_PORT, if that is set";

/// The event for an engine that is ready.
const READY: u64 = 1;

abi::export_module!(RateleaseModule);

/// Logs a warning as Envoy does: before there is a log of the engine's own.
pub fn warn(line: &str) {
    abi::log(Level::Warn, &format!("ratelease: {line}"));
}

/// Logs why a configuration is refused, one line for each fault.
fn refuse<T>(refused: Result<T, String>) -> Option<T> {
    let log = |line: &str| abi::log(Level::Error, &format!("ratelease: {line}"));
    refused.inspect_err(|faults| faults.lines().for_each(log)).ok()
}

// === impl RateleaseModule ===

impl Module for RateleaseModule {
    type Config = FilterConfig;
    type RouteConfig = Arc<RouteConfig>;
    type Bootstrap = Extension;

    fn config(setup: &mut Setup<'_>, name: &[u8], config: &[u8]) -> Option<FilterConfig> {
        refuse(FilterConfig::read(setup, name, config, abi::is_validation_mode()))
    }

    fn route_config(_: &[u8], config: &[u8]) -> Option<Arc<RouteConfig>> {
        refuse(RouteConfig::read(config)).map(Arc::new)
    }

    fn bootstrap(host: &BootstrapHost<'_>, name: &[u8], config: &[u8]) -> Option<Extension> {
        let overrides = refuse(config::overrides(name, config))?;
        if abi::is_validation_mode() {
            refuse(engine::claim(Some(&overrides)).and_then(|it| engine::settings(&it)))?;
            return Some(Extension { engine: None, _scheduler: None });
        }
        let engine = refuse(Engine::of_process(Some(&overrides)))?;
        let scheduler = host.scheduler();
        scheduler.iter().for_each(|scheduler| scheduler.wake(READY));
        Some(Extension { engine: Some(engine), _scheduler: scheduler })
    }
}

// === impl FilterConfig ===

impl Config for FilterConfig {
    type Module = RateleaseModule;
    type Filter = RateFilter;

    fn filter(&self) -> RateFilter {
        RateFilter::default()
    }
}

// === impl Extension ===

impl Bootstrap for Extension {
    fn initialized(&self, host: &BootstrapHost<'_>) {
        if self.engine.as_ref().is_some_and(|engine| engine.pages.is_none()) {
            tracing::info!("{NO_PAGES}");
            return;
        }
        let refused = engine::PAGES.iter().filter(|(path, help)| !host.serve_admin(path, help));
        if refused.count() > 0 {
            warn("pages are not on the admin port: there is none, or it has pages of their names");
        }
    }

    fn scheduled(&self, host: &BootstrapHost<'_>, _: u64) {
        host.signal_ready();
    }

    fn shut_down(&self) {
        if let Some(engine) = &self.engine {
            engine.shut_down();
        }
    }

    fn admin(&self, method: &[u8], path: &[u8], _: &[u8]) -> (u32, Vec<u8>) {
        match self.engine.as_ref().and_then(|engine| engine.pages.as_ref()) {
            Some(pages) => pages.get(method, path),
            None => (503, b"Envoy only checks its configuration\n".to_vec()),
        }
    }
}

#[cfg(test)]
ratelease_envoy_abi::fake_host!();
