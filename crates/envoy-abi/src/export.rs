//! The symbols that Envoy looks up in a module.

/// Exports every hook that Envoy 1.40 requires of a module with an HTTP filter and a bootstrap
/// extension. Those that this crate has a use for call `$module`, which implements
/// [`crate::Module`].
#[macro_export]
macro_rules! export_module {
    ($module:ty) => {
        #[doc(hidden)]
        mod __envoy_hooks {
            use std::ffi::{c_char, c_void};

            use $crate::abi::{EnvoyBuffer, ShutdownDone};
            use $crate::hooks;

            use super::*;

            type P = *const c_void;
            type M = *mut c_void;
            type B = EnvoyBuffer;

            $crate::__hooks! {
                "envoy_dynamic_module_on_program_init" program_init() -> *const c_char
                    { hooks::program_init() }
                "envoy_dynamic_module_on_http_filter_config_new"
                    filter_config_new(config: M, name: B, bytes: B) -> P
                    { hooks::config_new::<$module>(config, name, bytes) }
                "envoy_dynamic_module_on_http_filter_config_destroy"
                    filter_config_destroy(config: P) -> () { hooks::config_destroy::<$module>(config) }
                "envoy_dynamic_module_on_http_filter_per_route_config_new"
                    route_config_new(name: B, bytes: B) -> P
                    { hooks::per_route_config_new::<$module>(name, bytes) }
                "envoy_dynamic_module_on_http_filter_per_route_config_destroy"
                    route_config_destroy(config: P) -> ()
                    { hooks::per_route_config_destroy::<$module>(config) }
                "envoy_dynamic_module_on_http_filter_new"
                    filter_new(config: P, _envoy: M) -> P { hooks::filter_new::<$module>(config) }
                "envoy_dynamic_module_on_http_filter_destroy"
                    filter_destroy(filter: P) -> () { hooks::filter_destroy::<$module>(filter) }
                "envoy_dynamic_module_on_http_filter_request_headers"
                    request_headers(envoy: M, filter: P, _end: bool) -> u32
                    { hooks::request_headers::<$module>(envoy, filter) }
                "envoy_dynamic_module_on_http_filter_response_headers"
                    response_headers(envoy: M, filter: P, _end: bool) -> u32
                    { hooks::response_headers::<$module>(envoy, filter) }
                "envoy_dynamic_module_on_http_filter_stream_complete"
                    stream_complete(envoy: M, filter: P) -> ()
                    { hooks::stream_complete::<$module>(envoy, filter) }
                "envoy_dynamic_module_on_http_filter_scheduled"
                    scheduled(envoy: M, filter: P, event: u64) -> ()
                    { hooks::scheduled::<$module>(envoy, filter, event) }
                "envoy_dynamic_module_on_bootstrap_extension_config_new"
                    bootstrap_config_new(config: M, name: B, bytes: B) -> P
                    { hooks::bootstrap_config_new::<$module>(config, name, bytes) }
                "envoy_dynamic_module_on_bootstrap_extension_config_destroy"
                    bootstrap_config_destroy(config: P) -> ()
                    { hooks::bootstrap_config_destroy::<$module>(config) }
                "envoy_dynamic_module_on_bootstrap_extension_new"
                    bootstrap_new(config: P, _envoy: M) -> P { config }
                "envoy_dynamic_module_on_bootstrap_extension_server_initialized"
                    server_initialized(_envoy: M, extension: P) -> ()
                    { hooks::server_initialized::<$module>(extension) }
                "envoy_dynamic_module_on_bootstrap_extension_shutdown"
                    bootstrap_shutdown(_envoy: M, extension: P, done: ShutdownDone,
                        context: M) -> ()
                    { hooks::bootstrap_shutdown::<$module>(extension, done, context) }
                "envoy_dynamic_module_on_bootstrap_extension_config_scheduled"
                    bootstrap_scheduled(_envoy: M, config: P, event: u64) -> ()
                    { hooks::bootstrap_config_scheduled::<$module>(config, event) }
                "envoy_dynamic_module_on_bootstrap_extension_admin_request"
                    admin_request(_envoy: M, config: P, method: B, path: B, body: B) -> u32
                    { hooks::admin_request::<$module>(config, method, path, body) }
            }

            $crate::__idle_hooks! {
                "envoy_dynamic_module_on_http_filter_request_body"
                    request_body(M, P, bool) -> u32;
                "envoy_dynamic_module_on_http_filter_request_trailers"
                    request_trailers(M, P) -> u32;
                "envoy_dynamic_module_on_http_filter_response_body"
                    response_body(M, P, bool) -> u32;
                "envoy_dynamic_module_on_http_filter_response_trailers"
                    response_trailers(M, P) -> u32;
                "envoy_dynamic_module_on_http_filter_http_callout_done"
                    callout_done(M, P, u64, u32, M, usize, M, usize);
                "envoy_dynamic_module_on_http_filter_http_stream_headers"
                    stream_headers(M, P, u64, M, usize, bool);
                "envoy_dynamic_module_on_http_filter_http_stream_data"
                    stream_data(M, P, u64, P, usize, bool);
                "envoy_dynamic_module_on_http_filter_http_stream_trailers"
                    stream_trailers(M, P, u64, M, usize);
                "envoy_dynamic_module_on_http_filter_http_stream_complete"
                    callout_complete(M, P, u64);
                "envoy_dynamic_module_on_http_filter_http_stream_reset"
                    stream_reset(M, P, u64, u32);
                "envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark"
                    above_watermark(M, P);
                "envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark"
                    below_watermark(M, P);
                "envoy_dynamic_module_on_bootstrap_extension_destroy"
                    bootstrap_destroy(P);
                "envoy_dynamic_module_on_bootstrap_extension_worker_thread_initialized"
                    worker_initialized(M, P);
                "envoy_dynamic_module_on_bootstrap_extension_drain_started"
                    drain_started(M, P);
                "envoy_dynamic_module_on_bootstrap_extension_http_callout_done"
                    bootstrap_callout_done(M, P, u64, u32, M, usize, M, usize);
                "envoy_dynamic_module_on_bootstrap_extension_timer_fired"
                    timer_fired(M, P, M);
                "envoy_dynamic_module_on_bootstrap_extension_file_changed"
                    file_changed(M, P, B, u32);
                "envoy_dynamic_module_on_bootstrap_extension_cluster_add_or_update"
                    cluster_updated(M, P, B);
                "envoy_dynamic_module_on_bootstrap_extension_cluster_removal"
                    cluster_removed(M, P, B);
                "envoy_dynamic_module_on_bootstrap_extension_listener_add_or_update"
                    listener_updated(M, P, B);
                "envoy_dynamic_module_on_bootstrap_extension_listener_removal"
                    listener_removed(M, P, B);
            }
        }
    };
}

/// Exports functions by the names that Envoy looks up.
#[doc(hidden)]
#[macro_export]
macro_rules! __hooks {
    ($($symbol:literal $name:ident($($arg:ident: $type:ty),*) -> $ret:ty { $body:expr })*) => {
        $(
            /// Called by Envoy only.
            #[unsafe(export_name = $symbol)]
            #[allow(unused_unsafe, unreachable_pub, clippy::unused_unit, clippy::missing_safety_doc)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
                // SAFETY: Envoy calls the hook with the arguments that its interface documents.
                unsafe { $body }
            }
        )*
    };
}

/// Exports functions that do nothing, and return 0 if anything.
#[doc(hidden)]
#[macro_export]
macro_rules! __idle_hooks {
    ($($symbol:literal $name:ident($($type:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            /// Called by Envoy only.
            #[unsafe(export_name = $symbol)]
            #[allow(unreachable_pub)]
            pub extern "C" fn $name($(_: $type),*) $(-> $ret)? {
                Default::default()
            }
        )*
    };
}
