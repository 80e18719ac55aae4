//! TLS from PEM files: the configuration of a listener, and that of a client.
//!
//! Uses rustls with ring (docs/design.md) and nothing of ours. The command line checks the
//! files with it, the server and the clients of Redis and of collectors connect with it.
//!
//! ```text
//! paths ─▶ pem: bytes, compared to find changes ─▶ validity ─▶ server, client: rustls
//!                                     chain: what the other side may send ─┤
//!                                leaf: certificates that rustls cannot read ─┘
//! ```

#![forbid(unsafe_code)]

mod alpn;
mod chain;
mod client;
mod fault;
mod leaf;
mod pem;
mod server;
#[cfg(test)]
mod tests;
mod validity;

pub use alpn::ALPN_HTTP2;
pub use client::{ClientFiles, ClientPems, ServerCheck};
pub use fault::{FileFault, FileFaults, FileRole};
pub use server::{LoadedServer, ServerFiles, ServerPems};
