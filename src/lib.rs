//! ratelease

#![forbid(unsafe_code)]

pub mod control;
pub mod key;
pub mod request;
pub mod rules;
pub mod settings;
pub mod store;
pub mod telemetry;
