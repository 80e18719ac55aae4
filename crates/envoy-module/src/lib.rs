//! **The engine inside Envoy**: an HTTP filter as a dynamic module, `libratelease.so`, which
//! decides in the worker thread that has the request.
//!
//! [`actions`] makes descriptors of a stream, as Envoy's own rate limit filter does.

#![forbid(unsafe_code)]

pub mod actions;
