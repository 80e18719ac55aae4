//! `ratectl compare`: sends the same requests to two rate limit servers and reports where their
//! answers differ, such as a reference server and the ratelease that is to replace it.

mod call;
mod cause;
mod counts;
mod difference;
mod flags;
mod generate;
mod mirror;
mod report;
mod run;

use ratelease_cli::out::{CliResult, Completion, Out};
use ratelease_cli::settings::Role;
use ratelease_cli::source;

pub(super) use flags::{CompareFlags, NOTES};
use run::Compared;

/// Compares, and prints the differences. One without an explanation is a finding.
pub(super) fn run(flags: &CompareFlags, role: Role, out: &mut Out) -> CliResult {
    flags.check()?;
    let dir = source::resolved(|faults| flags.rules.resolve(role, faults))?;
    let sources = source::read(std::slice::from_ref(&dir.dir), dir.reading())?;
    let rules = source::load(std::slice::from_ref(&dir.dir), dir.reading())?;
    let Compared { counts, interrupted } = run::run(flags, &sources, rules)?;
    if flags.out.json {
        out.json(&report::json(&counts, flags, interrupted.is_some()))?;
    } else {
        report::text(&counts, flags, out)?;
    }
    let is_clean = counts.unexplained() == 0;
    Ok(interrupted.map_or(Completion::clean_if(is_clean), Completion::Interrupted))
}
