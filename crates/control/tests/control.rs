//! The control plane over real sockets, on PostgreSQL and on SQLite.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "control/approvals.rs"]
mod approvals;
#[path = "control/audit.rs"]
mod audit;
#[path = "control/change_sets.rs"]
mod change_sets;
#[path = "control/conditions.rs"]
mod conditions;
#[path = "control/drafts.rs"]
mod drafts;
#[path = "control/dry_run.rs"]
mod dry_run;
#[path = "control/faults.rs"]
mod faults;
#[path = "control/files.rs"]
mod files;
#[path = "control/fleet.rs"]
mod fleet;
#[path = "control/hostile.rs"]
mod hostile;
#[path = "control/kills.rs"]
mod kills;
#[path = "control/limits.rs"]
mod limits;
#[path = "control/objects.rs"]
mod objects;
#[path = "control/outages.rs"]
mod outages;
#[path = "control/pages.rs"]
mod pages;
#[path = "control/pods.rs"]
mod pods;
#[path = "control/publish.rs"]
mod publish;
#[path = "control/repeats.rs"]
mod repeats;
#[path = "control/rollbacks.rs"]
mod rollbacks;
#[path = "control/rollouts.rs"]
mod rollouts;
#[path = "control/rules.rs"]
mod rules;
#[path = "control/strangers.rs"]
mod strangers;
#[path = "control/support.rs"]
mod support;
#[path = "control/tokens.rs"]
mod tokens;
#[path = "control/upgrade.rs"]
mod upgrade;
