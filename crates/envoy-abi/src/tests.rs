use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fake_host::{FakeConfig, FakeExtension, FakeRoute, FakeStream, Running, Value};
use crate::{
    Attribute, Bootstrap, BootstrapHost, Config, Counter, Filter, FilterStream, Flow, Headers,
    Metadata, Module, Scheduler, Setup,
};

crate::fake_host!();

/// Does as the configuration says, in each hook.
struct Script;

struct Plan {
    does: Vec<u8>,
    counter: Option<Counter>,
}

#[derive(Default)]
struct Scripted {
    scheduler: RefCell<Option<Scheduler>>,
    ended: Cell<bool>,
    panics_in_drop: Cell<bool>,
}

/// Panics in each hook.
struct Panicking;

static FILTERS: AtomicUsize = AtomicUsize::new(0);

impl Module for Script {
    type Config = Plan;
    type RouteConfig = Vec<u8>;
    type Bootstrap = Panicking;

    fn config(setup: &mut Setup<'_>, name: &[u8], config: &[u8]) -> Option<Plan> {
        assert_eq!(name, b"test");
        assert_ne!(config, b"panic in config");
        let counter = setup.counter("seen");
        (config != b"refuse").then(|| Plan { does: config.to_vec(), counter })
    }

    fn route_config(_: &[u8], config: &[u8]) -> Option<Vec<u8>> {
        assert_ne!(config, b"panic in route");
        (config != b"refuse").then(|| config.to_vec())
    }

    fn bootstrap(_: &BootstrapHost<'_>, _: &[u8], config: &[u8]) -> Option<Panicking> {
        assert_ne!(config, b"panic in bootstrap");
        Some(Panicking)
    }
}

impl Bootstrap for Panicking {
    fn initialized(&self, _: &BootstrapHost<'_>) {
        panic!("deliberate")
    }

    fn scheduled(&self, _: &BootstrapHost<'_>, _: u64) {
        panic!("deliberate")
    }

    fn shut_down(&self) {
        panic!("deliberate")
    }

    fn admin(&self, _: &[u8], _: &[u8], _: &[u8]) -> (u32, Vec<u8>) {
        panic!("deliberate")
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("deliberate")
    }
}

impl Config for Plan {
    type Module = Script;
    type Filter = Scripted;

    fn filter(&self) -> Scripted {
        assert_ne!(self.does, b"panic in new");
        FILTERS.fetch_add(1, Ordering::Relaxed);
        let filter = Scripted::default();
        filter.panics_in_drop.set(self.does == b"panic in drop");
        filter
    }
}

impl Filter for Scripted {
    type Module = Script;

    fn request_headers(&self, plan: &Plan, mut stream: FilterStream<'_, Self>) -> Flow {
        if let Some(counter) = plan.counter {
            stream.increment(counter);
        }
        match &*plan.does {
            b"panic in request" => panic!("deliberate"),
            b"panic after an answer" => {
                stream.respond(429, &[], b"", "");
                panic!("deliberate")
            }
            b"answer" => stream.respond(429, &[(b"x-a", b"1"), (b"x-a", b"2")], b"no", "limited"),
            b"copy" => {
                let users = stream.headers(Headers::Request, b"x-user");
                assert_eq!(users, [b"a", b"b"]);
                assert!(stream.headers(Headers::Request, b"x-none").is_empty());
                let all: Vec<Vec<u8>> = [
                    stream.header(Headers::Request, b"x-user", 1),
                    stream.metadata_text(Metadata::Route, "ns", "text", None),
                    stream.metadata_text(Metadata::Route, "ns", "list", Some(1)),
                    stream.filter_state("state"),
                    stream.attribute(Attribute::SourceAddress),
                    stream.cluster(),
                    stream.route_config().map(Vec::as_slice),
                ]
                .into_iter()
                .map(|it| it.unwrap_or(b"none").to_vec())
                .collect();
                let number = stream.metadata_number(Metadata::Dynamic, "ns", "number", None);
                let size = stream.number(Attribute::RequestSize);
                stream.set_header(Headers::Request, b"x-seen", &all.join(&b' '));
                stream.add_header(
                    Headers::Request,
                    b"x-seen",
                    format!("{number:?} {size:?}").as_bytes(),
                );
                stream.set_metadata("mine", b"fields");
                stream.add_flag("F");
                Flow::Continue
            }
            _ => {
                *self.scheduler.borrow_mut() = stream.scheduler();
                Flow::Wait
            }
        }
    }

    fn response_headers(&self, plan: &Plan, mut stream: FilterStream<'_, Self>) {
        assert_ne!(plan.does, b"panic in response");
        stream.set_header(Headers::Response, b"x-mine", b"1");
    }

    fn scheduled(&self, plan: &Plan, stream: FilterStream<'_, Self>, event: u64) {
        assert_ne!(plan.does, b"panic in scheduled");
        assert_eq!(event, 7);
        stream.resume();
        // Envoy may have destroyed the filter meanwhile: it is still here.
        self.ended.set(true);
    }

    fn complete(&self, plan: &Plan, _: FilterStream<'_, Self>) {
        assert_ne!(plan.does, b"panic in complete");
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        FILTERS.fetch_sub(1, Ordering::Relaxed);
        assert!(!self.panics_in_drop.get());
    }
}

fn begin(does: &str) -> (FakeConfig<Script>, Running<Script>) {
    let config = FakeConfig::new(does.as_bytes()).expect("a configuration");
    let running = config.begin(FakeStream::with(&[("x-user", "a"), ("x-user", "b")]));
    (config, running)
}

#[test]
fn what_a_stream_has_is_read_and_what_the_filter_sets_arrives() {
    let (config, running) = begin("copy");
    let route = FakeRoute::<Script>::new(b"of the route").expect("a route");
    let stream = &running.stream;
    stream.route.set(Some(route.pointer()));
    let mut metadata = stream.metadata.borrow_mut();
    let key = |source, name: &str| (source, "ns".to_owned(), name.to_owned());
    metadata.insert(key(1, "text"), Value::Text(b"t".to_vec()));
    metadata.insert(key(0, "number"), Value::Number(2.5));
    let list = vec![Value::Number(1.0), Value::Text(b"l".to_vec())];
    metadata.insert(key(1, "list"), Value::List(list));
    stream.filter_state.borrow_mut().insert("state".to_owned(), b"s".to_vec());
    stream.numbers.borrow_mut().insert(13, 9);
    drop(metadata);
    stream.attributes.borrow_mut().insert(24, b"10.0.0.1:80".to_vec());
    assert_eq!(running.request_headers(), 0);
    let seen: Vec<_> = stream.request.borrow()[2..].iter().map(|(_, it)| it.clone()).collect();
    assert_eq!(seen, [&b"b t l s 10.0.0.1:80 none of the route"[..], b"Some(2.5) Some(9)"]);
    assert_eq!(*stream.set.borrow(), [("mine".to_owned(), b"fields".to_vec())]);
    assert_eq!(*stream.flags.borrow(), ["F"]);
    assert_eq!(*config.counters.borrow(), ["seen"]);
    assert_eq!(stream.counts.borrow()[&0], 1);
    assert_eq!(running.response_headers(), 0);
    assert_eq!(stream.response.borrow().len(), 1);
}

#[test]
fn an_answer_stops_the_request_and_has_all_its_parts() {
    let (_config, running) = begin("answer");
    assert_eq!(running.request_headers(), 1);
    let answer = running.stream.answered.borrow().clone().expect("an answer");
    assert_eq!((answer.status, &*answer.body, &*answer.details), (429, &b"no"[..], "limited"));
    assert_eq!(answer.headers.len(), 2);
}

#[test]
fn an_event_from_another_thread_resumes_a_request_that_waits() {
    let (_config, running) = begin("wait");
    assert_eq!(running.request_headers(), 4);
    assert_eq!(*running.stream.schedulers.lock().unwrap(), 1);
    // The filter would send this event from another thread.
    running.stream.events.lock().unwrap().push(7);
    assert_eq!(running.deliver(), 1);
    assert_eq!(running.stream.resumed.get(), 1);
    let alive = std::sync::Arc::clone(&running.stream.schedulers);
    drop(running);
    assert_eq!(*alive.lock().unwrap(), 0, "the scheduler ends with its filter");
}

#[test]
fn a_filter_that_is_destroyed_within_its_own_hook_lives_until_the_hook_returns() {
    let (_config, running) = begin("wait");
    let running = Rc::new(running);
    running.request_headers();
    let within = Rc::clone(&running);
    let before = FILTERS.load(Ordering::Relaxed);
    *running.stream.on_resume.borrow_mut() = Some(Box::new(move || {
        within.response_headers();
        within.complete();
        within.destroy();
    }));
    running.scheduled(7);
    assert!(before > 0 && running.stream.resumed.get() == 1);
    assert_eq!(running.stream.response.borrow().len(), 1, "its hooks ran within");
}

#[test]
fn a_panic_of_a_filter_that_is_dropped_within_its_own_hook_is_caught() {
    let (_config, running) = begin("panic in drop");
    let running = Rc::new(running);
    running.request_headers();
    let within = Rc::clone(&running);
    *running.stream.on_resume.borrow_mut() = Some(Box::new(move || within.destroy()));
    let before = crate::panics();
    running.scheduled(7);
    assert!(crate::panics() > before);
}

#[test]
fn a_panic_in_any_hook_lets_the_request_go_on_and_is_counted() {
    let before = crate::panics();
    assert!(FakeConfig::<Script>::new(b"panic in config").is_none());
    assert!(FakeRoute::<Script>::new(b"panic in route").is_none());
    assert!(!FakeConfig::<Script>::new(b"panic in new").expect("one").makes_filters());
    let (_config, running) = begin("panic in request");
    assert_eq!(running.request_headers(), 0);
    let (_config, running) = begin("panic in response");
    assert_eq!(running.response_headers(), 0);
    let (_config, running) = begin("panic in complete");
    running.complete();
    let (_config, running) = begin("panic in scheduled");
    assert_eq!(running.request_headers(), 4);
    running.scheduled(7);
    assert_eq!(running.stream.resumed.get(), 1, "it does not wait for ever");
    running.scheduled(7);
    assert_eq!(running.stream.resumed.get(), 1, "it is resumed once");
    assert!(crate::panics() >= before + 8, "{} {before}", crate::panics());
}

#[test]
fn a_panic_in_any_hook_of_the_extension_is_caught_and_envoy_ends_all_the_same() {
    let before = crate::panics();
    assert!(FakeExtension::<Script>::new(b"panic in bootstrap").is_none());
    let extension = FakeExtension::<Script>::new(b"").expect("an extension");
    extension.start(1);
    assert_eq!(extension.admin(b"/page"), 500);
    assert!(extension.shutdown(), "Envoy waits for it");
    drop(extension);
    assert!(crate::panics() >= before + 6, "{} {before}", crate::panics());
}

#[test]
fn a_panic_after_an_answer_does_not_let_the_request_through() {
    let (_config, running) = begin("panic after an answer");
    assert_eq!(running.request_headers(), 1);
    assert!(running.stream.answered.borrow().is_some());
}

#[test]
fn a_configuration_that_the_module_refuses_is_null() {
    assert!(FakeConfig::<Script>::new(b"refuse").is_none());
    assert!(FakeRoute::<Script>::new(b"refuse").is_none());
}

#[test]
fn what_another_module_has_made_is_no_configuration_of_a_route() {
    let (_config, running) = begin("copy");
    // The tag that another copy of this module would write: its static has another address.
    let elsewhere = 0_u8;
    let foreign = [crate::tagged::TAG ^ (&raw const elsewhere).addr(), 2, 3];
    running.stream.route.set(Some((&raw const foreign).cast()));
    assert_eq!(running.request_headers(), 0);
    let last = running.stream.request.borrow()[2].1.clone();
    assert!(last.ends_with(b"none"), "{}", String::from_utf8_lossy(&last));
}
