//! What `trace` must do.

use super::*;
use ratelease_cli::settings::Identity;
use ratelease_engine::store::memory::MemoryStore;
use ratelease_rules::key::Key as RuleKey;
use ratelease_rules::{Limit, Unit};

/// The span of an ask that was sent by this request.
fn sent_by(cause: Option<SpanContext>) -> (SpanBuilder, RemoteContext) {
    let look = Ask::look(RuleKey::for_test(7), Limit::fixed_window(1, Unit::Hour));
    let (builder, parent) = exchange(&Ask { cause, ..look }, 3);
    (builder, parent.span().span_context().clone())
}

fn has_attribute(builder: &SpanBuilder, name: &str) -> bool {
    builder.attributes.iter().flatten().any(|it| it.key.as_str() == name)
}

#[test]
fn an_exchange_for_one_request_is_its_child() {
    let request = SpanContext::for_test(1, 2);
    let (builder, parent) = sent_by(Some(request));
    assert_eq!(parent, context_of(request, false, TraceState::NONE));
    assert_eq!((builder.links.is_none(), &*builder.name), (true, "EVALSHA"));
    assert!(!has_attribute(&builder, "db.operation.batch.size"), "one is no batch");
}

#[test]
fn an_exchange_for_no_traced_request_is_a_root() {
    let (builder, parent) = sent_by(None);
    assert!(!parent.is_valid() && builder.links.iter().flatten().count() == 0, "{builder:?}");
    assert!(!has_attribute(&builder, "db.operation.batch.size"), "one is no batch");
}

/// A store that answers each question about itself in a way of its own.
struct Telling(MemoryStore);

impl Store for Telling {
    fn shard(&self, _: &Ask) -> usize {
        3
    }

    fn other_name(&self, _: &Ask) -> Option<RuleKey> {
        Some(RuleKey::for_test(9))
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        self.0.lend(ask)
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        Some(Duration::from_secs(shard as u64))
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.0.beat(beat)
    }

    fn server(&self, shard: usize) -> Option<String> {
        Some(format!("server {shard}"))
    }

    fn store_name(&self, shard: usize) -> String {
        format!("store {shard}")
    }

    fn describe(&self) -> String {
        "telling".to_owned()
    }
}

#[test]
fn what_a_store_says_of_itself_is_the_same_when_its_asks_are_traced() {
    let [name, namespace, instance] = [const { String::new() }; 3];
    let identity = Identity { name, namespace, instance, attributes: Vec::new() };
    let tracer = Tracer::new(&Origin::new(identity), None, Clock::start());
    let traced = Traced::new(Arc::new(Telling(MemoryStore::system())), tracer);
    let look = Ask::look(RuleKey::for_test(7), Limit::fixed_window(1, Unit::Hour));
    assert_eq!((traced.shard(&look), traced.other_name(&look)), (3, Some(RuleKey::for_test(9))));
    assert_eq!(traced.silence(5), Some(Duration::from_secs(5)));
    assert_eq!(
        (traced.server(5), traced.store_name(5)),
        (Some("server 5".into()), "store 5".into())
    );
    assert_eq!(traced.describe(), "telling");
}

mod context {
    use http::HeaderValue;

    use super::super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_read_with_its_flag() {
        let parent = Parent::parse(GOOD.as_bytes()).expect("a parent");
        assert_eq!((parent.trace[0], parent.trace[15]), (0x0a, 0x9c));
        assert_eq!((parent.span[0], parent.span[7]), (0xb7, 0x31));
        assert_eq!(parent.is_sampled, Some(true));
        let parsed = |from: &str, to: &str| Parent::parse(GOOD.replace(from, to).as_bytes());
        for (flags, is_sampled) in [("31-00", false), ("31-fe", false), ("31-03", true)] {
            let parent = parsed("31-01", flags).expect("a parent");
            assert_eq!(parent.is_sampled, Some(is_sampled), "{flags}");
        }
    }

    #[test]
    fn a_later_version_may_say_more_and_the_first_may_not() {
        let parsed = |text: String| Parent::parse(text.as_bytes()).is_some();
        assert!(parsed(GOOD.replacen("00", "01", 1)));
        assert!(parsed(GOOD.replacen("00", "cc", 1) + "-what.comes"));
        assert!(!parsed(GOOD.replacen("00", "cc", 1) + "what.comes"));
        assert!(!parsed(GOOD.to_owned() + "-what.comes"));
        assert!(!parsed(GOOD.replacen("00", "ff", 1)));
    }

    #[test]
    fn a_malformed_header_is_no_parent() {
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_ascii_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &GOOD.replace("b7ad6b7169203331", &"0".repeat(16)),
            &GOOD.replace("b7", "g7"),
        ] {
            assert_eq!(Parent::parse(bad.as_bytes()), None, "{bad:?}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(Parent::of(&headers), None);
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert!(Parent::of(&headers).is_some());
        headers.append("traceparent", HeaderValue::from_static(GOOD));
        assert_eq!(Parent::of(&headers), None, "two are none");
        let b3 = "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-0";
        headers.append("b3", HeaderValue::from_static(b3));
        let of_b3 = Parent::of(&headers).expect("B3's");
        assert_eq!((of_b3.trace[0], of_b3.is_sampled), (0x80, Some(false)));
        headers.insert("traceparent", HeaderValue::from_static(GOOD));
        assert_eq!(Parent::of(&headers), Parent::parse(GOOD.as_bytes()), "W3C's wins");
    }

    #[test]
    fn a_state_is_joined_and_a_long_one_dropped() {
        let mut headers = HeaderMap::new();
        assert_eq!(state(&headers).header(), "");
        headers.append("tracestate", HeaderValue::from_static("a=1"));
        headers.append("tracestate", HeaderValue::from_static("b=2"));
        assert_eq!(state(&headers).header(), "a=1,b=2");
        let long = format!("c={}", "x".repeat(STATE_BYTES_MAX));
        headers.append("tracestate", HeaderValue::from_str(&long).expect("a value"));
        assert_eq!(state(&headers).header(), "");
    }
}

mod b3 {
    use http::HeaderName;

    use super::super::*;

    const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &str = "e457b5a2e4d86bd1";

    fn of(headers: &[(&'static str, &str)]) -> Option<Parent> {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        parent(&headers.iter().map(header).collect())
    }

    fn expected(is_sampled: Option<bool>) -> Option<Parent> {
        let (trace, span) = (hex(TRACE.as_bytes())?, hex(SPAN.as_bytes())?);
        Some(Parent { trace, span, is_sampled })
    }

    #[test]
    fn one_header_or_several_name_the_parent() {
        for (sampled, is_sampled) in
            [("1", true), ("d", true), ("0", false), ("true", true), ("false", false)]
        {
            let one = format!("{TRACE}-{SPAN}-{sampled}");
            assert_eq!(of(&[("b3", &one)]), expected(Some(is_sampled)), "{one}");
            let one = format!("{one}-05e3ac9a4f6e3b90");
            assert_eq!(of(&[("b3", &one)]), expected(Some(is_sampled)), "{one}");
            let several =
                [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", sampled)];
            assert_eq!(of(&several), expected(Some(is_sampled)), "{sampled}");
        }
        let debugged = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-flags", "1")];
        assert_eq!(of(&debugged), expected(Some(true)));
        assert_eq!(of(&debugged[..2]), expected(None), "left to us");
        assert_eq!(of(&[("b3", &format!("{TRACE}-{SPAN}"))]), expected(None));
    }

    #[test]
    fn a_short_trace_is_the_lower_half_of_a_long_one() {
        let short = of(&[("b3", &format!("64fe8b2a57d3eff7-{SPAN}-1"))]).expect("a parent");
        assert_eq!(short.trace[..8], [0; 8]);
        assert_eq!(short.trace[8..], hex::<16>(TRACE.as_bytes()).expect("digits")[8..]);
    }

    #[test]
    fn a_malformed_header_is_no_parent() {
        let zeros = "0".repeat(16);
        for bad in [
            "",
            "0",
            "-",
            TRACE,
            &format!("{TRACE}-{SPAN}-2"),
            &format!("{TRACE}-{zeros}-1"),
            &format!("{zeros}-{SPAN}-1"),
            &format!("{}-{SPAN}-1", &TRACE[1..]),
            &format!("{}-{SPAN}-1", TRACE.to_ascii_uppercase()),
        ] {
            assert_eq!(of(&[("b3", bad)]), None, "{bad:?}");
        }
        assert_eq!(of(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")]), None);
        assert_eq!(of(&[]), None);
    }
}

mod span {
    use std::sync::mpsc;
    use std::time::Duration;

    use opentelemetry::Context;
    use opentelemetry::trace::Tracer;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracer, SpanData, SpanProcessor};
    use ratelease_cli::settings::Identity;

    use super::super::*;
    use ratelease_otlp::origin::{Origin, system_time};
    use ratelease_otlp::span_pipeline::SpanPipeline;

    /// Passes on the spans that end.
    #[derive(Debug)]
    struct Ended(mpsc::Sender<SpanData>);

    impl SpanProcessor for Ended {
        fn on_start(&self, _: &mut SdkSpan, _: &Context) {}
        fn on_end(&self, span: SpanData) {
            let _ = self.0.send(span);
        }
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    fn begin(tracer: &SdkTracer) -> Span {
        let clock = Clock::start();
        let start = Start { started: system_time(), begun: clock.now(), clock };
        Span::new(tracer.start("a span"), start, Outcome::Grpc(1))
    }

    #[test]
    fn a_span_ends_once_and_one_that_is_dropped_was_given_up() {
        let (name, namespace, instance, attributes) = Default::default();
        let origin = Origin::new(Identity { name, namespace, instance, attributes });
        let (sender, ended) = mpsc::channel();
        let pipeline = SpanPipeline::to(Ended(sender), &origin);
        let next = || {
            let span = ended.try_recv().ok()?;
            Some(span.attributes.last().expect("a status").value.to_string())
        };
        begin(pipeline.tracer()).discard();
        assert_eq!(next(), None);
        let span = begin(pipeline.tracer());
        span.end(Outcome::Grpc(0));
        span.end(Outcome::Grpc(2));
        drop(span);
        assert_eq!((next().as_deref(), next()), (Some("OK"), None));
        let dropped = begin(pipeline.tracer());
        drop(dropped.clone());
        assert_eq!(next(), None, "a handle is left");
        drop(dropped);
        assert_eq!(next().as_deref(), Some("CANCELLED"));
    }
}
