//! The binary: one tool a subcommand.

use std::process::ExitCode;

/// As the sidecar's, so that what `bench` measures of a server is not its own allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    ratelease_ctl::run(std::env::args_os())
}
