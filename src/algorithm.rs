//! The arithmetic of each algorithm, pure: state and time in, state and grant out. The memory store
//! runs it; the scripts of the Redis store do the same sums on the shard, and the tests compare
//! them.

pub mod fixed_window;
