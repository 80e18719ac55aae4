//! One bench binary; each group is a module.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up has nothing to measure")]

mod decide;
mod rules;

criterion::criterion_main!(decide::benches, rules::benches);
