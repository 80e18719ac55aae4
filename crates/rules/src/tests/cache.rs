//! A cache compiles what a load from scratch compiles, and less of it.

use proptest::prelude::*;

use super::*;

/// Loads `texts` with the cache, checks the result against a load from scratch, and returns how
/// much was compiled; `None` if there are faults.
fn check(cache: &mut RulesCache, texts: &[String], options: &Options) -> Option<Compilation> {
    let source = |(at, text): (usize, &String)| Source {
        name: format!("{at}.yaml"),
        text: text.clone().into_bytes(),
    };
    let sources: Vec<Source> = texts.iter().enumerate().map(source).collect();
    let shared: Vec<_> = sources.iter().cloned().map(Arc::new).collect();
    let context = || texts.join("\n=====\n");
    match (cache.load(&shared), load(&sources, options.clone())) {
        (Ok((found, done)), Ok(expected)) => {
            assert_eq!(found.warnings, expected.warnings, "{}", context());
            compare(&found.rules, &expected.rules, &context());
            assert_eq!(done.compiled + done.patched + done.reused, texts.len());
            Some(done)
        }
        (Err(found), Err(expected)) => {
            assert_eq!(found, expected, "{}", context());
            None
        }
        (found, expected) => {
            panic!("{:?} instead of {:?} for\n{}", found.is_ok(), expected.is_ok(), context())
        }
    }
}

fn compare(found: &Rules, expected: &Rules, context: &str) {
    assert_eq!(found.version(), expected.version(), "{context}");
    let both = (found.iter().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    assert_eq!(both.0, both.1, "{context}");
    assert_eq!((found.len(), found.is_empty()), (expected.len(), expected.is_empty()));
    assert!(found.iter().is_sorted_by(|a, b| a.path < b.path), "{context}");
    assert_eq!(found.patterns(), expected.patterns(), "{context}");
    assert!(found.domains().eq(expected.domains()), "{context}");
    for domain in expected.domains() {
        assert_eq!(found.store_of_domain(domain), expected.store_of_domain(domain));
        for request in REQUESTS {
            let entries = entries(request);
            let of = |rules: &Rules| format!("{:?}", rules.find(domain, &entries));
            assert_eq!(of(found), of(expected), "{domain} {request} of\n{context}");
            let trace = |rules: &Rules| format!("{:?}", rules.trace(domain, &entries));
            assert_eq!(trace(found), trace(expected), "{domain} {request} of\n{context}");
        }
    }
    for rule in expected.iter() {
        assert_eq!(found.by_path(&rule.path), Some(rule), "{context}");
    }
}

const REQUESTS: [&str; 9] =
    ["a=x", "a=xy", "b=x", "b=0", "ab=x", "a=x b=x", "a=y a=y", "b.a=x", "c=x"];

const KEYS: [&str; 5] = ["a", "b", "a*", "b.a", "a_x"];
const VALUES: [&str; 6] = ["", "x", "y", "x*", "*y", "0"];

/// Lines that change the meaning of what surrounds them, or that have none.
const ODD: [&str; 21] = [
    "# comment",
    "",
    "  # comment",
    "---",
    "...",
    "domain: e",
    "defaults: {charge_denied: false}",
    "  shadow_mode: true",
    "    shadow_mode: true",
    "  name: |",
    "    text: - key: a",
    "  \"open",
    "  rate_limit: {unit: day,",
    "  <<: {value: y}",
    "- &anchor {key: a}",
    "- *anchor",
    "  descriptors:",
    "  - key: a",
    "    - key: b",
    "  unknown: 1",
    "? key",
];

/// A descriptor without its indent.
fn descriptor(depth: u32) -> BoxedStrategy<Vec<String>> {
    let children = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => prop_oneof![
            3 => Just(Vec::new()),
            1 => prop::collection::vec(descriptor(depth - 1), 1..3).prop_map(|it| it.concat()),
        ]
        .boxed(),
    };
    let limit = prop_oneof![
        4 => (1..4_u32)
            .prop_map(|n| format!("  rate_limit: {{unit: day, requests_per_unit: {n}}}")),
        1 => Just("  rate_limit:\n    unit: hour\n    requests_per_unit: 7".to_owned()),
        1 => Just(String::new()),
    ];
    (prop::sample::select(&KEYS[..]), prop::sample::select(&VALUES[..]), limit, children)
        .prop_map(|(key, value, limit, children)| {
            let mut lines = vec![format!("- key: \"{key}\"")];
            lines.extend((!value.is_empty()).then(|| format!("  value: \"{value}\"")));
            lines.extend(limit.lines().map(str::to_owned));
            if !children.is_empty() {
                lines.push("  descriptors:".to_owned());
                lines.extend(children.iter().map(|line| format!("  {line}")));
            }
            lines
        })
        .boxed()
}

#[derive(Debug, Clone)]
enum Edit {
    Insert(usize, Vec<String>),
    Remove(usize),
    Swap(usize, usize),
    Limit(usize, u32),
    Odd(usize, &'static str),
    Cut(usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => (any::<usize>(), descriptor(1)).prop_map(|(at, item)| Edit::Insert(at, item)),
        2 => any::<usize>().prop_map(Edit::Remove),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Edit::Swap(a, b)),
        3 => (any::<usize>(), 1..99_u32).prop_map(|(at, n)| Edit::Limit(at, n)),
        1 => (any::<usize>(), prop::sample::select(&ODD[..]))
            .prop_map(|(at, line)| Edit::Odd(at, line)),
        1 => any::<usize>().prop_map(Edit::Cut),
    ]
}

/// A file: its head, and its descriptors.
#[derive(Debug, Clone)]
struct Written {
    head: &'static str,
    items: Vec<Vec<String>>,
    indent: usize,
    tail: &'static str,
}

impl Written {
    fn text(&self) -> String {
        let mut text = self.head.to_owned();
        for line in self.items.iter().flatten() {
            text += &format!("{:indent$}{line}\n", "", indent = self.indent);
        }
        text + self.tail
    }

    fn apply(&mut self, edit: &Edit) {
        let items = &mut self.items;
        let len = items.len();
        match edit {
            Edit::Insert(at, item) => items.insert(at % (len + 1), item.clone()),
            _ if len == 0 => {}
            Edit::Remove(at) => drop(items.remove(at % len)),
            Edit::Swap(a, b) => items.swap(a % len, b % len),
            Edit::Limit(at, n) => {
                for line in &mut items[at % len] {
                    if line.contains("requests_per_unit") {
                        let kept = line.split("requests_per_unit").next().unwrap_or_default();
                        let end = if line.contains('{') { "}" } else { "" };
                        *line = format!("{kept}requests_per_unit: {n}{end}");
                    }
                }
            }
            Edit::Odd(at, line) => {
                let item = &mut items[at % len];
                item.insert(at / 7 % (item.len() + 1), (*line).to_owned());
            }
            Edit::Cut(at) => {
                let item = &mut items[at % len];
                if !item.is_empty() {
                    item.remove(at / 7 % item.len());
                }
            }
        }
    }
}

const HEADS: [&str; 4] = [
    "domain: d\ndescriptors:\n",
    "# c\ndomain: d\ndefaults: {failure_mode: deny}\ndescriptors:\n",
    "---\ndomain: d\ndescriptors:\n# c\n\n",
    "%YAML 1.2\n---\ndomain: d\ndescriptors:\n",
];

fn written() -> impl Strategy<Value = Written> {
    (
        prop::sample::select(&HEADS[..]),
        prop::collection::vec(descriptor(1), 0..9),
        prop::sample::select(&[0, 2][..]),
        prop_oneof![6 => Just(""), 1 => Just("# end"), 1 => Just("defaults: {shards: 2}\n")],
    )
        .prop_map(|(head, items, indent, tail)| {
            // Most files have no fault.
            let mut seen = Vec::new();
            let is_new = |item: &Vec<String>| {
                let name = item.iter().take(2).filter(|line| !line.contains("rate_limit")).cloned();
                let name = name.collect::<Vec<_>>();
                let is_new = !seen.contains(&name);
                seen.push(name);
                is_new
            };
            let items = items.into_iter().filter(is_new).collect();
            Written { head, items, indent, tail }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    #[test]
    fn a_file_that_changes_has_the_rules_of_a_load_from_scratch(
        mut file in written(),
        edits in prop::collection::vec((edit(), any::<bool>()), 1..8),
        keeps in prop::sample::select(&[Keeps::Hashes, Keeps::Texts, Keeps::Texts][..]),
    ) {
        let mut cache = RulesCache::new(NO_MERGE, keeps);
        check(&mut cache, &[file.text()], &NO_MERGE);
        for (edit, is_kept) in &edits {
            let before = file.clone();
            file.apply(edit);
            check(&mut cache, &[file.text()], &NO_MERGE);
            if !is_kept {
                file = before;
            }
        }
    }

    #[test]
    fn sets_that_change_have_the_rules_of_a_load_from_scratch(
        sets in prop::collection::vec(
            prop::collection::vec((prop::sample::select(&DOMAINS[..]), 0..4_usize), 0..5), 1..6,
        ),
        merges in any::<bool>(),
    ) {
        let options = if merges { MERGE } else { NO_MERGE };
        let mut cache = RulesCache::new(options.clone(), Keeps::Texts);
        for set in sets {
            let text = |(domain, body): &(&str, usize)| {
                format!("domain: {domain}\n{}", BODIES[*body])
            };
            check(&mut cache, &set.iter().map(text).collect::<Vec<_>>(), &options);
        }
    }
}

/// Rules of some of them may have the same paths.
const DOMAINS: [&str; 5] = ["d", "d.a", "d.a.b", "e", "d-a"];
const BODIES: [&str; 4] = [
    "descriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
    "descriptors:\n- key: a.b\n  rate_limit: {unit: day, requests_per_unit: 1}\n- key: b\n  \
     rate_limit: {unit: day}\n",
    "descriptors:\n- key: b\n  rate_limit: {unit: day, requests_per_unit: 1}\n  descriptors:\n  - \
     key: a\n    shadow_mode: true\n    rate_limit: {unlimited: true}\n- key: a.b.b\n  rate_limit: \
     {unit: hour, requests_per_unit: 2}\n",
    "descriptors:\n- key: a\n  rate_limit: {unit: fortnight}\n",
];

/// A file of so many rules, of which one has another limit.
fn file(domain: &str, count: usize, odd: usize) -> String {
    let rule = |at| {
        let limit = if at == odd { 7 } else { 100 };
        format!(
            "  - key: user\n    value: user-{at:04}\n    rate_limit:\n      unit: minute\n      \
             requests_per_unit: {limit}\n"
        )
    };
    format!("domain: {domain}\ndescriptors:\n{}", (0..count).map(rule).collect::<String>())
}

#[test]
fn only_what_changed_is_compiled() {
    let mut cache = RulesCache::new(NO_MERGE, Keeps::Texts);
    let mut loaded = |texts: &[String]| check(&mut cache, texts, &NO_MERGE);
    let done = |compiled, patched, reused| Some(Compilation { compiled, patched, reused });
    let [a, b, c] = ["a", "b", "c"].map(|domain| file(domain, 1000, 1000));
    assert_eq!(loaded(&[a.clone(), b.clone()]), done(2, 0, 0));
    assert_eq!(loaded(&[a.clone(), b.clone()]), done(0, 0, 2));
    assert_eq!(loaded(&[a.clone(), file("b", 1000, 999)]), done(0, 1, 1), "one limit");
    assert_eq!(loaded(&[a.clone(), file("b", 1001, 999)]), done(0, 1, 1), "one more");
    assert_eq!(loaded(&[a.clone(), file("b", 1000, 999)]), done(0, 1, 1), "one less");
    assert_eq!(loaded(&[a.clone(), file("b", 1000, 500)]), done(0, 1, 1), "two limits");
    let hours = b.replace("unit: minute", "unit: hour");
    assert_eq!(loaded(&[a.clone(), hours]), done(1, 0, 1), "all of them");
    assert_eq!(loaded(&[a.clone(), b.clone(), c]), done(2, 0, 1), "one more domain");
    assert_eq!(loaded(&[a.clone(), b.replace("unit: minute", "unit: minutes")]), None);
    assert_eq!(loaded(&[a.clone(), b.clone()]), done(0, 0, 2), "as before the refusal");
    assert_eq!(loaded(std::slice::from_ref(&a)), done(0, 0, 1), "one domain less");
    assert_eq!(loaded(&[b, a]), done(2, 0, 0), "other names");
}

#[test]
fn rules_that_did_not_change_are_shared() {
    let mut cache = RulesCache::new(NO_MERGE, Keeps::Texts);
    let mut loaded = |text: String| {
        let source = Source { name: "a.yaml".into(), text: text.into_bytes() };
        cache.load(&[Arc::new(source)]).unwrap().0.rules
    };
    let (before, after) = (loaded(file("d", 1000, 1000)), loaded(file("d", 1000, 3)));
    let is_shared = |(a, b): (&Arc<Rule>, &Arc<Rule>)| Arc::ptr_eq(a, b);
    assert_eq!(before.iter().zip(after.iter()).filter(|it| !is_shared(*it)).count(), 1);
    assert_eq!(allowed(&before, "d", "user=user-0003"), "100 MINUTE", "a version does not change");
    assert_eq!(allowed(&after, "d", "user=user-0003"), "7 MINUTE");
}

#[test]
fn files_that_added_to_one_domain_for_a_while_are_compiled_apart_again() {
    let mut cache = RulesCache::new(MERGE, Keeps::Texts);
    let mut loaded = |texts: &[String]| check(&mut cache, texts, &MERGE);
    let [a, b] = ["a", "b"].map(|domain| file(domain, 10, 10));
    let whole = |compiled| Some(Compilation { compiled, ..Compilation::default() });
    let more = format!("domain: b\n{}", BODIES[0]);
    assert_eq!(loaded(&[a.clone(), b.clone(), more]), whole(3));
    assert_eq!(loaded(&[a.clone(), b.clone()]), whole(2));
    let reused = Some(Compilation { reused: 2, ..Compilation::default() });
    assert_eq!(loaded(&[a, b]), reused);
}
