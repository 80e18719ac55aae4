//! The bodies of Envoy's hooks: they turn pointers into references, call the module, and catch its
//! panics. A panic that left a hook would abort Envoy.
//!
//! Pointers that the module gives to Envoy:
//!
//! | made by | holds | freed by |
//! |---|---|---|
//! | `http_filter_config_new` | a box of the configuration | `http_filter_config_destroy`, once no filter of it is left |
//! | `http_filter_per_route_config_new` | a box of a route's configuration, with a tag | `http_filter_per_route_config_destroy`, once no stream has the route |
//! | `http_filter_new` | a reference count of the filter | `http_filter_destroy`, and the hooks of it that are still running |
//! | `bootstrap_extension_config_new` and `…_new` | a box of the extension | `bootstrap_extension_config_destroy` |
//!
//! All hooks of one stream run in one worker's thread. All hooks of the bootstrap extension run in
//! the main thread.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{self, EnvoyBuffer, ShutdownDone};
use crate::bootstrap::BootstrapHost;
use crate::module::{Bootstrap, Config, Filter, Module};
use crate::stream::{Flow, Setup, Stream};
use crate::tagged::Tagged;
use crate::{Level, log};

/// A filter, with the state that its hooks need.
pub(crate) struct FilterCell<M: Module> {
    filter: <M::Config as Config>::Filter,
    /// Lives longer: Envoy's filter object keeps its configuration.
    config: *const M::Config,
    waits: Cell<bool>,
    is_over: Cell<bool>,
}

/// The stream of a hook.
type HookStream<'h, M> = Stream<'h, <M as Module>::RouteConfig>;

/// The extension, and Envoy's side of it.
struct BootstrapCell<M: Module> {
    extension: M::Bootstrap,
    /// Lives longer: Envoy frees it after `bootstrap_extension_config_destroy`.
    config: *mut c_void,
}

/// The number of "continue" in `envoy_dynamic_module_type_on_http_filter_request_headers_status`.
/// The statuses of bodies, trailers and responses have the same 0.
const CONTINUE: u32 = 0;

/// The number of "stop iteration" in that enumeration.
const STOP_ITERATION: u32 = 1;

/// The number of "stop all iteration, and watermark" in that enumeration.
const STOP_ALL_AND_WATERMARK: u32 = 4;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Panics that hooks have caught since the process began.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Runs the body of a hook; returns `otherwise` if it panics.
fn guard<R>(hook: &str, otherwise: R, run: impl FnOnce() -> R) -> R {
    // The module's shared state is behind locks and cells that a panic leaves usable.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done,
        Err(payload) => {
            // The payload's drop might panic again.
            mem::forget(payload);
            PANICS.fetch_add(1, Ordering::Relaxed);
            log(Level::Critical, &format!("ratelease: a panic in {hook} was caught"));
            otherwise
        }
    }
}

// === impl FilterCell ===

impl<M: Module> FilterCell<M> {
    /// The filter that Envoy calls, kept for the time of a hook: Envoy may destroy it within.
    ///
    /// # Safety
    /// [`http_filter_new`] has made it, and it has not been destroyed when the hook begins.
    unsafe fn of(filter: *const c_void) -> Rc<Self> {
        let filter = filter.cast::<Self>();
        // SAFETY: made by `Rc::into_raw`, and its own count is still there.
        unsafe {
            Rc::increment_strong_count(filter);
            Rc::from_raw(filter)
        }
    }

    /// Calls the filter for the stream `envoy` in `hook`. `conclude` gets the filter's result, or
    /// `None` if the filter panics, and makes the hook's result.
    ///
    /// # Safety
    /// The hook is running, and was called with both pointers.
    unsafe fn visit<R, T>(
        hook: &str,
        envoy: *mut c_void,
        filter: *const c_void,
        visit: impl FnOnce(&<M::Config as Config>::Filter, &M::Config, HookStream<'_, M>) -> R,
        conclude: impl FnOnce(&Self, Option<R>) -> T,
    ) -> T {
        // SAFETY: the hook's filter.
        let cell = unsafe { Self::of(filter) };
        let visited = guard(hook, None, || {
            // SAFETY: the hook's stream, which is dropped within it.
            let stream = unsafe { Stream::new(envoy, &cell.is_over) };
            // SAFETY: the configuration lives longer than its filters.
            Some(visit(&cell.filter, unsafe { &*cell.config }, stream))
        });
        let concluded = conclude(&cell, visited);
        // If Envoy has destroyed the filter meanwhile, this drops it.
        guard("http_filter_destroy", (), || drop(cell));
        concluded
    }
}

/// The version of the interface.
pub fn program_init() -> *const c_char {
    abi::VERSION.as_ptr()
}

// Each function is the body of the hook of the same name; `abi.h` says when Envoy calls it. Only
// Envoy may call it, with the pointers that the module has given to Envoy: that makes the pointers
// valid.
#[allow(clippy::missing_safety_doc, reason = "said above for all")]
mod http {
    use super::*;

    pub unsafe fn config_new<M: Module>(
        config: *mut c_void,
        name: EnvoyBuffer,
        bytes: EnvoyBuffer,
    ) -> *const c_void {
        guard("http_filter_config_new", ptr::null(), || {
            // SAFETY: the hook's arguments, which are dropped within it.
            let (mut setup, name, bytes) =
                unsafe { (Setup::new(config), name.bytes(), bytes.bytes()) };
            match M::config(&mut setup, name, bytes) {
                Some(made) => Box::into_raw(Box::new(made)).cast_const().cast(),
                None => ptr::null(),
            }
        })
    }

    pub unsafe fn config_destroy<M: Module>(config: *const c_void) {
        guard("http_filter_config_destroy", (), || {
            // SAFETY: made by `config_new`, and no filter of it is left.
            drop(unsafe { Box::from_raw(config.cast_mut().cast::<M::Config>()) });
        });
    }

    pub unsafe fn per_route_config_new<M: Module>(
        name: EnvoyBuffer,
        bytes: EnvoyBuffer,
    ) -> *const c_void {
        guard("http_filter_per_route_config_new", ptr::null(), || {
            // SAFETY: the hook's arguments, which are dropped within it.
            let (name, bytes) = unsafe { (name.bytes(), bytes.bytes()) };
            M::route_config(name, bytes).map_or(ptr::null(), Tagged::leak)
        })
    }

    pub unsafe fn per_route_config_destroy<M: Module>(config: *const c_void) {
        guard("http_filter_per_route_config_destroy", (), || {
            // SAFETY: made by `per_route_config_new`, and no stream has the route.
            unsafe { Tagged::<M::RouteConfig>::free(config) };
        });
    }

    pub unsafe fn filter_new<M: Module>(config: *const c_void) -> *const c_void {
        let config = config.cast::<M::Config>();
        guard("http_filter_new", ptr::null(), || {
            // SAFETY: made by `config_new`, and not destroyed while it has filters.
            let filter = unsafe { &*config }.filter();
            let (waits, is_over) = (Cell::new(false), Cell::new(false));
            Rc::into_raw(Rc::new(FilterCell::<M> { filter, config, waits, is_over })).cast()
        })
    }

    pub unsafe fn filter_destroy<M: Module>(filter: *const c_void) {
        guard("http_filter_destroy", (), || {
            // SAFETY: the count that `filter_new` has made.
            drop(unsafe { Rc::from_raw(filter.cast::<FilterCell<M>>()) });
        });
    }

    pub unsafe fn request_headers<M: Module>(envoy: *mut c_void, filter: *const c_void) -> u32 {
        let status = |cell: &FilterCell<M>, flow| match flow {
            // The stream may have been answered while `Wait` was returned, or before a panic.
            _ if cell.is_over.get() => STOP_ITERATION,
            Some(Flow::Wait) => {
                cell.waits.set(true);
                STOP_ALL_AND_WATERMARK
            }
            Some(Flow::Answered) => STOP_ITERATION,
            Some(Flow::Continue) | None => CONTINUE,
        };
        let hook = "http_filter_request_headers";
        // SAFETY: the hook's pointers.
        unsafe { FilterCell::<M>::visit(hook, envoy, filter, Filter::request_headers, status) }
    }

    pub unsafe fn response_headers<M: Module>(envoy: *mut c_void, filter: *const c_void) -> u32 {
        let hook = "http_filter_response_headers";
        // SAFETY: the hook's pointers.
        unsafe {
            FilterCell::<M>::visit(hook, envoy, filter, Filter::response_headers, |_, _| CONTINUE)
        }
    }

    pub unsafe fn scheduled<M: Module>(envoy: *mut c_void, filter: *const c_void, event: u64) {
        let go_on_after_panic = |cell: &FilterCell<M>, done: Option<()>| {
            if done.is_none() && cell.waits.get() && !cell.is_over.replace(true) {
                // The hook panicked before it resumed the stream, and no other code resumes it.
                // SAFETY: `envoy` is the stream that the hook was called for.
                unsafe { abi::continue_decoding(envoy) };
            }
        };
        let hook = "http_filter_scheduled";
        // SAFETY: the hook's pointers.
        unsafe {
            let visit =
                |filter: &<M::Config as Config>::Filter, config: &_, stream: HookStream<'_, M>| {
                    filter.scheduled(config, stream, event);
                };
            FilterCell::<M>::visit(hook, envoy, filter, visit, go_on_after_panic);
        }
    }

    pub unsafe fn stream_complete<M: Module>(envoy: *mut c_void, filter: *const c_void) {
        let hook = "http_filter_stream_complete";
        // SAFETY: the hook's pointers.
        unsafe { FilterCell::<M>::visit(hook, envoy, filter, Filter::complete, |_, _| ()) }
    }
}

#[allow(clippy::missing_safety_doc, reason = "as in `http`")]
mod extension {
    use super::*;

    pub unsafe fn config_new<M: Module>(
        config: *mut c_void,
        name: EnvoyBuffer,
        bytes: EnvoyBuffer,
    ) -> *const c_void {
        guard("bootstrap_extension_config_new", ptr::null(), || {
            // SAFETY: the hook's arguments, which are dropped within it.
            let (host, name, bytes) =
                unsafe { (BootstrapHost::new(config), name.bytes(), bytes.bytes()) };
            match M::bootstrap(&host, name, bytes) {
                Some(extension) => {
                    let cell = BootstrapCell::<M> { extension, config };
                    Box::into_raw(Box::new(cell)).cast_const().cast()
                }
                None => ptr::null(),
            }
        })
    }

    pub unsafe fn config_destroy<M: Module>(config: *const c_void) {
        guard("bootstrap_extension_config_destroy", (), || {
            // SAFETY: made by `config_new`; Envoy destroys the extension before.
            drop(unsafe { Box::from_raw(config.cast_mut().cast::<BootstrapCell<M>>()) });
        });
    }

    pub unsafe fn server_initialized<M: Module>(extension: *const c_void) {
        guard("bootstrap_extension_server_initialized", (), || {
            // SAFETY: `new` has returned the pointer that `config_new` has made.
            let cell = unsafe { &*extension.cast::<BootstrapCell<M>>() };
            // SAFETY: Envoy's side of it, in the main thread.
            cell.extension.initialized(&unsafe { BootstrapHost::new(cell.config) });
        });
    }

    pub unsafe fn config_scheduled<M: Module>(config: *const c_void, event: u64) {
        guard("bootstrap_extension_config_scheduled", (), || {
            // SAFETY: made by `config_new`, and not destroyed.
            let cell = unsafe { &*config.cast::<BootstrapCell<M>>() };
            // SAFETY: Envoy's side of it, in the main thread.
            cell.extension.scheduled(&unsafe { BootstrapHost::new(cell.config) }, event);
        });
    }

    pub unsafe fn shutdown<M: Module>(
        extension: *const c_void,
        done: ShutdownDone,
        context: *mut c_void,
    ) {
        guard("bootstrap_extension_shutdown", (), || {
            // SAFETY: `new` has returned the pointer that `config_new` has made.
            unsafe { &*extension.cast::<BootstrapCell<M>>() }.extension.shut_down();
        });
        // SAFETY: Envoy waits for this call, with its context.
        unsafe { done(context) };
    }

    pub unsafe fn admin_request<M: Module>(
        config: *const c_void,
        method: EnvoyBuffer,
        path: EnvoyBuffer,
        body: EnvoyBuffer,
    ) -> u32 {
        const INTERNAL_SERVER_ERROR: u32 = 500;
        guard("bootstrap_extension_admin_request", INTERNAL_SERVER_ERROR, || {
            // SAFETY: made by `config_new`, and not destroyed.
            let cell = unsafe { &*config.cast::<BootstrapCell<M>>() };
            // SAFETY: the hook's arguments, which are not kept.
            let (method, path, body) = unsafe { (method.bytes(), path.bytes(), body.bytes()) };
            let (status, answer) = cell.extension.admin(method, path, body);
            // SAFETY: Envoy's side of it, in the hook of the request.
            unsafe { BootstrapHost::new(cell.config) }.set_body(&answer);
            status
        })
    }
}

pub use extension::{
    admin_request, config_destroy as bootstrap_config_destroy, config_new as bootstrap_config_new,
    config_scheduled as bootstrap_config_scheduled, server_initialized,
    shutdown as bootstrap_shutdown,
};
pub use http::{
    config_destroy, config_new, filter_destroy, filter_new, per_route_config_destroy,
    per_route_config_new, request_headers, response_headers, scheduled, stream_complete,
};
