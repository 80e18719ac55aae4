//! Who has closed a connection, by what becomes of the slot that a call on it has taken.

use super::fairness::{DATA, SETTINGS, frame, headers_for};
use super::resets::{ACK, Client, PING, rules};
use super::*;

/// Longer than an Envoy that has closed its last connection is waited for.
const AFTER_GRACE: Duration = Duration::from_secs(6);

/// A pod whose only slot is taken by a call of a client, which `end` ends. Returns whether the slot is
/// free later, and before that another client did something.
async fn is_free_after<E, B>(
    age: Option<Duration>,
    end: impl FnOnce(Client) -> E,
    beside: impl FnOnce(ConnectionContext) -> B,
) -> bool
where
    E: Future<Output = ()>,
    B: Future<Output = ()>,
{
    let context = running(rules(), age);
    let mut client = Client::connect(context.clone()).await;
    assert!(client.passes(1, "slot", "a", 1).await);
    end(client).await;
    beside(context.clone()).await;
    sleep(AFTER_GRACE).await;
    let mut next = Client::connect(ConnectionContext { age: None, ..context }).await;
    next.passes(1, "slot", "b", 1).await
}

async fn nothing(_: ConnectionContext) {}

/// Reads, and answers pings, until the server closes the connection.
async fn read_to_the_end(mut client: Client) {
    while let Some((kind, flags, _, payload)) = client.try_next().await {
        if kind == PING && flags & ACK == 0 {
            client.send(&frame(PING, ACK, 0, &payload)).await;
        }
    }
}

/// Checks health on a connection of its own, and closes that.
async fn check_health(context: ConnectionContext) {
    for _ in 0..20 {
        let mut probe = Client::connect(context.clone()).await;
        let path = "/grpc.health.v1.Health/Check";
        let call = [headers_for(1, path), frame(DATA, 1, 1, &[0; 5])].concat();
        probe.send(&call).await;
        while probe.next().await.2 != 1 {}
        drop(probe);
        sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_its_connection_is_gone() {
    assert!(is_free_after(None, async |client| drop(client), nothing).await);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_pings_is_gone() {
    let silent = async |mut client: Client| while client.try_next().await.is_some() {};
    assert!(is_free_after(None, silent, nothing).await);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_this_end_closes_proves_nothing() {
    let age = Some(Duration::from_secs(1));
    assert!(!is_free_after(age, read_to_the_end, nothing).await, "at its maximum age");
    let flood = async |mut client: Client| {
        client.send(&frame(SETTINGS, 0, 0, &[]).repeat(1000)).await;
        read_to_the_end(client).await;
    };
    assert!(!is_free_after(None, flood, nothing).await, "beyond a limit");
    let faulty = async |mut client: Client| {
        client.send(&frame(DATA, 0, 0, &[])).await; // no stream has the number 0
        read_to_the_end(client).await;
    };
    assert!(!is_free_after(None, faulty, nothing).await, "against the protocol");
}

#[tokio::test(start_paused = true)]
async fn health_checks_neither_end_nor_keep_what_an_envoy_has_started() {
    assert!(is_free_after(None, async |client| drop(client), check_health).await);
    let age = Some(Duration::from_secs(1));
    assert!(!is_free_after(age, read_to_the_end, check_health).await);
}
