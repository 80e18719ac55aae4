//! Compiles documents as a pod will, and names the field of each fault.

use ratelease_rules::{Fault, MemoryUse, Options, Source, Weight, load};
use ratelease_xds::memory_left;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Document, Entry, render, without_file};

/// A fault at a field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldFault {
    /// The domain, where a request is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The id of the rule, where a request is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The field, as in `rate_limit.unit`, or a place in a file, as in `shop.yaml:4:5`.
    pub field: String,
    /// What is wrong, then what was expected.
    pub message: String,
}

// === impl FieldFault ===

impl FieldFault {
    /// A fault at a field of a request about one thing.
    pub fn of(field: &str, message: impl Into<String>) -> Self {
        Self { domain: None, rule: None, field: field.to_owned(), message: message.into() }
    }

    /// A fault of all rules of a domain.
    pub fn of_rules(domain: &str, message: String) -> Self {
        Self { domain: Some(domain.to_owned()), ..Self::of("descriptors", message) }
    }
}

/// Compiles documents, each of another domain. Returns the warnings, and the texts of the rule
/// files in the order of the documents. A pod may need up to `memory` bytes for one domain.
///
/// # Errors
/// Every fault, at most 10 000; of domains that are too large, only that.
pub fn compile(
    documents: &[Document],
    memory: usize,
) -> Result<(Vec<FieldFault>, Vec<String>), Vec<FieldFault>> {
    check_sizes(documents)?;
    let rendered: Vec<_> = documents.iter().map(render).collect();
    // Compiled one by one: a source is known by its index, and no fault is of two of them.
    let mut faults = Vec::new();
    let mut warnings = Vec::new();
    for (document, rendered) in documents.iter().zip(&rendered) {
        let found = |fault: &Fault| {
            let line = rendered.line(fault.line);
            let record = line.and_then(|line| document.records.get(line.record?));
            FieldFault {
                domain: Some(document.domain.clone()),
                rule: record.map(|record| record.id(&document.domain).to_string()),
                field: line.map_or_else(String::new, |line| line.field.clone()),
                message: without_file(&fault.message),
            }
        };
        let source =
            Source { name: document.domain.clone(), text: rendered.text.clone().into_bytes() };
        match load(&[source], Options::default()) {
            Ok(loaded) => {
                warnings.extend(loaded.warnings.iter().map(found));
                let needed = need(rendered.text.len(), loaded.weight.memory);
                if needed > memory {
                    faults.push(too_large(document, needed, memory));
                }
            }
            Err(refused) => faults.extend(refused.iter().map(found)),
        }
    }
    if faults.is_empty() {
        Ok((warnings, rendered.into_iter().map(|it| it.text).collect()))
    } else {
        Err(faults)
    }
}

fn too_large(document: &Document, needed: usize, memory: usize) -> FieldFault {
    let message = format!(
        "a pod needs {} of memory while it replaces the rules of this domain; expected at most {} \
         for one domain, by --pod-memory and --domain-bytes-max. Remove rules, or give pods more \
         memory",
        mib(needed),
        mib(memory)
    );
    FieldFault::of_rules(&document.domain, message)
}

// What a domain costs the pods, and the part of their ceilings that one domain may use.

/// Maximum number of descriptors of one domain: an eighth of what a pod loads.
const DESCRIPTORS_MAX: usize = 500_000;

/// Maximum bytes of the paths of all rules of one domain: an eighth of what a pod loads. Each rule
/// has the text of all its entries, so a long key above many rules counts for each of them.
pub const PATH_BYTES_MAX: usize = 32 << 20;

/// Memory that a pod has taken before it has rules.
const POD_BYTES: usize = 16 << 20;

/// Copies of the text of rules that a pod has while it replaces them: of the former ones, and of
/// the new ones in the message and beside it.
const TEXTS: usize = 3;

/// The memory for rules of a pod that has this limit.
pub fn memory_for_rules(pod_memory: usize) -> usize {
    memory_left(pod_memory, POD_BYTES)
}

/// The memory that a pod needs while rules take the place of others of their size.
fn need(text_bytes: usize, memory: MemoryUse) -> usize {
    TEXTS * text_bytes + memory.held + memory.peak
}

/// Bytes as MiB.
pub fn mib(bytes: usize) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// Checks that each domain stays within its part of what a pod loads, so that no domain takes the
/// place of others.
///
/// # Errors
/// Each domain that exceeds its part.
pub fn check_sizes(documents: &[Document]) -> Result<(), Vec<FieldFault>> {
    let mut faults = Vec::new();
    for document in documents {
        let mut fault = |message| faults.push(FieldFault::of_rules(&document.domain, message));
        let (descriptors, path_bytes) = size_of_rules(document);
        if descriptors > DESCRIPTORS_MAX {
            fault(format!(
                "{descriptors} descriptors; expected at most {DESCRIPTORS_MAX} in one domain"
            ));
        }
        if path_bytes > PATH_BYTES_MAX {
            fault(format!(
                "the keys and values that lead to its rules have {path_bytes} bytes together, \
                 counted for each rule; expected at most {PATH_BYTES_MAX} in one domain. Shorten \
                 keys above many rules"
            ));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// What the rules of a domain weigh in a pod; `None` if one would refuse them, or if they are of
/// another domain.
pub fn weigh(domain: &str, text: &[u8]) -> Option<Weight> {
    let source = Source { name: domain.to_owned(), text: text.to_vec() };
    let loaded = load(&[source], Options::default()).ok()?;
    loaded.rules.domains().eq([domain]).then_some(loaded.weight)
}

/// An upper bound of the memory that a pod needs for domains together, which have so many bytes of
/// text, without a load of them: by the weight of each, in the order of their names. `None` if
/// only [`check_together`] can tell whether pods load them.
pub fn need_at_most<'w>(
    bytes: usize,
    weights: impl Iterator<Item = (&'w str, Weight)>,
) -> Option<usize> {
    Weight::together(weights).map(|memory| need(bytes, memory))
}

/// Compiles the texts of all domains in one load, as a pod does: domains that are good alone may
/// exceed its ceilings together. Returns the memory that a pod needs for that.
///
/// # Errors
/// The first fault: its domain, and the compiler's text.
pub fn check_together(texts: Vec<(String, String)>) -> Result<usize, (String, String)> {
    let bytes = texts.iter().map(|(_, text)| text.len()).sum();
    let source = |(name, text): (String, String)| Source { name, text: text.into_bytes() };
    let sources: Vec<_> = texts.into_iter().map(source).collect();
    let faults = match load(&sources, Options::default()) {
        Ok(loaded) => return Ok(need(bytes, loaded.weight.memory)),
        Err(faults) => faults,
    };
    let first = faults.iter().next().map(|it| (it.file.to_string(), it.message.clone()));
    Err(first.unwrap_or_default())
}

/// The number of descriptors, and the bytes of the paths of all rules.
fn size_of_rules(document: &Document) -> (usize, usize) {
    let mut descriptors = 0;
    let mut path_bytes = 0;
    let mut before: &[Entry] = &[];
    for record in &document.records {
        let shared = before.iter().zip(&record.entries).take_while(|(a, b)| a == b).count();
        descriptors += record.entries.len() - shared;
        let text = |it: &Entry| it.key.len() + it.value.as_ref().map_or(0, String::len) + 2;
        path_bytes += document.domain.len() + record.entries.iter().map(text).sum::<usize>();
        before = &record.entries;
    }
    (descriptors, path_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read;

    /// A rule file whose rules are below a key of this length.
    fn file(domain: &str, key_bytes: usize, rules: usize) -> String {
        let mut text = format!(
            "domain: {domain}\ndescriptors:\n- key: {}\n  descriptors:\n",
            "k".repeat(key_bytes)
        );
        for number in 0..rules {
            text.push_str(&format!(
                "  - {{key: a, value: '{number}', rate_limit: {{unlimited: true}}}}\n"
            ));
        }
        text
    }

    fn document(text: &str) -> Document {
        read(&[Source { name: "a".into(), text: text.into() }]).unwrap().remove(0)
    }

    #[test]
    fn a_domain_has_a_part_of_what_a_pod_loads() {
        let small = document(&file("b", 8000, 10));
        // A file of so many is not even read; rules of the API come one by one.
        let mut large = document(&file("a", 8000, 4000));
        large.records.extend(large.records.clone());
        assert_eq!(size_of_rules(&small).0, 11);
        let faults = check_sizes(&[small, large]).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!((faults[0].domain.as_deref(), &*faults[0].field), (Some("a"), "descriptors"));
    }

    #[test]
    fn rules_of_another_domain_have_no_weight_of_this_one() {
        let text = file("a", 10, 1);
        assert!(weigh("a", text.as_bytes()).is_some());
        assert_eq!(weigh("b", text.as_bytes()), None);
        assert_eq!(weigh("a", b"domain: a\ndescriptors: 7\n"), None);
    }

    #[test]
    fn domains_that_are_good_alone_may_be_refused_together() {
        let text = |domain: &str| (domain.to_owned(), file(domain, 8000, 17_000));
        assert!(check_together(vec![text("a")]).is_ok());
        assert!(check_together(vec![text("b")]).is_ok());
        let (domain, message) = check_together(vec![text("a"), text("b")]).unwrap_err();
        assert!(domain == "b" && message.contains("256 MiB"), "{domain}: {message}");
    }
}
