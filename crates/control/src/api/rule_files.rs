//! Rule files of a request: how many and how long they may be, and what they say.

use ratelease_rules::Source;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::call::{Problem, check_new_domain};
use super::{App, MIB};
use crate::auth::Caller;
use crate::document::{
    Document, FieldFault, check_sizes, domain_of, memory_for_rules, read_within,
};
use crate::work::heavy;

/// Maximum bytes of an import: 100 000 rules are some 10 MB.
pub const IMPORT_BYTES_MAX: usize = 32 * MIB;

/// Maximum number of files of an import.
const FILES_MAX: usize = 1000;

/// Rule files, each of one domain.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The files.
    pub files: Vec<RuleFile>,
}

/// A rule file.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Its name, which faults begin with.
    pub name: String,
    /// Its text.
    pub yaml: String,
}

/// The texts of files.
///
/// # Errors
/// There are too many files.
pub fn sources(files: Files) -> Result<Vec<Source>, Problem> {
    let count = files.files.len();
    if count > FILES_MAX {
        let message = format!("{count} files; expected at most {FILES_MAX}");
        let fault = FieldFault::of("files", message);
        return Err(Problem::faults("too many files at once", vec![fault]));
    }
    let source = |file: RuleFile| Source { name: file.name, text: file.yaml.into_bytes() };
    Ok(files.files.into_iter().map(source).collect())
}

/// Reads rule files, of domains that the caller may use.
///
/// # Errors
/// All faults of the files, and what the caller may not do.
pub async fn read_files(
    app: &App,
    caller: &Caller,
    sources: Vec<Source>,
) -> Result<Vec<Document>, Problem> {
    // Before all else is read: a token for other domains may not ask for that work.
    let sources = if caller.domains().is_some() {
        let named =
            heavy(move |_| (sources.iter().filter_map(domain_of).collect::<Vec<_>>(), sources));
        let (domains, sources) = named.await?;
        domains.iter().try_for_each(|domain| caller.need_domain(domain))?;
        sources
    } else {
        sources
    };
    let memory = memory_for_rules(app.settings.pod_memory);
    let documents = heavy(move |_| read_within(&sources, memory)).await??;
    for document in &documents {
        check_new_domain(&document.domain)?;
        caller.need_domain(&document.domain)?;
    }
    check_sizes(&documents)?;
    Ok(documents)
}
