//! Links the module so that it is never unmapped, since a thread of it may still run when Envoy closes
//! it; and so that the functions of a decision lie together (`scripts/bench-envoy --order`).

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}/decision.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=decision.ld");
}
