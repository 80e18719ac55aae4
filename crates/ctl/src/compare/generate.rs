//! Makes requests from rule files: for each rule, the descriptor that finds it.

use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_rules::Source;
use ratelease_rules::yaml::Yaml;

use crate::yaml_documents::{self, field, items, text};

/// Takes the place of `*` in a pattern.
const ANY: &str = "any";

/// A request with one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Generated {
    pub(super) domain: String,
    /// Keys and values, in order.
    pub(super) entries: Vec<(String, String)>,
}

/// Returns a request for each `rate_limit` of the files. `unique` is the value where a rule takes
/// any.
///
/// # Errors
/// A file is not YAML.
pub(super) fn requests(sources: &[Source], unique: &str) -> Result<Vec<Generated>, CliError> {
    let mut generated = Vec::new();
    for source in sources {
        let documents = yaml_documents::read(source);
        let documents = documents.map_err(|faults| CliError::new(Safe(faults)))?;
        // Only the first document of a rule file counts.
        let Some(root) = documents.first().map(|document| &document.root) else { continue };
        let domain = field(root, "domain").and_then(text).unwrap_or_default();
        visit(
            root,
            &mut Generated { domain: domain.to_owned(), entries: Vec::new() },
            unique,
            &mut generated,
        );
    }
    Ok(generated)
}

/// Visits the descriptors below `node`, which `path` leads to. The recursion is as deep as the
/// parser allows.
fn visit(node: &Yaml, path: &mut Generated, unique: &str, generated: &mut Vec<Generated>) {
    for descriptor in items(field(node, "descriptors")) {
        let Some(key) = field(descriptor, "key").and_then(text) else { continue };
        let value = field(descriptor, "value").and_then(text).filter(|value| !value.is_empty());
        let value = value.map_or_else(|| unique.to_owned(), |value| value.replace('*', ANY));
        path.entries.push((key.replace('*', ANY), value));
        if field(descriptor, "rate_limit").is_some() {
            generated.push(path.clone());
        }
        visit(descriptor, path, unique, generated);
        path.entries.pop();
    }
}

#[cfg(test)]
mod tests {
    use ratelease_rules::{Lookup, Options, load, request::Entry};

    use super::*;

    #[test]
    fn each_rule_is_found_by_its_request() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/rules");
        let (skip, yaml) = (ratelease_rules::Dotfiles::Skip, ratelease_rules::Endings::Yaml);
        let sources = ratelease_rules::read_path(dir.as_ref(), skip, yaml).unwrap().sources;
        let rules = load(&sources, Options::default()).unwrap().rules;
        let requests = requests(&sources, "unique").unwrap();
        let mut found: Vec<_> = requests
            .iter()
            .map(|Generated { domain, entries }| {
                let entries: Vec<_> =
                    entries.iter().map(|(key, value)| Entry { key, value }).collect();
                match rules.find(domain, &entries) {
                    Lookup::Rule(rule) => rule.path.to_string(),
                    other => panic!("{other:?} for {domain} {entries:?}"),
                }
            })
            .collect();
        found.sort_unstable();
        let all: Vec<_> = rules.iter().map(|rule| rule.path.to_string()).collect();
        assert_eq!(found, all);
    }
}
