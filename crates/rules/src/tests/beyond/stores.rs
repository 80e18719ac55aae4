//! The stores that rules and domains name.

use super::super::faults::refuses;
use super::super::*;

/// Two named stores.
fn options(domain_stores: &str) -> Options {
    let stores = StoreNames::parse("premium,batch").unwrap();
    let domain_stores = DomainStores::parse(domain_stores, &stores).unwrap();
    Options { merge_domains: true, stores, domain_stores }
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
    let store = |rule: &'_ Arc<Rule>| rules.stores().describe(rule.store().unwrap());
    rules.iter().map(|rule| (&*rule.path, store(rule))).collect()
}

#[test]
fn a_limit_is_counted_by_its_own_store_or_that_of_its_domain() {
    let shop = "domain: shop\nstore: premium\nstore_from: default\ndescriptors:\n\
                - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 1, store: batch}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 1, store: default}}\n\
                - key: d\n  descriptors:\n  - key: e\n    rate_limit: {unit: second, \
                requests_per_unit: 1, store: default, store_from: batch}\n";
    let plain = "domain: plain\ndescriptors: [{key: a, rate_limit: {unit: day, \
                 requests_per_unit: 1}}]\n";
    let rules = loaded(&[shop, plain], "").unwrap();
    let expected = [
        ("plain.a", "default"),
        ("shop.a", "default>premium"),
        ("shop.b", "batch"),
        ("shop.c", "default"),
        ("shop.d.e", "batch>default"),
    ];
    assert_eq!(stores(&rules), expected.map(|(path, store)| (path, store.to_owned())));
    let of_domain = |domain| rules.stores().describe(rules.store_of_domain(domain));
    assert_eq!(of_domain("shop"), "default>premium");
    assert_eq!((of_domain("plain"), of_domain("other")), ("default".into(), "default".into()));
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
    assert_eq!(of("", "shop=default>premium"), "default>premium");
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
            "6:72: 'store_from' needs 'store' beside it: the store to move to",
            "7:88: 'store_from' names the store that the limit moves to; name the one that counted \
             it before, or remove it",
            &format!("8:67: unknown store '7'; {known}"),
            "9:14: 'store' cannot stand here; it belongs to the file's top level or 'rate_limit'",
            &format!("10:88: unknown store 'defualt'; {known}; did you mean 'default'?"),
        ],
    );
    let named = "domain: a\nstore: premum\n";
    let meant = "unknown store 'premum'; expected one of default, premium, batch, as in \
                 REDIS_STORES; did you mean 'premium'?";
    assert_eq!(loaded(&[named], "").unwrap_err(), [format!("0.yaml:2:8: {meant}")]);
}

#[test]
fn a_leaky_bucket_does_not_move() {
    let file = |top: &str, beside: &str| {
        format!(
            "domain: shop\n{top}descriptors:\n- {{key: a, rate_limit: {{unit: day, \
             requests_per_unit: 1, algorithm: leaky_bucket{beside}}}}}\n"
        )
    };
    let moves = "store: premium\nstore_from: default\n";
    let refused = "leaky_bucket cannot move with 'store_from', that of its domain included; give \
                   this limit a 'store' alone";
    for (top, beside, setting, place) in [
        ("", ", store: premium, store_from: default", "", Some("3:111")),
        (moves, "", "", Some("5:24")),
        ("defaults: {algorithm: leaky_bucket}\n", "", "shop=default>premium", Some("4:24")),
        ("", ", store: premium", "shop=default>premium", None),
        (moves, ", store: default", "", None),
    ] {
        let found = loaded(&[&file(top, beside)], setting).err().unwrap_or_default();
        let expected: Vec<_> =
            place.iter().map(|place| format!("0.yaml:{place}: {refused}")).collect();
        assert_eq!(found, expected, "{top}{beside}");
    }
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
