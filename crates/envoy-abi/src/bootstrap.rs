//! The extension of Envoy's bootstrap configuration as the module sees it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::abi;

/// Envoy's side of the extension, for the time of one hook in the main thread.
pub struct BootstrapHost<'h> {
    /// Envoy's configuration object, which lives until the hook `config_destroy` returns.
    config: *mut c_void,
    hook: PhantomData<&'h ()>,
}

/// Has the main thread call [`crate::Bootstrap::scheduled`]. Must be dropped before Envoy's main
/// loop ends.
#[derive(Debug)]
pub struct ConfigScheduler(NonNull<c_void>);

// SAFETY: Envoy posts the event to the main thread, and says that `commit` and `delete` may be
// called in any thread.
unsafe impl Send for ConfigScheduler {}

// === impl BootstrapHost ===

impl BootstrapHost<'_> {
    /// # Safety
    ///
    /// `config` is an Envoy object: the one that the present hook was called with, or the one that
    /// its extension was made with. The thread is the main one. The result is dropped within the
    /// hook.
    pub(crate) unsafe fn new(config: *mut c_void) -> Self {
        Self { config, hook: PhantomData }
    }

    /// Serves `prefix` on the admin port; `help` is its line on Envoy's help page. Fails if
    /// another handler has the prefix.
    pub fn serve_admin(&self, prefix: &str, help: &str) -> bool {
        let (prefix, help) = (prefix.as_bytes().into(), help.as_bytes().into());
        // SAFETY: the configuration is the hook's, and Envoy copies both.
        unsafe { abi::register_admin_handler(self.config, prefix, help, true, false) }
    }

    /// The scheduler that wakes this extension; `None` if Envoy has none for it.
    pub fn scheduler(&self) -> Option<ConfigScheduler> {
        // SAFETY: the configuration is the hook's.
        NonNull::new(unsafe { abi::config_scheduler_new(self.config) }).map(ConfigScheduler)
    }

    /// Lets Envoy open its listeners.
    pub fn signal_ready(&self) {
        // SAFETY: the configuration is the hook's, in the main thread.
        unsafe { abi::signal_init_complete(self.config) };
    }

    /// The body of the answer to the admin request that the present hook is about.
    pub(crate) fn set_body(&self, body: &[u8]) {
        // SAFETY: the configuration is the hook's, and Envoy copies the body.
        unsafe { abi::admin_set_response(self.config, body.into()) };
    }
}

// === impl ConfigScheduler ===

impl ConfigScheduler {
    /// Sends the event.
    pub fn wake(&self, event: u64) {
        // SAFETY: it exists until this is dropped.
        unsafe { abi::config_scheduler_commit(self.0.as_ptr(), event) };
    }
}

impl Drop for ConfigScheduler {
    fn drop(&mut self) {
        // SAFETY: made by `config_scheduler_new`, and deleted once.
        unsafe { abi::config_scheduler_delete(self.0.as_ptr()) };
    }
}
