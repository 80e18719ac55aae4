//! The binary `ratectl`; each tool is a subcommand.

use std::process::ExitCode;

/// The sidecar's allocator: `replay` and `test` run its engine.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    ratelease_ctl::run(std::env::args_os())
}
