//! An ask whose reply is lost was taken once or not at all, never twice.

use ratelease::store::{Ask, Back, StoreError};

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{ask, connected, granted, one, until_granted, within};
use crate::support::now;
use crate::support::redis::{Single, tcp};

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_comes_too_late_is_not_asked_for_again() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let ask = ask(100, 50, 0);
    let lent = granted(&*store, ask).await;
    single.server.stop();
    let sent = now();
    let back = Some(Back { tokens: 10, epoch: Some(lent.epoch) });
    let late = one(&*store, Ask { want: 0, back, ..ask }).await;
    assert_eq!(late, Err(StoreError::TimedOut));
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    single.server.cont();
    let look = until_granted(&*store, Ask { want: 0, ..ask }, 5).await;
    assert_eq!(look.left, 60, "credited once");
}

/// The server takes the ask, and the connection breaks before its reply is through.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_whose_connection_breaks_is_not_sent_again() {
    let single = Single::start();
    let (cut, hears) = watch::channel(false);
    let port = muted_proxy(single.server.port(), hears).await;
    let mut config = single.config();
    config.addresses = vec![tcp(port)];
    let store = connected(config).await;
    let ask = ask(100, 50, 0);
    let lent = granted(&*store, ask).await;
    let calls = single.server.calls("evalsha");
    cut.send_replace(true);
    let back = Some(Back { tokens: 10, epoch: Some(lent.epoch) });
    let lost = one(&*store, Ask { want: 0, back, ..ask }).await;
    assert!(matches!(lost, Err(StoreError::Unreachable(_))), "{lost:?}");
    cut.send_replace(false);
    let look = until_granted(&*store, Ask { want: 0, ..ask }, 5).await;
    assert_eq!(look.left, 60, "credited once");
    assert_eq!(single.server.calls("evalsha"), calls + 2, "the lost one and the look");
}

/// Carries connections to `port`. While `muted` is true it delivers what the client says, and hangs
/// up instead of delivering a reply.
async fn muted_proxy(port: u16, muted: watch::Receiver<bool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(carry(client, server, muted.clone()));
        }
    });
    own
}

async fn carry(client: TcpStream, server: TcpStream, muted: watch::Receiver<bool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
    let mut buffer = [0; 4096];
    while let Ok(size @ 1..) = from_server.read(&mut buffer).await {
        if *muted.borrow() || to_client.write_all(&buffer[..size]).await.is_err() {
            break;
        }
    }
    up.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_silent_is_connected_to_anew() {
    let single = Single::start();
    let store = connected(single.config()).await;
    granted(&*store, ask(10, 1, 0)).await;
    single.server.stop();
    let clients = Arc::new(single);
    within(10, "the connection is given up", async {
        loop {
            match one(&*store, ask(10, 1, 0)).await {
                Err(StoreError::Unreachable(_)) => break,
                Err(StoreError::TimedOut) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    clients.server.cont();
    until_granted(&*store, ask(10, 1, 0), 10).await;
}
