//! R8: links that are cut: between network namespaces where this process may create them, which
//! takes root and `ip` of iproute2, and otherwise by proxies that forward nothing. The row says
//! which, and why.

use std::net::SocketAddr;
use std::time::Duration;

use crate::row::Row;
use crate::stage::{
    Scale, TIGHT, judge_errors, judge_process, paths, plenty, scripts, time_until, turn,
};
use crate::stand::{Rules, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::netns::Namespace;
use crate::support::now;
use crate::support::paced::Paced;
use crate::support::process::leashed;
use crate::support::proxy::Fault;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::warm::warm;

/// From the end of a cut until leases are as before, see `slow`.
const RECOVERED_MAX: Duration = Duration::from_secs(3);

/// Maximum number of scripts in the first second after a cut: a multiple of the usual number, plus
/// those that were under way when the cut began.
const HERD_MAX: u64 = 2;
const HELD_UP_MAX: u64 = 20;

/// The usual number is at least this: four of thirteen requests are for new keys. A busy machine
/// may stall for a part of the second in which they are counted.
const USUAL_MIN: u64 = 60;

/// The nodes that are cut off from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    AllShards,
    OneShard,
}

#[tokio::test(flavor = "multi_thread")]
async fn r8_a_pod_is_cut_off_from_its_shards() {
    let _turn = turn().await;
    clear_of_midnight().await;
    let namespace = Namespace::make();
    let how = match &namespace {
        Ok(_) => "by network namespace".to_owned(),
        Err(why) => format!("by black holes, since no network namespace can be made: {why}"),
    };
    let (scale, tight) = (Scale::of_env(), Scale::of_env().pick(40, 400));
    let proxies = namespace.as_ref().map_or([127, 0, 0, 1], Namespace::redis);
    let options = ClusterOptions { proxies: Some(proxies), ..ClusterOptions::new(3, 0) };
    let cluster = Cluster::start_with(&options);
    let rules = [rule("path", Some(TIGHT), tight), rule("path", None, plenty())];
    let rules = Rules::new(&file("r8", &rules));
    let pod = pod(namespace.as_ref().ok(), &rules, &cluster);
    pod.ready().await;
    let timeout = scale.envoy_timeout;
    let envoy = EnvoyOptions { timeout, ..EnvoyOptions::new("r8", &[pod.grpc]) };
    let envoy = Envoy::start(envoy).await;
    let load = Paced::new(&paths(), scale.rate).start(envoy.ingress);
    warm(&load, paths().len(), &cluster, "r8-", 1).await;

    let set = |cut: Cut, is_cut: bool| match (&namespace, cut) {
        (Ok(namespace), Cut::AllShards) => namespace.cut(is_cut),
        (_, cut) => {
            let count = if cut == Cut::OneShard { 1 } else { cluster.proxies.len() };
            let fault = if is_cut { Fault::Hole } else { Fault::None };
            cluster.proxies.iter().take(count).for_each(|proxy| proxy.set(fault));
        }
    };
    let asked = || cluster.nodes.iter().map(scripts).sum::<u64>();
    let mut spells = Vec::new();
    for cut in [Cut::AllShards, Cut::OneShard] {
        let how = if cut == Cut::AllShards { &how } else { "by a black hole before it" };
        let promise = "0 errors; leases resume within 3 s, without a herd of asks; at most 2 L";
        let mut row = Row::new("R8", &format!("pod cut off from {cut:?}, {how}"), promise);
        let (errors, before) = (envoy.verdicts().await.error, asked());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (usual, began) = (asked() - before, now());
        set(cut, true);
        tokio::time::sleep(scale.pick(2, 10) * Duration::from_secs(1)).await;
        set(cut, false);
        let (ended, healed) = (now(), asked());
        let resumed = time_until(3 * RECOVERED_MAX, async || asked() > healed + usual / 4).await;
        tokio::time::sleep(Duration::from_secs(1).saturating_sub(ended.elapsed())).await;
        let herd = (asked() - healed) * 1000 / u64::try_from(ended.elapsed().as_millis()).unwrap();
        row.note(&format!("{usual} scripts in a second before it, {herd} after it"));
        row.holds(herd <= HERD_MAX * usual.max(USUAL_MIN) + HELD_UP_MAX, "a herd of asks");
        row.recovered(resumed.unwrap_or(3 * RECOVERED_MAX), RECOVERED_MAX);
        spells.push((row, began, ended, envoy.verdicts().await.error - errors));
    }
    let samples = load.stop().await;
    let mut rows = Vec::new();
    for (mut row, began, ended, errors) in spells {
        judge_errors(&mut row, &samples.between(began, ended), errors);
        row.admitted(samples.of(|path| path == 0).passed(), 2 * tight);
        judge_process(&mut row, &pod).await;
        rows.push(row);
    }
    let status = pod.stop().await;
    rows[0].holds(status == 0, &format!("the pod ended with status {status}"));
    Row::end_all(rows);
}

/// Starts a pod, in the namespace if there is one.
fn pod(namespace: Option<&Namespace>, rules: &Rules, cluster: &Cluster) -> Ratelease {
    let Some(namespace) = namespace else {
        return Ratelease::spawn(rules.path(), &cluster.places(), &[("CACHE_KEY_PREFIX", "r8-")]);
    };
    let [program, words @ ..] = namespace.words();
    let mut command = leashed(program);
    command.args(words).arg(BINARY).args(["serve", "--rules"]).arg(rules.path());
    let inside = namespace.inside();
    let host = std::net::Ipv4Addr::from(inside).to_string();
    let hosts = ["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, host.as_str()));
    let mut env = vec![("CACHE_KEY_PREFIX", "r8-")];
    env.extend(hosts);
    let mut pod = Ratelease::run(command, &cluster.places(), &env);
    for addr in [&mut pod.grpc, &mut pod.http, &mut pod.debug] {
        *addr = SocketAddr::from((inside, addr.port()));
    }
    pod
}
