//! **The command line** of `ratelease`, and what `ratectl` shares with it: flags with the
//! environment behind them, what they mean, and how results are printed.
//!
//! It is a crate of its own since both programs read the same flags (where rules lie, which Redis,
//! which key secret), and since `ratectl` prints the manual of both; the tools must not depend on
//! the sidecar.
//!
//! It may use the rules and the engine. It serves nothing and leases nothing: what is in it runs
//! before the sidecar serves, or in a process that asks a pod one question.
//!
//! # Modules, each of which names only those before it
//!
//! [`grpc_codes`] and [`safe`] are words and text; [`settings`] is what each flag means; [`out`] is
//! how results and troubles are printed, [`source`] how rule files are read, [`fetch`] and
//! [`channel`] how a pod is asked at a [`target`]. [`check`] and [`health`] are the subcommands of
//! `ratelease` beside `serve`, [`grammar`] reads a command line, and [`commands`] is that of
//! `ratelease`.

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
