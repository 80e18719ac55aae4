//! `ratectl key`: shows the count of one key, resets it, or blocks it, on all pods; and lists the
//! keys that are blocked.
//!
//! The tool talks to the Redis of the counts, as `explain` does, and so needs no pod's address:
//! pods follow the stream of orders there, and note the last order that they have followed.

mod fleet;
mod report;

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags};
use ratelease_cli::settings::Role;
use ratelease_cli::source;
use ratelease_engine::algorithm::concurrency::Holder;
use ratelease_engine::limiter::{Charge, Resolved, resolve};
use ratelease_engine::order::{self, BLOCK_MAX, BY_BYTES_MAX, Blocked, Note, Order};
use ratelease_engine::store::{self, Ask, Grant, Store as Counts, StoreError, StoreSettings};
use ratelease_rules::parse_duration;
use ratelease_rules::request::Request;
use tokio::time::sleep;

use self::fleet::{Confirmed, Fleet, Own};
use crate::descriptor::{self, CountFlags, DescriptorArg};
use crate::explain::pools;

pub const NOTES: &str = "\
show     what is left, whether the key is blocked and by whom, and which pods have slots of it
reset    deletes the count: the key may spend its whole limit once more
block    every charge of the key is denied for the time of --for, also where the rule would allow it;
         a rule in shadow mode still lets it pass
unblock  ends a block
list     the keys that are blocked, by their hashes; needs neither --domain nor a descriptor

Pods follow within 250 ms, and the number of those that have is shown: after a second at most. One
that is not connected to Redis follows when it is. What passes before a reset and after it may be twice
the limit of a window. --by, the user and the host by default, is shown with a block and in the log of
each pod, which has the key's hash. Nothing is recorded in a control plane.

The key is made from KEY_SECRET (and KEY_SECRET_PREVIOUS, while it is replaced), CACHE_KEY_PREFIX and
the rules, so these have to be those of the pods. If the pods have others, nothing is done (status 2).
The rules of pods that take them from a control plane are those of its GET /v1/export?domain=D.

Exit status: 0 done, 1 no rule limits a descriptor, or a pod has not confirmed in time, 2 it could not
be done.

Examples:
  export KEY_SECRET_FILE=/run/secrets/key REDIS_URL=redis:6379
  ratectl key show --rules config/rules --domain shop user_id=alice
  ratectl key reset --rules config/rules --domain shop user_id=alice
  ratectl key block --for 1h --by 'ops: ticket 7' --rules config/rules --domain shop user_id=mallory
  ratectl key list";

/// Flags of `key`.
#[derive(Debug, Args)]
pub struct KeyFlags {
    /// What to do
    #[arg(value_name = "ACTION", value_enum)]
    action: Action,
    /// Domain of the request
    #[arg(
        long,
        value_name = "NAME",
        value_parser = NonEmptyStringValueParser::new(),
        required_if_eq_any(ON_A_KEY)
    )]
    domain: Option<String>,
    /// Descriptors of the request: key=value,key=value
    #[arg(
        value_name = "DESCRIPTOR",
        required_if_eq_any(ON_A_KEY),
        value_parser = DescriptorArg::parse,
        long_help = descriptor::NOTES
    )]
    descriptors: Vec<DescriptorArg>,
    /// How long to block, such as 30m; only with block
    #[arg(
        long = "for",
        value_name = "DURATION",
        value_parser = block_time,
        required_if_eq("action", "block")
    )]
    lasts: Option<Duration>,
    /// Who gives the order, and why [default: user@host]
    #[arg(long, value_name = "TEXT", value_parser = by_text)]
    by: Option<String>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    count: CountFlags,
}

/// The actions that need a request.
const ON_A_KEY: [(&str, &str); 4] =
    [("action", "show"), ("action", "reset"), ("action", "block"), ("action", "unblock")];

/// The action on a key, or on all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    Show,
    Reset,
    Block,
    Unblock,
    List,
}

/// The state of one key after the action.
struct Outcome {
    ask: Ask,
    now: Result<Grant, StoreError>,
    /// The block of the key; `None` if the key is not blocked, or if that could not be read.
    blocked: Option<Blocked>,
    /// The pods that have slots of it, if it counts slots.
    holders: Option<Vec<Holder>>,
    /// The pods that share the count; `None` if that could not be read.
    fleet: Option<Fleet>,
    /// How many of them have followed the order, if one was given.
    confirmed: Option<Confirmed>,
}

/// How long pods may take to state their slots again after a reset: they ask once a second.
const STATED_WITHIN: Duration = Duration::from_millis(1_300);

/// Acts on each descriptor's key, and shows its state.
pub fn run(flags: &KeyFlags, role: Role, out: &mut Out) -> CliResult {
    if flags.lasts.is_some() && flags.action != Action::Block {
        return Err(CliError::new("--for: only block takes a time; leave it out"));
    }
    let (dir, settings, leases) = flags.count.read(role)?;
    if settings == StoreSettings::Memory {
        let text =
            "counts in the memory of a pod cannot be reached; set REDIS_URL to that of the pods";
        return Err(CliError::new(text));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CliError::new(format_args!("cannot ask Redis: {error}")))?;
    if flags.action == Action::List {
        let orders = runtime.block_on(async { store::open(settings).read_orders(None).await });
        let orders = orders.map_err(|error| CliError::new(format_args!("orders: {error}")))?;
        report::list(&orders, flags.out.json, out)?;
        return Ok(Completion::Clean);
    }
    let (rules, _) = source::load_with_locations(std::slice::from_ref(&dir.dir), &dir.reading)?;
    let request = flags.request();
    let hasher = leases.hasher();
    let resolved = resolve(&rules, &request, &hasher);
    let charges: Vec<Option<&Charge<'_>>> = resolved.iter().map(charged).collect();
    let own = Own {
        domain: request.domain,
        rules: rules.fingerprint(request.domain).unwrap_or_default(),
        hasher: &hasher,
        dir: &dir.dir.display().to_string(),
        has_secret: !leases.key_secret.is_empty(),
    };
    let outcomes = runtime.block_on(async {
        let store = store::open(settings);
        let mut outcomes = Vec::new();
        for charge in &charges {
            outcomes.push(match charge {
                Some(charge) => Some(act(flags, &*store, charge, &own).await?),
                None => None,
            });
        }
        Ok::<_, CliError>(outcomes)
    })?;
    report::keys(flags, &request, &outcomes, out)?;
    for Outcome { ask, now, .. } in outcomes.iter().flatten() {
        if let (Action::Show, Err(error)) = (flags.action, now) {
            return Err(CliError::new(format_args!("key {}: {error}", ask.key)));
        }
    }
    let is_done = |outcome: &Outcome| outcome.confirmed.is_none_or(|it| it.by == it.of);
    Ok(Completion::clean_if(outcomes.iter().all(|it| it.as_ref().is_some_and(is_done))))
}

// === impl KeyFlags ===

impl KeyFlags {
    /// Returns a request of one hit.
    fn request(&self) -> Request<'_> {
        Request {
            domain: self.domain.as_deref().unwrap_or_default(),
            descriptors: self.descriptors.iter().map(DescriptorArg::descriptor).collect(),
            hits_addend: 1,
        }
    }

    /// Returns the order of the action; `None` if it gives none.
    fn order(&self) -> Option<Order> {
        let action = match self.action {
            Action::Show | Action::List => return None,
            Action::Reset => order::Action::Reset,
            Action::Block => order::Action::Block(self.lasts.unwrap_or_default()),
            Action::Unblock => order::Action::Lift,
        };
        let by = self.by.clone().unwrap_or_else(user_at_host);
        Some(Order::new(action, &by))
    }
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

fn by_text(text: &str) -> Result<String, String> {
    let is_whole = *Note::new(text, Duration::ZERO).by == *text && !text.is_empty();
    is_whole.then(|| text.to_owned()).ok_or_else(|| {
        format!("expected a text of 1 to {BY_BYTES_MAX} bytes without control characters")
    })
}

/// The user, by name or number, and the host of this process.
fn user_at_host() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let name = name.filter(|name| !name.is_empty());
    let user = name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Acts on the key of `charge`, and reads its state.
async fn act(
    flags: &KeyFlags,
    store: &dyn Counts,
    charge: &Charge<'_>,
    own: &Own<'_>,
) -> Result<Outcome, CliError> {
    let ask = charge.look();
    let failed = |error| CliError::new(format_args!("key {}: {error}", charge.own));
    let fleet = match (Fleet::read(store, &ask, own).await, flags.order()) {
        (Ok(fleet), _) => Some(fleet),
        // Without a reply, the count cannot be read either, and its line gives the reason.
        (Err(_), None) => None,
        (Err(error), Some(_)) => return Err(failed(error)),
    };
    fleet.iter().try_for_each(|fleet| fleet.check(own))?;
    let mut confirmed = None;
    if let Some(order) = flags.order() {
        give(store, charge, &ask, order).await.map_err(failed)?;
        let orders = store.read_orders(Some(&ask)).await.map_err(failed)?;
        let place = orders.iter().map(|orders| orders.last).max().unwrap_or_default();
        if let Some(fleet) = &fleet {
            confirmed = Some(fleet.confirm(store, &ask, place).await);
        }
    }
    let is_of_slots = !ask.limit.algorithm.has_window();
    if is_of_slots && flags.action == Action::Reset {
        sleep(STATED_WITHIN).await;
    }
    let now = store.lend(&ask).await;
    let holders = if is_of_slots { store.holders(&ask).await.ok() } else { None };
    let orders = store.read_orders(Some(&ask)).await.unwrap_or_default();
    let mut blocks = orders.into_iter().flat_map(|orders| orders.blocked);
    let blocked = blocks.find(|blocked| ask.keys().any(|key| key == blocked.key));
    Ok(Outcome { ask, now, blocked, holders, fleet, confirmed })
}

/// Deletes the count, if the order includes that, and gives the order to all pods.
async fn give(
    store: &dyn Counts,
    charge: &Charge<'_>,
    ask: &Ask,
    order: Order,
) -> Result<(), StoreError> {
    if order.action == order::Action::Reset {
        store.clear(ask).await?;
        for pool in 0..charge.applied.rule.map_or(0, |rule| pools(rule)) {
            store.clear(&Ask { pool: Some(pool), ..*ask }).await?;
        }
    }
    store.order(ask, order).await
}
