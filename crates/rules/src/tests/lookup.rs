//! The rule that a descriptor matches: MATCH, MERGE, SHADOW CONFIG, WILDCARD, SHARE_THRESHOLD and
//! METADATA.

use super::*;

#[track_caller]
fn finds(rules: &Rules, domain: &str, table: &[(&str, &str)]) {
    for (descriptor, expected) in table {
        assert_eq!(allowed(rules, domain, descriptor), *expected, "{descriptor}");
    }
}

#[test]
fn rows_m1_to_m15() {
    let rules = rules(&["matching.yaml"], NO_MERGE);
    assert!(matches!(rules.find("foo_domain", &[]), Lookup::UnknownDomain));
    assert!(matches!(rules.find("test-domain", &[]), Lookup::NoRule));
    finds(
        &rules,
        "test-domain",
        &[
            ("key1=something", "none"),
            ("key1=value1", "none"),
            ("key2=value2 subkey=subvalue", "none"),
            ("key5=value5 subkey5=subvalue", "none"),
            ("key5=value5", "15 DAY"),
            ("key1=value1 subkey1=something", "5 SECOND"),
            ("key1=value1 subkey1=subvalue1", "10 SECOND"),
            ("key2=something", "20 MINUTE"),
            ("key2=value2", "30 MINUTE"),
            ("key2=value3", "none"),
            ("key3=foo", "1 HOUR"),
            ("key4=foo", "1 DAY"),
            ("key6=foo", "unlimited"),
            ("key7=unspecified_value", "70 MINUTE"),
        ],
    );
    assert_eq!(&*find(&rules, "test-domain", "key3=foo").unwrap().name, "");
    assert_eq!(&*find(&rules, "test-domain", "key4=foo").unwrap().name, "key4_rate_limit");
    let entries = entries("key7=unspecified_value");
    let Lookup::Rule(rule) = rules.find("test-domain", &entries) else { panic!("M15") };
    assert_eq!(rule.stats_key("test-domain", &entries), "test-domain.key7_unspecified_value");
}

#[test]
fn keys_and_values_are_never_run_together() {
    let rules = rules(&["empty_values.yaml"], NO_MERGE);
    finds(
        &rules,
        "quirks",
        &[
            ("k=v", "1 MINUTE"),
            ("k_v=anything", "none"), // the reference finds k, v
            ("a=b_c", "2 MINUTE"),
            ("a_b=c", "none"), // the reference finds a, b_c
            ("w=", "3 MINUTE"),
            ("w=foo", "4 MINUTE"),
            ("w=bar", "3 MINUTE"),
            ("k=", "none"),
            ("any=", "5 MINUTE"),
            ("any=x", "5 MINUTE"),
            ("plain=", "7 MINUTE"),
            ("plain=x", "7 MINUTE"),
            ("=", "none"),
        ],
    );
}

#[test]
fn a_key_with_a_star_is_a_wildcard_over_key_and_value() {
    let rules = rules(&["empty_values.yaml"], NO_MERGE);
    finds(
        &rules,
        "quirks",
        &[
            ("pa=x", "8 MINUTE"),
            ("path=/b", "8 MINUTE"),
            ("path=/a1", "8 MINUTE"),  // before path, /a* in the file
            ("late=/a1", "10 MINUTE"), // after it
            ("late=/b", "11 MINUTE"),
            ("xy=z", "12 MINUTE"),
            ("xay=zz", "12 MINUTE"),
            ("x=y_z", "12 MINUTE"), // over the text x_y_z
            ("xy=a", "none"),
            ("x*y=z*", "12 MINUTE"),
        ],
    );
}

#[test]
fn merged_files_add_at_the_top_level_in_order_of_their_names() {
    let rules = rules(&["merge_second.yaml", "merge_first.yaml"], MERGE);
    finds(
        &rules,
        "test-domain",
        &[
            ("key1=value1", "10 MINUTE"),
            ("key2=value2", "20 MINUTE"),
            ("shared=abc", "1 MINUTE"), // the first file's wildcard comes first
        ],
    );
    assert_eq!(rules.len(), 4);
}

#[test]
fn shadow_and_quota_mode_belong_to_their_rule() {
    let rules = rules(&["shadow.yaml"], NO_MERGE);
    let table = [
        ("key1=value1 subkey1=subvalue1", "10 SECOND", true),
        ("key1=value1 subkey1=x", "5 SECOND", false),
        ("key2=x", "20 MINUTE", true),
        ("key2=value2", "30 MINUTE", false),
    ];
    for (descriptor, limit, shadow) in table {
        assert_eq!(allowed(&rules, "test-domain", descriptor), limit);
        let rule = find(&rules, "test-domain", descriptor).unwrap();
        assert_eq!(
            (rule.flags.shadow_mode, rule.flags.quota_mode, rule.flags.charge_denied),
            (shadow, false, true)
        );
    }
    let rule = find(&rules, "test-domain", "key3=x").unwrap();
    assert_eq!(
        (rule.flags.shadow_mode, rule.flags.quota_mode, rule.flags.charge_denied),
        (false, true, false)
    );
}

#[test]
fn wildcards_match_anywhere_and_the_first_of_the_file_wins() {
    let rules = rules(&["wildcard.yaml"], NO_MERGE);
    let some = "20 MINUTE";
    finds(
        &rules,
        "test-domain",
        &[
            ("wild=foo1", some),
            ("wild=foo2", some),
            ("nestedWild=val1 wild=goo2", some),
            ("midWild=barab", some),
            ("midWild=bar123b", some),
            ("midWild=barb", some),
            ("multiWild=foo123bar456baz", some),
            ("multiWild=foobarbaz", some),
            ("noVal=anything", some),
            ("wild=bar", "none"),
            ("noWild=foo1", "none"),
            ("midWild=bara", "none"),
            ("midWild=xbarb", "none"),
            ("multiWild=foo123baz", "none"),
            ("multiWild=bar456baz", "none"),
            ("order=abcd", "1 MINUTE"),
            ("order=abc", "3 MINUTE"),
            ("order=ab*", "2 MINUTE"), // the pattern's own text is its exact value
            ("greedy=go x=1", "4 MINUTE"),
            ("greedy=go y=1", "none"),
            ("greedy=o y=1", "5 MINUTE"),
            ("greedy=go", "none"),
        ],
    );
}

/// Formats the limit and the shared pattern of each level, `-` for none.
fn shared(rules: &Rules, descriptor: &str) -> String {
    let levels = find(rules, "test-domain", descriptor).map(|rule| {
        let shared = rule.levels.iter().map(|level| level.shared.as_deref().unwrap_or("-"));
        shared.collect::<Vec<_>>().join(" ")
    });
    format!("{}: {}", allowed(rules, "test-domain", descriptor), levels.unwrap_or_default())
}

#[test]
fn share_threshold_counts_under_the_pattern_at_its_level_only() {
    let rules = rules(&["share_threshold.yaml"], NO_MERGE);
    let table = [
        ("files=files/a.pdf", "100 HOUR: files/*"),
        ("files=files/b.csv", "100 HOUR: files/*"),
        ("nested=parent files=nested/a", "200 HOUR: - nested/*"),
        ("files=top/a files=nested/b", "300 HOUR: top/* nested/*"),
        ("route=api/v1 method=GET", "60 MINUTE: api/* -"),
        ("service=svc/user endpoint=get", "80 MINUTE: svc/* -"),
        ("path=path/foo file=file/doc1 type=pdf", "120 MINUTE: path/* - -"),
        ("user=user/a resource=res/b action=read", "150 MINUTE: user/* res/* -"),
        ("file=test1", "50 MINUTE: -"),
        ("file=test2", "100 MINUTE: test*"),
        ("file=test123", "100 MINUTE: test*"),
        ("midpath=/api/v1", "100 MINUTE: /api*v1"),
        ("midpath=/api-beta-v1", "100 MINUTE: /api*v1"),
        ("midpath=/apiXYZv1", "100 MINUTE: /api*v1"),
        ("midpath=/api/v2", "none: "),
        ("multiroute=svcAepBrpc", "50 MINUTE: svc*ep*rpc"),
        ("multiroute=svceprpc", "50 MINUTE: svc*ep*rpc"),
        ("multiroute=svcABCrpc", "none: "),
        ("tenant=t1prod resource=resAv2", "60 MINUTE: t*prod res*v2"),
        ("tenant=t99prod resource=resBBBv2", "60 MINUTE: t*prod res*v2"),
        ("zone1=a", "7 MINUTE: zone*"),
    ];
    for (descriptor, expected) in table {
        assert_eq!(shared(&rules, descriptor), expected, "{descriptor}");
    }
}

#[test]
fn metadata_is_the_map_that_was_written() {
    let rules = rules(&["metadata.yaml"], NO_MERGE);
    let metadata = |descriptor| {
        let rule = find(&rules, "test-domain", descriptor).unwrap();
        rule.metadata.as_deref().cloned().map(serde_json::Value::Object)
    };
    assert_eq!(metadata("key1=value1 subkey1=x"), Some(serde_json::json!({"name": "service_1"})));
    assert_eq!(
        metadata("key2=x"),
        Some(serde_json::json!({
            "service_with_quota": {
                "name": "service_2", "tier": 3, "share": 0.5, "on": true, "none": null,
                "list": ["a", {"b": "1"}],
            },
            "2024": "year",
        }))
    );
    assert_eq!(metadata("key3=x"), None);
}

#[test]
fn replaces_names_other_rules_known_or_not() {
    let rules = rules(&["replaces.yaml"], NO_MERGE);
    let replaces = |descriptor| {
        let rule = find(&rules, "test-domain", descriptor).unwrap();
        rule.replaces.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(replaces("a=1"), [""; 0]);
    assert_eq!(replaces("b=1"), ["first", "unheard_of"]);
    assert_eq!(replaces("c=1"), ["first"]);
}

#[test]
fn scalars_anchors_and_merge_keys_work_as_in_the_reference() {
    let rules = rules(&["yaml.yaml"], NO_MERGE);
    let table = [
        ("base", "x", "8 MINUTE"),
        ("merged", "x", "8 MINUTE"),
        ("refined", "x", "8 WEEK"),
        ("listed", "first", "8 MINUTE"),
        ("listed", "second", "none"),
        ("007", "0x1F", "1000 MONTH"),
        ("7", "31", "none"),
        ("text", "yes", "16 YEAR"),
        ("date", "2024-01-31", "4294967295 DAY"),
        ("quoted", "1.5", "0 SECOND"),
        ("tagged", "1.5", "3 HOUR"),
        ("nothing", "x", "none"),
        ("folded key", "escaped\tvalue", "1 SECOND"),
    ];
    for (key, value, expected) in table {
        let found = match rules.find("42", &[Entry { key, value }]) {
            Lookup::Rule(rule) => match rule.allowance {
                Allowance::Limited(limit) => {
                    format!("{} {}", limit.requests_per_unit, limit.unit.name())
                }
                Allowance::Unlimited => "unlimited".to_owned(),
            },
            _ => "none".to_owned(),
        };
        assert_eq!(found, expected, "{key} {value}");
    }
    assert!(find(&rules, "42", "listed=first").unwrap().flags.shadow_mode);
}

#[test]
fn rules_are_listed_in_order_of_path_and_found_by_it() {
    let rules = rules(&["matching.yaml", "domain_only.yaml"], NO_MERGE);
    let paths: Vec<_> = rules.iter().map(|rule| rule.path.to_string()).collect();
    assert!(paths.is_sorted());
    assert_eq!(paths.len(), rules.len());
    for path in &paths {
        assert_eq!(*rules.by_path(path).unwrap().path, **path);
    }
    assert!(rules.by_path("test-domain.key1_value1").is_none());
    assert_eq!(rules.domains().collect::<Vec<_>>(), ["no-rules", "test-domain"]);
    assert!(matches!(rules.find("no-rules", &entries("a=b")), Lookup::NoRule));
}

#[test]
fn no_source_is_no_rule() {
    let rules = load::<Source>(&[], NO_MERGE).unwrap().rules;
    assert!(rules.is_empty());
    assert!(matches!(rules.find("a", &[]), Lookup::UnknownDomain));
}

#[test]
fn a_path_that_two_rules_come_to_is_made_unique() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let rules = compile(&format!(
        "domain: d\ndescriptors:
  - {{key: a, value: b_c, {limit}}}
  - {{key: a_b, value: c, {limit}}}
  - {{key: 'a_b_c#1', {limit}}}
  - {{key: a_b_c, {limit}}}
  - {{key: x.y, {limit}}}
  - {{key: x, descriptors: [{{key: y, {limit}}}]}}
"
    ))
    .rules;
    let path = |descriptor| find(&rules, "d", descriptor).unwrap().path.to_string();
    assert_eq!(path("a=b_c"), "d.a_b_c");
    assert_eq!(path("a_b=c"), "d.a_b_c#2");
    assert_eq!(path("a_b_c#1=x"), "d.a_b_c#1");
    assert_eq!(path("a_b_c=x"), "d.a_b_c#3");
    assert_eq!(path("x.y=1"), "d.x.y");
    assert_eq!(path("x=1 y=1"), "d.x.y#2");
    assert_eq!(rules.len(), 6);
}

#[test]
fn a_hundred_thousand_values_load_and_each_finds_its_rule() {
    const COUNT: u32 = 100_000;
    let mut text = "domain: big\ndescriptors:\n".to_owned();
    for n in 0..COUNT {
        text += &format!(
            "  - key: user\n    value: u{n}\n    rate_limit:\n      unit: minute\n      \
             requests_per_unit: {n}\n"
        );
    }
    let Loaded { rules, warnings, .. } = compile(&text);
    assert_eq!((rules.len(), warnings.len()), (100_000, 0));
    for n in 0..COUNT {
        let value = format!("u{n}");
        let entry = Entry { key: "user", value: &value };
        let Lookup::Rule(rule) = rules.find("big", &[entry]) else { panic!("u{n} has no rule") };
        let limit = Limit::fixed_window(n.into(), Unit::Minute);
        assert_eq!(rule.allowance, Allowance::Limited(limit));
    }
    assert_eq!(allowed(&rules, "big", "user=u100000"), "none");
}

#[test]
fn candidate_rules_are_found_by_the_domain_that_they_are_for() {
    let of = |domains: &[&str]| {
        let source = |domain: &&str| Source {
            name: (*domain).to_owned(),
            text: format!("domain: \"{domain}\"\n").into(),
        };
        let sources: Vec<_> = domains.iter().map(source).collect();
        load(&sources, NO_MERGE).unwrap().rules
    };
    let rules = of(&["shop", "bank@candidate", "shop@candidate", "@candidate"]);
    let found = ["shop", "bank", "lab", "", "shop@candidate"].map(|it| rules.candidate_of(it));
    assert_eq!(found, [Some("shop@candidate"), Some("bank@candidate"), None, None, None]);
    assert!(of(&["shop"]).candidates.is_none(), "one test of a pointer");
    assert_eq!(domain_of_candidate(&candidate_of("shop")), Some("shop"));
}
