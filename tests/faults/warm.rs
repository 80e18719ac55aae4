//! The wait until a load is warm: every pod has answered for each key often enough to hold a lease
//! that is sized by its demand, and the pods have counted each other.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::stage::{Scale, time_until};
use crate::support::paced::RunningPaced;
use crate::support::redis::Cluster;

/// Maximum time until a load is warm, on a busy machine.
const WARM_MAX: Duration = Duration::from_secs(30);

/// The latest heartbeat of each pod, by the key of its domain and the name of the pod: until when
/// it counts as alive.
type Beats = BTreeMap<(String, String), f64>;

/// Waits until `load` on `paths` paths is warm on all of `pods`, whose keys begin with `prefix`.
pub async fn warm(load: &RunningPaced, paths: usize, cluster: &Cluster, prefix: &str, pods: usize) {
    let each = Scale::of_env().pick(10, 100);
    let enough = (each * paths * pods) as u64;
    let mut first = None::<Beats>;
    let is_warm = async || {
        let beats = beats(cluster, prefix);
        if !beats.keys().any(|(key, _)| knows(&beats, key, pods)) || load.answered() < enough {
            return false;
        }
        // The reply to a heartbeat counts those of the other pods before it.
        let first = first.get_or_insert_with(|| beats.clone());
        first.iter().all(|(pod, until)| beats.get(pod).is_some_and(|now| now > until))
    };
    assert!(time_until(WARM_MAX, is_warm).await.is_some(), "not warm after {WARM_MAX:?}");
}

/// Whether the key of a domain holds all pods.
fn knows(beats: &Beats, key: &str, pods: usize) -> bool {
    key.contains("rl:pods:") && beats.keys().filter(|(other, _)| other == key).count() == pods
}

/// Nodes that do not answer are left out.
fn beats(cluster: &Cluster, prefix: &str) -> Beats {
    let mut beats = Beats::new();
    for node in &cluster.nodes {
        let keys: Vec<String> =
            node.try_command(&["KEYS", &format!("{prefix}rl:pods*")]).unwrap_or_default();
        for key in keys {
            let range = ["ZRANGE", &key, "0", "-1", "WITHSCORES"];
            // A replica redirects.
            let pods: Vec<(String, f64)> = node.try_command(&range).unwrap_or_default();
            beats.extend(pods.into_iter().map(|(pod, until)| ((key.clone(), pod), until)));
        }
    }
    beats
}
