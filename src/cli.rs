//! What the program does beside serving: a subcommand a module.

pub mod bench;
