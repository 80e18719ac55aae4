//! One bench binary; each group is a module.
//!
//! Measures the parts of a decision, and the whole. `scripts/bench` measures the server.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

mod decide;
mod hot;
mod note;
mod rules;

criterion::criterion_main!(
    decide::benches,
    decide::parts::benches,
    decide::frame::benches,
    hot::benches,
    note::benches,
    rules::benches
);
