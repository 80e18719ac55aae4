//! A stand-in for Envoy in tests: callbacks that work in memory, and calls of the hooks.
//!
//! The crate under test defines the callbacks' symbols with [`fake_host!`](crate::fake_host!).
//! Pointers go the same ways as in Envoy, so that a test under Miri or AddressSanitizer sees them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use crate::abi::{EnvoyBuffer, EnvoyHeader, ModuleBuffer, ModuleHeader};
use crate::hooks;
use crate::module::Module;

/// A header's name and value.
pub type Header = (Vec<u8>, Vec<u8>);

/// Something to run once, within a callback.
type Once = RefCell<Option<Box<dyn FnOnce()>>>;

/// The response of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Response {
    /// The HTTP status.
    pub status: u32,
    /// The headers, in the order that the module gave.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Vec<u8>,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub details: String,
}

/// A value in metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(Vec<u8>),
    /// A number.
    Number(f64),
    /// A list.
    List(Vec<Value>),
}

/// Envoy's side of a stream.
#[derive(Default)]
pub struct FakeStream {
    /// The request's headers.
    pub request: RefCell<Vec<Header>>,
    /// The response's headers.
    pub response: RefCell<Vec<Header>>,
    /// By source, namespace and key.
    pub metadata: RefCell<BTreeMap<(u32, String, String), Value>>,
    /// By number.
    pub attributes: RefCell<BTreeMap<u32, Vec<u8>>>,
    /// Numbers, by number.
    pub numbers: RefCell<BTreeMap<u32, u64>>,
    /// Objects of the filter state, as text.
    pub filter_state: RefCell<BTreeMap<String, Vec<u8>>>,
    /// The route's cluster.
    pub cluster: RefCell<Option<Vec<u8>>>,
    /// The pointer that `per_route_config_new` has returned.
    pub route: Cell<Option<*const c_void>>,
    /// The answer, once there is one.
    pub answered: RefCell<Option<Response>>,
    /// Times that the request was resumed.
    pub resumed: Cell<usize>,
    /// Runs when the request is resumed, as Envoy's next filters do.
    pub on_resume: Once,
    /// Serialized structs that were set, by namespace.
    pub set: RefCell<Vec<(String, Vec<u8>)>>,
    /// By the number of the counter.
    pub counts: RefCell<BTreeMap<usize, u64>>,
    /// `%CUSTOM_FLAGS%`.
    pub flags: RefCell<Vec<String>>,
    /// Events that were sent to it.
    pub events: Arc<Mutex<Vec<u64>>>,
    /// Schedulers that exist.
    pub schedulers: Arc<Mutex<usize>>,
}

/// A scheduler of a [`FakeStream`].
struct FakeScheduler {
    events: Arc<Mutex<Vec<u64>>>,
    alive: Arc<Mutex<usize>>,
}

/// Envoy's side of a filter's configuration, and the module's.
pub struct FakeConfig<M: Module> {
    module: *const c_void,
    /// Names of the counters.
    pub counters: Box<RefCell<Vec<String>>>,
    of: PhantomData<M>,
}

/// The configuration of a route.
pub struct FakeRoute<M: Module> {
    module: *const c_void,
    of: PhantomData<M>,
}

/// The extension of the bootstrap configuration. Dropping it destroys it.
pub struct FakeExtension<M: Module> {
    module: *const c_void,
    of: PhantomData<M>,
}

/// A stream with its filter. Dropping it destroys the filter.
pub struct Running<M: Module> {
    /// Envoy's side.
    pub stream: Box<FakeStream>,
    filter: Cell<*const c_void>,
    of: PhantomData<M>,
}

thread_local! {
    /// Whole numbers of the runtime.
    static RUNTIME: RefCell<BTreeMap<String, u64>> = RefCell::default();
    /// Whether Envoy only checks its configuration.
    static IS_VALIDATION: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is a worker at present, and not the main one.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Sets a key of the runtime, for this thread.
pub fn set_runtime(key: &str, number: u64) {
    RUNTIME.with_borrow_mut(|runtime| runtime.insert(key.to_owned(), number));
}

/// Sets whether Envoy, in this thread, only checks its configuration.
pub fn set_validation_mode(is_validation: bool) {
    IS_VALIDATION.set(is_validation);
}

/// Runs a hook of a stream.
fn as_worker<R>(hook: impl FnOnce() -> R) -> R {
    let before = IS_WORKER.replace(true);
    let done = hook();
    IS_WORKER.set(before);
    done
}

fn buffer(bytes: &[u8]) -> EnvoyBuffer {
    EnvoyBuffer { ptr: bytes.as_ptr().cast(), length: bytes.len() }
}

fn text(buffer: ModuleBuffer) -> String {
    String::from_utf8_lossy(&bytes(buffer)).into_owned()
}

/// Copies bytes that the module owns.
fn bytes(buffer: ModuleBuffer) -> Vec<u8> {
    // SAFETY: the buffer lives until the callback returns.
    unsafe { EnvoyBuffer { ptr: buffer.ptr, length: buffer.length }.bytes() }.to_vec()
}

// === impl FakeConfig ===

impl<M: Module> FakeConfig<M> {
    /// Has the module make the configuration of a filter; `None` if it refuses.
    pub fn new(config: &[u8]) -> Option<Self> {
        let counters: Box<RefCell<Vec<String>>> = Box::default();
        let at = (&raw const *counters).cast_mut().cast();
        // SAFETY: as Envoy calls it.
        let module = unsafe { hooks::config_new::<M>(at, buffer(b"test"), buffer(config)) };
        (!module.is_null()).then(|| Self { module, counters, of: PhantomData })
    }

    /// Whether the module makes a filter for a stream.
    pub fn makes_filters(&self) -> bool {
        // SAFETY: as Envoy calls it.
        let filter = unsafe { hooks::filter_new::<M>(self.module) };
        if !filter.is_null() {
            // SAFETY: as Envoy calls it.
            unsafe { hooks::filter_destroy::<M>(filter) };
        }
        !filter.is_null()
    }

    /// Begins a stream.
    pub fn begin(&self, stream: FakeStream) -> Running<M> {
        // SAFETY: as Envoy calls it.
        let filter = unsafe { hooks::filter_new::<M>(self.module) };
        assert!(!filter.is_null(), "the module makes a filter");
        Running { stream: Box::new(stream), filter: Cell::new(filter), of: PhantomData }
    }
}

impl<M: Module> Drop for FakeConfig<M> {
    fn drop(&mut self) {
        // SAFETY: as Envoy calls it.
        unsafe { hooks::config_destroy::<M>(self.module) };
    }
}

// === impl FakeRoute ===

impl<M: Module> FakeRoute<M> {
    /// Has the module make the configuration of a route; `None` if it refuses.
    pub fn new(config: &[u8]) -> Option<Self> {
        // SAFETY: as Envoy calls it.
        let module = unsafe { hooks::per_route_config_new::<M>(buffer(b"test"), buffer(config)) };
        (!module.is_null()).then(|| Self { module, of: PhantomData })
    }

    /// For [`FakeStream::route`].
    pub fn pointer(&self) -> *const c_void {
        self.module
    }
}

impl<M: Module> Drop for FakeRoute<M> {
    fn drop(&mut self) {
        // SAFETY: as Envoy calls it.
        unsafe { hooks::per_route_config_destroy::<M>(self.module) };
    }
}

// === impl FakeExtension ===

impl<M: Module> FakeExtension<M> {
    /// Has the module make the extension; `None` if it refuses.
    pub fn new(config: &[u8]) -> Option<Self> {
        let (host, name) = (std::ptr::null_mut(), buffer(b"test"));
        // SAFETY: as Envoy calls it.
        let module = unsafe { hooks::bootstrap_config_new::<M>(host, name, buffer(config)) };
        (!module.is_null()).then(|| Self { module, of: PhantomData })
    }

    /// The hooks that run when Envoy has started.
    pub fn start(&self, event: u64) {
        // SAFETY: as Envoy calls them.
        unsafe {
            hooks::server_initialized::<M>(self.module);
            hooks::bootstrap_config_scheduled::<M>(self.module, event);
        }
    }

    /// The hook of a request to the admin port; the status.
    pub fn admin(&self, path: &[u8]) -> u32 {
        let (method, path, body) = (buffer(b"GET"), buffer(path), buffer(b""));
        // SAFETY: as Envoy calls it.
        unsafe { hooks::admin_request::<M>(self.module, method, path, body) }
    }

    /// Runs the hook of this name; returns whether the hook has called Envoy's completion.
    pub fn shutdown(&self) -> bool {
        unsafe extern "C" fn done(context: *mut c_void) {
            // SAFETY: the context below.
            unsafe { &*context.cast::<Cell<bool>>() }.set(true);
        }
        let is_done = Cell::new(false);
        let context = (&raw const is_done).cast_mut().cast();
        // SAFETY: as Envoy calls it.
        unsafe { hooks::bootstrap_shutdown::<M>(self.module, done, context) };
        is_done.get()
    }
}

impl<M: Module> Drop for FakeExtension<M> {
    fn drop(&mut self) {
        // SAFETY: as Envoy calls it.
        unsafe { hooks::bootstrap_config_destroy::<M>(self.module) };
    }
}

// === impl Running ===

impl<M: Module> Running<M> {
    fn envoy(&self) -> *mut c_void {
        (&raw const *self.stream).cast_mut().cast()
    }

    /// The hook of this name; the status as a number.
    pub fn request_headers(&self) -> u32 {
        // SAFETY: as Envoy calls it.
        as_worker(|| unsafe { hooks::request_headers::<M>(self.envoy(), self.filter.get()) })
    }

    /// The hook of this name.
    pub fn response_headers(&self) -> u32 {
        // SAFETY: as Envoy calls it.
        as_worker(|| unsafe { hooks::response_headers::<M>(self.envoy(), self.filter.get()) })
    }

    /// The hook of this name.
    pub fn scheduled(&self, event: u64) {
        // SAFETY: as Envoy calls it.
        as_worker(|| unsafe { hooks::scheduled::<M>(self.envoy(), self.filter.get(), event) });
    }

    /// The hook of this name.
    pub fn complete(&self) {
        // SAFETY: as Envoy calls it.
        as_worker(|| unsafe { hooks::stream_complete::<M>(self.envoy(), self.filter.get()) });
    }

    /// Delivers the events that have been sent.
    pub fn deliver(&self) -> usize {
        let events = std::mem::take(&mut *lock(&self.stream.events));
        events.iter().for_each(|event| self.scheduled(*event));
        events.len()
    }

    /// The hook of this name.
    pub fn destroy(&self) {
        let filter = self.filter.replace(std::ptr::null());
        if !filter.is_null() {
            // SAFETY: as Envoy calls it.
            unsafe { hooks::filter_destroy::<M>(filter) };
        }
    }
}

impl<M: Module> Drop for Running<M> {
    fn drop(&mut self) {
        self.destroy();
    }
}

// === impl FakeStream ===

impl FakeStream {
    /// A stream whose request has these headers.
    pub fn with(headers: &[(&str, &str)]) -> Self {
        let header =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        Self { request: RefCell::new(headers.iter().map(header).collect()), ..Self::default() }
    }

    /// # Safety
    /// The pointer of a stream that lives on.
    unsafe fn at<'a>(stream: *mut c_void) -> &'a Self {
        // SAFETY: the caller's promise.
        unsafe { &*stream.cast::<Self>() }
    }

    fn headers(&self, kind: u32) -> &RefCell<Vec<Header>> {
        if kind == crate::abi::REQUEST_HEADERS { &self.request } else { &self.response }
    }

    /// Visits a value in metadata, or an item of a list there.
    fn metadata_at<R>(
        &self,
        (source, namespace, key, index): (u32, ModuleBuffer, ModuleBuffer, Option<usize>),
        visit: impl FnOnce(&Value) -> Option<R>,
    ) -> Option<R> {
        let metadata = self.metadata.borrow();
        match (metadata.get(&(source, text(namespace), text(key)))?, index) {
            (Value::List(items), Some(index)) => visit(items.get(index)?),
            (value, None) => visit(value),
            _ => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Doubles of the callbacks of the same names.
#[doc(hidden)]
#[allow(missing_docs, clippy::missing_safety_doc, reason = "called as Envoy's callbacks are")]
pub mod callbacks {
    use super::*;

    /// # Safety
    /// A place to write to.
    unsafe fn put<T>(at: *mut T, value: Option<T>) -> bool {
        let is_some = value.is_some();
        if let Some(value) = value {
            // SAFETY: the caller's promise.
            unsafe { at.write(value) };
        }
        is_some
    }

    pub fn is_validation_mode() -> bool {
        IS_VALIDATION.get()
    }

    pub fn get_runtime_int(key: ModuleBuffer, default: u64) -> u64 {
        let found = RUNTIME.with_borrow(|runtime| runtime.get(&text(key)).copied());
        found.filter(|_| !IS_WORKER.get()).unwrap_or(default)
    }

    pub unsafe fn define_counter(config: *mut c_void, name: ModuleBuffer, id: *mut usize) -> u32 {
        // SAFETY: the pointer of a `FakeConfig`.
        let counters = unsafe { &*config.cast::<RefCell<Vec<String>>>() };
        counters.borrow_mut().push(text(name));
        // SAFETY: the module's place.
        unsafe { id.write(counters.borrow().len() - 1) };
        0
    }

    pub unsafe fn increment_counter(stream: *mut c_void, id: usize, by: u64) -> u32 {
        // SAFETY: as Envoy's.
        *unsafe { FakeStream::at(stream) }.counts.borrow_mut().entry(id).or_default() += by;
        0
    }

    pub unsafe fn get_header(
        stream: *mut c_void,
        kind: u32,
        key: ModuleBuffer,
        result: *mut EnvoyBuffer,
        index: usize,
        count: *mut usize,
    ) -> bool {
        // SAFETY: as Envoy's.
        let headers = unsafe { FakeStream::at(stream) }.headers(kind).borrow();
        let key = bytes(key);
        let mut values = headers.iter().filter(|(name, _)| *name == key).map(|(_, value)| value);
        if !count.is_null() {
            // SAFETY: the module's place.
            unsafe { count.write(values.clone().count()) };
        }
        // SAFETY: the module's place.
        unsafe { put(result, values.nth(index).map(|value| buffer(value))) }
    }

    pub unsafe fn get_headers_size(stream: *mut c_void, kind: u32) -> usize {
        // SAFETY: as Envoy's.
        unsafe { FakeStream::at(stream) }.headers(kind).borrow().len()
    }

    pub unsafe fn get_headers(stream: *mut c_void, kind: u32, result: *mut EnvoyHeader) -> bool {
        // SAFETY: as Envoy's.
        let headers = unsafe { FakeStream::at(stream) }.headers(kind).borrow();
        for (at, (key, value)) in headers.iter().enumerate() {
            let header = EnvoyHeader { key: buffer(key), value: buffer(value) };
            // SAFETY: the module's place for each.
            unsafe { result.add(at).write(header) };
        }
        true
    }

    pub unsafe fn add_header(
        stream: *mut c_void,
        kind: u32,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool {
        // SAFETY: as Envoy's.
        let headers = unsafe { FakeStream::at(stream) }.headers(kind);
        headers.borrow_mut().push((bytes(key), bytes(value)));
        true
    }

    pub unsafe fn set_header(
        stream: *mut c_void,
        kind: u32,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool {
        // SAFETY: as Envoy's.
        let headers = unsafe { FakeStream::at(stream) }.headers(kind);
        headers.borrow_mut().retain(|(name, _)| *name != bytes(key));
        headers.borrow_mut().push((bytes(key), bytes(value)));
        true
    }

    pub unsafe fn send_response(
        stream: *mut c_void,
        status: u32,
        headers: *mut ModuleHeader,
        length: usize,
        body: ModuleBuffer,
        details: ModuleBuffer,
    ) {
        let header = |at: usize| {
            // SAFETY: the module gives so many.
            let header = unsafe { headers.add(at).read() };
            let key = ModuleBuffer { ptr: header.key_ptr, length: header.key_length };
            let value = ModuleBuffer { ptr: header.value_ptr, length: header.value_length };
            (bytes(key), bytes(value))
        };
        let headers = (0..length).map(header).collect();
        let response = Response { status, headers, body: bytes(body), details: text(details) };
        // SAFETY: as Envoy's.
        *unsafe { FakeStream::at(stream) }.answered.borrow_mut() = Some(response);
    }

    pub unsafe fn continue_decoding(stream: *mut c_void) {
        // SAFETY: as Envoy's.
        let stream = unsafe { FakeStream::at(stream) };
        stream.resumed.set(stream.resumed.get() + 1);
        let next = stream.on_resume.borrow_mut().take();
        if let Some(next) = next {
            next();
        }
    }

    pub unsafe fn add_custom_flag(stream: *mut c_void, flag: ModuleBuffer) {
        // SAFETY: as Envoy's.
        unsafe { FakeStream::at(stream) }.flags.borrow_mut().push(text(flag));
    }

    pub unsafe fn get_metadata_number(
        stream: *mut c_void,
        at: (u32, ModuleBuffer, ModuleBuffer, Option<usize>),
        result: *mut f64,
    ) -> bool {
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        };
        // SAFETY: as Envoy's, and the module's place.
        unsafe { put(result, FakeStream::at(stream).metadata_at(at, number)) }
    }

    pub unsafe fn get_metadata_string(
        stream: *mut c_void,
        at: (u32, ModuleBuffer, ModuleBuffer, Option<usize>),
        result: *mut EnvoyBuffer,
    ) -> bool {
        let text = |value: &Value| match value {
            Value::Text(value) => Some(buffer(value)),
            _ => None,
        };
        // SAFETY: as Envoy's, and the module's place.
        unsafe { put(result, FakeStream::at(stream).metadata_at(at, text)) }
    }

    pub unsafe fn get_filter_state(
        stream: *mut c_void,
        key: ModuleBuffer,
        result: *mut EnvoyBuffer,
    ) -> bool {
        // SAFETY: as Envoy's.
        let state = unsafe { FakeStream::at(stream) }.filter_state.borrow();
        // SAFETY: the module's place.
        unsafe { put(result, state.get(&text(key)).map(|value| buffer(value))) }
    }

    pub unsafe fn get_attribute_int(stream: *mut c_void, of: u32, result: *mut u64) -> bool {
        // SAFETY: as Envoy's, and the module's place.
        unsafe { put(result, FakeStream::at(stream).numbers.borrow().get(&of).copied()) }
    }

    pub unsafe fn set_dynamic_metadata_struct(
        stream: *mut c_void,
        namespace: ModuleBuffer,
        fields: ModuleBuffer,
    ) -> bool {
        // SAFETY: as Envoy's.
        let set = &unsafe { FakeStream::at(stream) }.set;
        set.borrow_mut().push((text(namespace), bytes(fields)));
        true
    }

    pub unsafe fn get_attribute_string(
        stream: *mut c_void,
        attribute: u32,
        result: *mut EnvoyBuffer,
    ) -> bool {
        // SAFETY: as Envoy's.
        let attributes = unsafe { FakeStream::at(stream) }.attributes.borrow();
        // SAFETY: the module's place.
        unsafe { put(result, attributes.get(&attribute).map(|value| buffer(value))) }
    }

    pub unsafe fn get_cluster_name(stream: *mut c_void, result: *mut EnvoyBuffer) -> bool {
        // SAFETY: as Envoy's.
        let cluster = unsafe { FakeStream::at(stream) }.cluster.borrow();
        // SAFETY: the module's place.
        unsafe { put(result, cluster.as_deref().map(buffer)) }
    }

    pub unsafe fn get_most_specific_route_config(stream: *mut c_void) -> *const c_void {
        // SAFETY: as Envoy's.
        unsafe { FakeStream::at(stream) }.route.get().unwrap_or(std::ptr::null())
    }

    pub unsafe fn scheduler_new(stream: *mut c_void) -> *mut c_void {
        // SAFETY: as Envoy's.
        let stream = unsafe { FakeStream::at(stream) };
        *lock(&stream.schedulers) += 1;
        let (events, alive) = (Arc::clone(&stream.events), Arc::clone(&stream.schedulers));
        Box::into_raw(Box::new(FakeScheduler { events, alive })).cast()
    }

    pub unsafe fn scheduler_commit(scheduler: *mut c_void, event: u64) {
        // SAFETY: made by `scheduler_new`, and not deleted.
        lock(&unsafe { &*scheduler.cast::<FakeScheduler>() }.events).push(event);
    }

    pub unsafe fn scheduler_delete(scheduler: *mut c_void) {
        // SAFETY: made by `scheduler_new`, and deleted once.
        let scheduler = unsafe { Box::from_raw(scheduler.cast::<FakeScheduler>()) };
        *lock(&scheduler.alive) -= 1;
    }

    pub unsafe fn log(level: u32, message: ModuleBuffer) {
        eprintln!("envoy log {level}: {}", text(message));
    }
}

/// Defines the symbols of Envoy's callbacks. A test binary that calls hooks needs them once.
#[macro_export]
macro_rules! fake_host {
    () => {
        #[doc(hidden)]
        mod __fake_envoy {
            use std::ffi::c_void;

            use $crate::abi::{EnvoyBuffer, EnvoyHeader, ModuleBuffer, ModuleHeader};
            use $crate::fake_host::callbacks;

            type M = *mut c_void;
            type B = ModuleBuffer;

            $crate::__hooks! {
                "envoy_dynamic_module_callback_log" log(level: u32, message: B) -> ()
                    { callbacks::log(level, message) }
                "envoy_dynamic_module_callback_get_concurrency" concurrency() -> u32 { 1 }
                "envoy_dynamic_module_callback_is_validation_mode" is_validation() -> bool
                    { callbacks::is_validation_mode() }
                "envoy_dynamic_module_callback_http_filter_config_define_counter"
                    define_counter(config: M, name: B, _labels: *mut B, _length: usize,
                        id: *mut usize) -> u32 { callbacks::define_counter(config, name, id) }
                "envoy_dynamic_module_callback_http_filter_increment_counter"
                    increment(filter: M, id: usize, _values: *mut B, _length: usize, by: u64) -> u32
                    { callbacks::increment_counter(filter, id, by) }
                "envoy_dynamic_module_callback_http_get_header"
                    get_header(filter: M, kind: u32, key: B, result: *mut EnvoyBuffer,
                        index: usize, count: *mut usize) -> bool
                    { callbacks::get_header(filter, kind, key, result, index, count) }
                "envoy_dynamic_module_callback_http_get_headers_size"
                    get_headers_size(filter: M, kind: u32) -> usize
                    { callbacks::get_headers_size(filter, kind) }
                "envoy_dynamic_module_callback_http_get_headers"
                    get_headers(filter: M, kind: u32, result: *mut EnvoyHeader) -> bool
                    { callbacks::get_headers(filter, kind, result) }
                "envoy_dynamic_module_callback_http_add_header"
                    add_header(filter: M, kind: u32, key: B, value: B) -> bool
                    { callbacks::add_header(filter, kind, key, value) }
                "envoy_dynamic_module_callback_http_set_header"
                    set_header(filter: M, kind: u32, key: B, value: B) -> bool
                    { callbacks::set_header(filter, kind, key, value) }
                "envoy_dynamic_module_callback_http_send_response"
                    send_response(filter: M, status: u32, headers: *mut ModuleHeader,
                        length: usize, body: B, details: B) -> ()
                    { callbacks::send_response(filter, status, headers, length, body, details) }
                "envoy_dynamic_module_callback_http_filter_continue_decoding"
                    resume(filter: M) -> () { callbacks::continue_decoding(filter) }
                "envoy_dynamic_module_callback_http_add_custom_flag"
                    flag(filter: M, flag: B) -> () { callbacks::add_custom_flag(filter, flag) }
                "envoy_dynamic_module_callback_get_runtime_int"
                    runtime_int(key: B, default: u64) -> u64
                    { callbacks::get_runtime_int(key, default) }
                "envoy_dynamic_module_callback_http_get_metadata_number"
                    number(filter: M, of: u32, ns: B, key: B, result: *mut f64) -> bool
                    { callbacks::get_metadata_number(filter, (of, ns, key, None), result) }
                "envoy_dynamic_module_callback_http_get_metadata_string"
                    string(filter: M, of: u32, ns: B, key: B, result: *mut EnvoyBuffer) -> bool
                    { callbacks::get_metadata_string(filter, (of, ns, key, None), result) }
                "envoy_dynamic_module_callback_http_get_metadata_list_number"
                    number_in(filter: M, of: u32, ns: B, key: B, at: usize, result: *mut f64)
                    -> bool
                    { callbacks::get_metadata_number(filter, (of, ns, key, Some(at)), result) }
                "envoy_dynamic_module_callback_http_get_metadata_list_string"
                    string_in(filter: M, of: u32, ns: B, key: B, at: usize,
                        result: *mut EnvoyBuffer) -> bool
                    { callbacks::get_metadata_string(filter, (of, ns, key, Some(at)), result) }
                "envoy_dynamic_module_callback_http_get_filter_state_typed"
                    state(filter: M, key: B, result: *mut EnvoyBuffer) -> bool
                    { callbacks::get_filter_state(filter, key, result) }
                "envoy_dynamic_module_callback_http_filter_get_attribute_int"
                    attribute_int(filter: M, of: u32, result: *mut u64) -> bool
                    { callbacks::get_attribute_int(filter, of, result) }
                "envoy_dynamic_module_callback_http_set_dynamic_metadata_struct"
                    set_struct(filter: M, ns: B, fields: B) -> bool
                    { callbacks::set_dynamic_metadata_struct(filter, ns, fields) }
                "envoy_dynamic_module_callback_http_filter_get_attribute_string"
                    attribute(filter: M, attribute: u32, result: *mut EnvoyBuffer) -> bool
                    { callbacks::get_attribute_string(filter, attribute, result) }
                "envoy_dynamic_module_callback_http_get_cluster_name"
                    cluster(filter: M, result: *mut EnvoyBuffer) -> bool
                    { callbacks::get_cluster_name(filter, result) }
                "envoy_dynamic_module_callback_get_most_specific_route_config"
                    route_config(filter: M) -> *const c_void
                    { callbacks::get_most_specific_route_config(filter) }
                "envoy_dynamic_module_callback_http_filter_scheduler_new"
                    scheduler_new(filter: M) -> M { callbacks::scheduler_new(filter) }
                "envoy_dynamic_module_callback_http_filter_scheduler_commit"
                    commit(scheduler: M, event: u64) -> ()
                    { callbacks::scheduler_commit(scheduler, event) }
                "envoy_dynamic_module_callback_http_filter_scheduler_delete"
                    delete(scheduler: M) -> () { callbacks::scheduler_delete(scheduler) }
                "envoy_dynamic_module_callback_bootstrap_extension_register_admin_handler"
                    register(_config: M, _prefix: B, _help: B, _removable: bool, _mutates: bool)
                    -> bool { true }
                "envoy_dynamic_module_callback_bootstrap_extension_admin_set_response"
                    set_response(_config: M, _body: B) -> () { () }
                "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_new"
                    config_scheduler_new(_config: M) -> M { std::ptr::null_mut() }
                "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_commit"
                    config_commit(_scheduler: M, _event: u64) -> () { () }
                "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_delete"
                    config_delete(_scheduler: M) -> () { () }
                "envoy_dynamic_module_callback_bootstrap_extension_config_signal_init_complete"
                    signal(_config: M) -> () { () }
            }
        }
    };
}
