//! TLS from PEM files: the configurations of listeners and of clients.
//!
//! Uses rustls with ring (docs/design.md) and nothing of ours. The command line checks the
//! files with it, the server and the clients of Redis and of collectors connect with it.
//!
//! ```text
//! paths ─▶ pem: bytes, compared to find changes ─▶ server, client: rustls
//!          certificate: validity, chains, versions ──┘
//! ```

#![forbid(unsafe_code)]

mod certificate;
mod client;
mod pem;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ClientFiles, ClientPems, ServerCheck};
pub use pem::{FileFault, FileFaults, FileRole};
pub use server::{ALPN_HTTP2, LoadedServer, ServerFiles, ServerPems};
