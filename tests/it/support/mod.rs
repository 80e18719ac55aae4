//! What tests start: processes, Envoy, a load, the built binary.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod ratelease;
