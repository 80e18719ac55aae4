//! The reference's contract, replayed from outside: the binary runs as a process of its own and is
//! called over gRPC and HTTP, with its counts in memory and on a real Redis Cluster.
//!
//! A row is a [`Case`]: its name in the contract, the request and the answer, both in the notation
//! of [`notation`]. Where ratelease differs on purpose, the answer is ratelease's, and a comment at
//! the row says what the reference does; `docs/differences.md` says why.

mod algorithms;
mod arithmetic;
mod doors;
mod examples;
mod faults;
mod headers;
mod health;
mod integration;
mod json;
mod largest;
mod loading;
mod matching;
mod metadata;
mod modes;
mod notation;
mod overrides;
mod pod;
mod replaces;
mod scoped;
mod sharing;
mod statuses;
mod windows;

use pod::Pod;

/// One row of a table: its name, its requests, its answers.
///
/// Steps are separated by ` | `; the request of a single step is sent once for each answer. `$`
/// stands for a value that no other row of the process has.
pub(crate) struct Case<'a>(pub(crate) &'a str, pub(crate) &'a str, pub(crate) &'a str);

/// Where the counts are, and which protocol is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum World {
    Memory,
    MemoryOverHttp,
    Cluster,
}

/// Generates a test in every [`World`] from each function that takes one.
macro_rules! in_every_world {
    ($($suite:ident),* $(,)?) => {$(
        mod $suite {
            use super::super::World;

            #[tokio::test]
            async fn in_memory() {
                super::$suite(World::Memory).await;
            }

            #[tokio::test]
            async fn in_memory_over_http() {
                super::$suite(World::MemoryOverHttp).await;
            }

            #[tokio::test]
            async fn on_a_cluster() {
                super::$suite(World::Cluster).await;
            }
        }
    )*};
}
use in_every_world;

/// Answers to `times` charges of one hit on a fresh key, one after another.
fn countdown(times: u32, limit: u32, unit: &str) -> String {
    let answer = |hit: u32| match limit.checked_sub(hit) {
        Some(remaining) => format!("OK {remaining}/{limit} {unit}"),
        None => format!("OVER 0/{limit} {unit}"),
    };
    (1..=times).map(answer).collect::<Vec<_>>().join(" | ")
}

/// The same step, `count` times.
fn times(count: usize, step: &str) -> String {
    vec![step; count].join(" | ")
}
