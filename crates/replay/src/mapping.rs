//! `--descriptor`: maps a line of a log to the entries of a descriptor.

use ratelease_rules::request::ENTRIES_MAX;

use crate::envoy;
use crate::record::Record;

/// A descriptor built from fields of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<(String, Template)>,
}

/// Text with fields in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(String),
}

/// The entries of one descriptor; values are owned.
pub(crate) type Entries<'m> = Vec<(&'m str, String)>;

// === impl Mapping ===

impl Mapping {
    /// Parses `key=value,key=value`, where `%field%` in a value stands for a field of the line and
    /// `%%` for a per cent sign.
    ///
    /// # Errors
    /// What is wrong with the text, and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries: Vec<_> = text.split(',').map(entry).collect::<Result<_, _>>()?;
        if entries.len() > ENTRIES_MAX {
            return Err(format!("{} entries are more than {ENTRIES_MAX}", entries.len()));
        }
        Ok(Self { entries })
    }

    /// Returns the entries for `record`; `None` if a field is missing, because Envoy sends no
    /// descriptor then.
    pub(crate) fn apply(&self, record: &Record<'_>) -> Option<Entries<'_>> {
        let entries = self.entries.iter();
        entries.map(|(key, template)| Some((key.as_str(), template.fill(record)?))).collect()
    }

    /// Returns the first field that Envoy's text format does not have.
    pub(crate) fn unknown_to_envoy(&self) -> Option<&str> {
        let pieces = self.entries.iter().flat_map(|(_, Template(pieces))| pieces);
        let fields = pieces.filter_map(|piece| match piece {
            Piece::Field(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        });
        { fields }.find(|name| envoy::names().all(|known| known != *name))
    }
}

fn entry(text: &str) -> Result<(String, Template), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), Template::parse(value)?)),
        _ => Err(format!("expected KEY=VALUE, as in path=%path%, not {text:?}")),
    }
}

// === impl Template ===

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        // Text and field names alternate between the signs.
        for (at, part) in text.split('%').enumerate() {
            match (at % 2, part) {
                (0, "") => {}
                (0, text) => pieces.push(Piece::Text(text.to_owned())),
                (_, "") => pieces.push(Piece::Text("%".to_owned())),
                (_, name) => pieces.push(Piece::Field(name.to_owned())),
            }
        }
        match text.matches('%').count() % 2 {
            0 => Ok(Self(pieces)),
            _ => Err(format!("a % is left over in {text:?}: write %field%, and %% for the sign")),
        }
    }

    fn fill(&self, record: &Record<'_>) -> Option<String> {
        let mut filled = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Field(name) => filled.push_str(&record.field(name)?),
            }
        }
        Some(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(mapping: &str, line: &str) -> Option<Vec<(String, String)>> {
        let mapping = Mapping::parse(mapping).unwrap();
        let entries = mapping.apply(&Record::parse(line).unwrap())?;
        Some(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    #[test]
    fn values_are_text_and_fields_in_any_mixture() {
        let line = r#"{"a": "x", "b": {"c": 7}}"#;
        for (mapping, value) in [
            ("k=%a%", "x"),
            ("k=v", "v"),
            ("k=", ""),
            ("k=/%a%/%b.c%", "/x/7"),
            ("k=%a%%b.c%", "x7"),
            ("k=100%%", "100%"),
            ("k=a=b", "a=b"),
        ] {
            let expected = Some(vec![("k".to_owned(), value.to_owned())]);
            assert_eq!(filled(mapping, line), expected, "{mapping}");
        }
        let two = filled("k=%a%,l=%b.c%", line).unwrap();
        assert_eq!(two[1], ("l".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_missing_field_leaves_out_the_descriptor() {
        assert_eq!(filled("k=v,l=%none%", r#"{"a": 1}"#), None);
    }

    #[test]
    fn malformed_mappings_are_refused() {
        for bad in ["", "k", "=v", "k=%a", "k=v,", "k=%a%,%b%"] {
            assert!(Mapping::parse(bad).is_err(), "{bad}");
        }
        let many = vec!["k=v"; ENTRIES_MAX + 1].join(",");
        assert_eq!(Mapping::parse(&many).unwrap_err(), "65 entries are more than 64");
    }

    #[test]
    fn a_field_that_envoys_format_lacks_is_found() {
        let unknown = |text| Mapping::parse(text).unwrap().unknown_to_envoy().map(str::to_owned);
        assert_eq!(unknown("k=%path%,l=%method%"), None);
        assert_eq!(unknown("k=%path%,l=%http.path%"), Some("http.path".to_owned()));
    }
}
