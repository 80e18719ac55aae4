//! Windows of the calendar: when they end, whatever counts.

use super::*;

/// Ten requests a day, which begins 90 s after the clock of the tests starts.
const DAY: &str = "unit: calendar_day, time_zone: Europe/Zurich, anchor: {time: '01:02'}, \
                   requests_per_unit: 10";
const UNTIL_EDGE: Duration = Duration::from_secs(90);

/// How many of 15 requests pass, and the rest of the window that the last answer names.
async fn passed(rig: &Rig, pod: &Limiter) -> (u32, u64) {
    let (mut passed, mut reset) = (0, None);
    for _ in 0..15 {
        let verdict = pod.decided(&rig.rules, &request(&["a"])).await.unwrap();
        passed += u32::from(verdict.code == Code::Ok);
        reset = verdict.statuses[0].reset_seconds().or(reset);
    }
    (passed, reset.expect("the end of the window"))
}

fn fixture(failure_mode: &str) -> Rig {
    let limit = format!("{DAY}, failure_mode: {failure_mode}");
    Rig::new(&limits(&limit, "unit: hour, requests_per_unit: 1"))
}

#[tokio::test(start_paused = true)]
async fn a_window_of_the_calendar_ends_by_the_clock_of_its_zone() {
    let rig = fixture("error");
    let pod = rig.pod();
    let (first, reset) = passed(&rig, &pod).await;
    assert_eq!(first, 10);
    assert!((80..=90).contains(&reset), "{reset}");
    tokio::time::sleep(UNTIL_EDGE - Duration::from_secs(2)).await;
    assert_eq!(passed(&rig, &pod).await.0, 0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (second, reset) = passed(&rig, &pod).await;
    assert_eq!(second, 10);
    assert!((86_390..=86_400).contains(&reset), "{reset}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_mode_counts_by_the_calendar() {
    let rig = fixture("local");
    rig.store.fails.store(true, Ordering::Relaxed);
    let pod = rig.pod_numbered(0);
    pod.shared.pods.set(1);
    let (first, reset) = passed(&rig, &pod).await;
    assert_eq!(first, 10);
    assert!((80..=90).contains(&reset), "{reset}");
    tokio::time::sleep(UNTIL_EDGE).await;
    assert_eq!(passed(&rig, &pod).await.0, 10);
}

#[tokio::test(start_paused = true)]
async fn a_debt_lasts_until_the_window_of_the_calendar_ends() {
    let rig = fixture("local");
    let pod = rig.pod_numbered(0);
    let limit = |rules: &Rules| {
        let request = request(&["a"]);
        match rules.find("d", &request.descriptors[0].entries) {
            rules::Lookup::Rule(rule) => match rule.allowance {
                rules::Allowance::Limited(limit) => limit,
                rules::Allowance::Unlimited => panic!("unlimited"),
            },
            _ => panic!("no rule"),
        }
    };
    let lasts = pod.shared.failure_modes.debt_lasts(limit(&rig.rules), 0);
    assert!(lasts <= UNTIL_EDGE && lasts > UNTIL_EDGE - Duration::from_secs(1), "{lasts:?}");
}

#[tokio::test(start_paused = true)]
async fn an_override_of_a_month_is_counted_as_the_rules_say() {
    let text = limits("unit: hour, requests_per_unit: 1", "unit: hour, requests_per_unit: 1");
    let source = Source { name: "test.yaml".into(), text: text.clone().into() };
    let options = rules::Options { calendar_months: true, ..rules::Options::default() };
    let calendar = rules::load(&[source], options).unwrap().rules;
    let rig = Rig::new(&text);
    let pod = rig.pod();
    let mut request = request(&["a"]);
    request.descriptors[0].limit = Some(Limit::fixed_window(3, Unit::Month));
    let reset = async |rules: &Rules| {
        let verdict = pod.decided(rules, &request).await.unwrap();
        (verdict.statuses[0].remaining, verdict.statuses[0].reset_seconds().unwrap())
    };
    // 20 December 2019, half a minute after midnight.
    let until_january = 12 * 86_400 - 30;
    for rest in [2, 1] {
        let (remaining, seconds) = reset(&calendar).await;
        assert_eq!(remaining, rest);
        assert!(seconds <= until_january && seconds > until_january - 5, "{seconds}");
    }
    // Thirty days are a window of their own, with a count of its own.
    let (remaining, seconds) = reset(&rig.rules).await;
    assert_eq!(remaining, 2);
    assert!(seconds.abs_diff(until_january) > 86_400, "{seconds}");
}
