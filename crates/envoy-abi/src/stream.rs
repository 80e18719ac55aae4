//! A stream as its filter sees it, and the scheduler that wakes it.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{self, EnvoyBuffer, EnvoyHeader, ModuleBuffer, ModuleHeader};
use crate::tagged::Tagged;
use crate::{Level, log};

/// Where metadata is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Metadata {
    /// The stream's metadata.
    Dynamic = 0,
    /// The route's metadata.
    Route = 1,
    /// Metadata of the cluster that the route sends the stream to.
    Cluster = 2,
    /// Metadata of the locality of the host that the stream was sent to.
    Locality = 4,
}

/// Attributes of a stream, by Envoy's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Attribute {
    /// `request.size`: bytes of the request's body. A number.
    RequestSize = 13,
    /// `response.code`: the status of the response. A number.
    ResponseCode = 15,
    /// `response.size`: bytes of the response's body. A number.
    ResponseSize = 21,
    /// `source.address`: the downstream's address, as `ip:port`. Text.
    SourceAddress = 24,
}

/// Headers of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Headers {
    /// Headers of the request.
    Request = abi::REQUEST_HEADERS,
    /// Headers of the response.
    Response = abi::RESPONSE_HEADERS,
}

/// A counter among Envoy's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter(usize);

/// The statistics that may be defined while the configuration of a filter is made.
pub struct Setup<'h> {
    /// Envoy's configuration object, which lives at least as long as the hook `config_new`.
    config: *mut c_void,
    hook: PhantomData<&'h ()>,
}

/// Whether a request goes on to the next filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The request goes on.
    Continue,
    /// The request has been answered.
    Answered,
    /// The request waits until [`Stream::resume`] or [`Stream::respond`]. Its body flows no further
    /// than this filter, and Envoy reads no more of it than its limit on buffers.
    Wait,
}

/// A stream whose routes have configurations of type `R`, for the time of one hook. Not `Send`:
/// callbacks run in the stream's worker.
///
/// References that it returns belong to Envoy, and live until the hook returns or a callback
/// changes something. So getters borrow the stream, and all other methods need it mutably.
/// [`Stream::resume`] and [`Stream::respond`] take it, since the stream may be over when they
/// return.
pub struct Stream<'h, R> {
    /// Envoy's filter object. It lives at least until the hook `http_filter_destroy` returns, and
    /// until the hook returns that this value was made for: Envoy deletes streams in a later turn
    /// of the worker.
    filter: *mut c_void,
    /// Set once the request has been resumed or answered.
    is_over: &'h Cell<bool>,
    route_config: PhantomData<R>,
}

/// Wakes a stream from another thread, as long as it exists; the stream's hook
/// [`crate::Filter::scheduled`] gets the event. Must be dropped before its worker ends.
#[derive(Debug)]
pub struct Scheduler(NonNull<c_void>);

// SAFETY: Envoy posts the event to the worker's thread, and says that `commit` and `delete` may be
// called in any thread.
unsafe impl Send for Scheduler {}

// === impl Setup ===

impl Setup<'_> {
    /// # Safety
    /// `config` is the object that Envoy gave to the hook that makes the configuration, and the
    /// result is dropped within that hook.
    pub(crate) unsafe fn new(config: *mut c_void) -> Self {
        Self { config, hook: PhantomData }
    }

    /// Defines a counter under the module's `metrics_namespace`; `None` if Envoy refuses it.
    pub fn counter(&mut self, name: &str) -> Option<Counter> {
        let mut id = 0;
        let name = name.as_bytes().into();
        // SAFETY: the configuration is the hook's, no labels are given, and `id` lives on.
        let failed =
            unsafe { abi::define_counter(self.config, name, ptr::null_mut(), 0, &raw mut id) };
        (failed == 0).then_some(Counter(id))
    }
}

fn warn_of_foreign_route() {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if !IS_LOGGED.swap(true, Ordering::Relaxed) {
        let line = "ratelease: a route's configuration was made by another module or another copy \
                    of this file, and is not used; expected one file name in all places";
        log(Level::Warn, line);
    }
}

// === impl Stream ===

impl<'h, R> Stream<'h, R> {
    /// # Safety
    /// `filter` is the Envoy object that the present hook was called with, and the result is
    /// dropped within that hook.
    pub(crate) unsafe fn new(filter: *mut c_void, is_over: &'h Cell<bool>) -> Self {
        Self { filter, is_over, route_config: PhantomData }
    }

    /// The value at `index` of the headers of this name, which is in lower case; also of
    /// `:path` and its like.
    pub fn header(&self, of: Headers, name: &[u8], index: usize) -> Option<&[u8]> {
        let mut found = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is the hook's; Envoy writes into `found`, and may be given no place
        // for the count.
        let is_found = unsafe {
            let (filter, of) = (self.filter, of as u32);
            abi::get_header(filter, of, name.into(), &raw mut found, index, ptr::null_mut())
        };
        // SAFETY: lives until the hook returns or something changes; the result borrows `self`.
        (is_found && !found.ptr.is_null()).then(|| unsafe { found.bytes() })
    }

    /// All values of the headers of this name, which is in lower case. The time is linear in the
    /// number of headers, which that of [`Self::header`] for each is not.
    pub fn headers(&self, of: Headers, name: &[u8]) -> Vec<&[u8]> {
        let (mut first, mut count) = (EnvoyBuffer::EMPTY, 0);
        // SAFETY: as in `header`; Envoy writes the count too.
        let is_found = unsafe {
            let (filter, of, at) = (self.filter, of as u32, &raw mut first);
            abi::get_header(filter, of, name.into(), at, 0, &raw mut count)
        };
        match count {
            _ if !is_found => Vec::new(),
            // SAFETY: as in `header`.
            0 | 1 => vec![unsafe { first.bytes() }],
            _ => {
                let all = self.all_headers(of);
                // SAFETY: as in `header`.
                let named = all.iter().filter(|it| unsafe { it.key.bytes() } == name);
                // SAFETY: as in `header`.
                named.map(|it| unsafe { it.value.bytes() }).collect()
            }
        }
    }

    fn all_headers(&self, of: Headers) -> Vec<EnvoyHeader> {
        // SAFETY: the filter is the hook's.
        let size = unsafe { abi::get_headers_size(self.filter, of as u32) };
        let mut all = vec![EnvoyHeader::EMPTY; size];
        // SAFETY: the filter is the hook's, and there is a place for each header.
        let is_done = unsafe { abi::get_headers(self.filter, of as u32, all.as_mut_ptr()) };
        if is_done { all } else { Vec::new() }
    }

    /// Adds a header; headers of its name stay.
    pub fn add_header(&mut self, of: Headers, name: &[u8], value: &[u8]) {
        // SAFETY: the filter is the hook's, and Envoy copies both.
        unsafe { abi::add_header(self.filter, of as u32, name.into(), value.into()) };
    }

    /// Replaces all headers of its name.
    pub fn set_header(&mut self, of: Headers, name: &[u8], value: &[u8]) {
        // SAFETY: the filter is the hook's, and Envoy copies both.
        unsafe { abi::set_header(self.filter, of as u32, name.into(), value.into()) };
    }

    /// Text in metadata, which may be no valid UTF-8: of a key, or of an item of a list there.
    pub fn metadata_text(
        &self,
        of: Metadata,
        namespace: &str,
        key: &str,
        index: Option<usize>,
    ) -> Option<&[u8]> {
        let (filter, of) = (self.filter, of as u32);
        let (namespace, key) = (namespace.as_bytes().into(), key.as_bytes().into());
        let mut found = EnvoyBuffer::EMPTY;
        let at = &raw mut found;
        // SAFETY: the filter is the hook's, and Envoy writes into `found`.
        let is_found = unsafe {
            match index {
                None => abi::get_metadata_string(filter, of, namespace, key, at),
                Some(index) => abi::get_metadata_list_string(filter, of, namespace, key, index, at),
            }
        };
        // SAFETY: as in `header`.
        is_found.then(|| unsafe { found.bytes() })
    }

    /// A number in metadata: of a key, or of an item of a list there.
    pub fn metadata_number(
        &self,
        of: Metadata,
        namespace: &str,
        key: &str,
        index: Option<usize>,
    ) -> Option<f64> {
        let (filter, of) = (self.filter, of as u32);
        let (namespace, key) = (namespace.as_bytes().into(), key.as_bytes().into());
        let mut found = 0.0;
        let at = &raw mut found;
        // SAFETY: as above.
        let is_found = unsafe {
            match index {
                None => abi::get_metadata_number(filter, of, namespace, key, at),
                Some(index) => abi::get_metadata_list_number(filter, of, namespace, key, index, at),
            }
        };
        is_found.then_some(found)
    }

    /// An object of the filter state, as the text that it serializes to.
    pub fn filter_state(&self, key: &str) -> Option<&[u8]> {
        let mut found = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is the hook's, and Envoy writes into `found`.
        let is_found =
            unsafe { abi::get_filter_state(self.filter, key.as_bytes().into(), &raw mut found) };
        // SAFETY: as in `header`.
        is_found.then(|| unsafe { found.bytes() })
    }

    /// Merges `fields`, a serialized `google.protobuf.Struct`, into the dynamic metadata of
    /// `namespace`.
    pub fn set_metadata(&mut self, namespace: &str, fields: &[u8]) {
        let namespace = namespace.as_bytes().into();
        // SAFETY: the filter is the hook's, and Envoy parses a copy.
        unsafe { abi::set_dynamic_metadata_struct(self.filter, namespace, fields.into()) };
    }

    /// An attribute that is a number.
    pub fn number(&self, attribute: Attribute) -> Option<u64> {
        let mut found = 0;
        // SAFETY: the filter is the hook's, and Envoy writes into `found`.
        let is_found =
            unsafe { abi::get_attribute_int(self.filter, attribute as u32, &raw mut found) };
        is_found.then_some(found)
    }

    /// An attribute that is text.
    pub fn attribute(&self, attribute: Attribute) -> Option<&[u8]> {
        let mut found = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is the hook's, and Envoy writes into `found`.
        let is_found =
            unsafe { abi::get_attribute_string(self.filter, attribute as u32, &raw mut found) };
        // SAFETY: as in `header`.
        is_found.then(|| unsafe { found.bytes() })
    }

    /// The name of the cluster that the route sends the request to.
    pub fn cluster(&self) -> Option<&[u8]> {
        let mut found = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is the hook's, and Envoy writes into `found`.
        let is_found = unsafe { abi::get_cluster_name(self.filter, &raw mut found) };
        // SAFETY: as in `header`.
        is_found.then(|| unsafe { found.bytes() })
    }

    /// The configuration of the most specific of route, virtual host and routes. `None` if there is
    /// none, or if another module or another copy of this one made it; the first such case is
    /// logged.
    pub fn route_config(&self) -> Option<&R> {
        // SAFETY: the filter is the hook's.
        let found = unsafe { abi::get_most_specific_route_config(self.filter) };
        // SAFETY: this module has made it, or its tag is another; the stream keeps its route.
        let own = unsafe { Tagged::get(found) };
        if own.is_none() && !found.is_null() {
            warn_of_foreign_route();
        }
        own
    }

    /// Adds to a counter.
    pub fn increment(&mut self, counter: Counter) {
        // SAFETY: the filter is the hook's, and the counter has no labels.
        unsafe { abi::increment_counter(self.filter, counter.0, ptr::null_mut(), 0, 1) };
    }

    /// Adds `flag` to `%CUSTOM_FLAGS%` of the access log.
    pub fn add_flag(&mut self, flag: &str) {
        // SAFETY: the filter is the hook's, and Envoy copies the flag.
        unsafe { abi::add_custom_flag(self.filter, flag.as_bytes().into()) };
    }

    /// The scheduler that wakes this stream; `None` if Envoy has none for it.
    pub fn scheduler(&self) -> Option<Scheduler> {
        // SAFETY: the filter is the hook's, in its worker's thread.
        NonNull::new(unsafe { abi::scheduler_new(self.filter) }).map(Scheduler)
    }

    /// Answers the request; the stream may be over when this returns. The status is one of HTTP.
    pub fn respond(
        self,
        status: u32,
        headers: &[(&[u8], &[u8])],
        body: &[u8],
        details: &str,
    ) -> Flow {
        self.is_over.set(true);
        let mut headers: Vec<ModuleHeader> = headers.iter().map(ModuleHeader::from).collect();
        let details: ModuleBuffer = details.as_bytes().into();
        // SAFETY: the filter is the hook's, and Envoy copies headers, body and details. The call
        // may run hooks, which share the filter with this one.
        unsafe {
            let (at, length) = (headers.as_mut_ptr(), headers.len());
            abi::send_response(self.filter, status, at, length, body.into(), details);
        }
        Flow::Answered
    }

    /// Goes on with a request that waits; the stream may be over when this returns.
    pub fn resume(self) {
        self.is_over.set(true);
        // SAFETY: the filter is the hook's. The call may run hooks, as in `respond`.
        unsafe { abi::continue_decoding(self.filter) };
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Wakes the stream; nothing happens if it is over.
    pub fn wake(&self, event: u64) {
        // SAFETY: it exists until this is dropped.
        unsafe { abi::scheduler_commit(self.0.as_ptr(), event) };
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: made by `scheduler_new`, and deleted once.
        unsafe { abi::scheduler_delete(self.0.as_ptr()) };
    }
}
