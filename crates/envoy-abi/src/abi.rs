//! The C interface as Envoy 1.40 has it: types, and the callbacks that the module uses.
//!
//! Names, orders of fields and numbers are as in `abi.h` in Envoy's
//! `source/extensions/dynamic_modules/abi`. Names of functions lose their prefix
//! `envoy_dynamic_module_callback_` here.

use std::ffi::{c_char, c_void};

/// Bytes that Envoy owns. They live until the hook that obtained them returns, or until a callback
/// changes the object that they belong to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EnvoyBuffer {
    /// Null if there are no bytes.
    pub ptr: *const c_char,
    /// The number of bytes.
    pub length: usize,
}

/// Bytes that the module owns. Envoy copies the bytes that it keeps before the callback returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ModuleBuffer {
    /// Null if there are no bytes.
    pub ptr: *const c_char,
    /// The number of bytes.
    pub length: usize,
}

/// A header that Envoy owns, as [`EnvoyBuffer`]s.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EnvoyHeader {
    /// The name.
    pub key: EnvoyBuffer,
    /// The value.
    pub value: EnvoyBuffer,
}

/// A header that the module owns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ModuleHeader {
    /// The name.
    pub key_ptr: *const c_char,
    /// The length of the name in bytes.
    pub key_length: usize,
    /// The value.
    pub value_ptr: *const c_char,
    /// The length of the value.
    pub value_length: usize,
}

/// A callback of Envoy for a module that has shut down.
pub type ShutdownDone = unsafe extern "C" fn(*mut c_void);

/// The name and the version of the interface that this crate declares. Envoy 1.40 expects it, and
/// warns of the one before it.
pub const VERSION: &std::ffi::CStr = c"v0.2.0";

/// A number of `envoy_dynamic_module_type_http_header_type`.
pub const REQUEST_HEADERS: u32 = 0;
/// The number of response headers as a kind of headers.
pub const RESPONSE_HEADERS: u32 = 2;

/// Declares callbacks by the names that they have after the common prefix.
macro_rules! callbacks {
    ($($(#[$doc:meta])* $link:literal fn $name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {
        unsafe extern "C" {
            $($(#[$doc])* #[link_name = $link] pub fn $name($($arg: $type),*) $(-> $ret)?;)*
        }
    };
}

callbacks! {
    /// Writes a line into Envoy's log, in any thread.
    "envoy_dynamic_module_callback_log"
    fn log(level: u32, message: ModuleBuffer);
    /// The number of workers; only in the main thread.
    "envoy_dynamic_module_callback_get_concurrency"
    fn get_concurrency() -> u32;
    /// Whether Envoy only checks its configuration; only in the main thread.
    "envoy_dynamic_module_callback_is_validation_mode"
    fn is_validation_mode() -> bool;

    /// An integer of the runtime, or the default; in a worker always the default.
    "envoy_dynamic_module_callback_get_runtime_int"
    fn get_runtime_int(key: ModuleBuffer, default: u64) -> u64;

    /// Defines a counter while the configuration of a filter is made; 0 if it could.
    "envoy_dynamic_module_callback_http_filter_config_define_counter"
    fn define_counter(config: *mut c_void, name: ModuleBuffer, labels: *mut ModuleBuffer,
        labels_length: usize, id: *mut usize) -> u32;
    /// Adds to a counter that the filter's configuration has defined.
    "envoy_dynamic_module_callback_http_filter_increment_counter"
    fn increment_counter(filter: *mut c_void, id: usize, values: *mut ModuleBuffer,
        values_length: usize, by: u64) -> u32;

    /// The value of a header at an index, and the number of values.
    "envoy_dynamic_module_callback_http_get_header"
    fn get_header(filter: *mut c_void, kind: u32, key: ModuleBuffer, result: *mut EnvoyBuffer,
        index: usize, count: *mut usize) -> bool;
    /// The number of headers.
    "envoy_dynamic_module_callback_http_get_headers_size"
    fn get_headers_size(filter: *mut c_void, kind: u32) -> usize;
    /// All headers, into a place for as many as there are.
    "envoy_dynamic_module_callback_http_get_headers"
    fn get_headers(filter: *mut c_void, kind: u32, result: *mut EnvoyHeader) -> bool;
    /// Adds a header; headers of its name stay.
    "envoy_dynamic_module_callback_http_add_header"
    fn add_header(filter: *mut c_void, kind: u32, key: ModuleBuffer, value: ModuleBuffer) -> bool;
    /// Replaces all headers of a name.
    "envoy_dynamic_module_callback_http_set_header"
    fn set_header(filter: *mut c_void, kind: u32, key: ModuleBuffer, value: ModuleBuffer) -> bool;
    /// Answers the request. May call other hooks of the stream before it returns.
    "envoy_dynamic_module_callback_http_send_response"
    fn send_response(filter: *mut c_void, status: u32, headers: *mut ModuleHeader,
        headers_length: usize, body: ModuleBuffer, details: ModuleBuffer);
    /// Goes on with a stopped request. May call other hooks of the stream before it returns.
    "envoy_dynamic_module_callback_http_filter_continue_decoding"
    fn continue_decoding(filter: *mut c_void);
    /// Adds to `%CUSTOM_FLAGS%` of the access log.
    "envoy_dynamic_module_callback_http_add_custom_flag"
    fn add_custom_flag(filter: *mut c_void, flag: ModuleBuffer);

    /// A number in metadata.
    "envoy_dynamic_module_callback_http_get_metadata_number"
    fn get_metadata_number(filter: *mut c_void, source: u32, namespace: ModuleBuffer,
        key: ModuleBuffer, result: *mut f64) -> bool;
    /// Text in metadata.
    "envoy_dynamic_module_callback_http_get_metadata_string"
    fn get_metadata_string(filter: *mut c_void, source: u32, namespace: ModuleBuffer,
        key: ModuleBuffer, result: *mut EnvoyBuffer) -> bool;
    /// A number in a list in metadata.
    "envoy_dynamic_module_callback_http_get_metadata_list_number"
    fn get_metadata_list_number(filter: *mut c_void, source: u32, namespace: ModuleBuffer,
        key: ModuleBuffer, index: usize, result: *mut f64) -> bool;
    /// Text in a list in metadata.
    "envoy_dynamic_module_callback_http_get_metadata_list_string"
    fn get_metadata_list_string(filter: *mut c_void, source: u32, namespace: ModuleBuffer,
        key: ModuleBuffer, index: usize, result: *mut EnvoyBuffer) -> bool;
    /// An object of the filter state as text.
    "envoy_dynamic_module_callback_http_get_filter_state_typed"
    fn get_filter_state(filter: *mut c_void, key: ModuleBuffer, result: *mut EnvoyBuffer) -> bool;
    /// Merges a serialized `google.protobuf.Struct` into a namespace of the dynamic metadata.
    "envoy_dynamic_module_callback_http_set_dynamic_metadata_struct"
    fn set_dynamic_metadata_struct(filter: *mut c_void, namespace: ModuleBuffer,
        fields: ModuleBuffer) -> bool;
    /// An attribute that is text, by its number.
    "envoy_dynamic_module_callback_http_filter_get_attribute_string"
    fn get_attribute_string(filter: *mut c_void, attribute: u32, result: *mut EnvoyBuffer) -> bool;
    /// An attribute that is a number, by its number.
    "envoy_dynamic_module_callback_http_filter_get_attribute_int"
    fn get_attribute_int(filter: *mut c_void, attribute: u32, result: *mut u64) -> bool;
    /// The name of the cluster that the route sends the request to.
    "envoy_dynamic_module_callback_http_get_cluster_name"
    fn get_cluster_name(filter: *mut c_void, result: *mut EnvoyBuffer) -> bool;
    /// The result of `per_route_config_new` for the most specific of route, virtual host and
    /// configuration; null if there is none.
    "envoy_dynamic_module_callback_get_most_specific_route_config"
    fn get_most_specific_route_config(filter: *mut c_void) -> *const c_void;

    /// Makes a scheduler, which wakes the stream from another thread. In the worker's thread.
    "envoy_dynamic_module_callback_http_filter_scheduler_new"
    fn scheduler_new(filter: *mut c_void) -> *mut c_void;
    /// Posts an event to the stream's worker, in any thread.
    "envoy_dynamic_module_callback_http_filter_scheduler_commit"
    fn scheduler_commit(scheduler: *mut c_void, event: u64);
    /// Frees it, in any thread.
    "envoy_dynamic_module_callback_http_filter_scheduler_delete"
    fn scheduler_delete(scheduler: *mut c_void);

    /// Serves a prefix on Envoy's admin port, by the hook `admin_request`.
    "envoy_dynamic_module_callback_bootstrap_extension_register_admin_handler"
    fn register_admin_handler(config: *mut c_void, prefix: ModuleBuffer, help: ModuleBuffer,
        removable: bool, mutates: bool) -> bool;
    /// The body of the answer to an admin request; only in that hook.
    "envoy_dynamic_module_callback_bootstrap_extension_admin_set_response"
    fn admin_set_response(config: *mut c_void, body: ModuleBuffer);
    /// Makes a scheduler, which wakes the extension in the main thread.
    "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_new"
    fn config_scheduler_new(config: *mut c_void) -> *mut c_void;
    /// Posts an event to the main thread, in any thread.
    "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_commit"
    fn config_scheduler_commit(scheduler: *mut c_void, event: u64);
    /// Frees it, in any thread.
    "envoy_dynamic_module_callback_bootstrap_extension_config_scheduler_delete"
    fn config_scheduler_delete(scheduler: *mut c_void);
    /// Lets Envoy open its listeners, which wait for it; only in the main thread.
    "envoy_dynamic_module_callback_bootstrap_extension_config_signal_init_complete"
    fn signal_init_complete(config: *mut c_void);
}

// === impl EnvoyBuffer ===

impl EnvoyBuffer {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null(), length: 0 };

    /// The bytes.
    ///
    /// # Safety
    /// The pointer is null, or points to so many bytes that nothing changes or frees within `'a`.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.ptr.is_null() || self.length == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.length) }
    }
}

// === impl EnvoyHeader ===

impl EnvoyHeader {
    /// No bytes.
    pub const EMPTY: Self = Self { key: EnvoyBuffer::EMPTY, value: EnvoyBuffer::EMPTY };
}

// === impl ModuleBuffer ===

impl From<&[u8]> for ModuleBuffer {
    fn from(bytes: &[u8]) -> Self {
        Self { ptr: bytes.as_ptr().cast(), length: bytes.len() }
    }
}

// === impl ModuleHeader ===

impl From<&(&[u8], &[u8])> for ModuleHeader {
    fn from((key, value): &(&[u8], &[u8])) -> Self {
        Self {
            key_ptr: key.as_ptr().cast(),
            key_length: key.len(),
            value_ptr: value.as_ptr().cast(),
            value_length: value.len(),
        }
    }
}
