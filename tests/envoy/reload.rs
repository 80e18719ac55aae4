//! Rules that change under load: no request fails, and no answer mixes two versions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::stand::{Asker, MACHINE, Rules, before, pod};
use crate::support::envoy::Envoy;
use crate::support::load::Load;
use crate::support::now;
use crate::support::rng::Rng;

/// The two descriptors of each request; both rules carry the version of their file.
const CANARIES: [(&str, &str); 2] = [("path", "/canary"), ("generic_key", "all")];

/// A version is live 1 s after its file is in place, on an otherwise idle machine.
const LIVE_MAX: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_reload_under_load_fails_no_request_and_no_answer_mixes_two_versions() {
    const VERSIONS: u32 = 30;
    let _shared = MACHINE.read().await;
    let rules = Rules::new(&version(0));
    let pod = pod(&rules).await;
    let envoy = Envoy::start(before("reload", &[&pod])).await;
    let load = envoy.load(Load::new("/canary", 4, u64::MAX));
    let asker = Asker::connect(&pod).await;
    let watch = Watch::start(&asker);

    let mut rng = Rng::new();
    let mut slowest = Duration::ZERO;
    for number in 1..=VERSIONS {
        if rng.below(4) == 0 {
            let refused = pod.loads_refused();
            // The log reports the same fault twice in a row only once.
            rules.replace(&format!("# before {number}\n{}", rng.pick(&BAD)));
            let is_refused = async || pod.loads_refused() > refused;
            pod.process.until("logged the bad rules", LIVE_MAX, is_refused).await;
        }
        rules.replace(&version(number));
        let start = now();
        if rng.below(4) == 0 || number == VERSIONS {
            let is_live = async || ask(&asker).await == number;
            pod.process.until("on the last version", LIVE_MAX, is_live).await;
            slowest = slowest.max(start.elapsed());
        } else {
            tokio::time::sleep(Duration::from_millis(rng.below(300))).await;
        }
    }
    let answers = watch.finish().await;
    let tally = load.stop().await;
    let verdicts = envoy.verdicts().await;
    println!("{VERSIONS} versions; of those awaited, the slowest was live after {slowest:?}");
    println!("{} answers checked, by version: {answers:?}; {tally:?}", answers.iter().sum::<u64>());
    assert_eq!(
        ask(&asker).await,
        VERSIONS,
        "a bad file, or none, has taken the last good one's place"
    );
    assert_eq!((tally.limited(), tally.faults(), verdicts.error), (0, 0, 0), "{tally:?}");
}

/// None of these may replace good rules.
const BAD: [&str; 3] = [
    "",
    "domain: reload\ndescriptors: [{key: path, rate_limit: {unit: fortnight}}]\n",
    "domain: reload\ndescriptors: [{key: path, rate_limit: {unit: day, requests_per",
];

/// Sends requests without end, and checks every answer.
struct Watch {
    is_over: Arc<AtomicBool>,
    asking: JoinSet<Vec<u64>>,
}

/// Both rules of version `number`: the number is in their names and in their limits, which grow by
/// more than the test spends, so that a token count of one version shows in an answer of another.
fn version(number: u32) -> String {
    let rule = |(key, value): (&str, &str)| {
        let (name, limit) = (name(number, key), limit(number));
        format!(
            "- {{key: {key}, value: {value}, \
             rate_limit: {{name: {name}, unit: day, requests_per_unit: {limit}}}}}\n"
        )
    };
    format!("domain: reload\ndescriptors:\n{}", CANARIES.map(rule).concat())
}

fn name(number: u32, key: &str) -> String {
    format!("{key}-{number}")
}

fn limit(number: u32) -> u32 {
    1_000_000 * (1 + number)
}

/// Sends one request, and returns the version of the whole answer.
async fn ask(asker: &Asker) -> u32 {
    let answer = asker.ask("reload", &CANARIES, 1).await;
    let limits = answer.statuses.iter().map(|status| status.current_limit.as_ref());
    let number = limits.clone().next().flatten().expect("a limit").requests_per_unit / limit(0) - 1;
    let versions: Vec<_> =
        limits.flatten().map(|it| (it.name.clone(), it.requests_per_unit)).collect();
    let expected = CANARIES.map(|(key, _)| (name(number, key), limit(number)));
    assert_eq!(versions, expected, "{answer:?}");
    let within = answer.statuses.iter().all(|status| status.limit_remaining < limit(number));
    assert!(within, "tokens of another version than {number}: {answer:?}");
    number
}

// === impl Watch ===

impl Watch {
    fn start(asker: &Asker) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut asking = JoinSet::new();
        for _ in 0..4 {
            asking.spawn(watch(asker.clone(), Arc::clone(&is_over)));
        }
        Self { is_over, asking }
    }

    /// Number of answers by version.
    async fn finish(self) -> Vec<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for answers in self.asking.join_all().await {
            all.resize(all.len().max(answers.len()), 0);
            all.iter_mut().zip(answers).for_each(|(sum, count)| *sum += count);
        }
        all
    }
}

async fn watch(asker: Asker, is_over: Arc<AtomicBool>) -> Vec<u64> {
    let mut answers: Vec<u64> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let number = ask(&asker).await as usize;
        assert!(answers.len() <= number + 1, "version {number} after {}", answers.len() - 1);
        answers.resize(number + 1, 0);
        answers[number] += 1;
    }
    answers
}
