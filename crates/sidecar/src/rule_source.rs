//! The rules in force and where they come from.
//!
//! [`directory`] reads and compiles the files of the rules directory, [`watch`] loads them again
//! when they change and publishes them as `CurrentRules`, and [`snapshot`] keeps the last good
//! files for a start that finds none. May use the rules, the engine and the settings. [`service`]
//! decides by the rules in force; [`admin`] shows them.
//!
//! [`service`]: ratelease_server::service
//! [`admin`]: crate::admin

pub mod directory;
pub mod snapshot;
pub mod watch;
