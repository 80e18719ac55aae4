//! The rules of a request that are replaced, if there are many.

use super::*;

/// Rules of the keys `k0`, `k1` and so on. Each is named after its key, and replaces the next rule
/// with an even number and many names that do not exist.
fn rules(count: usize) -> Rules {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for at in 0..count {
        let unknown: String = (0..199).map(|other| format!(", {{name: other{other}}}")).collect();
        let next = (at + 2) & !1;
        text += &format!(
            "- {{key: k{at}, rate_limit: {{name: k{at}, unit: hour, requests_per_unit: 5, \
             replaces: [{{name: k{next}}}{unknown}]}}}}\n"
        );
    }
    let source = Source { name: "d.yaml".into(), text: text.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

/// Whether each descriptor of `request` is counted.
fn counted(rules: &Rules, request: &Request<'_>) -> Vec<bool> {
    let resolved = resolve(rules, request, &KeyHasher::new(""));
    resolved.iter().map(|resolved| matches!(resolved, Resolved::Charged(_))).collect()
}

#[test]
fn of_many_rules_that_replace_many_names_those_are_set_aside_that_another_names() {
    let rules = rules(256);
    let keys: Vec<String> = (0..256).map(|at| format!("k{at}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let all = request(&keys);
    // No rule replaces `k0`, nor the rules with odd numbers.
    let expected: Vec<bool> = (0..256).map(|at| at == 0 || at % 2 == 1).collect();
    assert_eq!(counted(&rules, &all), expected);
    // Alone, or repeated, no rule is replaced.
    for keys in [&["k2"][..], &["k2", "k2", "k2"]] {
        assert!(counted(&rules, &request(keys)).iter().all(|counted| *counted), "{keys:?}");
    }
    assert!(!counted(&rules, &request(&["k2", "k1"]))[0]);
    assert!(!counted(&rules, &request(&["k1", "k2"]))[1]);
}
