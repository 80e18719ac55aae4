//! Sends requests when they are due, whether or not earlier ones have been answered.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::demand::Arrival;

/// The outcome of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    pub pod: usize,
    pub said: Said,
    /// When it was handed to the pod, since the start. Up to 1 ms later than it was due, which is
    /// the precision of the runtime's timers.
    pub issued: Duration,
    /// When the answer arrived.
    pub answered: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Admitted,
    Denied,
    /// The store did not answer in time.
    Failed,
}

/// Maximum number of overdue requests that are sent without a pause for other tasks.
const IN_ONE_GO: usize = 64;

/// Sends each request of `arrivals` to `decide` when it is due, counted from `start`, but none at
/// `end` or later. Returns the answers in the order of the requests.
pub async fn drive<F>(
    arrivals: impl Iterator<Item = Arrival>,
    start: Instant,
    end: Duration,
    decide: impl Fn(usize) -> F,
) -> Vec<Answer>
where
    F: Future<Output = Said> + Send + 'static,
{
    let mut answers = Vec::new();
    let mut waiting = JoinSet::new();
    for (number, Arrival { at, pod }) in arrivals.enumerate() {
        if start.elapsed() < at {
            tokio::time::sleep_until(start + at).await;
        } else if number % IN_ONE_GO == 0 {
            tokio::task::yield_now().await;
        }
        let issued = start.elapsed();
        if issued >= end {
            break;
        }
        let mut decision = Box::pin(decide(pod));
        let answer = move |said| Answer { pod, said, issued, answered: start.elapsed() };
        match poll!(&mut decision) {
            Poll::Ready(said) => answers.push(answer(said)),
            Poll::Pending => {
                waiting.spawn(async move { answer(decision.await) });
            }
        }
        answers.extend(std::iter::from_fn(|| waiting.try_join_next()).map(Result::unwrap));
    }
    answers.extend(waiting.join_all().await);
    answers.sort_by_key(|answer| answer.issued);
    answers
}

/// Number of `answers` with this outcome.
pub fn count(answers: &[Answer], said: Said) -> u64 {
    answers.iter().filter(|answer| answer.said == said).count() as u64
}
