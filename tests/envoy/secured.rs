//! Mutual TLS between Envoy and a pod, whose certificate is replaced under load.

use std::time::Duration;

use serde_json::json;

use crate::logs::logging;
use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions, Verdicts};
use crate::support::load::Load;
use crate::support::papers::Papers;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;
use crate::support::tls_files::{TlsFiles, text, write};

#[tokio::test]
async fn an_envoy_with_a_certificate_gets_every_verdict_while_that_of_the_pod_is_replaced() {
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    let papers = Papers::new("127.0.0.1");
    let files = TlsFiles::of(&papers);
    let rules = Rules::new(&file("secured", &[rule("path", None, 1_000_000)]));
    let env = [&PATIENT[..], &files.mutual()].concat();
    let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &env).await;
    let (cert, key) = &files.client;
    let in_file = |path| json!({"filename": text(path)});
    let tls = json!({"common_tls_context": {
        "tls_certificates": [{"certificate_chain": in_file(cert), "private_key": in_file(key)}],
        "validation_context": {"trusted_ca": in_file(&files.root)},
    }});
    let options = EnvoyOptions { tls: Some(tls), ..before("secured", &[&pod]) };
    let envoy = Envoy::start(logging(options, "0.02s")).await;
    let before = envoy.verdicts().await;
    let load = envoy.load(Load::new("/any", 8, u64::MAX));
    for _ in 0..3 {
        let loaded = pod.count("tls_certificates_replaced");
        write(files.dir.path(), "tls", &papers.another("127.0.0.1"));
        let replaced = async || pod.count("tls_certificates_replaced") > loaded;
        pod.process.until("taking the new certificate", Duration::from_secs(10), replaced).await;
        let asked = envoy.verdicts().await.ok;
        let under_load = async || envoy.verdicts().await.ok > asked + 30;
        pod.process.until("answering under load", Duration::from_secs(10), under_load).await;
    }
    let tally = load.stop().await;
    assert!(tally.passed() > 90, "{tally:?}");
    assert_eq!((tally.limited(), tally.faults()), (0, 0), "{tally:?}");
    let Verdicts { ok, error, .. } = envoy.verdicts().await;
    assert_eq!((ok - before.ok, error), (tally.passed(), 0));
    let has_log = async || pod.count("log_entries_end_unknown") == ok;
    pod.process.until("told of each end", Duration::from_secs(10), has_log).await;
    assert_eq!(pod.stop().await, 0);
}
