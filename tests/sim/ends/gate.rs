//! The gate that stops a pod: while it is closed, nothing of the pod is polled.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// A gate. While it is closed, the runtime polls nothing of the pod.
#[derive(Default)]
pub struct Gate(Mutex<Closed>);

#[derive(Default)]
struct Closed {
    is_closed: bool,
    waiting: Vec<Waker>,
}

/// A future behind a gate.
struct Gated<'g, F> {
    gate: &'g Gate,
    inner: Pin<Box<F>>,
}

impl Gate {
    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    pub fn close(&self) {
        self.0.lock().is_closed = true;
    }

    pub fn open(&self) {
        let mut gate = self.0.lock();
        gate.is_closed = false;
        gate.waiting.drain(..).for_each(Waker::wake);
    }

    /// Runs a future while the gate is open.
    pub fn pass<'g, F: Future + Send + 'g>(
        &'g self,
        inner: F,
    ) -> impl Future<Output = F::Output> + Send + 'g {
        Gated { gate: self, inner: Box::pin(inner) }
    }
}

impl<F: Future> Future for Gated<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut gate = self.gate.0.lock();
            if gate.is_closed {
                gate.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.inner.as_mut().poll(cx)
    }
}
