//! The protocol against prost, and against what may be wrong with a message.

mod decode;
mod encode;
mod proto;
mod reverse_encoder;
