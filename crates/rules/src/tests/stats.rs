//! STATS KEYS, and the stats keys of SHARE_THRESHOLD.

use super::*;

#[track_caller]
fn counts_as(rules: &Rules, domain: &str, table: &[(&str, &str)]) {
    for (descriptor, expected) in table {
        let entries = entries(descriptor);
        let Lookup::Rule(rule) = rules.find(domain, &entries) else { panic!("{descriptor}: none") };
        assert_eq!(rule.stats_key(domain, &entries), *expected, "{descriptor}");
    }
}

#[test]
fn detailed_metric_shows_every_key_and_value() {
    counts_as(
        &rules(&["metrics.yaml"], NO_MERGE),
        "nested",
        &[
            ("key_1=value-1", "nested.key_1_value-1"),
            ("key_1=some-value", "nested.key_1_some-value"),
            ("key_2=specific-id", "nested.key_2_specific-id"),
            ("key_2=v key_3=requested", "nested.key_2_v.key_3_requested"),
            ("key_2=v key_3=exact", "nested.key_2_v.key_3_exact"),
            ("plain-1=value-1", "nested.plain-1"),
            ("plain-1=value-1 plain-2=value-2", "nested.plain-1.plain-2"),
            ("key_1=", "nested.key_1_"), // the reference keeps the '_'
            ("key_1=10.0.0.1:80", "nested.key_1_10_0_0_1_80"),
        ],
    );
}

#[test]
fn value_to_metric_shows_the_value_of_its_level() {
    counts_as(
        &rules(&["metrics.yaml"], NO_MERGE),
        "nested",
        &[
            (
                "route=draw http_method=GET subject_id=123",
                "nested.route_draw.http_method_GET.subject_id",
            ),
            (
                "route=draw http_method=GET detail_id=123",
                "nested.route_draw.http_method_GET.detail_id_123",
            ),
            ("first=X middle=Y last=Z", "nested.first.middle_Y.last"),
            (
                "configured=api http_method=GET subject_id=u",
                "nested.configured_api.http_method_GET.subject_id",
            ),
            (
                "user=alice action=readfile resource=documents",
                "nested.user_alice.action_readfile.resource",
            ),
            ("route= http_method=GET subject_id=1", "nested.route.http_method_GET.subject_id"),
            ("route=draw http_method= subject_id=1", "nested.route_draw.http_method.subject_id"),
            ("route= http_method= subject_id=1", "nested.route.http_method.subject_id"),
        ],
    );
}

#[test]
fn wildcards_show_their_pattern_unless_a_flag_shows_the_value() {
    counts_as(
        &rules(&["metrics.yaml"], NO_MERGE),
        "nested",
        &[
            ("wild=foo1", "nested.wild_foo*"),
            ("wild_value=foo1", "nested.wild_value_foo1"),
            ("wild_shared=foo1", "nested.wild_shared_foo*"),
            ("wild_detail=foo1", "nested.wild_detail_foo1"),
            ("wild_both=foo1bar2", "nested.wild_both_foo*bar*"),
            ("a=a_b", "nested.a_a_*"),
            ("stars=x", "nested.stars_star*"), // as the reference joins it
        ],
    );
}

#[test]
fn share_threshold_shows_its_pattern_whatever_else_is_set() {
    counts_as(
        &rules(&["share_threshold.yaml"], NO_MERGE),
        "test-domain",
        &[
            ("files=files/a.pdf", "test-domain.files_files/*"),
            ("route=api/v1 method=GET", "test-domain.route_api/*.method"),
            ("service=svc/user endpoint=get", "test-domain.service_svc/*.endpoint_get"),
            ("service=svc/user endpoint=", "test-domain.service_svc/*.endpoint"),
            ("nested=parent files=nested/f", "test-domain.nested_parent.files_nested/*"),
            ("files=top/a files=nested/b", "test-domain.files_top/*.files_nested/*"),
            ("path=path/foo file=file/doc1 type=pdf", "test-domain.path_path/*.file_file/*.type"),
            (
                "user=user/a resource=res/b action=read",
                "test-domain.user_user/*.resource_res/*.action",
            ),
            ("file=test1", "test-domain.file_test1"),
            ("file=test2", "test-domain.file_test*"),
            ("midpath=/api/v1", "test-domain.midpath_/api*v1"),
            ("multiroute=svcAepBrpc", "test-domain.multiroute_svc*ep*rpc"),
            ("tenant=t1prod resource=resAv2", "test-domain.tenant_t*prod.resource_res*v2"),
        ],
    );
}

#[test]
fn a_plain_stats_key_is_the_path() {
    let rules = rules(&["matching.yaml"], NO_MERGE);
    for descriptor in
        ["key1=value1 subkey1=x", "key1=value1 subkey1=subvalue1", "key2=x", "key2=value2"]
    {
        let entries = entries(descriptor);
        let rule = find(&rules, "test-domain", descriptor).unwrap();
        assert_eq!(rule.stats_key("test-domain", &entries), *rule.path);
    }
}
