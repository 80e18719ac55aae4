//! One bench binary; each group is a module.
//!
//! The parts of a decision apart, and the whole of it. `scripts/bench` measures the server.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

mod decide;
mod hot;
mod rules;

criterion::criterion_main!(
    decide::benches,
    decide::parts::benches,
    decide::frame::benches,
    hot::benches,
    rules::benches
);
