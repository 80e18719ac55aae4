//! Values of this module behind pointers that may also be another module's.

use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

/// A value of this module behind a pointer that may also be another module's. The tag comes first.
#[repr(C)]
pub(crate) struct Tagged<T> {
    tag: usize,
    value: T,
}

/// Drawn once at random: the chance that another module's memory begins with it is small.
pub(crate) const TAG: usize = 0x9d6f_2c41_e07b_58a3;

/// Marks values of this copy of the module by its address, which differs from copy to copy in a
/// process. Copies may be of different versions, so no copy may read a value that another one made.
static COPY: AtomicU8 = AtomicU8::new(0);

/// Says that this copy of the module has made a value.
fn tag() -> usize {
    TAG ^ (&raw const COPY).addr()
}

// === impl Tagged ===

impl<T> Tagged<T> {
    pub(crate) fn leak(value: T) -> *const c_void {
        Box::into_raw(Box::new(Self { tag: tag(), value })).cast_const().cast()
    }

    /// # Safety
    /// `at` is null, or [`Tagged::leak`] of this type has made it and it is not freed within `'a`,
    /// or it points to eight bytes or more of another module.
    pub(crate) unsafe fn get<'a>(at: *const c_void) -> Option<&'a T> {
        if at.is_null() || !at.cast::<usize>().is_aligned() {
            return None;
        }
        // SAFETY: aligned, and at least so long.
        let found = unsafe { at.cast::<usize>().read() };
        // SAFETY: the tag says that this copy of the module has made it.
        (found == tag()).then(|| unsafe { &(*at.cast::<Self>()).value })
    }

    /// # Safety
    /// As [`Tagged::get`], and nothing uses it after.
    pub(crate) unsafe fn free(at: *const c_void) {
        // SAFETY: the caller's promise.
        if unsafe { Self::get(at) }.is_some() {
            // SAFETY: made by `leak`.
            drop(unsafe { Box::from_raw(at.cast_mut().cast::<Self>()) });
        }
    }
}
