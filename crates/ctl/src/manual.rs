//! `ratectl completions` and `ratectl man`: generated from the command line grammars of both
//! programs. A grammar contains the names of environment variables but never their values.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::builder::styling::Styles;
use clap::{Args, ValueEnum};
use clap_complete::aot::{Bash, Fish, Zsh, generate};
use clap_mangen::Man;
use ratelease_cli::grammar::documented;
use ratelease_cli::out::{CliError, CliResult, Completion, Out};

pub const COMPLETIONS_NOTES: &str = "\
Examples:
  ratectl completions bash > /etc/bash_completion.d/ratectl
  ratectl completions zsh ratelease > /usr/local/share/zsh/site-functions/_ratelease
  ratectl completions fish > ~/.config/fish/completions/ratectl.fish";

pub const MAN_NOTES: &str = "\
Examples:
  ratectl man | man -l -
  ratectl man ratelease serve > /usr/local/share/man/man1/ratelease-serve.1
  ratectl man --directory /usr/local/share/man/man1";

/// Flags of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsFlags {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
    /// The program to complete
    #[arg(value_name = "PROGRAM", default_value = "ratectl")]
    program: Program,
}

/// Flags of `man`.
#[derive(Debug, Args)]
pub struct ManFlags {
    /// A subcommand, for its page; after the word ratelease, a subcommand of ratelease
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of both programs and of all their subcommands into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// The shells that there are completions for.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The programs that there are pages and completions of.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Program {
    Ratectl,
    Ratelease,
}

/// Prints the completions for a shell.
pub fn completions(flags: &CompletionsFlags, tools: clap::Command, out: &mut Out) -> CliResult {
    let mut grammar = flags.program.grammar(tools);
    let name = grammar.get_name().to_owned();
    // Written to memory first, because the generator panics if it cannot write.
    let mut script = Vec::new();
    match flags.shell {
        Shell::Bash => generate(Bash, &mut grammar, name, &mut script),
        Shell::Zsh => generate(Zsh, &mut grammar, name, &mut script),
        Shell::Fish => generate(Fish, &mut grammar, name, &mut script),
    }
    out.bytes(&script)?;
    Ok(Completion::Clean)
}

/// Prints the manual page of the program, or of one of its subcommands; or writes all of them.
pub fn man(flags: &ManFlags, tools: clap::Command, out: &mut Out) -> CliResult {
    if let Some(directory) = &flags.directory {
        for program in [Program::Ratelease, Program::Ratectl] {
            write_pages(&program.manual_grammar(tools.clone()), directory)?;
        }
        return Ok(Completion::Clean);
    }
    let (program, names) = match flags.command.split_first() {
        Some((first, names)) if first == "ratelease" => (Program::Ratelease, names),
        _ => (Program::Ratectl, &*flags.command),
    };
    let grammar = program.manual_grammar(tools);
    let mut command = &grammar;
    for name in names {
        command = command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            match known.as_slice() {
                [] => CliError::new(format_args!("{} has no subcommands", command.get_name())),
                known => CliError::new(format_args!(
                    "there is no subcommand {name:?}; expected one of {}",
                    known.join(", ")
                )),
            }
        })?;
    }
    out.bytes(&page(command)?)?;
    Ok(Completion::Clean)
}

/// Writes the page of `command` and the pages of its subcommands as files of `directory`.
fn write_pages(command: &clap::Command, directory: &Path) -> Result<(), CliError> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    fs::write(&path, page(command)?)
        .map_err(|error| CliError::new(format_args!("{}: {error}", path.display())))?;
    command.get_subcommands().try_for_each(|inner| write_pages(inner, directory))
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let version = concat!("ratelease ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(version).manual("ratelease manual").render(&mut page)?;
    Ok(page)
}

// === impl Program ===

impl Program {
    /// Returns the grammar of this program; `tools` is the grammar of `ratectl`.
    fn grammar(self, tools: clap::Command) -> clap::Command {
        match self {
            Self::Ratectl => tools,
            Self::Ratelease => documented::<ratelease_cli::commands::Cli>(),
        }
    }

    /// Returns the grammar as manual pages show it: complete, and without colours.
    fn manual_grammar(self, tools: clap::Command) -> clap::Command {
        let grammar = self.grammar(tools);
        let mut grammar = grammar.styles(Styles::plain()).disable_help_subcommand(true);
        grammar.build();
        grammar
    }
}

// === Schema ===
//
// `ratectl schema`: prints the JSON Schema of rule files.

pub const SCHEMA_NOTES: &str = "\
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
pub fn schema(_: &SchemaFlags, out: &mut Out) -> CliResult {
    let schema = serde_json::to_string_pretty(&ratelease_rules::schema());
    out.line(schema.map_err(|error| CliError::new(format_args!("cannot print it: {error}")))?)?;
    Ok(Completion::Clean)
}
