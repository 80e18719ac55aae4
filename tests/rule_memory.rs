//! Memory of rules, in force and during loading, as the allocator has it and as a load counts it. A
//! test binary of its own, since it counts all allocations.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelease_rules::{self as rules, MemoryUse, Options, Source};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const RULES: usize = 10_000;
/// Bytes of a rule in force: itself, its path, its value in the tree, and the references to each.
const IN_FORCE_MAX: usize = 312;
/// Bytes of a rule while its file is loaded: itself, its YAML as a tree, and its share of the state
/// kept until all files are read. The file's text, some 94 bytes, is added to that.
const LOADING_MAX: usize = 1200;

/// What a count may be above the allocator's: the maximum of a load of more than a MiB, and bytes.
const COUNTED_MAX: f64 = 2.0;
const SPARE: usize = 64 << 10;
/// The longest time to refuse a few megabytes: some 100 times what it takes while allocations are
/// counted. With the square of the bytes it would take hours.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes that a load takes besides its rules: lists of sources, and what is compiled by.
const BESIDES: usize = 8 << 10;

/// One test at a time: the allocator counts for all threads.
static ALONE: Mutex<()> = Mutex::new(());

/// What a load of these sources counted, and what the allocator had at most and has afterwards.
/// `None` if they have a fault.
fn measured(sources: &[Arc<Source>]) -> Option<(MemoryUse, MemoryUse)> {
    let profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
    let loaded = rules::load(sources, Options::default());
    let heap = dhat::HeapStats::get();
    let had = MemoryUse { peak: heap.max_bytes, held: heap.curr_bytes };
    let counted = loaded.as_ref().map(|it| it.weight.memory).ok();
    drop(profiler);
    counted.map(|counted| (counted, had))
}

fn sources(texts: impl IntoIterator<Item = String>) -> Vec<Arc<Source>> {
    let named = texts.into_iter().enumerate();
    named
        .map(|(at, text)| Arc::new(Source { name: format!("{at:05}"), text: text.into() }))
        .collect()
}

/// A file of one domain whose descriptors are `of`, for each number.
fn file(descriptors: usize, of: impl Fn(usize) -> String) -> Vec<String> {
    let list: String = (0..descriptors).map(of).collect();
    vec![format!("domain: d\ndescriptors:\n{list}")]
}

const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 100}";

/// Files of one shape, and its name.
type Shaped = (&'static str, Vec<String>);

/// Shapes of descriptors: their number, depth and length.
fn shapes_of_trees() -> Vec<Shaped> {
    let ordinary = |at| format!("- key: user\n  value: user-{at:08}\n  {LIMIT}\n");
    let deep = |at: usize| {
        let levels = (1..20).map(|depth| {
            let indent = "  ".repeat(depth);
            format!("{indent}descriptors:\n{indent}- key: k{depth}\n")
        });
        format!("- key: top{at}\n{}{}{LIMIT}\n", levels.collect::<String>(), "  ".repeat(20))
    };
    let nested = |at: usize| {
        let keys = (0..3).map(|key| format!("  - key: k{key}\n    {LIMIT}\n"));
        format!("- key: tenant\n  value: t{at}\n  descriptors:\n{}", keys.collect::<String>())
    };
    let long = "v".repeat(8000);
    vec![
        ("flat keys without limits", file(15_000, |at| format!("- key: k{at:05}\n"))),
        ("keys past a doubling", file(14_400, |at| format!("- key: k{at:05}\n"))),
        ("ordinary", file(5000, ordinary)),
        (
            "block style",
            file(5000, |at| {
                format!("- key: k{at}\n  rate_limit:\n    unit: minute\n    requests_per_unit: 5\n")
            }),
        ),
        ("deep", file(300, deep)),
        ("nested", file(5000, nested)),
        ("long values", file(500, |at| format!("- key: user\n  value: {long}{at}\n  {LIMIT}\n"))),
        (
            "long and escaped",
            file(500, |at| format!("- key: user\n  value: \"\\x41{long}{at}\"\n  {LIMIT}\n")),
        ),
        ("long key above many", {
            let below = (0..1000).map(|at| format!("  - key: a{at}\n    {LIMIT}\n"));
            let below: String = below.collect();
            file(1, |_| format!("- key: {long}\n  descriptors:\n{below}"))
        }),
        ("many domains", {
            let domain = |at| format!("domain: d{at}\ndescriptors:\n- key: k\n  {LIMIT}\n");
            (0..500).map(domain).collect()
        }),
        ("one scalar", file(1, |_| format!("- key: {}\n", "k".repeat(1 << 20)))),
    ]
}

/// Shapes of what a descriptor has: its key, value and fields, and how they are written.
fn shapes_of_descriptors() -> Vec<Shaped> {
    let json: Vec<String> = (0..5000)
        .map(|at| format!("{{\"key\": \"k{at}\", \"rate_limit\": {{\"unlimited\": true}}}}"))
        .collect();
    vec![
        ("prefixes", file(5000, |at| format!("- key: path\n  value: /a/{at}/*\n  {LIMIT}\n"))),
        (
            "wildcards",
            file(3000, |at| format!("- key: path\n  value: '*/a{at:x}/*/c{at}'\n  {LIMIT}\n")),
        ),
        ("wild keys", file(5000, |at| format!("- key: '*k{at}*'\n  {LIMIT}\n"))),
        (
            "shared",
            file(5000, |at| {
                format!("- key: k\n  value: 'a{at}*'\n  share_threshold: true\n  {LIMIT}\n")
            }),
        ),
        (
            "metadata",
            file(1000, |at| {
                let metadata = format!("{{a: {{b: {{c: [1, x, {{}}]}}}}, d: {at}}}");
                format!("- key: k{at}\n  {LIMIT}\n  metadata: {metadata}\n")
            }),
        ),
        (
            "replaces",
            file(2000, |at| {
                let names: String = (0..20).map(|it| format!("{{name: r{it}}}, ")).collect();
                let limit = format!("{{name: n{at}, unlimited: true, replaces: [{names}]}}");
                format!("- key: k{at}\n  rate_limit: {limit}\n")
            }),
        ),
        (
            "unicode",
            file(3000, |at| {
                format!("- key: \u{fc}\u{1f600}\n  value: \"\u{e9}{at}\"\n  {LIMIT}\n")
            }),
        ),
        (
            "equal paths",
            file(5000, |at| {
                format!(
                    "- key: a\n  value: b_{at}\n  {LIMIT}\n- key: a_b\n  value: '{at}'\n  {LIMIT}\n"
                )
            }),
        ),
        (
            "aliases",
            file(3000, |at| match at {
                0 => "- key: k\n  rate_limit: &l {unit: hour, requests_per_unit: 5}\n".to_owned(),
                _ => format!("- key: k{at}\n  rate_limit: *l\n"),
            }),
        ),
        ("warnings", file(3000, |at| format!("- key: k{at}\n  shadow_mode: true\n"))),
        ("JSON", vec![format!("{{\"domain\": \"d\", \"descriptors\": [{}]}}", json.join(","))]),
    ]
}

#[test]
fn a_load_counts_at_least_what_the_allocator_has_and_at_most_twice_as_much() {
    let _alone = ALONE.lock().unwrap();
    let mut faults = String::new();
    for (name, texts) in [shapes_of_trees(), shapes_of_descriptors()].concat() {
        let (counted, had) = measured(&sources(texts)).unwrap_or_else(|| panic!("{name}: refused"));
        let over = counted.peak as f64 / had.peak as f64;
        println!(
            "{name:28} peak {:>9} counted {:>9} ({over:.2}), held {:>9} counted {:>9} ({:.2})",
            had.peak,
            counted.peak,
            had.held,
            counted.held,
            counted.held as f64 / had.held as f64
        );
        if counted.peak + BESIDES < had.peak || counted.held + BESIDES < had.held {
            writeln!(faults, "{name}: {counted:?} is less than {had:?}").unwrap();
        }
        if counted.peak as f64 > had.peak as f64 * COUNTED_MAX + SPARE as f64 {
            writeln!(faults, "{name}: {counted:?} is far more than {had:?}").unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// A text that is refused: its name, itself, and what the refusal says.
type Refused = (&'static str, String, &'static str);

/// Texts of a megabyte and more.
fn refused_texts() -> Vec<Refused> {
    let of = |piece: &str| piece.repeat((1 << 20) / piece.len());
    let literal = format!("  {}\n", "[".repeat(1000)).repeat(2500);
    let (deep, quotes) = ("recursion limit exceeded", "needs quotes");
    vec![
        ("lists of lists", of("["), deep),
        ("maps of maps", of("{"), deep),
        ("lists of maps", of("[{"), deep),
        ("lists by lines", of("[\n"), deep),
        ("maps by lines", of("{\n"), deep),
        ("dashes", of("- "), "nested deeper than 64 levels"),
        ("a word of dashes", of("-"), "the file must be a map"),
        ("keys of keys", of("? "), "nested deeper than 64 levels"),
        ("brackets that are text", format!("x: |\n{literal}y: a: b\n"), quotes),
        ("brackets in a comment", format!("# {}\ny: a: b\n", of("[")), quotes),
        ("empty lines", format!("{}a\n- key: b\n", "\n".repeat(8 << 20)), "needs a colon"),
    ]
}

/// A hostile server of rules would fill the memory of its pods.
#[test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn a_text_that_is_refused_takes_memory_in_proportion_to_it_and_little_time() {
    let _alone = ALONE.lock().unwrap();
    let mut faults = String::new();
    for (name, text, expected) in refused_texts() {
        let max = 4 * text.len() + SPARE;
        let sources = sources([text]);
        let profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
        let begun = Instant::now();
        let refused = rules::load(&sources, Options::default());
        let (took, peak) = (begun.elapsed(), dhat::HeapStats::get().max_bytes);
        drop(profiler);
        let refused = refused.unwrap_err().to_string();
        let said: String = refused.chars().take(200).collect();
        println!("{name:24} {peak:>9} bytes, {took:?}: {said}");
        if peak > max || refused.len() > 1000 || took > TIME_MAX || !refused.contains(expected) {
            writeln!(faults, "{name}: {peak} bytes of {max}, {took:?}: {said}").unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// A descriptor of a random shape, indented by `depth` levels.
fn descriptor(depth: u32) -> BoxedStrategy<String> {
    let key = prop_oneof![
        "[a-c]{1,3}",
        "k[a-z0-9]{1,12}",
        "[a-c]{0,2}\\*[a-c]{1,2}",
        "\u{e9}[a-z]{1,40}"
    ];
    let value = prop_oneof![
        3 => Just(String::new()),
        3 => "[a-z0-9]{1,20}",
        1 => "[a-z]{0,3}\\*[a-z]{0,3}(\\*[a-z]{1,3})?",
        1 => "[a-z]{200,900}",
    ];
    let replacing = "@rate_limit: {name: a, unlimited: true, replaces: [{name: b}, {name: c}]}\n";
    let extra = prop_oneof![
        3 => Just(String::new()),
        3 => Just(format!("@{LIMIT}\n")),
        1 => Just(replacing.to_owned()),
        1 => Just(format!("@{LIMIT}\n@metadata: {{a: {{b: [1, {{c: d}}]}}, e: f}}\n")),
        1 => Just("@shadow_mode: true\n".to_owned()),
    ];
    let below = match depth {
        4 => Just(Vec::new()).boxed(),
        _ => prop::collection::vec(descriptor(depth + 1), 0..4).boxed(),
    };
    let indent = "  ".repeat(depth as usize);
    let of = move |(key, value, extra, below): (String, String, String, Vec<String>)| {
        let mut text = format!("{indent}- key: '{key}'\n");
        if !value.is_empty() {
            writeln!(text, "{indent}  value: '{value}'").unwrap();
        }
        text += &extra.replace('@', &format!("{indent}  "));
        if !below.is_empty() {
            writeln!(text, "{indent}  descriptors:\n{}", below.concat().trim_end()).unwrap();
        }
        text
    };
    (key, value, extra, below).prop_map(of).boxed()
}

#[test]
fn a_load_of_random_rules_counts_at_least_what_the_allocator_has() {
    let _alone = ALONE.lock().unwrap();
    let files = prop::collection::vec(prop::collection::vec(descriptor(0), 1..30), 1..4);
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let (good, loads) = (Cell::new(0), Cell::new(0));
    let checked = runner.run(&files, |files| {
        loads.set(loads.get() + 1);
        let files = files.into_iter().enumerate();
        let file = |(at, list): (usize, Vec<String>)| {
            format!("domain: d{at}\ndescriptors:\n{}", list.concat())
        };
        let sources = sources(files.map(file));
        if let Some((counted, had)) = measured(&sources) {
            good.set(good.get() + 1);
            prop_assert!(counted.peak + BESIDES >= had.peak, "{counted:?} is less than {had:?}");
            prop_assert!(counted.held + BESIDES >= had.held, "{counted:?} is less than {had:?}");
            // Within a smaller budget it is refused, and takes no more.
            let profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
            let less = counted.peak / 2;
            let refused = rules::load_within(&sources, Options::default(), less).unwrap_err();
            let heap = dhat::HeapStats::get();
            drop(profiler);
            prop_assert!(refused.to_string().contains("of memory"), "{refused}");
            prop_assert!(heap.max_bytes <= less + SPARE, "{} of {less}", heap.max_bytes);
            let enough = rules::load_within(&sources, Options::default(), counted.peak);
            prop_assert!(enough.is_ok());
        }
        Ok(())
    });
    let good = good.get();
    println!("{good} of {} sets were good", loads.get());
    checked.unwrap();
    assert!(good > 2, "{good}");
}

#[test]
fn a_rule_for_a_value_takes_few_bytes_in_force_and_not_many_more_while_it_is_loaded() {
    let _alone = ALONE.lock().unwrap();
    let mut text = "domain: d\ndescriptors:\n- key: tenant\n  descriptors:\n".to_owned();
    for user in 0..RULES {
        writeln!(text, "  - key: user\n    value: user-{user:08}").unwrap();
        writeln!(text, "    rate_limit: {{unit: minute, requests_per_unit: 100}}").unwrap();
    }
    let sources = [Source { name: "a.yaml".to_owned(), text: text.into() }];
    let profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
    let loaded = rules::load(&sources, Options::default()).unwrap();
    let heap = dhat::HeapStats::get();
    assert_eq!(loaded.rules.len(), RULES);
    let (in_force, loading) = (heap.curr_bytes / RULES, heap.max_bytes / RULES);
    println!("a rule takes {in_force} bytes in force, {loading} while it is loaded");
    assert!(in_force <= IN_FORCE_MAX, "{in_force} bytes a rule");
    assert!(loading <= LOADING_MAX, "{loading} bytes a rule while it is loaded");
    drop(profiler);
}

/// Fields of protocol buffers, of which some hold others.
fn fields(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let content = match depth {
        4 => prop::collection::vec(any::<u8>(), 0..6).boxed(),
        _ => prop_oneof![
            2 => Just(Vec::new()),
            1 => prop::collection::vec(any::<u8>(), 0..6),
            4 => fields(depth + 1),
        ]
        .boxed(),
    };
    let field = (1_u8..9, content, 1_usize..5).prop_map(|(number, content, times)| {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend(content);
        bytes.repeat(times)
    });
    prop::collection::vec(field, 1..4).prop_map(|fields| fields.concat()).boxed()
}

#[test]
fn a_resource_takes_no_more_memory_than_is_in_proportion_to_its_bytes() {
    let _alone = ALONE.lock().unwrap();
    let mut runner =
        TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let empty = |path: &[u8], count| {
        let of = |content: Vec<u8>, number: &u8| {
            let mut bytes = vec![number << 3 | 2];
            prost::encoding::encode_varint(content.len() as u64, &mut bytes);
            [bytes, content].concat()
        };
        let (last, above) = path.split_last().unwrap();
        above.iter().rev().fold([last << 3 | 2, 0].repeat(count), of)
    };
    let check = |bytes: &[u8]| {
        let profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
        let is_decoded = ratelease_xds::config::decode(bytes, usize::MAX).is_ok();
        let peak = dhat::HeapStats::get().max_bytes;
        drop(profiler);
        let max = 32 * bytes.len() + (1 << 20) + BESIDES;
        assert!(peak <= max, "{} bytes took {peak}", bytes.len());
        is_decoded
    };
    // Descriptors, those below one, names of `replaces`, entries of metadata, items of a list in
    // it.
    let lists: [&[u8]; 5] = [&[3], &[3, 4], &[3, 3, 5], &[3, 8, 1], &[3, 8, 1, 2, 6, 1]];
    for path in lists {
        for count in [1, 10, 100_000] {
            let is_decoded = check(&empty(path, count));
            let is_large = path.len() < 3 && count == 100_000;
            assert!(is_decoded || count == 100_000, "{count} of {path:?}");
            assert!(!(is_decoded && is_large), "{count} of {path:?}");
        }
    }
    let checked = runner.run(&fields(0), |bytes| {
        check(&bytes);
        Ok(())
    });
    checked.unwrap();
}
