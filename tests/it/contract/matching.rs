//! MATCH, WILDCARD and MERGE: which rule a descriptor matches, as its limit shows.

use super::{Case, Pod, World, in_every_world, times};

const MATCHING: &str = include_str!("../../rules/ok/matching.yaml");
const QUIRKS: &str = include_str!("../../rules/ok/empty_values.yaml");
const WILDCARD: &str = include_str!("../../rules/ok/wildcard.yaml");
const MERGE_FIRST: &str = include_str!("../../rules/ok/merge_first.yaml");
const MERGE_SECOND: &str = include_str!("../../rules/ok/merge_second.yaml");

in_every_world!(a_descriptor_finds_its_rule, wildcards_match_anywhere, merged_files_are_one_domain);

async fn a_descriptor_finds_its_rule(world: World) {
    let rules = [("matching.yaml", MATCHING), ("quirks.yaml", QUIRKS)];
    let mut pod = Pod::start(world, &rules, &[]).await;
    let rows = [
        Case("M1", "foo_domain:()", "none"),
        Case("M2", "()", "none"),
        Case("M3", "(key1,something)", "none"),
        Case("M4", "(key1,value1)", "none"),
        Case("M5", "(key2,value2)(subkey,subvalue)", "none"),
        Case("M6", "(key5,value5)(subkey5,subvalue)", "none"),
        Case("M7", "(key1,value1)(subkey1,$)", "OK 4/5 SECOND"),
        Case("M8", "(key1,value1)(subkey1,subvalue1)", "OK 9/10 SECOND"),
        Case("M9", "(key2,$)", "OK 19/20 MINUTE"),
        Case("M10", "(key2,value2)", "OK 29/30 MINUTE"),
        Case("M11", "(key2,value3)", "none"),
        Case("M12", "(key3,$)", "OK 0/1 HOUR"),
        Case("M13", "(key4,$)", "OK 0/1 DAY \"key4_rate_limit\""),
        Case("M14", "(key6,$)", "unlimited"),
        Case("M15", "(key7,$)", "OK 69/70 MINUTE"),
        // The reference joins key and value, and finds `k: v` and `a: b_c` for these two.
        Case("M16 key is not key_value", "quirks:(k_v,x)", "none"),
        Case("M16 value is not key_value", "quirks:(a_b,c)", "none"),
        Case("M16 empty value", "quirks:(w,)", "OK 2/3 MINUTE"),
        Case("M16 empty value of a star", "quirks:(any,)", "OK 4/5 MINUTE"),
    ];
    pod.check("test-domain", &rows).await;
}

async fn wildcards_match_anywhere(world: World) {
    let mut pod = Pod::start(world, &[("wildcard.yaml", WILDCARD)], &[]).await;
    let some = "OK 19/20 MINUTE";
    let rows = [
        Case("prefix", "(wild,foo1$)", some),
        Case("another prefix", "(wild,foo2$)", some),
        Case("nested", "(nestedWild,val1)(wild,goo2$)", some),
        Case("middle", "(midWild,bara$b)", some),
        Case("middle, digits", "(midWild,bar123$b)", some),
        Case("middle, empty", "(midWild,barb)", some),
        Case("several", "(multiWild,foo123$bar456baz)", some),
        Case("several, empty", "(multiWild,foobarbaz)", some),
        Case("no value", "(noVal,$)", some),
        Case("each value counts apart", "(wild,foo$-a) | (wild,foo$-b)", &times(2, some)),
        Case("other prefix", "(wild,bar)", "none"),
        Case("no star", "(noWild,foo1)", "none"),
        Case("other end", "(midWild,bara)", "none"),
        Case("other start", "(midWild,xbarb)", "none"),
        Case("middle part missing", "(multiWild,foo123baz)", "none"),
        Case("first part missing", "(multiWild,bar456baz)", "none"),
        Case("the first of the file wins", "(order,abcd$)", "OK 0/1 MINUTE"),
        Case("exact before wildcard", "(order,abc)", "OK 2/3 MINUTE"),
        Case("a pattern's own text is exact", "(order,ab*)", "OK 1/2 MINUTE"),
        Case("no way back to a sibling", "(greedy,g$)(y,1)", "none"),
    ];
    pod.check("test-domain", &rows).await;
}

async fn merged_files_are_one_domain(world: World) {
    let rules = [("b.yaml", MERGE_SECOND), ("a.yaml", MERGE_FIRST)];
    let mut pod = Pod::start(world, &rules, &[("MERGE_DOMAIN_CONFIG", "true")]).await;
    let rows = [
        Case("the first file", "(key1,value1)", "OK 9/10 MINUTE"),
        Case("the second file", "(key2,value2)", "OK 19/20 MINUTE"),
        Case("wildcards in order of names", "(shared,ab$)", "OK 0/1 MINUTE"),
    ];
    pod.check("test-domain", &rows).await;
}

/// Row 10 of the faults, and row 8 where merging was not enabled.
#[tokio::test]
async fn what_cannot_be_merged_is_refused() {
    let first = ("a.yaml", MERGE_FIRST);
    for (merge, second, fault) in
        [("true", MERGE_FIRST, "b.yaml:3:10"), ("false", MERGE_SECOND, "b.yaml:1:9")]
    {
        let env = [("MERGE_DOMAIN_CONFIG", merge)];
        let mut pod = Pod::start_unready(World::Memory, &[first, ("b.yaml", second)], &env).await;
        let index = pod.index().await;
        assert!(index.contains("loads refused: 1\n") && index.contains(fault), "{index}");
        let rows = [Case("V7", "(key1,value1)", "Unknown no rate limit configuration loaded")];
        pod.check("test-domain", &rows).await;
    }
}
