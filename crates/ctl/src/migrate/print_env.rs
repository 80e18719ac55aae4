//! Prints the environment to use with ratelease.

use ratelease_cli::migration::{Effect, VariableReview, may_show};
use ratelease_cli::out::{CliError, Out};
use ratelease_cli::safe::Safe;

use super::Review;

/// Prints `KEY=value` lines, in the form of docker's `--env-file`. What is left out is a comment
/// with the reason; a value that is a secret, or is not known, is a comment too.
pub(super) fn print(review: &Review, out: &mut Out) -> Result<(), CliError> {
    let Review { deployment, environment, .. } = review;
    out.line(format_args!(
        "# For ratelease under the name ratelimit, from {}.",
        Safe(&deployment.origin)
    ))?;
    for variable in &environment.variables {
        let value = deployment.environment.get(&variable.name).and_then(Option::as_deref);
        if let Some(line) = line(variable, value) {
            out.line(Safe(line))?;
        }
    }
    for (name, text) in &environment.warnings {
        out.line(format_args!("# {name}: {}", Safe(text)))?;
    }
    Ok(())
}

/// The line of a variable; `None` for one that has nothing to do with either program.
fn line(variable: &VariableReview, value: Option<&str>) -> Option<String> {
    let VariableReview { name, effect, note, action } = variable;
    let left_out = |why: &str| Some(format!("# {name}: left out, {why}: {note}; {action}"));
    match effect {
        Effect::Same | Effect::Differs | Effect::Added => Some(match value {
            Some(value) if may_show(name, value) && !value.contains('\n') => {
                format!("{name}={value}")
            }
            _ => format!("# {name}: keep it as it is; its value is not shown here"),
        }),
        Effect::Ignored if action.is_empty() => Some(format!("# {name}: left out, {note}")),
        Effect::Ignored => left_out("ignored"),
        Effect::Refused => left_out("refused"),
        Effect::Default if !action.is_empty() => Some(format!("# {name}: {note}; {action}")),
        Effect::Default => None,
        Effect::Unknown => None,
    }
}
