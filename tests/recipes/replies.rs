//! Other answers than 429, and headers of answers.

use crate::recipe::{Recipe, assert_quota};
use crate::upstream;

#[tokio::test]
async fn retry_after() {
    says_when_to_retry(Recipe::start("retry-after", "ingress").await).await;
}

pub async fn says_when_to_retry(recipe: Recipe) {
    for (status, left) in [(200, 1), (200, 0), (429, 0), (429, 0)] {
        let answer = recipe.get("/", &[]).await;
        assert_quota(&answer, status, "2, 2;w=3600", left);
        let expected = answer.header("x-ratelimit-reset").filter(|_| status == 429);
        assert_eq!(answer.header("retry-after"), expected, "{answer:?}");
    }
    recipe.end(2, 2).await;
}

#[tokio::test]
async fn status_by_rule() {
    denies_as_the_rule_says(Recipe::start("status-by-rule", "ingress").await).await;
}

pub async fn denies_as_the_rule_says(recipe: Recipe) {
    let answers = async |plan: &str, user: &str, expected: &[(u16, &str)]| {
        for (status, body) in expected {
            let request = [("x-plan", plan), ("x-user-id", user)];
            let answer = recipe.get("/", &request).await;
            assert_eq!((answer.status, &*answer.body), (*status, *body), "{answer:?}");
            assert_eq!(answer.header(upstream::MARK).is_some(), *status == 200, "{answer:?}");
        }
    };
    let (ok, limited) = ((200, "ok\n"), (429, ""));
    let (trial, ceiling) = (
        (403, "The trial is used up: https://shop.example.com/plans\n"),
        (503, "The service is at its capacity.\n"),
    );
    answers("trial", "alice", &[ok, ok, trial, trial]).await;
    // The ceiling has four left: a request that the trial's limit denies does not spend it.
    answers("paid", "bob", &[ok, ok, ok, limited]).await;
    answers("paid", "carol", &[ok, ceiling, ceiling]).await;
    // A new user has room, but the service has not.
    answers("trial", "dave", &[ceiling]).await;
    recipe.end(6, 6).await;
}
