use ratelease_cli::settings::StatsdDialect;

use super::*;

fn hits(total: u64, over: u64) -> Hits {
    Hits { total, over, within: total - over, ..Hits::default() }
}

fn counts(keys: &[(&str, Hits)], requests: u64) -> Counts {
    let by_stats_key = keys.iter().map(|(key, hits)| ((*key).into(), *hits)).collect();
    let reference = ReferenceCounts { by_stats_key, requests, ..ReferenceCounts::default() };
    Counts { reference, loads_ok: 1, loads_failed: 0 }
}

fn written(now: &Counts, before: &Counts) -> String {
    let mut lines = Lines::new(&StatsdDialect::Statsd, &[], STREAM_BYTES_MAX);
    write(&mut lines, now, before);
    String::from_utf8(lines.packets().concat()).unwrap()
}

#[test]
fn what_has_grown_is_written_and_nothing_else() {
    let first = counts(&[("shop.user", hits(5, 2)), ("shop.ip", hits(1, 0))], 6);
    let expected = "ratelimit.service.rate_limit.shop.ip.total_hits:1|c\n\
         ratelimit.service.rate_limit.shop.ip.within_limit:1|c\n\
         ratelimit.service.rate_limit.shop.user.total_hits:5|c\n\
         ratelimit.service.rate_limit.shop.user.over_limit:2|c\n\
         ratelimit.service.rate_limit.shop.user.within_limit:3|c\n\
         ratelimit.service.config_load_success:1|c\n\
         ratelimit_server.ShouldRateLimit.total_requests:6|c\n";
    assert_eq!(written(&first, &Counts::default()), expected);
    assert_eq!(written(&first, &first), "");
    let second = counts(&[("shop.user", hits(6, 3)), ("shop.ip", hits(1, 0))], 7);
    let expected = "ratelimit.service.rate_limit.shop.user.total_hits:1|c\n\
         ratelimit.service.rate_limit.shop.user.over_limit:1|c\n\
         ratelimit_server.ShouldRateLimit.total_requests:1|c\n";
    assert_eq!(written(&second, &first), expected);
}

#[test]
fn a_count_that_began_again_is_written_whole() {
    let before = counts(&[("shop.user", hits(9, 0))], 9);
    let now = counts(&[("shop.user", hits(2, 0))], 11);
    assert!(
        written(&now, &before)
            .starts_with("ratelimit.service.rate_limit.shop.user.total_hits:2|c\n")
    );
}

#[test]
fn each_bucket_of_times_is_one_line_for_all_of_its_calls() {
    let micros = Duration::from_micros;
    let of = |counts: [u64; 3]| Buckets {
        bounds: vec![micros(10), micros(30)],
        counts: counts.into(),
        sum: Duration::ZERO,
    };
    let mut lines = Lines::new(&StatsdDialect::Statsd, &[], STREAM_BYTES_MAX);
    write_times(&mut lines, &of([4, 3, 1]), &of([4, 2, 0]));
    let text = String::from_utf8(lines.packets().concat()).unwrap();
    let name = "ratelimit_server.ShouldRateLimit.response_time";
    assert_eq!(text, format!("{name}:0.02|ms\n{name}:0.03|ms\n"));
}
