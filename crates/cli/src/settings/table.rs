//! The table of settings. Each setting is stated once, as a row of [`settings!`](crate::settings!):
//! its variable, the field that keeps it, its parser with the range, its default and its help. Its
//! flag, the reader of the struct and the list of all settings follow from the row.
//!
//! A faulty setting is reported and its default is taken, so that one read finds every fault.
//! clap's derive would stop at the first one, and generate code for each flag where here one loop
//! makes them all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint, value_parser};
use ratelease_engine::secret::{Secret, SecretFile};

use super::fault::{Expected, Fault, Faults, file_name, flag_name};
use super::value;

/// One row of the table: a setting as clap needs it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name of the variable, whose flag is `flag_name`; or, of a flag without a variable, the
    /// flag with its dashes.
    pub name: &'static str,
    help: &'static str,
    /// What the help text calls the value.
    value_name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    /// The default under the name `ratelimit`, if it differs.
    pub(super) reference_default: Option<&'static str>,
    alias: Option<Alias>,
    /// Whether the reference has no such setting.
    is_added: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// True or false; the flag alone means true.
    Switch,
    /// A list whose items are separated by `;`, or given by a flag each.
    List,
    /// A secret. Its twin, whose name ends in `_FILE`, names a file that holds the secret; the text
    /// is what the twin's help adds.
    Secret(&'static str),
}

/// Another name of a flag.
#[derive(Debug, Clone, Copy)]
enum Alias {
    Visible(&'static str),
    Hidden(&'static str),
}

/// How a setting is read: all of its row but the name and the help.
pub struct Setting<T> {
    row: Row,
    parse: Parse<T>,
    /// Makes the value of a setting that is not given, if it has no default.
    absent: Option<fn() -> T>,
}

/// The parser of a setting's text.
type Parse<T> = fn(&str) -> Result<T, Expected>;

/// Settings whose flags stand together in the help text.
#[derive(Debug, Clone, Copy)]
pub struct Section<'n> {
    heading: &'static str,
    /// In the order of the help text.
    rows: &'static [Row],
    names: Names<'n>,
    /// The only rows that have flags; empty for all.
    only: &'static [&'static str],
    /// Whether the help text leaves the flags out.
    is_hidden: bool,
}

/// The names of a section's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names<'n> {
    /// Those of the rows.
    AsInTable,
    /// Those of the rows with `REDIS_PERSECOND_` in place of `REDIS_`.
    PerSecond,
    /// Those of the rows with `REDIS_STORE_` and the name of this store in place of `REDIS_`.
    Store(&'n str),
}

/// The settings that a command has.
pub trait Sections {
    /// In the order of the help text.
    const SECTIONS: &'static [Section<'static>];
}

/// The flags of [`Sections`], and what was given for them.
pub struct Flags<S> {
    given: Given,
    sections: PhantomData<fn() -> S>,
}

/// The text that the command line, the environment or the defaults give, by the variable's name.
#[derive(Debug)]
struct Given(BTreeMap<String, Text>);

#[derive(Debug)]
enum Text {
    Plain(String),
    Secret(Secret),
    File(SecretFile),
}

/// What was given for settings, under these names.
#[derive(Debug, Clone, Copy)]
pub struct Values<'g> {
    given: &'g Given,
    names: Names<'g>,
}

/// Makes settings: a struct of them, their rows, and their reader. Each row is a variable, the
/// field with its type, and a [`Setting`]; the comment of a row is the help text of its flag.
#[macro_export]
macro_rules! settings {
    (
        $(#[$about:meta])*
        $vis:vis struct $Settings:ident in $heading:literal {
            $( $(#[doc = $help:literal])+ $name:literal => $field:ident: $Type:ty = $setting:expr; )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $Settings {
            $( $(#[doc = $help])+ $vis $field: $Type, )+
        }

        impl $Settings {
            const ROWS: &'static [$crate::settings::Row] =
                &[$( $setting.row($name, concat!($($help),+)) ),+];

            /// These settings, with all their flags.
            $vis const SECTION: $crate::settings::Section<'static> =
                $crate::settings::Section::new($heading, Self::ROWS);

            /// Reads the settings. Each fault is added, and leaves the default.
            $vis fn read(
                values: $crate::settings::Values<'_>,
                faults: &mut $crate::settings::Faults,
            ) -> Self {
                Self { $( $field: $setting.read($name, values, faults), )+ }
            }
        }
    };
}

/// Returns a setting with a default, which its parser accepts.
pub const fn setting<T>(
    value_name: &'static str,
    default: &'static str,
    parse: Parse<T>,
) -> Setting<T> {
    Setting { row: Row::new(value_name, Kind::Text, Some(default)), parse, absent: None }
}

/// Returns a setting without a default.
pub const fn optional<T: Default>(value_name: &'static str, parse: Parse<T>) -> Setting<T> {
    Setting { row: Row::new(value_name, Kind::Text, None), parse, absent: Some(T::default) }
}

/// Returns a setting of any text; empty without one.
pub const fn text(value_name: &'static str) -> Setting<String> {
    optional(value_name, |text| Ok(text.to_owned()))
}

/// Returns a setting that names a file or a directory.
pub const fn path(value_name: &'static str) -> Setting<Option<PathBuf>> {
    optional(value_name, |text| Ok(Some(PathBuf::from(text))))
}

/// Returns a setting of true or false.
pub const fn switch(default: bool) -> Setting<bool> {
    let default = if default { "true" } else { "false" };
    let row = Row::new("BOOL", Kind::Switch, Some(default));
    Setting { row, parse: value::boolean, absent: None }
}

/// Returns a secret, whose file is read once; empty without one.
pub const fn secret(value_name: &'static str) -> Setting<Secret> {
    parsed_secret(value_name, "", |text| Ok(Secret::from(text)))
}

/// Returns a secret that has a form. The help of the file that holds it ends with `note`.
pub const fn parsed_secret<T: Default>(
    value_name: &'static str,
    note: &'static str,
    parse: Parse<T>,
) -> Setting<T> {
    let row = Row::new(value_name, Kind::Secret(note), None);
    Setting { row, parse, absent: Some(T::default) }
}

// === impl Setting ===

impl<T> Setting<T> {
    /// Sets another default for the name `ratelimit`.
    pub(super) const fn reference_default(self, default: &'static str) -> Self {
        Self { row: Row { reference_default: Some(default), ..self.row }, ..self }
    }

    /// Marks a setting that the reference does not have.
    pub(super) const fn added(self) -> Self {
        Self { row: Row { is_added: true, ..self.row }, ..self }
    }

    /// Adds a second name of the flag, which the help text shows.
    pub(super) const fn alias(self, alias: &'static str) -> Self {
        Self { row: Row { alias: Some(Alias::Visible(alias)), ..self.row }, ..self }
    }

    /// Adds a second name of the flag, which the help text does not show.
    pub(super) const fn hidden_alias(self, alias: &'static str) -> Self {
        Self { row: Row { alias: Some(Alias::Hidden(alias)), ..self.row }, ..self }
    }

    /// Lets the flag be given several times; `;` joins the texts.
    #[must_use]
    pub const fn repeated(self) -> Self {
        Self { row: Row { kind: Kind::List, ..self.row }, ..self }
    }

    /// Returns the row of the setting called `name`.
    pub const fn row(&self, name: &'static str, help: &'static str) -> Row {
        Row { name, help, ..self.row }
    }

    /// Reads the setting called `name`. A fault is added, and leaves the default.
    pub fn read(&self, name: &str, values: Values<'_>, faults: &mut Faults) -> T {
        let name = values.names.name(name);
        if let Kind::Secret(_) = self.row.kind {
            return self.read_secret(&name, values, faults);
        }
        let text = values.plain(&name).or(self.row.default).unwrap_or_default();
        if text.is_empty() && self.absent.is_some() {
            return self.without();
        }
        (self.parse)(text).unwrap_or_else(|expected| {
            let expected = expected.or_example(self.row.default);
            faults.add(Fault::expected(&name, expected).with_found(text));
            self.without()
        })
    }

    fn read_secret(&self, name: &str, values: Values<'_>, faults: &mut Faults) -> T {
        let file = values.file(name);
        let given = match values.given.0.get(name) {
            Some(Text::Secret(secret)) => Some(secret),
            _ => None,
        };
        let Some(secret) = faults.secret(name, given, file) else { return self.without() };
        (self.parse)(secret.reveal()).unwrap_or_else(|expected| {
            let name = if file.is_some() { file_name(name) } else { name.to_owned() };
            faults.add(Fault::expected(&name, expected));
            self.without()
        })
    }

    /// The value if nothing is given.
    fn without(&self) -> T {
        let default = || (self.parse)(self.row.default.unwrap_or_default()).ok();
        #[allow(clippy::expect_used, reason = "a constant of the table")]
        self.absent.map(|absent| absent()).or_else(default).expect("a default is good")
    }
}

// === impl Row ===

impl Row {
    const fn new(value_name: &'static str, kind: Kind, default: Option<&'static str>) -> Self {
        Self {
            name: "",
            help: "",
            value_name,
            kind,
            default,
            reference_default: None,
            alias: None,
            is_added: false,
        }
    }

    /// Adds the flags of the row to `command`.
    fn add_to(&self, command: Command, section: &Section<'_>) -> Command {
        let name = section.names.name(self.name);
        let is_own = section.names == Names::AsInTable;
        let as_main = |name: &str| format!("As {}", flag_name(name));
        let help = if is_own { self.help.trim_start().to_owned() } else { as_main(self.name) };
        let mut arg = section.arg(&name, help, self.value_name);
        arg = match self.alias {
            Some(Alias::Visible(alias)) => arg.visible_alias(alias),
            Some(Alias::Hidden(alias)) => arg.alias(alias),
            None => arg,
        };
        if let Some(default) = self.default {
            arg = arg.default_value(default);
        }
        match self.kind {
            Kind::Text => command.arg(arg),
            Kind::List => command.arg(arg.action(ArgAction::Append)),
            Kind::Switch => {
                command.arg(arg.num_args(0..=1).require_equals(true).default_missing_value("true"))
            }
            Kind::Secret(note) => {
                let help = match is_own {
                    true => format!("File that holds it, in place of {name}{note}"),
                    false => as_main(&file_name(self.name)),
                };
                let file = section.arg(&file_name(&name), help, "FILE");
                command
                    .arg(arg.value_parser(value_parser!(Secret)))
                    .arg(file.value_parser(value_parser!(SecretFile)))
            }
        }
    }
}

// === impl Section ===

impl<'n> Section<'n> {
    /// Makes a section of all `rows`.
    pub const fn new(heading: &'static str, rows: &'static [Row]) -> Self {
        Self { heading, rows, names: Names::AsInTable, only: &[], is_hidden: false }
    }

    /// Returns the section with its settings under other names.
    pub(super) const fn named(self, heading: &'static str, names: Names<'n>) -> Self {
        Self { heading, names, ..self }
    }

    /// Returns the section with the flags of these rows.
    pub const fn only(self, rows: &'static [&'static str]) -> Self {
        Self { only: rows, ..self }
    }

    /// Returns the section with flags that the help text does not show.
    pub const fn hidden(self) -> Self {
        Self { is_hidden: true, ..self }
    }

    /// Returns the rows that have flags.
    pub fn rows(&self) -> impl Iterator<Item = &'static Row> + use<> {
        let only = self.only;
        self.rows.iter().filter(move |row| only.is_empty() || only.contains(&row.name))
    }

    /// Returns the variables of the rows that the reference has too.
    pub(super) fn shared(&self) -> impl Iterator<Item = Cow<'static, str>> {
        self.rows().filter(|row| !row.is_added).map(|row| self.names.name(row.name))
    }

    /// Adds the flags to `command`.
    pub(super) fn add_to(&self, command: Command) -> Command {
        self.rows().fold(command, |command, row| row.add_to(command, self))
    }

    fn arg(&self, name: &str, help: String, value_name: &'static str) -> Arg {
        let arg = Arg::new(name.to_owned())
            .long(flag_name(name).trim_start_matches('-').to_owned())
            .help(help)
            .value_name(value_name)
            .value_hint(match value_name {
                "FILE" => ValueHint::FilePath,
                "DIR" | "PATH" => ValueHint::AnyPath,
                _ => ValueHint::Unknown,
            })
            .help_heading(self.heading)
            .hide(self.is_hidden);
        if name.starts_with("--") { arg } else { arg.env(name.to_owned()) }
    }
}

// === impl Names ===

impl Names<'_> {
    /// Returns the name of the variable of a row.
    fn name<'r>(&self, row: &'r str) -> Cow<'r, str> {
        match self {
            Self::AsInTable => row.into(),
            Self::PerSecond => row.replacen("REDIS_", "REDIS_PERSECOND_", 1).into(),
            Self::Store(name) => {
                let name = name.to_ascii_uppercase().replace('-', "_");
                row.replacen("REDIS_", &format!("REDIS_STORE_{name}_"), 1).into()
            }
        }
    }
}

// === impl Values ===

impl<'g> Values<'g> {
    /// Returns what was given under other names.
    pub(super) fn named(self, names: Names<'g>) -> Self {
        Self { names, ..self }
    }

    /// Returns the name of the variable of a row.
    pub(super) fn name<'r>(&self, row: &'r str) -> Cow<'r, str> {
        self.names.name(row)
    }

    /// Returns whether a secret, or the file that holds it, is given.
    pub(super) fn has_secret(&self, row: &str) -> bool {
        let name = self.name(row);
        let is_set = matches!(self.given.0.get(&*name), Some(Text::Secret(it)) if !it.is_empty());
        is_set || self.file(&name).is_some()
    }

    /// Returns the file that is given for a secret.
    pub(super) fn secret_file(&self, row: &str) -> Option<&'g SecretFile> {
        self.file(&self.name(row))
    }

    /// Returns whether a row has another value than its default.
    pub(super) fn is_changed(&self, row: &Row) -> bool {
        match self.plain(&self.name(row.name)) {
            Some(text) => text != row.default.unwrap_or_default(),
            None => self.has_secret(row.name),
        }
    }

    fn plain(&self, name: &str) -> Option<&'g str> {
        match self.given.0.get(name) {
            Some(Text::Plain(text)) => Some(text),
            _ => None,
        }
    }

    fn file(&self, name: &str) -> Option<&'g SecretFile> {
        match self.given.0.get(&file_name(name)) {
            Some(Text::File(file)) => Some(file).filter(|file| !file.is_empty()),
            _ => None,
        }
    }
}

// === impl Given ===

impl Given {
    /// Takes all that is given in `matches`, of settings and of other flags.
    fn of(matches: &ArgMatches) -> Self {
        let given = matches.ids().filter_map(|id| {
            let id = id.as_str();
            let plain = || {
                let texts = matches.try_get_many::<String>(id).ok()??;
                let texts: Vec<_> = texts.map(String::as_str).collect();
                Some(Text::Plain(texts.join(";")))
            };
            let secret = || matches.try_get_one(id).ok()?.cloned().map(Text::Secret);
            let file = || matches.try_get_one(id).ok()?.cloned().map(Text::File);
            Some((id.to_owned(), plain().or_else(secret).or_else(file)?))
        });
        Self(given.collect())
    }
}

// === impl Flags ===

impl<S> Flags<S> {
    /// Returns what `read` reads of what was given.
    ///
    /// # Errors
    /// All the faults that it adds.
    pub fn read<T>(&self, read: impl FnOnce(Values<'_>, &mut Faults) -> T) -> Result<T, Faults> {
        Faults::none_in(|faults| read(self.values(), faults))
    }

    /// Returns what was given.
    pub fn values(&self) -> Values<'_> {
        Values { given: &self.given, names: Names::AsInTable }
    }
}

impl<S> fmt::Debug for Flags<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

impl<S: Sections> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        S::SECTIONS.iter().fold(command, |command, section| section.add_to(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Sections> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { given: Given::of(matches), sections: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
