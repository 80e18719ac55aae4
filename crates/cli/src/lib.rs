//! **The command line** of `ratelease`, and what `ratectl` shares with it: flags with the
//! environment behind them, the settings that they mean, and how results are printed.
//!
//! It is a crate of its own since both programs read the same flags (where rules lie, which Redis,
//! which key secret), and since `ratectl` prints the manual and the completions of both. The tools
//! must not depend on the sidecar.
//!
//! It may use the rules and the engine. It serves nothing and leases nothing: its code runs before
//! the sidecar serves, or in a process that asks a pod one question.
//!
//! It is used by the sidecar and by the tools.
//!
//! # Modules
//!
//! Each module names only modules that come before it in `tests/it/tidy/layers.rs`. [`grpc_codes`]
//! and [`safe`] are names and text; [`settings`] is what each flag means; [`out`] prints results
//! and errors, [`source`] reads rule files, [`fetch`] and [`channel`] ask a server at a
//! [`target`]. [`check`] and [`health`] are the subcommands of `ratelease` beside `serve`;
//! [`grammar`] reads a command line, and [`commands`] is that of `ratelease`.

#![forbid(unsafe_code)]

pub mod channel;
pub mod check;
pub mod commands;
pub mod fetch;
pub mod grammar;
pub mod grpc_codes;
pub mod health;
pub mod out;
pub mod safe;
pub mod settings;
pub mod source;
pub mod target;
