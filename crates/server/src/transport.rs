//! The protocols by which requests come in.

/// The protocol by which a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// A route over HTTP.
    Http(Route),
}

/// A route over HTTP that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A request of gRPC in protobuf's JSON mapping.
    Json,
    /// Who calls which endpoint, as an object in JSON.
    ShouldAllow,
    /// The same as a query.
    RateLimit,
}

// === impl Route ===

impl Route {
    /// The method; `/json` takes any, of which this is the usual one.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Json | Self::ShouldAllow => "POST",
            Self::RateLimit => "GET",
        }
    }

    /// The path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Json => "/json",
            Self::ShouldAllow => "/shouldAllow",
            Self::RateLimit => "/api/v1/rate_limit",
        }
    }
}
