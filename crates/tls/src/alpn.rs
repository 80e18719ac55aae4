//! Names of application protocols (RFC 7301).

/// HTTP/2, which gRPC needs (RFC 9113 §3.2).
pub const ALPN_HTTP2: &[u8] = b"h2";
