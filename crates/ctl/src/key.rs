//! `ratectl key`: shows the count of one key, resets it, or blocks it, on all pods.
//!
//! It talks to the Redis of the counts, as `explain` does, and so needs no pod's address: pods follow
//! the stream of orders there.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use parking_lot::Mutex;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::Role;
use ratelease_cli::source;
use ratelease_engine::limiter::{Charge, Resolved, resolve};
use ratelease_engine::order::{self, BLOCK_MAX, Blocked, Order, Ordered};
use ratelease_engine::store::{self, Ask, Grant, Store as Counts, StoreError, StoreSettings};
use ratelease_rules::parse_duration;
use ratelease_rules::request::Request;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::descriptor::{CountFlags, RequestFlags};
use crate::explain::{pools, seconds, shown, standing, unused};

pub const NOTES: &str = "\
show     what is left, and whether the key is blocked
reset    deletes the count: the key may spend its whole limit once more
block    every charge of the key is denied for the time of --for, also where the rule would allow it;
         a rule in shadow mode still lets it pass
unblock  ends a block

Pods follow within 250 ms; one that is not connected to Redis follows when it is. Needs the REDIS_URL,
KEY_SECRET, CACHE_KEY_PREFIX and rules of the pods: with others another key is shown and changed, of
which a line says that nothing is counted under it.
All but show need a Redis user with the rights of orders (docs/operate.md), which pods lack. Each pod
logs the key's hash. What was spent before a reset and after it may be twice the
limit of a window. Nothing is recorded in a control plane.

Exit status: 0 done, 1 no rule limits a descriptor, 2 it could not be done.

Examples:
  ratectl key show --domain shop user_id=alice --redis-url redis:6379
  ratectl key reset --domain shop user_id=alice --redis-url redis:6379
  ratectl key block --for 1h --domain shop user_id=mallory --redis-url redis:6379";

/// Flags of `key`.
#[derive(Debug, Args)]
pub struct KeyFlags {
    /// What to do
    #[arg(value_name = "ACTION", value_enum)]
    action: Action,
    #[command(flatten)]
    request: RequestFlags,
    /// How long to block, such as 30m; only with block
    #[arg(
        long = "for",
        value_name = "DURATION",
        value_parser = block_time,
        required_if_eq("action", "block")
    )]
    lasts: Option<Duration>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    count: CountFlags,
}

/// What to do with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    Show,
    Reset,
    Block,
    Unblock,
}

/// The state of one key after the action.
struct Outcome {
    ask: Ask,
    now: Result<Grant, StoreError>,
    /// How much longer it is blocked; `None` if it is not, or if that could not be read.
    blocked: Option<Duration>,
    /// What it may mean that nothing is counted.
    note: Option<&'static str>,
}

/// Longest time to wait for the blocks of the stores.
const BLOCKS_WITHIN: Duration = Duration::from_secs(2);

/// Acts on each descriptor's key, and shows its state.
pub fn run(flags: &KeyFlags, role: Role, out: &mut Out) -> CliResult {
    if flags.lasts.is_some() && flags.action != Action::Block {
        return Err(CliError::new("--for: only block takes a time; leave it out"));
    }
    let (dir, store, leases) = flags.count.read(role)?;
    if store == StoreSettings::Memory {
        let text =
            "counts in the memory of a pod cannot be reached; set REDIS_URL to that of the pods";
        return Err(CliError::new(text));
    }
    let (rules, _) = source::load_with_locations(std::slice::from_ref(&dir.dir), &dir.reading)?;
    let request = flags.request.request();
    let resolved = resolve(&rules, &request, &leases.hasher());
    let charges: Vec<Option<&Charge<'_>>> = resolved.iter().map(charged).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::new(format_args!("cannot ask Redis: {error}")))?;
    let mut outcomes = runtime.block_on(act(flags, store, &charges))?;
    // After a reset nothing is counted in any case.
    for it in outcomes.iter_mut().flatten().filter(|_| flags.action != Action::Reset) {
        let unused = |grant| unused(it.ask.limit, grant, !leases.key_secret.is_empty());
        it.note = it.now.as_ref().ok().and_then(unused);
    }
    report(flags, &request, &outcomes, out)?;
    for Outcome { ask, now, .. } in outcomes.iter().flatten() {
        if let (Action::Show, Err(error)) = (flags.action, now) {
            return Err(CliError::new(format_args!("key {}: {error}", ask.key)));
        }
    }
    Ok(Completion::clean_if(outcomes.iter().all(Option::is_some)))
}

fn charged<'a, 'r>(resolved: &'a Resolved<'r>) -> Option<&'a Charge<'r>> {
    match resolved {
        Resolved::Charged(charge) => Some(charge),
        Resolved::Free | Resolved::Unlimited => None,
    }
}

fn block_time(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= BLOCK_MAX);
    span.ok_or_else(|| {
        "expected a duration of at most 366 days with its unit, as in 30m".to_owned()
    })
}

/// Acts on the keys of `charges`, in order; `None` for a descriptor that nothing limits.
async fn act(
    flags: &KeyFlags,
    settings: StoreSettings,
    charges: &[Option<&Charge<'_>>],
) -> Result<Vec<Option<Outcome>>, CliError> {
    let stores = settings.all_redis().count();
    let store = store::open(settings);
    let mut outcomes = Vec::new();
    for charge in charges {
        let Some(charge) = charge else {
            outcomes.push(None);
            continue;
        };
        let ask = charge.look();
        let done = act_on(flags, &*store, charge, &ask).await;
        done.map_err(|error| CliError::new(format_args!("key {}: {error}", charge.own)))?;
        outcomes.push(Some(Outcome {
            ask,
            now: store.lend(&ask).await,
            blocked: None,
            note: None,
        }));
    }
    let blocked = blocked(&*store, stores).await;
    for outcome in outcomes.iter_mut().flatten() {
        outcome.blocked = outcome.ask.keys().find_map(|key| blocked.get(&key.to_string()).copied());
    }
    Ok(outcomes)
}

async fn act_on(
    flags: &KeyFlags,
    store: &dyn Counts,
    charge: &Charge<'_>,
    ask: &Ask,
) -> Result<(), StoreError> {
    let order = |action| Order::new(action, "");
    match flags.action {
        Action::Show => Ok(()),
        Action::Reset => {
            store.clear(ask).await?;
            for pool in 0..charge.applied.rule.map_or(0, |rule| pools(rule)) {
                store.clear(&Ask { pool: Some(pool), ..*ask }).await?;
            }
            store.order(ask, order(order::Action::Reset)).await
        }
        Action::Block => {
            let lasts = flags.lasts.unwrap_or_default();
            store.order(ask, order(order::Action::Block(lasts))).await
        }
        Action::Unblock => store.order(ask, order(order::Action::Lift)).await,
    }
}

/// The keys that are blocked, as far as the stores say so in time.
async fn blocked(store: &dyn Counts, stores: usize) -> BTreeMap<String, Duration> {
    let heard: Mutex<BTreeMap<usize, Vec<Blocked>>> = Mutex::default();
    let follow = |store: usize, ordered| {
        if let Ordered::Blocked(keys) = ordered {
            heard.lock().insert(store, keys);
        }
    };
    let all_heard = async {
        while heard.lock().len() < stores {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // Following never ends; without a reply of each store, what is known is shown.
    let _ = timeout(BLOCKS_WITHIN, async {
        tokio::select! {
            () = store.follow_orders(&follow) => {}
            () = all_heard => {}
        }
    })
    .await;
    heard
        .into_inner()
        .into_values()
        .flatten()
        .map(|Blocked { key, lasts, .. }| (key.to_string(), lasts))
        .collect()
}

/// Shows each key's state, as text or as JSON.
fn report(
    flags: &KeyFlags,
    request: &Request<'_>,
    outcomes: &[Option<Outcome>],
    out: &mut Out,
) -> Result<(), CliError> {
    if flags.out.json {
        let each = request.descriptors.iter().zip(outcomes).map(|(descriptor, outcome)| {
            json!({ "descriptor": shown(&descriptor.entries), "key": outcome.as_ref().map(object) })
        });
        return out.json(&json!({ "domain": request.domain, "keys": each.collect::<Vec<_>>() }));
    }
    for (descriptor, outcome) in request.descriptors.iter().zip(outcomes) {
        let heading = format!("{}: {}", request.domain, shown(&descriptor.entries));
        out.line(format_args!("{}", out.painter().paint(Style::Strong, Safe(heading))))?;
        let Some(Outcome { ask, now, blocked, note }) = outcome else {
            out.line("  no rule limits it")?;
            continue;
        };
        let did = match flags.action {
            Action::Show => "",
            Action::Reset => ", reset",
            Action::Block => ", blocked",
            Action::Unblock => ", no longer blocked",
        };
        out.line(format_args!("  key      {}{did}", ask.key))?;
        let left = match now {
            Ok(grant) => standing(ask.limit, grant),
            Err(error) => format!("unknown: {error}"),
        };
        out.line(format_args!("  now      {}", Safe(left)))?;
        if let Some(note) = note {
            out.line(format_args!("           {note}"))?;
        }
        if let Some(lasts) = blocked {
            out.line(format_args!("  blocked  for {}", seconds(*lasts)))?;
        }
    }
    Ok(())
}

fn object(outcome: &Outcome) -> Value {
    let Outcome { ask, now, blocked, note } = outcome;
    let left = now.as_ref().ok();
    json!({
        "hash": ask.key.to_string(),
        "left": left.map(|grant| grant.left),
        "of": ask.limit.capacity(),
        "overdrawn": left.map(|grant| grant.overdrawn),
        "note": note,
        "error": now.as_ref().err().map(ToString::to_string),
        "blocked_seconds": blocked.map(|lasts| lasts.as_secs_f64()),
    })
}
