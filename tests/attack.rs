//! The attack table: hostile clients, each beside an honest neighbour, attack the binary at its
//! default settings. Each test is a row: it prints a line that `scripts/attack` collects, and fails
//! if a bound is broken. That script also runs the rows for longer.
//!
//! The bounds of every row, unless the row says otherwise (`attack/row.rs`): no call of the
//! neighbour is refused or fails, every probe and new connection is answered, resident memory grows
//! by at most 16 MiB during the attack and by at most 4 MiB after it, and the attacker receives at
//! most ten times the bytes that it has sent. Latencies are printed and not asserted, since
//! machines are noisy; only a generous deadline makes a hang fail.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// A hostile Redis.
#[path = "attack/fake_redis.rs"]
mod fake_redis;
/// Connections of an attacker, and the bytes that they carry.
#[path = "attack/foe.rs"]
mod foe;
/// Requests that the attacks send.
#[path = "attack/messages.rs"]
mod messages;
/// The honest client.
#[path = "attack/neighbour.rs"]
mod neighbour;
/// Probes and new connections on every port.
#[path = "attack/probes.rs"]
mod probes;
/// One row of the table, and its printed form.
#[path = "attack/row.rs"]
mod row;
/// A pod, its neighbour, and an attack on it.
#[path = "attack/scene.rs"]
mod scene;

/// H3 to H6: endless frames of one kind.
#[path = "attack/floods.rs"]
mod floods;
/// V1: calls whose message does not arrive.
#[path = "attack/halves.rs"]
mod halves;
/// V3: connections that are opened and left idle.
#[path = "attack/idle.rs"]
mod idle;
/// H3b: an honest Envoy that looks like an attacker.
#[path = "attack/impatient.rs"]
mod impatient;
/// V13: access logs.
#[path = "attack/logs.rs"]
mod logs;
/// Some of these rows with TLS on the gRPC port.
#[path = "attack/over_tls.rs"]
mod over_tls;
/// V2, V8, H2, H8, H9: calls that are expensive to read or to match.
#[path = "attack/queries.rs"]
mod queries;
/// H7: clients that send a few bytes now and then.
#[path = "attack/slow.rs"]
mod slow;
/// V10 to V12: the socket, the rules and the settings.
#[path = "attack/start.rs"]
mod start;
/// V9: hostile replies of Redis.
#[path = "attack/store.rs"]
mod store;
/// V4, V6, H5: unread answers and headers that accumulate.
#[path = "attack/unread.rs"]
mod unread;
/// V5, V7: values and refunds.
#[path = "attack/values.rs"]
mod values;
