//! The user of `deploy/redis-acl.conf`, over TLS.

use ratelease_engine::order::{Action, Follower, Order, Ordered};
use ratelease_engine::pod::PodRecord;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::{RedisKind, RedisSettings};
use ratelease_engine::store::{Ask, Heartbeat, Store};
use ratelease_rules::key::KeyHasher;
use ratelease_tls::{ClientFiles, ServerCheck};

use std::time::Duration;

use super::{ALGORITHMS, algorithms, ask, ask_by, connected, granted, patient};
use crate::support::papers::Papers;
use crate::support::redis::{Server, tcp};
use crate::support::tls_files::TlsFiles;
use crate::tls::redis::arguments;

const FILE: &str = include_str!("../../../deploy/redis-acl.conf");

/// The SHA-256 of `secret`.
const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

/// A pod that follows orders, and says so.
struct Pod;

impl Follower for Pod {
    fn hear(&self, _: usize, _: Ordered) {}

    fn record(&self) -> Option<PodRecord> {
        Some(PodRecord::new(1, "acl", &KeyHasher::new("")))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_of_the_file_may_do_all_that_a_pod_does() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let arguments = arguments(&files);
    let file = FILE.replace(&"0".repeat(64), HASH);
    assert_ne!(file, FILE, "the place of the password");
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let server = Server::start_with_file(&arguments, &file);
    let mut settings = RedisSettings::new(RedisKind::Single, vec![tcp(server.tls_port())]);
    settings.login.auth.username = Some("ratelease".into());
    settings.login.auth.password = Some(Secret::from("secret"));
    settings.tls = Some(ClientFiles {
        roots: Some(files.root.clone()),
        identity: Some(files.client.clone()),
        server: ServerCheck::Host,
    });
    let store = connected(patient(settings)).await;
    for by in ALGORITHMS {
        algorithms::keeps_the_contract(&*store, by).await;
    }
    granted(&*store, Ask { pool: Some(0), ..ask_by(ALGORITHMS[0], 2, 0) }).await;
    let lasts = Duration::from_secs(9);
    for leaves in [false, true] {
        store.beat(Heartbeat { pod: 1, lasts, leaves, domain: None }).await.expect("a heartbeat");
    }
    let slots = ask(5, 0, 0);
    let is_registered = async || store.read_pod(&slots, 1).await.expect("its record").is_some();
    let until_registered = async {
        while !is_registered().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = store.follow_orders(&Pod) => unreachable!("it never returns"),
        () = until_registered => {}
    }
    store.order(&slots, Order::new(Action::Lift, "")).await.expect("an order");
    store.order(&slots, Order::new(Action::Reset, "")).await.expect("another");
    store.clear(&slots).await.expect("a reset");
    assert_eq!(store.read_orders(None).await.expect("the orders").len(), 1);
    store.pods().await.expect("the pods");
    store.holders(&slots).await.expect("who holds slots");
    let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]);
    assert_eq!(refused.len(), 0, "{refused:?}");
}
