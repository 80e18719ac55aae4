//! **OTLP**, OpenTelemetry's protocol: how spans and metrics leave for a collector.
//!
//! The messages, the exporter of spans and the gRPC clients are OpenTelemetry's own:
//! `docs/design.md` says which parts are left here, and why. This is a separate crate because it
//! has no part in a request: it is compiled for size, while the path of a request is compiled for
//! speed (`docs/design.md`).
//!
//! The crate may use the settings and the engine's clock. It does not know what a request is, nor
//! where metrics come from. `ratelease-server` begins the spans that end here, and the sidecar
//! reads the metrics that are sent here.
//!
//! # Modules
//!
//! [`origin`] is
//! the identity of the sender, [`failure_log`] logs that a collector is away, and `transport`
//! connects to it. [`span_pipeline`] exports spans, [`metrics_client`] metrics.

#![forbid(unsafe_code)]

pub mod failure_log;
pub mod metrics_client;
pub mod origin;
pub mod span_pipeline;
mod transport;
