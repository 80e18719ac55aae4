//! When `h2` wakes the task of a connection.

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
