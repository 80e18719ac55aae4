//! The output of `ratectl key`: the state of keys, and the keys that are blocked.

use std::time::Duration;

use jiff::Timestamp;
use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_engine::algorithm::concurrency::Holder;
use ratelease_engine::order::{Blocked, Note, StoreOrders};
use ratelease_engine::pod::{PodRecord, SLOTS_MAX};
use ratelease_engine::store::{Ask, Grant};
use ratelease_rules::DEFAULT_STORE;
use ratelease_rules::request::Request;
use serde_json::{Value, json};

use super::fleet::{Confirmed, Fleet};
use super::{Action, KeyFlags, Outcome};
use crate::explain::{seconds, shown, standing};

/// A count that is not in the store may be blocked all the same.
const UNUSED: &str = "nothing is counted under this key, so 0 pods hold tokens of it; a block would \
                      hold all the same";

/// Slots that are in use right after a reset.
const IN_USE: &str = "these slots are of requests that began since, or that their pods still count";

/// Shows each key's state, as text or as JSON.
pub(super) fn keys(
    flags: &KeyFlags,
    request: &Request<'_>,
    outcomes: &[Option<Outcome>],
    out: &mut Out,
) -> Result<(), CliError> {
    if flags.out.json {
        let of_key = |outcome| object(flags.action, outcome);
        let each = request.descriptors.iter().zip(outcomes).map(|(descriptor, outcome)| {
            json!({ "descriptor": shown(&descriptor.entries), "key": outcome.as_ref().map(of_key) })
        });
        return out.json(&json!({ "domain": request.domain, "keys": each.collect::<Vec<_>>() }));
    }
    for (descriptor, outcome) in request.descriptors.iter().zip(outcomes) {
        let heading = format!("{}: {}", request.domain, shown(&descriptor.entries));
        out.line(format_args!("{}", out.painter().paint(Style::Strong, Safe(heading))))?;
        match outcome {
            Some(outcome) => key(flags.action, outcome, out)?,
            None => out.line("  no rule limits it")?,
        }
    }
    Ok(())
}

fn key(action: Action, outcome: &Outcome, out: &mut Out) -> Result<(), CliError> {
    let Outcome { ask, now, blocked, holders, fleet, confirmed } = outcome;
    let did = match action {
        Action::Show | Action::List => "",
        Action::Reset => ", reset",
        Action::Block => ", blocked",
        Action::Unblock => ", no longer blocked",
    };
    field("key", format!("{}{did}", ask.key), out)?;
    pods(fleet.as_ref(), *confirmed, out)?;
    let left = match now {
        Ok(grant) => standing(ask.limit, grant),
        Err(error) => format!("unknown: {error}"),
    };
    field("now", left, out)?;
    if let Some(note) = note(action, outcome) {
        field("", note.to_owned(), out)?;
    }
    if let Some(Blocked { lasts, note, .. }) = blocked {
        let (lasts, by) = (seconds(*lasts), by(note));
        field("blocked", format!("for {lasts}{by}, at {}", time(note)), out)?;
    }
    let records = fleet.as_ref().map_or(&[][..], |fleet| &fleet.same);
    let label = |at| if at == 0 { "slots" } else { "" };
    let of = holders.iter().flatten().enumerate();
    for (at, one) in of {
        field(label(at), holder(one, ask, records), out)?;
    }
    Ok(())
}

/// A remark on the state of the count. After a reset nothing is counted in any case.
fn note(action: Action, outcome: &Outcome) -> Option<&'static str> {
    let Outcome { ask, now, blocked, holders, .. } = outcome;
    if action == Action::Reset && holders.as_ref().is_some_and(|holders| !holders.is_empty()) {
        return Some(IN_USE);
    }
    let is_unused = |grant: &Grant| grant.left >= ask.limit.capacity() && !grant.overdrawn;
    let is_noted = action != Action::Reset && ask.limit.algorithm.has_window();
    let is_unused = is_noted && blocked.is_none() && now.as_ref().is_ok_and(is_unused);
    is_unused.then_some(UNUSED)
}

fn pods(
    fleet: Option<&Fleet>,
    confirmed: Option<Confirmed>,
    out: &mut Out,
) -> Result<(), CliError> {
    let Some(fleet) = fleet else { return Ok(()) };
    let mut notes = fleet.notes().into_iter();
    let first = match confirmed {
        Some(Confirmed { of: 0, .. }) | None if fleet.same.is_empty() => notes.next(),
        Some(Confirmed { by, of }) => Some(format!("{by} of {of} have confirmed it")),
        None => Some(format!("{} of {} make this key", fleet.same.len(), fleet.live())),
    };
    field("pods", first.unwrap_or_default(), out)?;
    notes.try_for_each(|note| field("", note, out))
}

/// Describes the slots of one pod, and since when it has had some.
fn holder(holder: &Holder, ask: &Ask, records: &[PodRecord]) -> String {
    let Some(record) = records.iter().find(|record| record.number == holder.pod) else {
        return format!("{} of pod {}, which is not registered", holder.slots, holder.pod);
    };
    let since = match since(ask, record) {
        Some(has) => format!("the oldest for about {} s", has.as_secs()),
        None if record.slots.len() < SLOTS_MAX => "idle, or for some seconds".to_owned(),
        None => "not known for how long".to_owned(),
    };
    format!("{} of {}, {since}", holder.slots, record.name)
}

/// For how long the oldest request with slots of the key has run; `None` if none was in the record.
fn since(ask: &Ask, record: &PodRecord) -> Option<Duration> {
    record.slots.iter().find(|(key, _)| *key == ask.key).map(|(_, has)| *has)
}

fn object(action: Action, outcome: &Outcome) -> Value {
    let Outcome { ask, now, blocked, holders, fleet, confirmed } = outcome;
    let left = now.as_ref().ok();
    let records = fleet.as_ref().map_or(&[][..], |fleet| &fleet.same);
    let slots = holders.as_ref().map(|holders| {
        let each = holders.iter().map(|holder| {
            let record = records.iter().find(|record| record.number == holder.pod);
            let since = record.and_then(|record| since(ask, record));
            json!({
                "pod": holder.pod.to_string(),
                "name": record.map(|record| &record.name),
                "slots": holder.slots,
                "held_seconds": since.map(|has| has.as_secs()),
            })
        });
        each.collect::<Vec<_>>()
    });
    json!({
        "hash": ask.key.to_string(),
        "left": left.map(|grant| grant.left),
        "of": ask.limit.capacity(),
        "overdrawn": left.map(|grant| grant.overdrawn),
        "note": note(action, outcome),
        "error": now.as_ref().err().map(ToString::to_string),
        "blocked_seconds": blocked.as_ref().map(|blocked| blocked.lasts.as_secs_f64()),
        "blocked_by": blocked.as_ref().map(|blocked| &blocked.note.by),
        "blocked_at": blocked.as_ref().map(|blocked| time(&blocked.note)),
        "slots": slots,
        "pods": fleet.as_ref().map(|fleet| fleet.object(*confirmed)),
    })
}

/// Lists the keys that are blocked.
pub(super) fn list(orders: &[StoreOrders], is_json: bool, out: &mut Out) -> Result<(), CliError> {
    let all = orders.iter().flat_map(|it| it.blocked.iter().map(|blocked| (&*it.store, blocked)));
    let all: Vec<(&str, &Blocked)> = all.collect();
    if is_json {
        let each = all.iter().map(|(store, Blocked { key, lasts, note })| {
            json!({
                "hash": key.to_string(),
                "store": store,
                "blocked_seconds": lasts.as_secs_f64(),
                "blocked_by": note.by,
                "blocked_at": time(note),
            })
        });
        return out.json(&json!({ "blocked": each.collect::<Vec<_>>() }));
    }
    let count = match all.len() {
        0 => "no key is blocked".to_owned(),
        1 => "1 key is blocked".to_owned(),
        count => format!("{count} keys are blocked"),
    };
    out.line(format_args!("{}", out.painter().paint(Style::Strong, count)))?;
    for (store, Blocked { key, lasts, note }) in all {
        let store = match store {
            DEFAULT_STORE => String::new(),
            store => format!(", in the store {store}"),
        };
        let (lasts, at) = (seconds(*lasts), time(note));
        out.line(format_args!("  {key}  for {lasts}, {at}{}{}", Safe(by(note)), Safe(store)))?;
    }
    Ok(())
}

fn by(note: &Note) -> String {
    if note.by.is_empty() { String::new() } else { format!(", by {}", note.by) }
}

/// When an order was given, by the clock of the store.
fn time(note: &Note) -> String {
    let seconds = i64::try_from(note.given.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

fn field(name: &str, value: String, out: &mut Out) -> Result<(), CliError> {
    out.line(format_args!("  {name:<8} {}", Safe(value)))
}
