//! Limits that a request brings itself, in place of its rule's.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_override_takes_the_place_of_the_rule_and_counts_apart_by_window() {
    let rig = Rig::new(&per_hour(10, 1));
    let pod = rig.pod();
    let with = |requests_per_unit, unit| {
        let mut request = request(&["a"]);
        request.descriptors[0].limit = Some(Limit::fixed_window(requests_per_unit, unit));
        request
    };
    assert_eq!(decide(&pod, &rig.rules, &with(3, Unit::Day)).await, (true, 2));
    assert_eq!(decide(&pod, &rig.rules, &with(3, Unit::Minute)).await, (true, 2));
    assert_eq!(decide(&pod, &rig.rules, &with(3, Unit::Day)).await, (true, 1));
    let unknown = Request { domain: "unknown", ..with(0, Unit::Day) };
    assert_eq!(decide(&pod, &rig.rules, &unknown).await, (true, 0));
}

/// One request waits for its lease while the other arrives, in either order.
#[tokio::test(start_paused = true)]
async fn each_of_two_limits_on_one_count_is_held_to_its_own() {
    let held_to = |requests_per_unit| {
        let mut request = request(&["a"]);
        request.descriptors[0].limit = Some(Limit::fixed_window(requests_per_unit, Unit::Hour));
        request
    };
    for limits in [[3, 100], [100, 3]] {
        let rig = Rig::new(&per_hour(10, 1));
        assert_eq!(decide(&rig.pod(), &rig.rules, &charge("a", 5)).await, (true, 5));
        let pod = rig.pod();
        let [first, second] = limits.map(held_to);
        let (first, second) =
            tokio::join!(decide(&pod, &rig.rules, &first), decide(&pod, &rig.rules, &second));
        for (limit, (passed, remaining)) in limits.into_iter().zip([first, second]) {
            let expected = if limit == 3 { (false, 0) } else { (true, 94) };
            assert_eq!((passed, remaining), expected, "{limit} of {limits:?}");
        }
    }
}
