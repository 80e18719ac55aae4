//! Reads YAML files that are not rules into a tree with places, with the parser and the ceilings of
//! rule files.

use serde_json::{Map, Value};

use crate::compile::Source;
use crate::fault::{Faults, Findings, Place};
use crate::node::decode;
use crate::node::{Document, Kind, Meaning, Node};
use crate::reader::Reader;
use crate::takes::json_scalar;

/// A value, with aliases followed and merge keys expanded.
#[derive(Debug, Clone, PartialEq)]
pub struct Yaml {
    /// Where it begins.
    pub place: Place,
    /// The content of the value.
    pub kind: YamlKind,
    /// The meaning of a scalar; of another value, [`Meaning::Null`].
    meaning: Meaning,
}

/// The content of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum YamlKind {
    /// Empty, or `null`.
    Null,
    /// A scalar, as written and not interpreted.
    Scalar(String),
    /// Items, in order.
    List(Vec<Yaml>),
    /// Pairs of key and value, in order; a key may occur twice.
    Map(Vec<(Yaml, Yaml)>),
}

/// Reads the document of `source`; `None` if it is empty.
///
/// # Errors
/// Every syntax fault; a second document is one.
pub fn read(source: &Source) -> Result<Option<Yaml>, Faults> {
    let findings = Findings::default();
    findings.begin(&source.name);
    let root = match decode(&source.text).and_then(|text| Document::parse(text, &findings.memory)) {
        Ok(document) => {
            let mut reader = Reader::new(&document, &findings);
            let root = reader.root();
            root.map(|root| copy(&mut reader, root))
        }
        Err((place, why)) => {
            findings.fault(place, why);
            None
        }
    };
    findings.finish().map(|_| root)
}

/// Copies a node. The reader's bounds apply: it returns no more nodes once aliases exceed the
/// budget.
fn copy<'d>(reader: &mut Reader<'d, '_>, node: &'d Node<'d>) -> Yaml {
    let meaning = match node.kind {
        Kind::Scalar(_, meaning) => meaning,
        _ => Meaning::Null,
    };
    let kind = match &node.kind {
        Kind::Scalar(_, Meaning::Null) | Kind::Alias(_) => YamlKind::Null,
        Kind::Scalar(text, _) => YamlKind::Scalar(text.to_string()),
        Kind::List(ids) => {
            let items = reader.items(ids);
            let copied = reader.inside(node.place, |reader| {
                items.into_iter().map(|item| copy(reader, item)).collect()
            });
            YamlKind::List(copied.unwrap_or_default())
        }
        Kind::Map(pairs) => {
            let entries = reader.entries(pairs);
            let copied = reader.inside(node.place, |reader| {
                let pairs = entries.into_iter();
                pairs.map(|entry| (copy(reader, entry.key), copy(reader, entry.value))).collect()
            });
            YamlKind::Map(copied.unwrap_or_default())
        }
    };
    Yaml { place: node.place, kind, meaning }
}

// === impl Yaml ===

impl Yaml {
    /// Nothing, at this place.
    pub fn null(place: Place) -> Self {
        Self { place, kind: YamlKind::Null, meaning: Meaning::Null }
    }

    /// The text of a scalar, as written.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            YamlKind::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list; none of another value.
    pub fn items(&self) -> &[Yaml] {
        match &self.kind {
            YamlKind::List(items) => items,
            _ => &[],
        }
    }

    /// The names of a map with their values, in order; none of another value.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Yaml)> {
        let pairs = match &self.kind {
            YamlKind::Map(pairs) => &pairs[..],
            _ => &[],
        };
        pairs.iter().map(|(name, value)| (name.text().unwrap_or_default(), value))
    }

    /// The value as JSON, with the meaning that rule files give it: `yes` is true, `007` is 7. A
    /// number that JSON lacks is text. Of two equal keys of a map the later one wins, and adds to
    /// the former one where both are maps.
    pub fn json(&self) -> Value {
        match &self.kind {
            YamlKind::Null => Value::Null,
            YamlKind::Scalar(text) => {
                json_scalar(text, self.meaning).unwrap_or_else(|_| Value::String(text.clone()))
            }
            YamlKind::List(items) => items.iter().map(Yaml::json).collect(),
            YamlKind::Map(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    let YamlKind::Scalar(key) = &key.kind else { continue };
                    match (map.get_mut(key), value.json()) {
                        (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
                        (_, value) => {
                            map.insert(key.clone(), value);
                        }
                    }
                }
                Value::Object(map)
            }
        }
    }

    /// Describes the value, for a message.
    pub fn describe(&self) -> String {
        match &self.kind {
            YamlKind::Null => "nothing".to_owned(),
            YamlKind::Scalar(text) => format!("'{}'", crate::fault::excerpt(text)),
            YamlKind::List(_) => "a list".to_owned(),
            YamlKind::Map(_) => "a map".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Yaml>, Faults> {
        super::read(&Source { name: "a.yaml".into(), text: text.into() })
    }

    #[test]
    fn values_keep_their_text_their_order_and_their_place() {
        let root = read("b: 007\na: [yes, ~]\n").unwrap().unwrap();
        let YamlKind::Map(pairs) = root.kind else { panic!("no map") };
        let shown = pairs.iter().map(|(key, value)| {
            (key.describe(), value.describe(), (value.place.line, value.place.column))
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [("'b'".into(), "'007'".into(), (1, 4)), ("'a'".into(), "a list".into(), (2, 4))]
        );
    }

    #[test]
    fn json_has_the_meaning_of_rule_files() {
        let root = read("a: 007\nb: yes\nc: '5'\nd: .inf\ne: ~\nf: {x: 1}\nf: {y: [2.5]}\n");
        let expected = serde_json::json!({
            "a": 7, "b": true, "c": "5", "d": ".inf", "e": null, "f": {"x": 1, "y": [2.5]}
        });
        assert_eq!(root.unwrap().unwrap().json(), expected);
    }

    #[test]
    fn malformed_yaml_is_refused_with_its_place() {
        let faults = read("a: [b\n").unwrap_err();
        assert!(faults.to_string().starts_with("a.yaml:"), "{faults}");
        assert!(read("# nothing\n").unwrap().is_none());
    }

    #[test]
    fn aliases_cannot_make_a_tree_that_is_larger_than_memory() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        let faults = read(&bomb).unwrap_err();
        assert!(faults.to_string().contains("aliases stand for more than"), "{faults}");
    }
}
