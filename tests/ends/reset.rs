//! Keys that are reset while requests hold estimates of them.

use std::time::Duration;

use crate::application::{BEFORE, HELD, STATUS, USED};
use crate::client::USER;
use crate::stand::{Plan, Stand};
use crate::support::http::{Answer, Client};
use crate::support::now;
use crate::support::windows::early_in_a_window;

/// Tokens that a user may use in an hour, by the recipe.
const LIMIT: u64 = 10_000;

/// Tokens that each request may use at most.
const TOKENS: u64 = 1000;

/// Requests that hold estimates when the key is reset.
const HELD_REQUESTS: usize = 9;

/// Window of the recipe's limit.
const WINDOW: Duration = Duration::from_secs(3600);

/// Maximum duration of the test.
const TEST_MAX: Duration = Duration::from_secs(90);

/// Sends a request, and does not wait for its answer.
async fn send(stand: &Stand, headers: &[(&str, &str)]) -> Client {
    let body = format!(r#"{{"model":"large","max_tokens":{TOKENS}}}"#);
    let headers = headers.iter().chain(&[(USER, "alice"), ("content-type", "application/json")]);
    let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let mut client = Client::connect(stand.envoy.ingress).await.unwrap();
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n{headers}"
    );
    client.write(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    client
}

async fn answer(mut client: Client) -> Answer {
    client.answer().await.expect("an answer")
}

/// Uses tokens until a request is denied, and returns how many. Waits for the end of each request,
/// which is charged.
async fn use_up(stand: &Stand) -> u64 {
    let used = TOKENS.to_string();
    for passed in 0.. {
        let held = stand.in_use().await.holds;
        match answer(send(stand, &[(USED, &used)]).await).await.status {
            200 => {}
            429 => return passed * TOKENS,
            other => panic!("{other} after {passed} requests"),
        }
        let settled = async || stand.in_use().await.holds <= held;
        stand.pod.process.until("told of the end", Duration::from_secs(5), settled).await;
    }
    unreachable!("a limit ends the loop")
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_from_before_a_reset_give_the_new_count_nothing() {
    early_in_a_window(WINDOW, TEST_MAX).await;
    let stand = Plan::of("llm-holds").start().await;
    let mut held = Vec::new();
    for _ in 0..HELD_REQUESTS {
        // An error costs nothing.
        held.push(send(&stand, &[(BEFORE, HELD), (STATUS, "400")]).await);
    }
    stand.app.until_running(HELD_REQUESTS).await;
    println!("{HELD_REQUESTS} requests of {TOKENS} tokens run: {}", stand.in_use().await);
    stand.key("reset", "user=alice,model=large,request_id=look").await;
    let passes = async || answer(send(&stand, &[(USED, "1000")]).await).await.status == 200;
    stand.pod.process.until("told of the reset", Duration::from_secs(5), passes).await;
    let before = TOKENS + use_up(&stand).await;

    stand.app.release();
    for client in held {
        assert_eq!(answer(client).await.status, 400);
    }
    let left = stand.left_of(now()).await;
    let after = use_up(&stand).await;
    println!("after the reset {before} tokens pass, and {after} once the old requests have ended");
    assert_eq!(left.holds, 0, "the old requests still hold");
    assert!(before + after <= LIMIT, "{} of {LIMIT} tokens pass after the reset", before + after);
    stand.pod.is_unharmed();
}
