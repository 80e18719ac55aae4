//! Links the module so that it is never unmapped: a thread of it may still run when Envoy closes it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
