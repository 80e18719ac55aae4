//! The rules that a subcommand is about.

use super::out::Trouble;
use crate::rules::{self, Options, Rules, read_directory};
use crate::settings::{Faults, Role, RulesDir, RulesDirFlags};

/// Reads and compiles the rules that `flags` name.
///
/// # Errors
/// The flags are faulty, the directory cannot be read, or its rules are: all faults, a line each.
pub(super) fn load(flags: &RulesDirFlags, role: Role) -> Result<Rules, Trouble> {
    let mut faults = Faults::default();
    let Some(RulesDir { dir, ignore_dotfiles, merge_domains, .. }) =
        flags.resolve(role, &mut faults)
    else {
        return Err(faults.into());
    };
    let sources = read_directory(&dir, ignore_dotfiles).map_err(Trouble::new)?;
    let loaded = rules::load(&sources, Options { merge_domains });
    let loaded = loaded.map_err(|faults| Trouble::new(format_args!("the rules:\n{faults}")))?;
    match loaded.rules.is_empty() {
        true => Err(Trouble::new(format_args!("{}: holds no rule; see --rules", dir.display()))),
        false => Ok(loaded.rules),
    }
}
