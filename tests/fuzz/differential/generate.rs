//! Generates rules and calls by seed.

use super::world::{Asked, Call, UNITS, World, Written, WrittenLimit};
use crate::rng::Rng;

/// Without `_`, since the reference joins key and value into one text: `a_b` could mean either.
const KEYS: [&str; 5] = ["a", "b", "ab", "a*", "*b"];
const VALUES: [&str; 10] = ["", "x", "xy", "x_y", "x*", "*", "*y", "x*y", "*x*", "xyx"];
const ASKED_KEYS: [&str; 6] = ["a", "b", "ab", "c", "", "a*"];
const ASKED_VALUES: [&str; 10] = ["", "x", "y", "xy", "x_y", "xyx", "x*", "xxyy", "*", "xzy"];
const NAMES: [&str; 4] = ["", "n1", "n2", "n3"];

pub(crate) fn world(rng: &mut Rng) -> World {
    let domains = ["d", "e"].map(|name| (name.to_owned(), level(rng, 2)));
    World { domains: domains.into(), global_shadow: rng.percent(10), global_quota: rng.percent(10) }
}

fn level(rng: &mut Rng, depth: u32) -> Vec<Written> {
    let mut level: Vec<Written> = Vec::new();
    let few = rng.within(1..7);
    // Enough patterns for the level to have an index.
    let many = if rng.percent(15) { rng.within(20..60) } else { 0 };
    for at in 0..few + many {
        let key = rng.pick(&KEYS[..]).to_owned();
        let value = if at < few { rng.pick(&VALUES).to_owned() } else { pattern(rng) };
        if level.iter().any(|other| other.key == key && other.value == value) {
            continue;
        }
        let is_shared = value.contains('*') && !key.contains('*') && rng.percent(40);
        let children =
            if depth > 0 && rng.percent(35) { self::level(rng, depth - 1) } else { Vec::new() };
        level.push(Written {
            key,
            value,
            limit: rng.percent(75).then(|| limit(rng)),
            shadow: rng.percent(10),
            quota: rng.percent(15),
            detailed_metric: rng.percent(15),
            value_to_metric: rng.percent(15),
            share_threshold: is_shared,
            children,
        });
    }
    level
}

fn pattern(rng: &mut Rng) -> String {
    let length = rng.within(1..7);
    (0..length).map(|_| rng.pick(&['x', 'y', '_', '*', '*', 'é'])).collect()
}

fn limit(rng: &mut Rng) -> WrittenLimit {
    let name = rng.pick(&NAMES);
    let others = NAMES.iter().filter(|other| !other.is_empty() && **other != name);
    let replaces = others.filter(|_| rng.percent(12)).map(|&other| other.to_owned()).collect();
    let requests = match rng.below(10) {
        0 => 0,
        1 => 1_000_000_000,
        _ => u32::try_from(rng.within(1..8)).unwrap(),
    };
    let unit = (!rng.percent(8)).then(|| rng.index(UNITS.len()));
    WrittenLimit { requests, unit, name: name.to_owned(), replaces }
}

pub(crate) fn call(rng: &mut Rng, world: &World) -> Call {
    let (domain, top) = match rng.below(10) {
        0 => ("unknown", &[][..]),
        1 | 2 => ("e", &world.domains[1].1[..]),
        _ => ("d", &world.domains[0].1[..]),
    };
    let descriptors = (0..rng.within(1..5)).map(|_| asked(rng, top)).collect();
    let hits = u32::try_from(rng.below(4)).unwrap();
    Call { domain: domain.to_owned(), hits, descriptors }
}

fn asked(rng: &mut Rng, top: &[Written]) -> Asked {
    let mut entries = Vec::new();
    let mut level = top;
    for _ in 0..rng.weighted(&[1, 14, 10, 5]) {
        let aims = !level.is_empty() && rng.percent(75);
        let (key, value) = if aims {
            let node = &level[rng.index(level.len())];
            level = &node.children;
            (filled(rng, &node.key), filled(rng, &node.value))
        } else {
            (rng.pick(&ASKED_KEYS).to_owned(), rng.pick(&ASKED_VALUES).to_owned())
        };
        entries.push((key, value));
    }
    let limit =
        rng.percent(8).then(|| (u32::try_from(rng.below(6)).unwrap(), rng.index(UNITS.len())));
    let hits = rng.percent(30).then(|| rng.below(6));
    Asked { entries, limit, hits }
}

/// A text that the pattern matches; for an empty pattern, any value.
fn filled(rng: &mut Rng, pattern: &str) -> String {
    if pattern.is_empty() {
        return rng.pick(&ASKED_VALUES).to_owned();
    }
    pattern.split('*').collect::<Vec<_>>().join(rng.pick(&["", "x", "yx", "z"]))
}

/// The rule files of `world`, by name; a domain may span two.
pub(crate) fn files(rng: &mut Rng, world: &World) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (domain, level) in &world.domains {
        let cut = rng.index(level.len() + 1);
        for (part, nodes) in [&level[..cut], &level[cut..]].into_iter().enumerate() {
            let mut text = format!("domain: {domain}\n");
            if !nodes.is_empty() {
                text += "descriptors:\n";
                write(nodes, 0, &mut text);
            }
            files.push((format!("{domain}{part}.yaml"), text));
        }
    }
    files
}

fn write(level: &[Written], indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    for node in level {
        *out += &format!("{pad}- key: \"{}\"\n", node.key);
        let mut line = |text: &str| *out += &format!("{pad}  {text}\n");
        if !node.value.is_empty() {
            line(&format!("value: \"{}\"", node.value));
        }
        for (name, set) in [
            ("shadow_mode", node.shadow),
            ("quota_mode", node.quota),
            ("detailed_metric", node.detailed_metric),
            ("value_to_metric", node.value_to_metric),
            ("share_threshold", node.share_threshold),
        ] {
            if set {
                line(&format!("{name}: true"));
            }
        }
        if let Some(limit) = &node.limit {
            let of = match limit.unit {
                None => "unlimited: true".to_owned(),
                Some(unit) => {
                    format!("unit: {}, requests_per_unit: {}", UNITS[unit].0, limit.requests)
                }
            };
            let names: Vec<_> = limit.replaces.iter().map(|it| format!("{{name: {it}}}")).collect();
            let (name, names) = (&limit.name, names.join(", "));
            line(&format!("rate_limit: {{{of}, name: \"{name}\", replaces: [{names}]}}"));
        }
        if !node.children.is_empty() {
            line("descriptors:");
            write(&node.children, indent + 4, out);
        }
    }
}
