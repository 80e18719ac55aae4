//! What becomes of the environment of a deployment of the reference: which variables keep their
//! meaning, and which do not. It follows from what `serve` does with the same environment, and from
//! its tables.

#[cfg(test)]
mod tests;

use std::any::TypeId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use ratelease_engine::secret::Secret;
use ratelease_rules::nearest;

use crate::commands::{Cli, Task};
use crate::grammar::{self, documented};
use crate::settings::DATADOG_TAGS;
use crate::settings::reference::{EXCEPTIONS, Support, asks_for_nothing};
use crate::settings::{Fault, Settings, SettingsError, is_of_reference};

/// The name under which the image starts the program, which selects the reference's defaults.
const PROGRAM: &str = "ratelimit";

/// Number of times that faulty variables are left out to find the settings without them: leaving
/// out one may make another faulty.
const ROUNDS_MAX: usize = 8;

/// What stands for a secret whose value is not known.
const UNKNOWN_SECRET: &str = "unknown";
const UNKNOWN_HEADER: &str = "name:unknown";

/// The environment of a deployment: each variable with its value, or `None` if the value is
/// somewhere else, such as in a `Secret` of Kubernetes.
pub type Environment = BTreeMap<String, Option<String>>;

/// What becomes of one variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableReview {
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub effect: Effect,
    /// Why, or what is different; empty for [`Effect::Same`].
    pub note: String,
    /// What to do about it; empty if nothing has to be done.
    pub action: String,
}

/// What becomes of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It means what it means in the reference.
    Same,
    /// It is followed, and something about it is different.
    Differs,
    /// It is not followed.
    Ignored,
    /// ratelease does not start with it.
    Refused,
    /// Only ratelease knows it; the reference ignores it.
    Added,
    /// It is a setting neither of ratelease nor of the reference.
    Unknown,
    /// It is not set, and its default is not the reference's.
    Default,
}

/// What becomes of an environment.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvironmentReview {
    /// Each variable of the environment, then those whose defaults differ.
    pub variables: Vec<VariableReview>,
    /// What `serve` warns of, beyond the variables that it ignores: the name of a variable, and the
    /// text.
    pub warnings: Vec<(String, String)>,
    /// The settings of the environment without its faulty variables; `None` if there are none
    /// either.
    pub settings: Option<Box<Settings>>,
}

/// The settings that `serve` reads from an environment, and what it asked for.
struct Read {
    /// The faults of the whole environment.
    faults: Vec<Fault>,
    settings: Option<Box<Settings>>,
    /// Names of all variables that `serve` reads.
    asked: BTreeSet<String>,
}

/// Where an environment comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A process on this machine: its files are here, and most of its variables belong to others.
    Process,
    /// A description of a deployment, whose files are elsewhere.
    Description,
}

/// A default that is not the reference's, although the setting has the same name.
#[derive(Debug, Clone, Copy)]
struct OtherDefault {
    name: &'static str,
    /// The reference's default.
    theirs: &'static str,
    /// What holds here where the variable is not set.
    here: &'static str,
    /// What to do about it; empty if nothing has to be done.
    action: &'static str,
    /// A variable with the value that makes this one matter; `None` if it always matters.
    only_with: Option<(&'static str, &'static str)>,
    /// Variables of which none may be on for this one to matter.
    unless: &'static [&'static str],
}

const OVER_XDS: Option<(&str, &str)> = Some(("CONFIG_TYPE", "GRPC_XDS_SOTW"));

/// Every default that differs under the name `ratelimit`.
const OTHER_DEFAULTS: [OtherDefault; 7] = [
    OtherDefault {
        name: "DEBUG_HOST",
        theirs: "0.0.0.0",
        here: "the debug port is on loopback",
        action: "if something outside the pod reads that port, set DEBUG_TOKEN, or \
                 DEBUG_HOST=0.0.0.0",
        only_with: None,
        unless: &["DEBUG_TOKEN", "DEBUG_TOKEN_FILE"],
    },
    OtherDefault {
        name: "USE_STATSD",
        theirs: "true",
        here: "nothing is sent to statsd; the debug port serves /metrics for Prometheus",
        action: "set USE_STATSD=true if statsd reads the metrics, else false",
        only_with: None,
        unless: &["USE_PROMETHEUS", "USE_DOG_STATSD", "DISABLE_STATS"],
    },
    OtherDefault {
        name: "REDIS_URL",
        theirs: "/var/run/nutcracker/ratelimit.sock",
        here: "counts are kept in the memory of each process",
        action: "set REDIS_URL, so that pods share their limits",
        only_with: None,
        unless: &["REDIS_URL_FILE"],
    },
    OtherDefault {
        name: "REDIS_SOCKET_TYPE",
        theirs: "unix",
        here: "follows the form of REDIS_URL",
        action: "",
        only_with: None,
        unless: &[],
    },
    OtherDefault {
        name: "REDIS_TIMEOUT",
        theirs: "10s",
        here: "250ms",
        action: "",
        only_with: None,
        unless: &[],
    },
    OtherDefault {
        name: "REDIS_PERSECOND_TIMEOUT",
        theirs: "10s",
        here: "250ms",
        action: "",
        only_with: Some(("REDIS_PERSECOND", "true")),
        unless: &[],
    },
    OtherDefault {
        name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        theirs: "4194304",
        here: "16MiB",
        action: "",
        only_with: OVER_XDS,
        unless: &[],
    },
];

/// Whether the flag of each variable of `serve` is a secret, which its type says.
static FLAGS: LazyLock<BTreeMap<String, bool>> = LazyLock::new(|| {
    let serve = documented::<Cli>();
    let args = serve.find_subcommand("serve").into_iter().flat_map(clap::Command::get_arguments);
    let is_secret = |arg: &clap::Arg| arg.get_value_parser().type_id() == TypeId::of::<Secret>();
    args.map(|arg| (arg.get_id().to_string(), is_secret(arg))).collect()
});

/// Reviews an environment.
pub fn review(environment: &Environment, origin: Origin) -> EnvironmentReview {
    let read = Read::of(environment, origin);
    let of_variable = |name: &String| {
        let value = environment.get(name).and_then(Option::as_deref);
        read.variable(name, value)
    };
    let is_reported = |review: &VariableReview| {
        origin == Origin::Description
            || review.effect != Effect::Unknown
            || !review.action.is_empty()
    };
    let given = environment.keys().filter(|name| !is_empty(environment, name));
    let mut variables: Vec<_> = given.map(of_variable).filter(is_reported).collect();
    let missing = read.faults.iter().filter(|fault| is_empty(environment, &fault.name));
    variables.extend(missing.map(refused));
    let defaults = OTHER_DEFAULTS.iter().filter(|default| matters(default, environment));
    variables.extend(defaults.map(|default| VariableReview {
        name: default.name.to_owned(),
        effect: Effect::Default,
        note: format!("{}; the reference's default is {}", default.here, default.theirs),
        action: default.action.to_owned(),
    }));
    let warnings = read.settings.iter().flat_map(|settings| &settings.warnings);
    let warnings = warnings.filter_map(|warning| {
        let (name, text) = warning.split_once(": ")?;
        (!text.starts_with("ignored; ")).then(|| (name.to_owned(), text.to_owned()))
    });
    let warnings = warnings.collect();
    EnvironmentReview { variables, warnings, settings: read.settings }
}

/// Returns whether the value of a variable may be shown: it is a setting, and not a secret.
pub fn may_show(name: &str, value: &str) -> bool {
    match FLAGS.get(name) {
        Some(true) => grammar::may_show(name, value),
        Some(false) => true,
        None => EXCEPTIONS.iter().any(|(known, _)| *known == name),
    }
}

fn refused(fault: &Fault) -> VariableReview {
    VariableReview {
        name: fault.name.clone(),
        effect: Effect::Refused,
        note: fault.problem.clone(),
        action: fault.fix.clone(),
    }
}

/// Whether a variable is absent, or set to nothing, which counts as absent.
fn is_empty(environment: &Environment, name: &str) -> bool {
    environment.get(name).is_none_or(|value| value.as_deref() == Some(""))
}

fn is_on(environment: &Environment, name: &str) -> bool {
    let is_off = environment.get(name).and_then(Option::as_deref).is_some_and(asks_for_nothing);
    !is_empty(environment, name) && !is_off
}

/// Whether a default applies to this environment.
fn matters(default: &OtherDefault, environment: &Environment) -> bool {
    let is_with = default.only_with.is_none_or(|(name, expected)| {
        let value = environment.get(name).and_then(Option::as_deref);
        value.is_some_and(|value| value.eq_ignore_ascii_case(expected))
    });
    is_empty(environment, default.name)
        && is_with
        && !default.unless.iter().any(|name| is_on(environment, name))
}

/// Stands for the value of a secret that is not known, so that settings that depend on it can be
/// judged. `None` for other variables.
fn stand_in(name: &str, environment: &Environment) -> Option<String> {
    let of = |name: &str| environment.get(name).and_then(Option::as_deref).unwrap_or_default();
    FLAGS.get(name).filter(|is_secret| **is_secret)?;
    let Some(prefix) = name.strip_suffix("URL") else {
        let is_headers = name.ends_with("_HEADERS");
        return Some(if is_headers { UNKNOWN_HEADER } else { UNKNOWN_SECRET }.to_owned());
    };
    Some(match (&*of(&format!("{prefix}TYPE")).to_ascii_lowercase(), prefix) {
        ("sentinel", _) => "unknown,unknown:26379".to_owned(),
        _ if of(&format!("{prefix}SOCKET_TYPE")).eq_ignore_ascii_case("unix") => "/unknown".into(),
        _ => "unknown:6379".to_owned(),
    })
}

// === impl Read ===

impl Read {
    fn of(environment: &Environment, origin: Origin) -> Self {
        let mut env = known(environment);
        let asked = RefCell::new(BTreeSet::new());
        let mut faults = None;
        for _ in 0..ROUNDS_MAX {
            let lookup = |name: &str| {
                asked.borrow_mut().insert(name.to_owned());
                env.get(name).cloned()
            };
            match Task::parse(PROGRAM, std::iter::empty(), &lookup) {
                Ok(Task::Serve(settings)) => {
                    return Self {
                        faults: faults.unwrap_or_default(),
                        settings: Some(settings),
                        asked: asked.into_inner(),
                    };
                }
                Err(SettingsError::Faults(found)) => {
                    found.iter().for_each(|fault| leave_out(&fault.name, environment, &mut env));
                    faults.get_or_insert_with(|| {
                        let counts = |it: &&Fault| origin == Origin::Process || !it.is_in_file;
                        found.iter().filter(counts).cloned().collect()
                    });
                }
                Ok(_) | Err(_) => break,
            }
        }
        Self { faults: faults.unwrap_or_default(), settings: None, asked: asked.into_inner() }
    }

    /// Reviews a variable that is set, to `value` if that is known.
    fn variable(&self, name: &str, value: Option<&str>) -> VariableReview {
        let review = |effect, note: &str, action: &str| VariableReview {
            name: name.to_owned(),
            effect,
            note: note.to_owned(),
            action: action.to_owned(),
        };
        if let Some(fault) = self.faults.iter().find(|fault| fault.name == name) {
            return refused(fault);
        }
        let exception = EXCEPTIONS.into_iter().find(|(known, _)| *known == name);
        match exception.map(|(_, support)| support) {
            Some(Support::Only(..)) => review(Effect::Same, "", ""),
            Some(Support::Differs(what, action)) => review(Effect::Differs, what, action),
            Some(Support::Unsupported(_) | Support::Unneeded(_))
                if value.is_some_and(asks_for_nothing) =>
            {
                review(Effect::Same, "", "")
            }
            Some(Support::Unsupported(reason)) => review(Effect::Ignored, reason, "unset it"),
            Some(Support::Unneeded(reason)) => review(Effect::Ignored, reason, ""),
            None if is_of_library(name) || is_of_reference(name) => review(Effect::Same, "", ""),
            None if self.asked.contains(name) => {
                review(Effect::Added, "a setting of ratelease; the reference ignores it", "")
            }
            None => self.unknown(name),
        }
    }

    /// Reviews a variable that neither program reads.
    fn unknown(&self, name: &str) -> VariableReview {
        let lower: Vec<_> = self.asked.iter().map(|name| name.to_ascii_lowercase()).collect();
        let lower: Vec<_> = lower.iter().map(String::as_str).collect();
        let near = nearest(name, &lower).map(str::to_ascii_uppercase);
        // A short name, such as HOME, is near to some other by chance.
        let near = near.filter(|_| name.contains('_'));
        VariableReview {
            name: name.to_owned(),
            effect: Effect::Unknown,
            note: "neither ratelease nor the reference (at f2fb157, July 2026) has this setting"
                .to_owned(),
            action: near.map(|near| format!("did you mean {near}?")).unwrap_or_default(),
        }
    }
}

/// Whether a variable is not a setting of the reference's own, but read by its libraries or by name.
fn is_of_library(name: &str) -> bool {
    ["OTEL_", "DOG_STATSD_MOGRIFIER_"].iter().any(|prefix| name.starts_with(prefix))
        || DATADOG_TAGS.iter().any(|(variable, _)| *variable == name)
}

/// Leaves out a faulty variable, or puts a stand-in into its place, as for an address of Redis,
/// without which the store would be another. Of TLS, leaves out all that belong to it, since one
/// without the others is faulty too.
fn leave_out(name: &str, environment: &Environment, env: &mut BTreeMap<String, String>) {
    let left_out = env.remove(name);
    let stand_in = stand_in(name, environment).filter(|_| left_out.is_some());
    if let Some(stand_in) = stand_in.filter(|stand_in| left_out.as_ref() != Some(stand_in)) {
        env.insert(name.to_owned(), stand_in);
    }
    if let Some((family, _)) = name.split_once('_').filter(|_| name.contains("TLS")) {
        env.retain(|other, _| !(other.starts_with(family) && other.contains("TLS")));
    }
}

/// The variables whose values are known, with stand-ins for secrets that are not.
fn known(environment: &Environment) -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    for (name, value) in environment {
        // A file of a secret is on the machine of the deployment, perhaps not on this one.
        let secret =
            name.strip_suffix("_FILE").filter(|name| stand_in(name, environment).is_some());
        let value = match (value, secret) {
            (_, Some(secret)) => stand_in(secret, environment).map(|value| (secret, value)),
            (Some(value), None) => Some((&**name, value.clone())),
            (None, None) => stand_in(name, environment).map(|value| (&**name, value)),
        };
        known.extend(value.map(|(name, value)| (name.to_owned(), value)));
    }
    known
}
