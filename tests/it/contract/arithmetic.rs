//! COUNTER ARITHMETIC: hits, requests with no hits, and refunds. Where the contract seeds a count,
//! a first request charges it.

use super::{Case, Pod, World, countdown, in_every_world, times};

/// Each limit is in its key: `k10` allows 10.
const RULES: &str = "
domain: d
descriptors:
  - {key: k0, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: k1, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: k8, rate_limit: {unit: minute, requests_per_unit: 8}}
  - {key: k10, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: k14, rate_limit: {unit: minute, requests_per_unit: 14}}
  - {key: k15, rate_limit: {unit: minute, requests_per_unit: 15}}
  - {key: k20, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: k100000, rate_limit: {unit: minute, requests_per_unit: 100000}}
  - {key: most, rate_limit: {unit: year, requests_per_unit: 4294967295}}
";

in_every_world!(counts_are_the_references, refunds_give_back);

async fn counts_are_the_references(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case("4 of 10, 1", "(k10,$)+4 | (k10,$)", "OK 6/10 MINUTE | OK 5/10 MINUTE"),
        Case("10 of 10, 1", "(k10,$)+10 | (k10,$)", "OK 0/10 MINUTE | OVER 0/10 MINUTE"),
        Case("11 of 10, a look", "(k10,$)+11 | (k10,$)+0", "OVER 0/10 MINUTE | OVER 0/10 MINUTE"),
        Case("2 of 20, 3", "(k20,$)+2 | (k20,$)+3", "OK 18/20 MINUTE | OK 15/20 MINUTE"),
        Case("5 of 8, 2", "(k8,$)+5 | (k8,$)+2", "OK 3/8 MINUTE | OK 1/8 MINUTE"),
        Case("16 of 20, 3", "(k20,$)+16 | (k20,$)+3", "OK 4/20 MINUTE | OK 1/20 MINUTE"),
        Case("19 of 20, 3", "(k20,$)+19 | (k20,$)+3", "OK 1/20 MINUTE | OVER 0/20 MINUTE"),
        Case("15 of 20, 7", "(k20,$)+15 | (k20,$)+7", "OK 5/20 MINUTE | OVER 0/20 MINUTE"),
        Case("27 of 10, 3", "(k10,$)+27 | (k10,$)+3", "OVER 0/10 MINUTE | OVER 0/10 MINUTE"),
        Case(
            "a denied charge counts",
            "(k10,$)+5 | (k10,$)+6 | (k10,$)",
            "OK 5/10 MINUTE | OVER 0/10 MINUTE | OVER 0/10 MINUTE",
        ),
        // As in the reference with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
        Case(
            "13 of 15 and of 14, 2",
            "(k15,$)+13; (k14,$)+13 | (k15,$)+2; (k14,$)+2 | (k15,$)+2",
            "OK: OK 2/15 MINUTE; OK 1/14 MINUTE | OVER: OK 2/15 MINUTE; OVER 0/14 MINUTE \
             | OK 0/15 MINUTE",
        ),
        Case("one by one", "(k10,$)", &countdown(13, 10, "MINUTE")),
        Case("one allowed", "(k1,$)", &countdown(3, 1, "MINUTE")),
        Case("none allowed", "(k0,$)", &countdown(2, 0, "MINUTE")),
        Case("a look at none allowed", "(k0,$)+0", "OK 0/0 MINUTE"),
        Case("looks cost nothing", "(k10,$)+0", &times(3, "OK 10/10 MINUTE")),
        Case(
            "a look at the limit and beyond it",
            "(k1,$) | (k1,$)+0 | (k1,$) | (k1,$)+0",
            "OK 0/1 MINUTE | OK 0/1 MINUTE | OVER 0/1 MINUTE | OVER 0/1 MINUTE",
        ),
        Case("the request's hits", "(k10,$); (k20,$) x4", "OK: OK 6/10 MINUTE; OK 16/20 MINUTE"),
        Case(
            "the descriptor's own",
            "(k10,$)+0; (k20,$) x4",
            "OK: OK 10/10 MINUTE; OK 16/20 MINUTE",
        ),
        Case("hits of 0 are 1", "(k10,$) x0", "OK 9/10 MINUTE"),
        Case("a large limit", "(k100000,$)", &countdown(40, 100_000, "MINUTE")),
        Case("a charge above any lease", "(k100000,$)+99999", "OK 1/100000 MINUTE"),
        Case("all there is", "(most,$)+4294967295", "OK 0/4294967295 YEAR"),
        Case("most hits", "(most,$)+18446744073709551615", "OVER 0/4294967295 YEAR"),
        Case("most hits of a request", "(k10,$) x4294967295", "OVER 0/10 MINUTE"),
        Case("twice the same", "(k10,$); (k10,$)", "OK: OK 9/10 MINUTE; OK 8/10 MINUTE"),
        Case(
            "twice the same, beyond the limit",
            "(k10,$)+9; (k10,$)+9 | (k10,$) | (k10,$)+9",
            "OVER: OK 1/10 MINUTE; OVER 0/10 MINUTE | OVER 0/10 MINUTE | OVER 0/10 MINUTE",
        ),
    ];
    pod.check("d", &rows).await;
}

/// The reference charges refunds (`is_negative_hits` is newer than that version).
async fn refunds_give_back(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case(
            "some of it",
            "(k10,$)+8 | (k10,$)-3 | (k10,$)+5",
            "OK 2/10 MINUTE | OK 5/10 MINUTE | OK 0/10 MINUTE",
        ),
        Case("never above the limit", "(k10,$)+2 | (k10,$)-9", "OK 8/10 MINUTE | OK 10/10 MINUTE"),
        Case("of nothing", "(k10,$)-9 | (k10,$)", "OK 10/10 MINUTE | OK 9/10 MINUTE"),
        // Redis keeps only one hit above the limit, so a refund frees its hits at once.
        Case(
            "after a denial",
            "(k10,$)+10 | (k10,$) | (k10,$)-2 | (k10,$)",
            "OK 0/10 MINUTE | OVER 0/10 MINUTE | OK 2/10 MINUTE | OK 1/10 MINUTE",
        ),
    ];
    pod.check("d", &rows).await;
}
