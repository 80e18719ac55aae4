//! What the process reports about itself: the pages of the debug port and of the metrics port, its
//! health, and who may ask.
//!
//! May use the rules in force, the counters of `metrics` and `hot_keys`, and the engine's state.
//! `http` answers probes from [`health`] and protects decisions by [`guard`]; `grpc` answers health
//! checks; `app` binds the ports.

pub mod guard;
pub mod health;
pub mod history;
pub mod live;
pub mod metrics;
pub mod pages;
mod render;
pub mod status;
