//! The binary `ratectl`; each tool is a subcommand.

use std::process::ExitCode;

/// The same allocator as the sidecar's, so that a `bench` of a server does not measure a different
/// allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    ratelease_ctl::run(std::env::args_os())
}
