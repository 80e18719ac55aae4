//! Tests of the trace of a lookup.

use super::*;

const RULES: &str = "
domain: d
descriptors:
  - {key: path, value: \"/a/*\", rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: path, value: /a/b, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: \"*/b\", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 4}}
  - key: plan
    value: free
    descriptors: [{key: user}]
";

/// Returns each candidate of the first level for `value`, with its result.
fn candidates(value: &str) -> Vec<(String, &'static str)> {
    let rules = compile(RULES).rules;
    let trace = rules.trace("d", &[Entry { key: "path", value }]).expect("the domain is there");
    let step = &trace.steps[0];
    let each = step.candidates.iter().enumerate().map(|(at, candidate)| {
        let what = match step.chosen {
            Some(chosen) if chosen == at => "taken",
            _ if candidate.matches_entry => "matches",
            _ => "no",
        };
        (candidate.value.to_owned(), what)
    });
    each.collect()
}

#[test]
fn candidates_are_listed_in_the_order_in_which_they_are_tried() {
    let expected = |table: &[(&str, &'static str)]| -> Vec<(String, &'static str)> {
        table.iter().map(|(value, what)| ((*value).to_owned(), *what)).collect()
    };
    let value_first = [("/a/b", "taken"), ("/a/*", "matches"), ("*/b", "matches"), ("", "matches")];
    assert_eq!(candidates("/a/b"), expected(&value_first));
    assert_eq!(candidates("/a/c"), expected(&[("/a/*", "taken"), ("*/b", "no"), ("", "matches")]));
    assert_eq!(candidates("/c"), expected(&[("/a/*", "no"), ("*/b", "no"), ("", "taken")]));
}

#[test]
fn a_way_that_ends_early_says_what_there_was() {
    let rules = compile(RULES).rules;
    assert!(rules.trace("other", &[]).is_none());
    let trace = rules.trace("d", &entries("plan=paid")).unwrap();
    assert_eq!((trace.steps[0].chosen, &trace.steps[0].values), (None, &(vec!["free"], 1)));
    let trace = rules.trace("d", &entries("plan=free user=1 more=2")).unwrap();
    assert_eq!(trace.steps.len(), 2);
    assert!(trace.rule.is_none() && trace.steps[0].has_children && !trace.steps[1].has_children);
    let trace = rules.trace("d", &entries("nope=1")).unwrap();
    assert_eq!(trace.steps[0].keys, (vec!["path", "plan"], 2));
}

#[test]
fn patterns_that_do_not_match_are_listed_up_to_a_number() {
    let many: String = (0..100)
        .map(|n| {
            format!(
                "  - {{key: k, value: \"{n}*\", rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
            )
        })
        .collect();
    let rules = compile(&format!("domain: d\ndescriptors:\n{many}")).rules;
    let trace = rules.trace("d", &entries("k=99z")).unwrap();
    let step = &trace.steps[0];
    // `9*` and `99*` match.
    assert_eq!((step.candidates.len(), step.unlisted), (Step::SHOWN_MAX + 2, 90));
    assert_eq!(step.candidates[step.chosen.unwrap()].value, "9*");
}
