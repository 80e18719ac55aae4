//! `top` without a terminal, against a pod.

use super::{RULES, nowhere, pod, rules, run};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_prints_one_screen() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let debug = pod.debug.to_string();
    let picture = rules.path().join("top.svg");
    let svg = ["--once", "--svg", picture.to_str().unwrap()];
    for more in [&[][..], &["--once"], &svg] {
        let base = ["top", "--debug", &debug, "--interval", "50ms"];
        let ran = run(&[&base[..], more].concat()).await.ended(0);
        assert!(ran.out.starts_with("ratectl top"), "{ran:?}");
        for part in [debug.as_str(), ": 2 rules, 1 loads accepted, 0 refused", "busiest rules"] {
            assert!(ran.out.contains(part), "{part}: {ran:?}");
        }
        assert!(!ran.out.contains('\u{1b}'), "{ran:?}");
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg ") && picture.contains(&debug), "{picture}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_a_line_a_look() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let debug = pod.debug.to_string();
    let args = ["top", "--debug", &debug, "--interval", "50ms", "--once", "--json"];
    let ran = run(&args).await.ended(0);
    let looks = ran.json();
    assert_eq!(looks.len(), 1, "{ran:?}");
    assert!(looks[0]["per_second"]["denied"].is_f64(), "{ran:?}");
    assert_eq!(looks[0]["status"]["rules"]["count"], 2, "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_pod_is_reported_at_once() {
    let ran = run(&["top", "--debug", &nowhere()]).await.ended(2);
    assert!(ran.err.contains("cannot be reached: "), "{ran:?}");
    let ran = run(&["top", "--interval", "0s"]).await.ended(2);
    assert!(ran.err.contains("expected a duration above 0"), "{ran:?}");
}
