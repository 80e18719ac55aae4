//! `ratectl explain`: shows how the rules match a request, level by level, and where it is counted.

mod count;
mod report;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ratelease_cli::out::{CliResult, Completion, Out, OutFlags};
use ratelease_cli::settings::{KeyFlags, PerSecondFlags, Role, RulesDirFlags, StoreFlags};
use ratelease_cli::source;
use ratelease_engine::limiter::{Resolved, resolve};
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::Request;
use ratelease_rules::{Lookup, Rule, RuleLocations, Rules, SourceLocation, Trace};

use super::descriptor::{self, DescriptorArg};
use count::{Count, StoredCount};

pub(super) const NOTES: &str = "\
The descriptors are those of one request, so the rule of one may replace the rule of another.
If a Redis is configured, its current counts are read and shown; nothing is spent. Set KEY_SECRET,
CACHE_KEY_PREFIX and the rules as the pods have them, or their counts are not found; a pod that
takes its rules over xDS has those of its control plane (of ratelease-control: GET /v1/export).

Exit status: 0 a rule applies, 1 none does, 2 the rules are faulty or could not be read.

Examples:
  ratectl explain --domain shop user_id=alice
  ratectl explain --domain shop path=/checkout campaign=summer --json
  ratectl explain --domain shop user_id=7 --redis-type cluster --redis-url redis-0:6379";

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct ExplainFlags {
    /// Domain of the request
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    domain: String,
    /// Descriptors of the request: key=value,key=value
    #[arg(
        value_name = "DESCRIPTOR",
        required = true,
        value_parser = DescriptorArg::parse,
        long_help = descriptor::NOTES
    )]
    descriptors: Vec<DescriptorArg>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    rules: RulesDirFlags,
    #[command(flatten)]
    store: StoreFlags,
    #[command(flatten)]
    per_second: PerSecondFlags,
    #[command(flatten)]
    key: KeyFlags,
}

/// How the rules match one descriptor.
struct Explained<'r> {
    typed: &'r DescriptorArg,
    /// `None` if the domain has no rules.
    trace: Option<Trace<'r>>,
    conclusion: Conclusion<'r>,
    /// Place of the rule, if one was found.
    location: Option<SourceLocation<'r>>,
}

/// The result for a descriptor.
enum Conclusion<'r> {
    UnknownDomain,
    NoRule,
    /// Its rule was replaced by the rule of another descriptor.
    Replaced {
        rule: &'r Rule,
        by: &'r Rule,
    },
    Unlimited(&'r Rule),
    Counted {
        rule: &'r Rule,
        count: Box<Count>,
    },
}

// === impl Conclusion ===

impl<'r> Conclusion<'r> {
    fn rule(&self) -> Option<&'r Rule> {
        match self {
            Self::UnknownDomain | Self::NoRule => None,
            Self::Replaced { rule, .. } | Self::Unlimited(rule) | Self::Counted { rule, .. } => {
                Some(rule)
            }
        }
    }
}

/// Loads the rules, matches each descriptor, and reads counts and pools if a Redis is given.
pub(super) fn run(flags: &ExplainFlags, role: Role, out: &mut Out) -> CliResult {
    let dir = source::resolved(|faults| flags.rules.resolve(role, faults))?;
    let store = source::resolved(|faults| flags.store.resolve(&flags.per_second, faults))?;
    let dirs = std::slice::from_ref(&dir.dir);
    let (rules, places) = source::load_with_locations(dirs, dir.reading())?;
    let request = Request {
        domain: &flags.domain,
        descriptors: flags.descriptors.iter().map(DescriptorArg::descriptor).collect(),
        hits_addend: 1,
    };
    let secret = source::resolved(|faults| flags.key.key_secret(faults))?;
    let hasher = KeyHasher::new(secret.reveal());
    let mut explained = explain((&rules, &places), &request, &flags.descriptors, &hasher);
    let counts = explained.iter_mut().filter_map(|one| match &mut one.conclusion {
        Conclusion::Counted { count, .. } => Some(&mut **count),
        _ => None,
    });
    let mut entries: Vec<&mut StoredCount> = counts.flat_map(Count::stored).collect();
    count::read_store(store, flags.store.key_prefix(), &mut entries)?;
    let shown = (rules.stores(), !secret.is_empty());
    if flags.out.json {
        out.json(&report::json(&request, &explained, shown))?;
    } else {
        report::text(&request, &explained, shown, out)?;
    }
    let applies = |one: &Explained<'_>| {
        !matches!(one.conclusion, Conclusion::UnknownDomain | Conclusion::NoRule)
    };
    Ok(Completion::clean_if(explained.iter().any(applies)))
}

/// Resolves the request as the limiter does, and lists the candidates of each level.
fn explain<'r>(
    (rules, places): (&'r Rules, &'r RuleLocations),
    request: &Request<'_>,
    typed: &'r [DescriptorArg],
    hasher: &KeyHasher,
) -> Vec<Explained<'r>> {
    let resolved = resolve(rules, request, hasher);
    let each = request.descriptors.iter().zip(&resolved).zip(typed);
    each.map(|((descriptor, resolved), typed)| {
        let found = rules.find(request.domain, &descriptor.entries);
        let conclusion = match (found, resolved) {
            (Lookup::UnknownDomain, _) => Conclusion::UnknownDomain,
            (Lookup::NoRule, _) => Conclusion::NoRule,
            (Lookup::Rule(rule), Resolved::Charged(charge)) => {
                Conclusion::Counted { rule, count: Box::new(Count::of(charge)) }
            }
            (Lookup::Rule(rule), Resolved::Unlimited) => Conclusion::Unlimited(rule),
            // A rule that was found but does not limit the request has been replaced.
            (Lookup::Rule(rule), Resolved::Free) => {
                let by = replacer(rules, request, rule).unwrap_or(rule);
                Conclusion::Replaced { rule, by }
            }
        };
        let trace = rules.trace(request.domain, &descriptor.entries);
        let location = conclusion.rule().and_then(|rule| places.of(&rule.path));
        Explained { typed, trace, conclusion, location }
    })
    .collect()
}

/// Returns the first rule of the request that has `rule` in its `replaces`.
fn replacer<'r>(rules: &'r Rules, request: &Request<'_>, rule: &Rule) -> Option<&'r Rule> {
    request.descriptors.iter().find_map(|other| match rules.find(request.domain, &other.entries) {
        Lookup::Rule(other) if other.replaces.contains(&rule.name) => Some(&**other),
        _ => None,
    })
}
