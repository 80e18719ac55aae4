//! `ratectl schema`: prints the JSON Schema of rule files.

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out};

pub(super) const NOTES: &str = "\
An editor with support for YAML (a yaml-language-server) checks and completes a rule file whose
first line names the schema:
  # yaml-language-server: $schema=https://example.com/rules.schema.json

The schema finds faults of structure; `ratelease check` finds all faults.

Examples:
  ratectl schema > rules.schema.json";

/// Flags of `schema`: it has none.
#[derive(Debug, Args)]
pub struct SchemaFlags {}

/// Prints the schema.
pub(super) fn run(_: &SchemaFlags, out: &mut Out) -> CliResult {
    let schema = serde_json::to_string_pretty(&ratelease_rules::schema());
    out.line(schema.map_err(|error| CliError::new(format_args!("cannot print it: {error}")))?)?;
    Ok(Completion::Clean)
}
