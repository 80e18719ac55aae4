//! The integration tests that need no Envoy; those behind a real one are in `tests/envoy.rs`.
#![cfg(test)]

mod rig; // the tests' own tools: children end with the test, loads count what came back
mod support;
mod tidy; // the text of the source: sizes, names, stray words, who may name whom
