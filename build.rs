//! Lays the functions of the `dist` binary in the order of `src/startup.ld`, which
//! `scripts/startup-order` writes and explains.

use std::env;
use std::path::Path;

const SCRIPT: &str = "src/startup.ld";

fn main() {
    println!("cargo::rerun-if-changed={SCRIPT}");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    // Cargo tells a build script the profile that its own inherits from. The name of the profile
    // itself is only found in the path of its output.
    let output = env::var_os("OUT_DIR").unwrap_or_default();
    let is_dist = Path::new(&output).iter().any(|part| part == "dist");
    if let (true, true, Ok(root)) = (is_linux, is_dist, env::var("CARGO_MANIFEST_DIR")) {
        println!("cargo::rustc-link-arg-bin=ratelease=-Wl,-T,{root}/{SCRIPT}");
    }
}
