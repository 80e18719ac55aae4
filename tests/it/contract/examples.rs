//! E1 to E9: the reference's end-to-end scripts, with the descriptors that their Envoy sends.

use serde_json::Value;

use super::pod::clear_of_window_ends;
use super::{Case, Pod, World, countdown, in_every_world, times};

const RULES: &str = "
domain: rl
descriptors:
  - key: foo
    descriptors:
      - {key: baz, value: not-so-shady, rate_limit: {unit: minute, requests_per_unit: 3}}
      - key: baz
        value: shady
        shadow_mode: true
        rate_limit: {unit: minute, requests_per_unit: 3}
      - key: bar
        value: banned
        rate_limit: {name: banned_limit, unit: minute, requests_per_unit: 0}
      - key: bar
        value: bkthomps
        rate_limit: {name: bkthomps, unit: minute, requests_per_unit: 1}
  - key: source_cluster
    value: proxy
    descriptors:
      - key: destination_cluster
        value: override
        rate_limit: {unit: minute, requests_per_unit: 2, replaces: [{name: banned_limit}]}
      - key: destination_cluster
        value: bkthomps
        rate_limit:
          {name: to_bkthomps, unit: minute, requests_per_unit: 2, replaces: [{name: bkthomps}]}
      - key: destination_cluster
        value: not_bkthomps
        rate_limit: {unit: minute, requests_per_unit: 100}
  - key: category
    value: account
    rate_limit:
      unit: minute
      requests_per_unit: 4
      replaces: [{name: bkthomps}, {name: to_bkthomps}]
  - {key: unspec, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
  # A quota each; in an element of their own, so that every test of it begins anew.
  - key: tenant
    descriptors:
      - key: service
        value: service_1
        quota_mode: true
        metadata: {service: service_1}
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: service
        value: service_2
        quota_mode: true
        metadata: {service: service_2}
        rate_limit: {unit: minute, requests_per_unit: 2}
";

in_every_world!(rows_e1_to_e7_and_e9, e8_the_service_in_the_metadata_is_debited);

async fn rows_e1_to_e7_and_e9(world: World) {
    let mut pod = Pod::start(world, &[("rl.yaml", RULES)], &[]).await;
    let (one, two) = ("(tenant,$)(service,service_1)", "(tenant,$)(service,service_2)");
    let bkthomps = "(foo,$)(bar,bkthomps); (source_cluster,proxy)(destination_cluster";
    let e4 = [
        times(3, &format!("{bkthomps},bkthomps)")),
        times(2, &format!("{bkthomps},not_bkthomps)")),
    ];
    let rows = [
        Case("E1", "(foo,$)(baz,not-so-shady)", &countdown(4, 3, "MINUTE")),
        Case("E2", "(foo,$)(baz,shady)", &countdown(6, 3, "MINUTE").replace("OVER", "OK")),
        Case("E3 banned", "(foo,$)(bar,banned)", "OVER 0/0 MINUTE \"banned_limit\""),
        Case(
            "E3 replaced",
            "(foo,$)(bar,banned); (source_cluster,proxy)(destination_cluster,override)",
            "OK: none; OK 1/2 MINUTE | OK: none; OK 0/2 MINUTE | OVER: none; OVER 0/2 MINUTE",
        ),
        Case(
            "E4",
            &e4.join(" | "),
            "OK: none; OK 1/2 MINUTE \"to_bkthomps\" | OK: none; OK 0/2 MINUTE \"to_bkthomps\" \
             | OVER: none; OVER 0/2 MINUTE \"to_bkthomps\" \
             | OK: OK 0/1 MINUTE \"bkthomps\"; OK 99/100 MINUTE \
             | OVER: OVER 0/1 MINUTE \"bkthomps\"; OK 99/100 MINUTE",
        ),
        Case(
            "E5",
            &format!("{bkthomps},bkthomps); (category,account)"),
            &countdown(5, 4, "MINUTE")
                .replace("OK", "OK: none; none; OK")
                .replace("OVER", "OVER: none; none; OVER"),
        ),
        // A request with no hits, and the hit after each that passes.
        Case(
            "E6",
            &times(4, &format!("{two}+0 | {two}+1")),
            "OK 2/2 MINUTE | OK 1/2 MINUTE | OK 1/2 MINUTE | OK 0/2 MINUTE | OK 0/2 MINUTE \
             | OVER 0/2 MINUTE | OVER 0/2 MINUTE | OVER 0/2 MINUTE",
        ),
        Case(
            "E7",
            &format!("{one}; {two}"),
            "OK: OK 0/1 MINUTE; OK 1/2 MINUTE | OK: OVER 0/1 MINUTE; OK 0/2 MINUTE \
             | OVER: OVER 0/1 MINUTE; OVER 0/2 MINUTE",
        ),
        Case("E9", "(unspec,unspecified_value)", &countdown(3, 2, "MINUTE")),
    ];
    pod.check("rl", &rows).await;
}

/// Both services are checked without a charge; the one that the metadata names is debited.
async fn e8_the_service_in_the_metadata_is_debited(world: World) {
    let env = [("RESPONSE_DYNAMIC_METADATA", "true")];
    let mut pod = Pod::start(world, &[("rl.yaml", RULES)], &env).await;
    clear_of_window_ends().await;
    let mut chosen = Vec::new();
    let both = "(tenant,t)(service,service_1)+0; (tenant,t)(service,service_2)+0";
    loop {
        let look = pod.ask("rl", both).await.unwrap();
        let name = look.metadata.unwrap()["metadata"]["service"].take();
        let Value::String(service) = name else { break };
        pod.ask("rl", &format!("(tenant,t)(service,{service})+1")).await.unwrap();
        chosen.push(service);
        assert!(chosen.len() < 10, "{chosen:?}");
    }
    assert_eq!(chosen, ["service_1", "service_1", "service_2", "service_2", "service_2"]);
    assert!(pod.ask("rl", both).await.unwrap().text().starts_with("OVER: "));
}
