//! The fuzz targets; each can run alone, such as `cargo test --test fuzz targets::json`.

mod access_log;
mod actions;
mod envoy;
mod json;
mod keys;
mod logs;
mod matcher;
mod redis;
mod request;
mod rules;
mod scoped;
mod settings;
mod xds;
