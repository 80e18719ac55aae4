//! `ratelease completions` and `ratelease man`: what the command line knows of itself. Both are
//! made of its grammar, in which nothing of the environment is but the names of variables.

use clap::builder::styling::Styles;
use clap::{Args, ValueEnum};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;

use super::out::{Ended, Out, Outcome, Trouble};
use crate::settings::grammar;

pub(super) const COMPLETIONS_NOTES: &str = "\
Examples:
  ratelease completions bash > /etc/bash_completion.d/ratelease
  ratelease completions zsh > /usr/local/share/zsh/site-functions/_ratelease
  ratelease completions fish > ~/.config/fish/completions/ratelease.fish";

pub(super) const MAN_NOTES: &str = "\
Examples:
  ratelease man | man -l -
  ratelease man serve > /usr/local/share/man/man1/ratelease-serve.1";

/// Flags of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// Whose
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// A subcommand, for its page
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// The shells that there are completions for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions of a shell.
pub(super) fn completions(flags: &CompletionsFlags, out: &mut Out) -> Ended {
    let mut grammar = grammar();
    let name = grammar.get_name().to_owned();
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    match flags.shell {
        Shell::Bash => generate(Bash, &mut grammar, name, &mut script),
        Shell::Zsh => generate(Zsh, &mut grammar, name, &mut script),
        Shell::Fish => generate(Fish, &mut grammar, name, &mut script),
    }
    out.bytes(&script)?;
    Ok(Outcome::Good)
}

/// Prints the page of the program, or of one of its subcommands.
pub(super) fn man(flags: &ManFlags, out: &mut Out) -> Ended {
    let mut grammar = grammar().styles(Styles::plain()).disable_help_subcommand(true);
    grammar.build();
    let mut command = &grammar;
    for name in &flags.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            match known.as_slice() {
                [] => Trouble::new(format_args!("{} has no subcommands", command.get_name())),
                known => Trouble::new(format_args!(
                    "there is no subcommand {name:?}; expected one of {}",
                    known.join(", ")
                )),
            }
        })?;
    }
    let mut page = Vec::new();
    let version = concat!("ratelease ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).manual("ratelease manual").render(&mut page)?;
    out.bytes(&page)?;
    Ok(Outcome::Good)
}
