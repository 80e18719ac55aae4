//! **The connections of a port**, before any protocol reads from them: accepted, bounded, secured,
//! and ended gracefully. No accept error ends a listener, no client can keep others from
//! connecting, and no connection stays open without sending a request.
//!
//! ```text
//! accept ─▶ pool (closes idle ones if full) ─▶ cores
//!   └▶ wire_meter (below TLS) ─▶ tls ─▶ io: deadlines, turns ─▶ http2_limits: frames
//! ```
//!
//! The crate may use the engine's clock and [`ratelease_tls`]. It knows neither settings nor the
//! services behind its ports. Every program with a port uses it: a pod, the control plane, and the
//! injector.
//!
//! # Modules
//!
//! `pool` counts the connections of a listener and closes some for others; `io` is one of them,
//! whose frames `http2_limits` counts; [`cores`] are the threads that serve them.
//! [`accept`] accepts, and [`tls`] secures, with certificates that are read again when they change.
//! `http` serves HTTP on a connection or on all of a port, and `unread` counts the answers that are
//! not read.

#![forbid(unsafe_code)]

pub mod accept;
pub mod cores;
mod http;
mod http2_limits;
mod io;
mod pool;
pub mod tls;
mod turn;
mod unread;
mod wire_meter;

pub use accept::{
    Accept, Accepted, FIELDS_MAX, HEADER_BYTES_MAX, KEEPALIVE_INTERVAL, connections, serve_each,
};
pub use cores::{Cores, runtime_builder};
pub use http::{Client, HttpServer};
pub use http2_limits::StreamObserver;
pub use io::{Connection, PREFACE};
pub use pool::{
    CONNECTIONS_MAX, ConnectionGuard, ConnectionHandle, EndlessStream, IncompleteRequest,
    LongLivedStream, OpenConnections, Peer, PoolFull, RequestInUse,
};
pub use turn::TurnHandle;
pub use unread::{AnswerBody, UnreadAnswers, UnreadBounds};
pub use wire_meter::Metered;
