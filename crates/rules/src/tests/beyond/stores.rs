//! The stores that rules and domains name.

use super::super::faults::refuses;
use super::super::*;

/// Two named stores.
fn options(domain_stores: &str) -> Options {
    let stores = StoreNames::parse("premium,batch").unwrap();
    let domain_stores = DomainStores::parse(domain_stores, &stores).unwrap();
    Options { merge_domains: true, stores, domain_stores, calendar_months: false }
}

fn loaded(texts: &[&str], domain_stores: &str) -> Result<Rules, Vec<String>> {
    let source = |(at, text): (usize, &&str)| Source {
        name: format!("{at}.yaml"),
        text: text.as_bytes().to_vec(),
    };
    let sources: Vec<_> = texts.iter().enumerate().map(source).collect();
    let loaded = load(&sources, options(domain_stores));
    loaded
        .map(|loaded| loaded.rules)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

/// The store of each rule, in order of their paths.
fn stores(rules: &Rules) -> Vec<(&str, String)> {
    let store = |rule: &'_ Arc<Rule>| rules.stores().name(rule.store().unwrap()).to_owned();
    rules.iter().map(|rule| (&*rule.path, store(rule))).collect()
}

#[test]
fn a_limit_is_counted_by_its_own_store_or_that_of_its_domain() {
    let shop = "domain: shop\nstore: premium\ndescriptors:\n\
                - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 1, store: batch}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 1, store: default}}\n\
                - key: d\n  descriptors:\n  - key: e\n    rate_limit: {unit: second, \
                requests_per_unit: 1, store: batch}\n";
    let plain = "domain: plain\ndescriptors: [{key: a, rate_limit: {unit: day, \
                 requests_per_unit: 1}}]\n";
    let rules = loaded(&[shop, plain], "").unwrap();
    let expected = [
        ("plain.a", "default"),
        ("shop.a", "premium"),
        ("shop.b", "batch"),
        ("shop.c", "default"),
        ("shop.d.e", "batch"),
    ];
    assert_eq!(stores(&rules), expected.map(|(path, store)| (path, store.to_owned())));
    let of_domain = |domain| rules.stores().name(rules.store_of_domain(domain));
    assert_eq!(["shop", "plain", "other"].map(of_domain), ["premium", "default", "default"]);
}

#[test]
fn candidate_rules_are_counted_by_the_store_of_their_domain() {
    let limit = "descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let texts = ["shop", "\"shop@candidate\""].map(|it| format!("domain: {it}\n{limit}"));
    let rules = loaded(&[&texts[0], &texts[1]], "shop=premium").unwrap();
    let of_domain = |domain| rules.stores().name(rules.store_of_domain(domain));
    assert_eq!(["shop", "shop@candidate"].map(of_domain), ["premium", "premium"]);
}

#[test]
fn all_files_of_a_domain_have_one_store() {
    let file = |store: &str, key: &str| {
        format!(
            "domain: shop\n{store}descriptors: [{{key: {key}, rate_limit: {{unit: day, \
             requests_per_unit: 1}}}}]\n"
        )
    };
    let premium = "store: premium\n";
    for (second, is_good) in [("", true), (premium, true), ("store: batch\n", false)] {
        let found = loaded(&[&file(premium, "a"), &file(second, "b")], "");
        match found {
            Ok(rules) => {
                assert!(is_good, "{second}");
                let premium = || "premium".to_owned();
                assert_eq!(stores(&rules), [("shop.a", premium()), ("shop.b", premium())]);
            }
            Err(faults) => {
                assert!(!is_good, "{second}: {faults:?}");
                let expected = "1.yaml:2:8: domain 'shop' has another store in 0.yaml:1; name the \
                                same one there and here";
                assert_eq!(faults, [expected]);
            }
        }
    }
}

#[test]
fn a_setting_names_the_store_of_a_domain_whose_rules_name_none() {
    let file = |top: &str| {
        format!(
            "domain: shop\n{top}descriptors: [{{key: a, rate_limit: {{unit: day, \
             requests_per_unit: 1}}}}]\n"
        )
    };
    let of = |top: &str, setting: &str| {
        let rules = loaded(&[&file(top)], setting).unwrap();
        assert_eq!(rules.store_of_domain("shop"), rules.iter().next().unwrap().store().unwrap());
        stores(&rules)[0].1.clone()
    };
    assert_eq!(of("", "shop=premium,other=batch"), "premium");
    assert_eq!(of("store: batch\n", "shop=premium"), "batch", "the file's own");
    let versions = ["", "shop=premium"].map(|it| loaded(&[&file("")], it).unwrap().version());
    assert_ne!(versions[0], versions[1]);
}

#[test]
fn a_store_that_has_no_settings_is_refused_where_it_stands() {
    let known = "expected one of default, as in REDIS_STORES";
    refuses(
        "store.yaml",
        &[
            &format!("2:8: unknown store 'premum'; {known}"),
            &format!("5:67: unknown store 'premium'; {known}"),
            &format!("6:67: unknown store '7'; {known}"),
            "7:14: 'store' cannot stand here; it belongs to the file's top level or 'rate_limit'",
            &format!("8:67: unknown store 'defualt'; {known}; did you mean 'default'?"),
        ],
    );
    let named = "domain: a\nstore: premum\n";
    let meant = "unknown store 'premum'; expected one of default, premium, batch, as in \
                 REDIS_STORES; did you mean 'premium'?";
    assert_eq!(loaded(&[named], "").unwrap_err(), [format!("0.yaml:2:8: {meant}")]);
}

#[test]
fn a_file_with_store_from_keeps_its_rules_and_gets_a_warning_that_says_what_to_do() {
    let text = "domain: shop\nstore: premium\nstore_from: default\ndescriptors:\n- {key: a, \
                rate_limit: {unit: day, requests_per_unit: 1, store: batch, store_from: [x]}}\n- \
                {key: b, rate_limit: {unit: day, requests_per_unit: 1, algorithm: leaky_bucket}}\n";
    let source = Source { name: "0.yaml".into(), text: text.into() };
    let Loaded { rules, warnings, .. } = load(&[source], options("")).unwrap();
    let expected = [("shop.a", "batch".to_owned()), ("shop.b", "premium".to_owned())];
    assert_eq!(stores(&rules), expected);
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    let meaning = "'store_from' has no effect any more; remove it. Only 'store' counts the limit: \
                   when it changes, windows restart, and up to twice the limit is admitted in the \
                   window of the change";
    assert_eq!(warnings, ["3:1", "5:72"].map(|place| format!("0.yaml:{place}: {meaning}")));
}

#[test]
fn the_store_of_a_limit_is_no_part_of_its_keys() {
    let limit = |store: &str| {
        let text = format!(
            "domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 1, \
             store: {store}}}}}]\n"
        );
        let rules = loaded(&[&text], "").unwrap();
        let rule = rules.iter().next().unwrap().allowance;
        let Allowance::Limited(limit) = rule else { panic!("unlimited") };
        limit
    };
    let (before, after) = (limit("default"), limit("premium"));
    assert_ne!(before, after);
    assert_eq!(before.identity(), after.identity());
}
