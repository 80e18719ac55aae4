//! ratelease

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod buffer;
pub mod control;
pub mod key;
pub mod lease;
pub mod limiter;
pub mod request;
pub mod rules;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod verdict;
