//! Attacks on the API: by clients without a token, and by holders of a token of one domain.

use crate::scene::Scene;
use crate::support::{Call, now};

#[tokio::test(flavor = "multi_thread")]
async fn c1a_tokens_that_are_not_valid() {
    let scene = Scene::begin("C1a", "tokens that are not valid").await;
    let attack = async |scene: &mut Scene| {
        let (http, end) = (scene.process.http, now() + scene.lasts());
        let guess = |at: usize| format!("{:.16}{at:04}{}", scene.foe, &scene.foe[20..]);
        let mut refused = 0_u64;
        let mut at = 0;
        while now() < end {
            let calls = (0..16).map(|_| {
                at += 1;
                Call::new("GET", "/v1/domains").token(&guess(at % 10_000)).to(http)
            });
            let answers = futures_util::future::join_all(calls).await;
            refused += answers.iter().flatten().filter(|it| it.status == 429).count() as u64;
            scene.sent += 16 * 200;
        }
        scene.row.line["refused"] = refused.into();
        scene.row.holds(refused > 0, "no guess was refused");
    };
    scene.attacked_by(attack).await;
}
