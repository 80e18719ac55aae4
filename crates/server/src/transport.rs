//! The protocols by which requests come in.

/// The protocol by which a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// `/json` over HTTP.
    Json,
}
