//! The live page of a real pod, in a real browser.

mod events;
mod guard;
mod page;

use crate::support::shop::Shop;

/// Text that looks like markup; its dot does not separate levels.
const HOSTILE: &str = "<script>alert(1)</script>";
const VALUE: &str = "\"><img src=x onerror=alert(2)>";

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: 'HOSTILE'
    value: 'VALUE'
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: a.b
    descriptors:
      - key: deep
        rate_limit: {unit: year, requests_per_unit: 1000}
  - key: user
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
";

/// A pod that shows the values of hot keys, and counts each request for them.
async fn shop() -> Shop {
    let rules = RULES.replace("HOSTILE", HOSTILE).replace("VALUE", VALUE);
    Shop::open(&rules, &[("HOT_KEYS_VALUES", "true"), ("HOT_KEYS_SAMPLE", "1")]).await
}

/// Sends `times` requests with these entries.
async fn ask(shop: &mut Shop, times: usize, entries: &[(&str, &str)]) {
    for _ in 0..times {
        let status = shop.ask("test", entries).await;
        assert!([200, 429].contains(&status), "{status}");
    }
}
