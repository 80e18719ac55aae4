//! Requests that are held instead of denied.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::recipe::Recipe;
use crate::support::http::Client;
use crate::support::now;

/// Of the recipe's rule: the time between two requests, and the longest that one is held.
const SPACING: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(1);

const REQUESTS: usize = 12;

#[tokio::test]
async fn tarpit() {
    holds_requests(Recipe::start("tarpit", "ingress").await).await;
}

pub async fn holds_requests(recipe: Recipe) {
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        clients.push(Client::connect(recipe.envoy.ingress).await.unwrap());
    }
    let start = now();
    let mut requests = JoinSet::new();
    for mut client in clients {
        requests.spawn(async move { (client.get("/", &[]).await.unwrap().status, now()) });
    }
    let mut answers = requests.join_all().await;
    answers.sort_by_key(|(_, at)| *at);

    let of_status = |status| -> Vec<Instant> {
        let answers = answers.iter().filter(|(it, _)| *it == status);
        answers.map(|(_, at)| *at).collect()
    };
    let (passed, denied) = (of_status(200), of_status(429));
    assert_eq!(passed.len() + denied.len(), REQUESTS, "{answers:?}");
    // One at once, and one for each 200 ms of the second that a request may be held: six; more only
    // if requests were sent late, and fewer only if the reply of Redis was.
    assert!(passed.len() >= 4 && !denied.is_empty(), "{answers:?}");
    let sent_within = denied.last().map_or(MAX_DELAY, |at| *at - start);
    let slots = (sent_within + MAX_DELAY).as_millis() / SPACING.as_millis() + 1;
    assert!(passed.len() as u128 <= slots, "{} of {slots}", passed.len());
    // The nth request passes no earlier than its slot; the clocks of two processes meet here.
    for (at, n) in passed.iter().zip(0_u32..) {
        let earliest = (SPACING * n).saturating_sub(Duration::from_millis(20));
        assert!(*at - start >= earliest, "request {n} after {:?}", *at - start);
    }
    println!("{} held and passed, {} denied: {answers:?}", passed.len(), denied.len());
    recipe.end(passed.len() as u64, denied.len() as u64).await;
}
