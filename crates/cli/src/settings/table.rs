//! The table of settings. Each setting is stated once, as a row of [`settings!`]: its flag, its
//! environment variable, its default, its help and its name in messages follow from the row.
//!
//! clap's derive would repeat the name of each setting, and generate code for each flag where here
//! one loop makes them all.

use std::borrow::Cow;

use super::fault::Expected;
use super::value;

/// One row of the table: a setting as clap needs it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name of the environment variable; the flag of `GRPC_PORT` is `--grpc-port`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// What the help text calls the value.
    pub(super) value_name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Option<&'static str>,
    /// The default under the name `ratelimit`, if it differs.
    pub(super) reference_default: Option<&'static str>,
    pub(super) alias: Option<Alias>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// True or false; the flag alone means true.
    Switch,
    /// A secret. Its twin, whose name ends in `_FILE`, names a file that holds the secret; the text
    /// is what the twin's help adds.
    Secret(&'static str),
}

/// Another name of a flag.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alias {
    Visible(&'static str),
    Hidden(&'static str),
}

/// A setting with a default.
#[derive(Clone, Copy)]
pub(crate) struct Setting<T> {
    pub(super) row: Row,
    pub(super) parse: fn(&str) -> Result<T, Expected>,
}

/// A setting without a default.
#[derive(Clone, Copy)]
pub(crate) struct OptionalSetting<T> {
    pub(super) row: Row,
    pub(super) parse: fn(&str) -> Result<T, Expected>,
}

/// A secret, given by its variable or in a file.
#[derive(Clone, Copy)]
pub(crate) struct SecretSetting {
    pub(super) row: Row,
}

/// Rows whose flags belong together.
pub trait Group {
    /// The heading above the flags in the help text.
    const HEADING: &'static str;
    /// The settings, in the order of the help text.
    const ROWS: &'static [Row];
    /// Which names the flags have.
    const NAMES: Names = Names::AsInTable;
    /// Whether the flags are left out of the help text.
    const IS_HIDDEN: bool = false;
}

/// The names of a group's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// Those of the rows.
    AsInTable,
    /// Those of the rows with `REDIS_PERSECOND_` in place of `REDIS_`.
    PerSecond,
    /// Those of the rows with `REDIS_STORE_` and the name of this store in place of `REDIS_`.
    Store(Box<str>),
}

/// States the settings of a group: a constant for each row, and the group.
///
/// The comment of a row is the help text of its flag.
macro_rules! settings {
    (
        $(#[$attribute:meta])* $vis:vis group $group:ident($heading:literal);
        $($(#[doc = $help:literal])+ $row_vis:vis $name:ident: $type:ty = $setting:expr;)+
    ) => {
        $(
            $(#[doc = $help])+
            $row_vis const $name: $type = $setting.named(stringify!($name), concat!($($help),+));
        )+
        $(#[$attribute])*
        #[derive(Debug)]
        $vis enum $group {}
        impl $crate::settings::table::Group for $group {
            const HEADING: &'static str = $heading;
            const ROWS: &'static [$crate::settings::table::Row] = &[$($name.row),+];
        }
    };
}
pub(crate) use settings;

/// Returns a setting of any text.
pub(super) const fn text(value_name: &'static str) -> OptionalSetting<String> {
    optional(value_name, |text| Ok(text.to_owned()))
}

/// Returns a setting without a default.
pub(super) const fn optional<T>(
    value_name: &'static str,
    parse: fn(&str) -> Result<T, Expected>,
) -> OptionalSetting<T> {
    OptionalSetting { row: Row::new(value_name, Kind::Text, None), parse }
}

/// Returns a setting with a default.
pub(super) const fn setting<T>(
    value_name: &'static str,
    default: &'static str,
    parse: fn(&str) -> Result<T, Expected>,
) -> Setting<T> {
    Setting { row: Row::new(value_name, Kind::Text, Some(default)), parse }
}

/// Returns a setting of true or false.
pub(super) const fn switch(default: bool) -> Setting<bool> {
    let default = if default { "true" } else { "false" };
    Setting { row: Row::new("BOOL", Kind::Switch, Some(default)), parse: value::boolean }
}

/// Returns a secret, whose file is read once.
pub(super) const fn secret(value_name: &'static str) -> SecretSetting {
    SecretSetting { row: Row::new(value_name, Kind::Secret(""), None) }
}

/// Returns a secret, whose file is read again for each connection.
pub(super) const fn reloaded_secret(value_name: &'static str) -> SecretSetting {
    let note = "; read again for each connection";
    SecretSetting { row: Row::new(value_name, Kind::Secret(note), None) }
}

// === impl Row ===

impl Row {
    const fn new(value_name: &'static str, kind: Kind, default: Option<&'static str>) -> Self {
        Self { name: "", help: "", value_name, kind, default, reference_default: None, alias: None }
    }

    const fn named(self, name: &'static str, help: &'static str) -> Self {
        Self { name, help, ..self }
    }
}

// === impl Names ===

impl Names {
    /// Returns the name of the variable of a row.
    pub(super) fn name(&self, row: &'static str) -> Cow<'static, str> {
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

// === impl Setting ===

impl<T> Setting<T> {
    pub(crate) const fn named(self, name: &'static str, help: &'static str) -> Self {
        Self { row: self.row.named(name, help), parse: self.parse }
    }

    /// Sets another default for the name `ratelimit`.
    pub(super) const fn reference_default(self, default: &'static str) -> Self {
        Self { row: Row { reference_default: Some(default), ..self.row }, parse: self.parse }
    }

    /// Adds a second name of the flag, which the help text shows.
    pub(super) const fn alias(self, alias: &'static str) -> Self {
        Self { row: Row { alias: Some(Alias::Visible(alias)), ..self.row }, parse: self.parse }
    }

    /// Adds a second name of the flag, which the help text does not show.
    pub(super) const fn hidden_alias(self, alias: &'static str) -> Self {
        Self { row: Row { alias: Some(Alias::Hidden(alias)), ..self.row }, parse: self.parse }
    }
}

impl<T> OptionalSetting<T> {
    pub(crate) const fn named(self, name: &'static str, help: &'static str) -> Self {
        Self { row: self.row.named(name, help), parse: self.parse }
    }
}

impl SecretSetting {
    pub(crate) const fn named(self, name: &'static str, help: &'static str) -> Self {
        Self { row: self.row.named(name, help) }
    }
}
