//! The binary `ratelease-injector`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ratelease_injector::run(std::env::args_os())
}
