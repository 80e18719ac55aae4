//! Compiles documents as a pod will, and names the field of each fault.

use ratelease_rules::{Fault, Options, Source, load};
use serde::Serialize;
use utoipa::ToSchema;

use super::weight::need;
use super::{Document, RuleId, check_weights, mib, render};

/// A fault or a warning of the compiler, at a field of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Finding {
    /// The domain.
    pub domain: String,
    /// The id of the rule; absent for a fault of the domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleId>,
    /// The field, as in `rate_limit.unit`.
    pub field: String,
    /// What is wrong, then what was expected: the compiler's own text.
    pub message: String,
}

/// Compiles documents, each of another domain. Returns the warnings, and the texts of the rule
/// files in the order of the documents. A pod may need up to `memory` bytes for one domain.
///
/// # Errors
/// Every fault, at most 10 000; of domains that are too large, only that.
pub fn check(
    documents: &[Document],
    memory: usize,
) -> Result<(Vec<Finding>, Vec<String>), Vec<Finding>> {
    check_weights(documents)?;
    let rendered: Vec<_> = documents.iter().map(render).collect();
    // Compiled one by one: a source is known by its index, and no fault is of two of them.
    let (mut faults, mut warnings) = (Vec::new(), Vec::new());
    for (document, rendered) in documents.iter().zip(&rendered) {
        let found = |fault: &Fault| {
            let line = rendered.line(fault.line);
            let record = line.and_then(|line| document.records.get(line.record?));
            Finding {
                domain: document.domain.clone(),
                rule: record.map(|record| record.id(&document.domain)),
                field: line.map_or_else(String::new, |line| line.field.clone()),
                message: fault.message.clone(),
            }
        };
        let source =
            Source { name: document.domain.clone(), text: rendered.text.clone().into_bytes() };
        match load(&[source], Options::default()) {
            Ok(loaded) => {
                warnings.extend(loaded.warnings.iter().map(found));
                let needed = need(rendered.text.len(), loaded.memory);
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

fn too_large(document: &Document, needed: usize, memory: usize) -> Finding {
    let message = format!(
        "a pod needs {} of memory while it replaces the rules of this domain; expected at most {} \
         for one domain, by --pod-memory and --domain-bytes-max. Remove rules, or give pods more \
         memory",
        mib(needed),
        mib(memory)
    );
    let (domain, field) = (document.domain.clone(), "descriptors".to_owned());
    Finding { domain, rule: None, field, message }
}
