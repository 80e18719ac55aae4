//! Configuration files of other programs, in YAML or JSON: their documents, and the fields in them.

use std::time::Duration;

use ratelease_rules::yaml::{Yaml, YamlKind};
use ratelease_rules::{Faults, Source, parse_duration, yaml};

/// A document of a file.
#[derive(Debug)]
pub struct Document {
    /// Lines of the file before the document.
    pub lines_before: u32,
    pub root: Yaml,
}

/// Reads all documents of a file that are not empty.
///
/// # Errors
/// Every syntax fault of the first document that has any.
pub fn read(source: &Source) -> Result<Vec<Document>, Faults> {
    let document = |text| Source { name: source.name.clone(), text };
    let mut read = Vec::new();
    for (lines_before, text) in documents(&source.text) {
        match yaml::read(&document(text.to_vec())) {
            Ok(root) => read.extend(root.map(|root| Document { lines_before, root })),
            Err(faults) => {
                // Read again with empty lines before it, so that faults have their places.
                let mut placed = vec![b'\n'; lines_before as usize];
                placed.extend_from_slice(text);
                return Err(yaml::read(&document(placed)).err().unwrap_or(faults));
            }
        }
    }
    Ok(read)
}

/// The value of a field, by its name in `snake_case` or `camelCase`.
pub fn field<'y>(of: &'y Yaml, name: &str) -> Option<&'y Yaml> {
    let YamlKind::Map(pairs) = &of.kind else { return None };
    let is_named = |key: &Yaml| text(key).is_some_and(|key| key == name || key == camel(name));
    pairs.iter().find(|(key, _)| is_named(key)).map(|(_, value)| value)
}

/// The text of a scalar.
pub fn text(of: &Yaml) -> Option<&str> {
    match &of.kind {
        YamlKind::Scalar(text) => Some(text),
        _ => None,
    }
}

/// A field that is a duration, as Envoy writes it.
pub fn duration(of: &Yaml, name: &str) -> Option<Duration> {
    field(of, name).and_then(text).and_then(parse_duration)
}

/// The items of a list; none if the value is no list.
pub fn items(of: Option<&Yaml>) -> &[Yaml] {
    match of.map(|it| &it.kind) {
        Some(YamlKind::List(items)) => items,
        _ => &[],
    }
}

/// The name of a field in `camelCase`, from that in `snake_case`.
pub fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

/// The documents of a file, each with the number of lines before it. A line that begins with `---`
/// begins a document, whatever it is in.
fn documents(text: &[u8]) -> Vec<(u32, &[u8])> {
    let is_mark = |line: &[u8]| {
        line.strip_prefix(b"---")
            .is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
    };
    let mut documents = Vec::new();
    let mut start = 0;
    let mut lines_before = 0;
    let mut end = 0;
    for (number, line) in (0..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
        if is_mark(line) {
            documents.push((lines_before, text.get(start..end).unwrap_or_default()));
            (start, lines_before) = (end, number);
        }
        end += line.len();
    }
    documents.push((lines_before, text.get(start..).unwrap_or_default()));
    documents
}
