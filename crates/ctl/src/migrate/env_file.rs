//! Reads environments of `KEY=value` lines, in the form of docker's `--env-file`; quotes around a
//! value and `export` before a name are accepted too.

use std::path::Path;

use ratelease_cli::migration::Environment;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::source;
use ratelease_rules::Source;

use super::deployment::Deployment;

/// Maximum number of faults that are listed.
const FAULTS_MAX: usize = 20;

/// Reads a file.
///
/// # Errors
/// The file cannot be read, or has lines of another form, all of which are named.
pub(super) fn read(path: &Path) -> Result<Deployment, CliError> {
    let source = source::read_file(path)?;
    let environment = parse(&source)?;
    Ok(Deployment { origin: source.name, environment, ..Deployment::default() })
}

/// Parses the lines of a file. A name without a value stands for one that the deployment takes from
/// elsewhere.
///
/// # Errors
/// All lines of another form.
pub(super) fn parse(source: &Source) -> Result<Environment, CliError> {
    let text = String::from_utf8_lossy(&source.text);
    let text = text.trim_start_matches('\u{feff}');
    let (mut environment, mut faults) = (Environment::new(), Vec::new());
    for (line, number) in text.lines().map(str::trim).zip(1_u32..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(unquoted(value.trim_start()))),
            None => (line, None),
        };
        if is_name(name) {
            environment.insert(name.to_owned(), value.map(str::to_owned));
        } else {
            // What the line holds may be a part of a key, so it is not shown.
            let expected = "expected KEY=value, with a KEY of letters, digits and _";
            faults.push(format!("{}:{number}: {expected}", Safe(&source.name)));
        }
    }
    if faults.is_empty() {
        return Ok(environment);
    }
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    faults.extend((more > 0).then(|| format!("and {more} more")));
    Err(CliError::new(faults.join("\n")))
}

/// Whether a text may be the name of a variable.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text between quotes, if it is between quotes.
fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}
