//! The waker that `h2` gets of the task of a connection.
//!
//! `h2` wakes the task whenever it is given an answer, so that the task writes it. A task that
//! answers calls itself polls `h2` afterwards in any case: with its own waker it would run twice
//! for each call.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Wakes the task of a connection while the task is attached.
#[derive(Debug)]
pub(super) struct H2Waker {
    task: Arc<AttachedTask>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct AttachedTask(AtomicWaker);

// === impl H2Waker ===

impl H2Waker {
    pub(super) fn new() -> Self {
        let task = Arc::new(AttachedTask::default());
        Self { waker: Waker::from(Arc::clone(&task)), task }
    }

    /// The waker to poll `h2` with.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Attaches the task of `cx`, which is then to poll `h2`: events before that poll are seen by
    /// it, and those after it wake the task.
    pub(super) fn attach(&self, cx: &Context<'_>) {
        self.task.0.register(cx.waker());
    }

    /// Detaches the task, which is going to attach itself and to poll `h2` again before it waits.
    pub(super) fn detach(&self) {
        drop(self.task.0.take());
    }
}

// === impl AttachedTask ===

impl Wake for AttachedTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_an_attached_task_is_woken() {
        let wakes = Arc::new(Wakes::default());
        let task = Waker::from(Arc::clone(&wakes));
        let cx = Context::from_waker(&task);
        let of_h2 = H2Waker::new();
        let woken = || {
            of_h2.waker().wake();
            wakes.0.load(Ordering::Relaxed)
        };
        assert_eq!(woken(), 0, "no task is attached yet");
        of_h2.attach(&cx);
        assert_eq!(woken(), 1);
        of_h2.attach(&cx);
        of_h2.detach();
        assert_eq!(woken(), 1);
        of_h2.attach(&cx);
        assert_eq!(woken(), 2);
    }
}
