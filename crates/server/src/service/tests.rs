//! The content of each kind of header for a verdict.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::request::Few;
use ratelease_rules::{self as rules, Limit, Rule, Rules, Source, Unit};

use super::*;

const RULES: &str = r#"
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 100}
  - key: named
    rate_limit: {unit: hour, requests_per_unit: 20, name: 'per "user"'}
  - key: twin
    rate_limit: {unit: day, requests_per_unit: 7, name: 'per "user"'}
  - key: id
    rate_limit: {algorithm: concurrency, requests_per_unit: 8, hold: {for: 1m}}
"#;

const ALL: Headers = Headers { reference: None, x_ratelimit: true, retry_after: true, ietf: true };

fn rules() -> Rules {
    let source = Source { name: "d.yaml".into(), text: RULES.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

fn status(rule: &Arc<Rule>, remaining: u64, reset: Option<u64>) -> Status<'_> {
    let rules::Allowance::Limited(limit) = rule.allowance else { panic!("{rule:?}") };
    Status {
        code: if remaining == 0 { Code::OverLimit } else { Code::Ok },
        limit: Some(AppliedLimit { limit, rule: Some(rule) }),
        remaining,
        reset_after: reset.map(Duration::from_millis),
        counted: None,
    }
}

fn free<'r>() -> Status<'r> {
    let (limit, reset_after) = (None, None);
    Status { code: Code::Ok, limit, remaining: 0, reset_after, counted: None }
}

fn headers_of(headers: &Headers, code: Code, tightest: usize, all: &[Status<'_>]) -> Vec<String> {
    let statuses: Few<_> = all.iter().copied().collect();
    let verdict = Verdict {
        code,
        statuses,
        tightest: Some(tightest),
        shadowed: false,
        metadata: None,
        started: None,
    };
    of(headers, &verdict).into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[test]
fn lists_have_every_limit_and_other_headers_the_tightest() {
    let rules = rules();
    let [user, named] = ["d.user", "d.named"].map(|path| rules.by_path(path).unwrap());
    let all = [free(), status(user, 50, Some(29_001)), status(named, 3, Some(1_800_000))];
    assert_eq!(
        headers_of(&ALL, Code::Ok, 2, &all),
        [
            r#"X-RateLimit-Limit: 20, 100;w=300, 20;w=3600;name="per \"user\"""#,
            "X-RateLimit-Remaining: 3",
            "X-RateLimit-Reset: 1800",
            r#"RateLimit-Policy: "per \"user\"";q=20;w=3600, "d.user";q=100;w=300"#,
            r#"RateLimit: "per \"user\"";r=3;t=1800, "d.user";r=50;t=30"#,
        ]
    );
    let ietf = Headers { x_ratelimit: false, retry_after: false, ..ALL };
    let [policy, remaining] = &headers_of(&ietf, Code::Ok, 0, &[status(user, 1, None)])[..] else {
        panic!("not two")
    };
    assert_eq!(policy, r#"RateLimit-Policy: "d.user";q=100;w=300"#);
    assert_eq!(remaining, r#"RateLimit: "d.user";r=1"#, "no reset is known");
}

#[test]
fn a_limit_of_requests_in_progress_has_no_window() {
    let rules = rules();
    let all = [status(rules.by_path("d.id").unwrap(), 0, Some(1_000))];
    assert_eq!(
        headers_of(&ALL, Code::OverLimit, 0, &all),
        [
            "X-RateLimit-Limit: 8, 8",
            "X-RateLimit-Remaining: 0",
            "X-RateLimit-Reset: 1",
            r#"RateLimit-Policy: "d.id";q=8;qu="concurrent-requests""#,
            r#"RateLimit: "d.id";r=0;t=1"#,
            "Retry-After: 1",
        ]
    );
}

#[test]
fn no_headers_are_written_if_no_limit_applies() {
    let verdict = Verdict {
        code: Code::Ok,
        statuses: [free()].into_iter().collect(),
        tightest: None,
        shadowed: false,
        metadata: None,
        started: None,
    };
    assert_eq!(of(&ALL, &verdict), []);
}

#[test]
fn rules_of_one_name_are_one_policy_described_by_the_tightest() {
    let rules = rules();
    let [named, twin] = ["d.named", "d.twin"].map(|path| rules.by_path(path).unwrap());
    let over = Limit::fixed_window(5, Unit::Second);
    let limit = Some(AppliedLimit { limit: over, rule: None });
    let all = [
        status(named, 9, None),
        status(twin, 2, None),
        Status { limit, remaining: 4, ..free() },
        status(twin, 1, None),
        Status { limit, remaining: 3, ..free() },
    ];
    let ietf = Headers { x_ratelimit: false, ..ALL };
    let expected = [
        r#"RateLimit-Policy: "per \"user\"";q=7;w=86400, "override";q=5;w=1"#,
        r#"RateLimit: "per \"user\"";r=1, "override";r=3"#,
    ];
    assert_eq!(headers_of(&ietf, Code::Ok, 3, &all), expected);
}

#[test]
fn retry_after_covers_every_exceeded_limit_and_is_at_least_a_second() {
    let rules = rules();
    let [user, named] = ["d.user", "d.named"].map(|path| rules.by_path(path).unwrap());
    let retry = Headers { x_ratelimit: false, ietf: false, ..ALL };
    let (minute, day) = (status(user, 0, Some(59_001)), status(named, 5, Some(86_400_000)));
    let hour = status(named, 0, Some(3_000_000));
    let unknown = status(named, 0, None);
    let short = status(user, 0, Some(1));
    for (all, tightest, expected) in [
        (&[minute, day][..], 0, "60"),
        (&[minute, hour], 0, "3000"),
        (&[hour, minute], 1, "3000"),
        (&[unknown], 0, "1"),
        (&[short], 0, "1"),
        // The tightest is not exceeded itself, as among quotas: the value is still not less than
        // its reset.
        (&[minute, day], 1, "86400"),
    ] {
        let expected = format!("Retry-After: {expected}");
        assert_eq!(headers_of(&retry, Code::OverLimit, tightest, all), [expected]);
        assert_eq!(headers_of(&retry, Code::Ok, tightest, all), [""; 0], "passed, by a mode");
    }
}

#[test]
fn names_are_written_as_strings_of_structured_fields() {
    for (name, expected) in [
        ("per-user", r#""per-user""#),
        (r#"a"b\c"#, r#""a\"b\\c""#),
        ("", r#""""#),
        ("größe 50%", r#""gr%c3%b6%c3%9fe 50%25""#),
        ("a\r\nb\u{7f}", r#""a%0d%0ab%7f""#),
        ("日", r#""%e6%97%a5""#),
    ] {
        assert_eq!(quoted(name), expected);
    }
    assert_eq!(quoted(&"x".repeat(500)), format!("\"{}\"", "x".repeat(NAME_BYTES_MAX)));
    // No character is split.
    assert_eq!(quoted(&"é".repeat(500)), format!("\"{}\"", "%c3%a9".repeat(21)));
}

#[test]
fn the_largest_numbers_are_whole_and_have_fifteen_digits_in_structured_fields() {
    let mut rule = Arc::clone(rules().by_path("d.user").unwrap());
    let limit = Limit::fixed_window(rules::AMOUNT_MAX, Unit::Hour);
    Arc::make_mut(&mut rule).allowance = rules::Allowance::Limited(limit);
    let status = status(&rule, rules::AMOUNT_MAX - 1, Some(9));
    let headers = headers_of(&ALL, Code::Ok, 0, &[status]);
    for expected in [
        "X-RateLimit-Limit: 9007199254740991, 9007199254740991;w=3600",
        "X-RateLimit-Remaining: 9007199254740990",
        ";q=999999999999999;w=3600",
        ";r=999999999999999;t=",
    ] {
        assert!(headers.iter().any(|it| it.contains(expected)), "{expected} not in {headers:?}");
    }
}

#[test]
fn a_long_list_is_truncated_between_items_and_includes_the_tightest() {
    let mut rule = Arc::clone(rules().by_path("d.user").unwrap());
    let unit_multiplier = NonZeroU32::new(2).unwrap();
    let limit = Limit { unit_multiplier, ..Limit::fixed_window(rules::AMOUNT_MAX, Unit::Year) };
    Arc::make_mut(&mut rule).allowance = rules::Allowance::Limited(limit);
    let rules: Vec<_> = (0..256)
        .map(|n| {
            Arc::new(Rule { name: format!("{n:03}{}", "n".repeat(200)).into(), ..(*rule).clone() })
        })
        .collect();
    let all: Vec<_> = rules.iter().map(|rule| status(rule, 9, None)).collect();
    for header in headers_of(&ALL, Code::Ok, 255, &all) {
        assert!(header.len() <= VALUE_BYTES_MAX + 30, "{} bytes", header.len());
        if header.starts_with("RateLimit") {
            assert!(header.contains(": \"255n") && header.len() > VALUE_BYTES_MAX / 2, "{header}");
            assert!(header.ends_with(";r=9") || header.ends_with(";w=63072000"), "{header}");
        }
    }
}

mod panics {
    use ratelease_engine::limiter::Options;
    use ratelease_engine::store::memory::MemoryStore;
    use ratelease_engine::time::Clock;
    use ratelease_rules::request::{Descriptor, Entry};

    use super::*;

    /// A start of a rule that has eight slots.
    fn start(id: &str) -> Request<'_> {
        let entries = [Entry { key: "id", value: id }].into_iter().collect();
        let descriptor = Descriptor { entries, ..Descriptor::default() };
        Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits_addend: 0 }
    }

    #[tokio::test]
    async fn a_start_is_undone_by_a_panic_while_its_answer_is_made() {
        let store = Arc::new(MemoryStore::system());
        let limiter = Limiter::new(store, Clock::start(), Options::default());
        let in_force = CurrentRules::new();
        in_force.put_in_force(Arc::new(rules()));
        let service = DecisionService::new(limiter, Arc::new(in_force), None, 10);
        let (peer, owner) = (Peer::new(), Owner::UNKNOWN);
        let caller = Caller { transport: Transport::Grpc, peer: &peer, patience: None, owner };
        let undone = || {
            let counts = service.counts();
            counts.into_iter().find(|(it, _)| *it == Counter::StartsUndone).map(|(_, count)| count)
        };
        let panics = |_: &Answer<'_>| panic!("as an observer might");
        for nth in 0..20_u64 {
            let id = nth.to_string();
            let request = start(&id);
            // Slots that are here already need not be waited for.
            match service.answer_at_once::<()>(Transport::Grpc, owner, &request, panics) {
                Some(answered) => assert_eq!(answered, Err(RequestError::Panicked)),
                None => {
                    let answered = service.answer::<()>(&caller, &request, panics);
                    let answered = service.catch_panic(Transport::Grpc, answered).await;
                    assert_eq!(answered.map(drop), Err(RequestError::Panicked));
                }
            }
            assert_eq!(undone(), Some(nth + 1));
        }
        let code = service.answer(&caller, &start("last"), |answer| answer.verdict.code).await;
        assert_eq!(code, Ok(Code::Ok));
    }
}

mod concurrency_limit {
    use futures_util::future::pending;
    use futures_util::poll;
    use ratelease_engine::store::memory::MemoryStore;
    use ratelease_engine::time::Clock;

    use super::super::*;

    /// Runs `call` of `peer` with a permit.
    async fn run<T>(
        limit: &ConcurrencyLimit,
        peer: &Peer,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let _permit = limit.admit(peer)?;
        Ok(call.await)
    }

    fn waiting(limit: &ConcurrencyLimit) -> usize {
        limit.waiting.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn calls_above_the_limit_are_refused_at_once_and_permits_are_released() {
        let (limit, peer) = (ConcurrencyLimit::new(2, "a test"), Peer::new());
        for _ in 0..2 {
            let mut first = Box::pin(run(&limit, &peer, pending::<()>()));
            let mut second = Box::pin(run(&limit, &peer, pending::<()>()));
            assert!(poll!(&mut first).is_pending());
            assert!(poll!(&mut second).is_pending());
            assert_eq!(run(&limit, &peer, async {}).await, Err(RequestError::Overloaded));
            assert_eq!(waiting(&limit), 2);
            drop(first);
            assert_eq!(run(&limit, &peer, async { 7 }).await, Ok(7));
        }
        assert_eq!((waiting(&limit), limit.shed.load(Ordering::Relaxed)), (0, 2));
        assert_eq!(peer.waiting().load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_with_many_waiting_calls_leaves_permits_for_others() {
        const CALLS_MAX: usize = 100;
        let limit = ConcurrencyLimit::new(CALLS_MAX, "a test");
        let (crowd, other) = (Peer::new(), Peer::new());
        let mut calls: Vec<_> =
            (0..CALLS_MAX).map(|_| Box::pin(run(&limit, &crowd, pending::<()>()))).collect();
        for call in &mut calls {
            let _ = poll!(call);
        }
        assert_eq!(waiting(&limit), 75, "a quarter is reserved");
        let mut few: Vec<_> =
            (0..FEW_CALLS).map(|_| Box::pin(run(&limit, &other, pending::<()>()))).collect();
        for call in &mut few {
            assert!(poll!(call).is_pending(), "it has a permit");
        }
        assert_eq!(
            run(&limit, &other, async {}).await,
            Err(RequestError::Overloaded),
            "no longer few"
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_call_only_and_is_counted() {
        let limiter = Limiter::new(
            Arc::new(MemoryStore::system()),
            Clock::start(),
            ratelease_engine::limiter::Options::default(),
        );
        let service = DecisionService::new(limiter, Arc::default(), None, 1);
        let peer = Peer::new();
        let limit = &service.grpc.concurrency;
        for _ in 0..3 {
            let call = run(limit, &peer, async { panic!("result to") });
            let result = service.catch_panic(Transport::Grpc, call).await;
            assert_eq!(result, Err::<Result<(), _>, _>(RequestError::Panicked));
            assert_eq!(run(limit, &peer, async {}).await, Ok(()));
        }
        assert!(service.counts().contains(&(Counter::RequestPanics, 3)));
        assert_eq!(waiting(limit), 0);
    }

    #[tokio::test]
    async fn an_overload_is_over_once_calls_are_few() {
        let (limit, peer) = (ConcurrencyLimit::new(1, "a test"), Peer::new());
        let mut long = Box::pin(run(&limit, &peer, pending::<()>()));
        assert!(poll!(&mut long).is_pending());
        assert!(run(&limit, &peer, async {}).await.is_err());
        assert!(limit.is_overloaded.load(Ordering::Relaxed));
        drop(long);
        assert!(run(&limit, &peer, async {}).await.is_ok());
        assert!(!limit.is_overloaded.load(Ordering::Relaxed));
    }
}

mod candidate {
    use ratelease_engine::limiter::Options;
    use ratelease_engine::store::memory::MemoryStore;
    use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, Store};
    use ratelease_engine::time::Clock;
    use ratelease_rules::request::{Descriptor, Entry};

    use crate::metrics::{DomainHits, Meters};

    use super::super::*;
    use super::{Source, Unit, rules};

    const IN_FORCE: &str = "domain: shop\ndescriptors:\n- key: user\n  rate_limit: \
                            {unit: year, requests_per_unit: 4}\n";
    const CANDIDATE: &str = "domain: shop@candidate\ndescriptors:\n- key: user\n  shadow_mode: \
                             true\n  rate_limit: {unit: year, requests_per_unit: 2}\n";

    /// A store that panics at an ask for the limit of the candidate.
    struct Cursed(MemoryStore);

    impl Store for Cursed {
        fn shard(&self, ask: &Ask) -> usize {
            assert_ne!(ask.limit.requests_per_unit, 2, "panics on purpose");
            self.0.shard(ask)
        }

        fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
            self.0.lend(ask)
        }

        fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
            self.0.beat(beat)
        }

        fn describe(&self) -> String {
            "cursed".to_owned()
        }
    }

    /// A service with these rules, its limiter, and what it counts.
    fn service(texts: &[&str], store: Arc<dyn Store>) -> (DecisionService, Meters) {
        let name = |at: usize| format!("{at}.yaml");
        let source =
            |(at, text): (usize, &&str)| Source { name: name(at), text: text.as_bytes().to_vec() };
        let sources: Vec<_> = texts.iter().enumerate().map(source).collect();
        let loaded = rules::load(&sources, rules::Options::default()).unwrap();
        let in_force = CurrentRules::new();
        in_force.put_in_force(Arc::new(loaded.rules));
        // The machine may be compiling.
        let options = Options { wait_min: Duration::from_secs(5), ..Options::default() };
        let limiter = Limiter::new(store, Clock::start(), options);
        let meters = Meters::default();
        let observers = Observers { meters: Some(meters.clone()), ..Observers::default() };
        let service = DecisionService::new(limiter, Arc::new(in_force), None, 10);
        (service.observed_by(observers), meters)
    }

    fn request<'a>(limit: Option<rules::Limit>) -> Request<'a> {
        let entries = [Entry { key: "user", value: "a" }].into_iter().collect();
        let descriptor = Descriptor { entries, limit, ..Descriptor::default() };
        Request { domain: "shop", descriptors: [descriptor].into_iter().collect(), hits_addend: 0 }
    }

    /// The code of an answer, and what remains.
    async fn answer(service: &DecisionService, request: &Request<'_>) -> (Code, u64) {
        let peer = Peer::new();
        let caller = Caller {
            transport: Transport::Grpc,
            peer: &peer,
            patience: None,
            owner: Owner::UNKNOWN,
        };
        let make = |it: &Answer<'_>| (it.verdict.code, it.verdict.statuses[0].remaining);
        service.answer(&caller, request, make).await.unwrap()
    }

    async fn answers(service: &DecisionService, number: usize) -> Vec<(Code, u64)> {
        let mut answers = Vec::new();
        for _ in 0..number {
            answers.push(answer(service, &request(None)).await);
            // Lets an ask of the candidate be answered.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        answers
    }

    fn hits(meters: &Meters) -> [DomainHits; 2] {
        let hits = meters.hits_by_domain();
        ["shop", "shop@candidate"].map(|it| hits.get(it).copied().unwrap_or_default())
    }

    #[tokio::test]
    async fn the_answers_and_counts_are_the_same_and_what_the_candidate_would_deny_is_counted() {
        let (alone, meters) = service(&[IN_FORCE], Arc::new(MemoryStore::system()));
        let expected = answers(&alone, 20).await;
        let [in_force, none] = hits(&meters);
        assert_eq!((in_force.total, in_force.denied, none.total), (20, 16, 0));

        let (both, meters) = service(&[IN_FORCE, CANDIDATE], Arc::new(MemoryStore::system()));
        assert_eq!(answers(&both, 20).await, expected);
        let [beside, candidate] = hits(&meters);
        assert_eq!(beside, in_force);
        assert_eq!(candidate.denied, 0);
        assert_eq!(candidate.total, candidate.shadow + 2, "two pass: {candidate:?}");
        assert_eq!(candidate.total, 20, "also those that had to ask");
    }

    #[tokio::test]
    async fn candidate_rules_of_a_domain_without_rules_deny_nothing() {
        let enforced = CANDIDATE.replace("shadow_mode: true", "quota_mode: false");
        let (service, meters) = service(&[&enforced], Arc::new(MemoryStore::system()));
        let free = (Code::Ok, 0);
        assert_eq!(answers(&service, 6).await, [free; 6]);
        let [none, candidate] = hits(&meters);
        assert_eq!(none, DomainHits::default());
        assert!(candidate.denied > 0, "{candidate:?}");
    }

    #[tokio::test]
    async fn an_override_is_not_tried_on_the_candidate() {
        let (service, meters) = service(&[IN_FORCE, CANDIDATE], Arc::new(MemoryStore::system()));
        let limit = rules::Limit::fixed_window(1, Unit::Year);
        for _ in 0..4 {
            answer(&service, &request(Some(limit))).await;
        }
        let [in_force, candidate] = hits(&meters);
        assert_eq!((in_force.total, candidate.total), (4, 0));
    }

    #[tokio::test]
    async fn a_panic_of_the_candidate_leaves_the_answers_as_they_are() {
        let store = Arc::new(Cursed(MemoryStore::system()));
        let (service, meters) = service(&[IN_FORCE, CANDIDATE], store);
        let codes: Vec<_> = answers(&service, 6).await.into_iter().map(|(code, _)| code).collect();
        assert_eq!(codes[..4], [Code::Ok; 4]);
        assert_eq!(codes[4..], [Code::OverLimit; 2]);
        let panics = service.counts().into_iter().find(|(it, _)| *it == Counter::RequestPanics);
        assert!(panics.unwrap().1 > 0);
        assert_eq!(hits(&meters)[1], DomainHits::default());
    }
}
