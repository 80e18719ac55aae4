//! Descriptors in the form that people type, `key=value,key=value`, and the flags of the tools that
//! look for the counts of a request.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ratelease_cli::settings::{Faults, Flags, Key, Leases, Role, RulesDir, Store};
use ratelease_engine::store::StoreSettings;
use ratelease_rules::request::{Descriptor, ENTRIES_MAX, Entry, Request};

/// Flags that say which request.
#[derive(Debug, Args)]
pub struct RequestFlags {
    /// Domain of the request
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub domain: String,
    /// Descriptors of the request: key=value,key=value
    #[arg(
        value_name = "DESCRIPTOR",
        required = true,
        value_parser = DescriptorArg::parse,
        long_help = NOTES
    )]
    pub descriptors: Vec<DescriptorArg>,
}

/// Flags that say where and how the pods count it.
#[derive(Debug, Args)]
pub struct CountFlags {
    #[command(flatten)]
    rules: Flags<RulesDir>,
    #[command(flatten)]
    pub store: Flags<Store>,
    #[command(flatten)]
    key: Flags<Key>,
}

// === impl RequestFlags ===

impl RequestFlags {
    /// Returns a request of one hit.
    pub fn request(&self) -> Request<'_> {
        Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(DescriptorArg::descriptor).collect(),
            hits_addend: 1,
        }
    }
}

// === impl CountFlags ===

impl CountFlags {
    /// Reads the settings of the pods.
    ///
    /// # Errors
    /// Every fault.
    pub fn read(&self, role: Role) -> Result<(RulesDir, StoreSettings, Leases), Faults> {
        Faults::none_in(|faults| {
            let dir = RulesDir::read(role, self.rules.values(), faults);
            let store = Store::read(self.store.values(), &dir.reading.options.stores, faults);
            let leases = Leases::read_checked(self.key.values(), faults);
            (dir, store, leases)
        })
    }
}

/// A descriptor from a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptorArg {
    /// Keys and values, in order.
    entries: Vec<(String, String)>,
}

/// Help text on descriptors, for the subcommands that take them.
pub const NOTES: &str = "\
A descriptor is one argument: key=value, further entries after commas. A backslash escapes
a comma, an equals sign or a backslash: path=/a\\,b.";

// === impl DescriptorArg ===

impl DescriptorArg {
    /// Parses one argument.
    ///
    /// # Errors
    /// The text is no descriptor; the error is a short text with the reason.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        let mut rest = Some(text);
        while let Some(here) = rest {
            let (entry, after) = cut(here, ',').map_or((here, None), |(e, after)| (e, Some(after)));
            rest = after;
            let Some((key, value)) = cut(entry, '=') else {
                return Err(format!("no '=' in {entry:?}; write key=value,key=value"));
            };
            if key.is_empty() {
                return Err(format!("no key in {entry:?}; write key=value,key=value"));
            }
            entries.push((plain(key), plain(value)));
        }
        match entries.len() {
            ..=ENTRIES_MAX => Ok(Self { entries }),
            more => Err(format!("{more} entries; a descriptor has {ENTRIES_MAX} at most")),
        }
    }

    /// Returns the descriptor as the rules take it.
    pub fn descriptor(&self) -> Descriptor<'_> {
        let entries = self.entries.iter().map(|(key, value)| Entry { key, value });
        Descriptor { entries: entries.collect(), ..Descriptor::default() }
    }
}

/// Splits `text` at the first `mark` that is not escaped.
fn cut(text: &str, mark: char) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    let at = text.find(|character| {
        let is_mark = character == mark && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        is_mark
    })?;
    Some((text.get(..at)?, text.get(at + mark.len_utf8()..)?))
}

/// Removes the escapes from `text`. Other backslashes stay.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped =
            characters.next_if(|next| character == '\\' && matches!(next, ',' | '=' | '\\'));
        plain.push(escaped.unwrap_or(character));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_parted_by_commas_and_keys_from_values_by_the_first_equals_sign() {
        let table: [(&str, &[(&str, &str)]); 8] = [
            ("a=b", &[("a", "b")]),
            ("a=b,c=d", &[("a", "b"), ("c", "d")]),
            ("a=", &[("a", "")]),
            ("a=b=c", &[("a", "b=c")]),
            (r"a=b\,c,d=e", &[("a", "b,c"), ("d", "e")]),
            (r"a\=b=c", &[("a=b", "c")]),
            (r"a=\\,b=c", &[("a", r"\"), ("b", "c")]),
            (r"path=C:\dir", &[("path", r"C:\dir")]),
        ];
        for (text, expected) in table {
            let typed = DescriptorArg::parse(text).unwrap();
            let entries: Vec<_> = typed.entries.iter().map(|(k, v)| (&**k, &**v)).collect();
            assert_eq!(entries, expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_entry_is_refused_with_the_right_form() {
        for text in ["", "a", "a=b,", "a=b,,c=d", "=b", r"a\=b"] {
            let why = DescriptorArg::parse(text).unwrap_err();
            assert!(why.ends_with("; write key=value,key=value"), "{text}: {why}");
        }
        let long = vec!["a=b"; ENTRIES_MAX + 1].join(",");
        assert!(DescriptorArg::parse(&long).unwrap_err().starts_with("65 entries"));
    }
}
