//! **Envoy's C interface for dynamic modules**, made safe: the only crate with `unsafe` code.
