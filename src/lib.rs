//! ratelease

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod key;
pub mod request;
pub mod rules;
pub mod store;
