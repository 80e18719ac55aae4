//! Groups of settings as flags of clap: the arguments that rows of the table make, and the values
//! that were given for them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint, value_parser};
use ratelease_engine::secret::{Secret, SecretFile};

use super::fault::{Faults, file_name, flag_name};
use super::table::{Alias, Group, Kind, Names, OptionalSetting, Row, SecretSetting, Setting};

/// The flags of a group; dereferences to what was given for them.
pub struct Flags<G> {
    values: Values,
    group: PhantomData<fn() -> G>,
}

/// The text that the command line, the environment or the defaults give for the rows of a group.
#[derive(Debug, Clone)]
pub struct Values {
    /// By the name of the variable.
    given: BTreeMap<String, Given>,
    names: Names,
}

#[derive(Debug, Clone)]
enum Given {
    Text(String),
    Secret(Secret),
    File(SecretFile),
}

/// The constants of a [`Group`], so that the code that reads them is not generic.
pub(super) struct GroupOptions {
    pub(super) heading: &'static str,
    pub(super) names: Names,
    pub(super) is_hidden: bool,
}

// === impl Row ===

impl Row {
    /// Adds the flags of the row to `command`.
    fn add_to(self, command: Command, group: &GroupOptions) -> Command {
        let name = group.names.name(self.name);
        let help = match group.names {
            Names::AsInTable => Cow::Borrowed(self.help.trim_start()),
            Names::PerSecond | Names::Store(_) => format!("As {}", flag_name(self.name)).into(),
        };
        let arg = group.arg(&name, help).value_name(self.value_name);
        let arg = match self.alias {
            Some(Alias::Visible(alias)) => arg.visible_alias(alias),
            Some(Alias::Hidden(alias)) => arg.alias(alias),
            None => arg,
        };
        let arg = match self.default {
            Some(default) => arg.default_value(default),
            None => arg,
        };
        match self.kind {
            Kind::Text => command.arg(arg),
            Kind::Switch => {
                command.arg(arg.num_args(0..=1).require_equals(true).default_missing_value("true"))
            }
            Kind::Secret(note) => {
                let help = match group.names {
                    Names::AsInTable => format!("File that holds it, in place of {name}{note}"),
                    Names::PerSecond | Names::Store(_) => {
                        format!("As {}", flag_name(&file_name(self.name)))
                    }
                };
                let file = group.arg(&file_name(&name), help.into()).value_name("FILE");
                let file = file.value_hint(ValueHint::FilePath);
                command
                    .arg(arg.value_parser(value_parser!(Secret)))
                    .arg(file.value_parser(value_parser!(SecretFile)))
            }
        }
    }
}

// === impl GroupOptions ===

impl GroupOptions {
    pub(super) fn add_all(&self, rows: &[Row], command: Command) -> Command {
        rows.iter().fold(command, |command, row| row.add_to(command, self))
    }

    fn arg(&self, name: &str, help: Cow<'static, str>) -> Arg {
        Arg::new(name.to_owned())
            .long(flag_name(name).trim_start_matches('-').to_owned())
            .env(name.to_owned())
            .help(help.into_owned())
            .help_heading(self.heading)
            .hide(self.is_hidden)
    }
}

// === impl Values ===

impl Values {
    /// Reads the values of `rows` from `matches`.
    pub(super) fn new(matches: &ArgMatches, rows: &[Row], names: Names) -> Self {
        let mut given = BTreeMap::new();
        for row in rows {
            let name = names.name(row.name);
            if let Kind::Secret(_) = row.kind {
                let file = file_name(&name);
                let secret = matches.get_one(&name).cloned().map(Given::Secret);
                let path = matches.get_one(&file).cloned().map(Given::File);
                given.extend(secret.map(|secret| (name.into_owned(), secret)));
                given.extend(path.map(|path| (file, path)));
            } else {
                let text = matches.get_one(&name).cloned().map(Given::Text);
                given.extend(text.map(|text| (name.into_owned(), text)));
            }
        }
        Self { given, names }
    }

    /// Returns the name of the variable of a row.
    pub(super) fn name(&self, row: &Row) -> Cow<'static, str> {
        self.names.name(row.name)
    }

    /// Parses a setting. If that fails, adds a fault.
    pub(crate) fn get<T>(&self, setting: &Setting<T>, faults: &mut Faults) -> Option<T> {
        let name = self.name(&setting.row);
        let default = setting.row.default.unwrap_or_default();
        let text = self.given_text(&name).unwrap_or(default);
        faults.parse(&name, text, |text| {
            (setting.parse)(text).map_err(|expected| expected.or_example(default))
        })
    }

    /// Parses a setting without a default; returns `Some(None)` if it is absent or empty.
    pub(crate) fn optional<T>(
        &self,
        setting: &OptionalSetting<T>,
        faults: &mut Faults,
    ) -> Option<Option<T>> {
        let name = self.name(&setting.row);
        match self.given_text(&name) {
            None | Some("") => Some(None),
            Some(text) => faults.parse(&name, text, setting.parse).map(Some),
        }
    }

    /// Returns the text of a setting without a default; `None` if it is absent or empty.
    pub(crate) fn text(&self, setting: &OptionalSetting<String>) -> Option<&str> {
        self.given_text(&self.name(&setting.row)).filter(|text| !text.is_empty())
    }

    /// Returns a secret, read from its file if a file is given. `Some(None)` if neither is given.
    pub(crate) fn secret(
        &self,
        setting: &SecretSetting,
        faults: &mut Faults,
    ) -> Option<Option<Secret>> {
        let name = self.name(&setting.row);
        let given = match self.given.get(&*name) {
            Some(Given::Secret(secret)) => Some(secret),
            _ => None,
        };
        faults.secret(&name, given, self.secret_file(setting))
    }

    /// Returns the file that is given for a secret.
    pub(super) fn secret_file(&self, setting: &SecretSetting) -> Option<&SecretFile> {
        match self.given.get(&file_name(&self.name(&setting.row))) {
            Some(Given::File(file)) => Some(file).filter(|file| !file.is_empty()),
            _ => None,
        }
    }

    /// Returns whether a row has another value than its default.
    pub(super) fn is_changed(&self, row: &Row) -> bool {
        let name = self.name(row);
        let given = [self.given.get(&*name), self.given.get(&file_name(&name))];
        given.into_iter().flatten().any(|given| match given {
            Given::Text(text) => text != row.default.unwrap_or_default(),
            Given::Secret(secret) => !secret.is_empty(),
            Given::File(file) => !file.is_empty(),
        })
    }

    fn given_text(&self, name: &str) -> Option<&str> {
        match self.given.get(name) {
            Some(Given::Text(text)) => Some(text),
            _ => None,
        }
    }
}

// === impl Flags ===

impl<G> Deref for Flags<G> {
    type Target = Values;

    fn deref(&self) -> &Values {
        &self.values
    }
}

impl<G> fmt::Debug for Flags<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.values.fmt(f)
    }
}

impl<G: Group> Args for Flags<G> {
    fn augment_args(command: Command) -> Command {
        let options =
            GroupOptions { heading: G::HEADING, names: G::NAMES, is_hidden: G::IS_HIDDEN };
        options.add_all(G::ROWS, command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<G: Group> FromArgMatches for Flags<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { values: Values::new(matches, G::ROWS, G::NAMES), group: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.values = Values::new(matches, G::ROWS, G::NAMES);
        Ok(())
    }
}
