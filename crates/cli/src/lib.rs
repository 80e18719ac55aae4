//! **The command line** of `ratelease`, and what `ratectl` shares with it: flags and their
//! environment variables, the settings that result from them, and the output of results.
//!
//! It is a separate crate because both programs read the same flags (the rules directory, Redis,
//! the key secret), and because `ratectl` prints the manual and the completions of both. The tools
//! must not depend on the sidecar.
//!
//! It may use the rules and the engine. It serves no requests and takes no leases: its code runs
//! before the sidecar serves, or in a process that sends one question to a pod.
//!
//! The sidecar, the tools, the control plane and the injector use it.
//!
//! # Modules
//!
//! [`safe`] makes text safe for a terminal,
//! and [`log_limiter`] bounds the log of a server; [`mod@settings`] holds the table of settings and the
//! meaning of each; [`out`] prints results and errors, [`source`] reads rule files, and [`client`]
//! calls a server. [`check`] and [`health`] are the subcommands of `ratelease` other than `serve`;
//! [`grammar`] parses a command line, and [`commands`] defines that of `ratelease`. [`migration`]
//! says what becomes of the reference's environment.

#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod commands;
pub mod grammar;
pub mod health;
pub mod log_limiter;
pub mod migration;
pub mod out;
pub mod safe;
pub mod settings;
pub mod source;
