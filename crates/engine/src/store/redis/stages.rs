//! How far a connection has come, from its login to its end.

use redis::{PushInfo, PushKind};
use tokio::sync::watch;

/// How far a connection has come, for all who wait for it to come further.
#[derive(Debug, Clone)]
pub(super) struct Stages(watch::Sender<Stage>);

/// They only follow each other in this order; any may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Logged in, and no more is known.
    New,
    /// A command had its result.
    Proven,
    /// To be replaced. What is under way may still be answered.
    Retired,
    /// To be replaced, since nothing came for too long, or nothing that made sense. What still
    /// comes is not read any more.
    Abandoned,
}

// === impl Stages ===

impl Stages {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Stage::New))
    }

    /// What redis-rs calls with what nobody asked for, and when the connection is closed. Those who
    /// wait for replies it tells by itself.
    pub(super) fn on_push(&self) -> impl Fn(PushInfo) -> Result<(), ()> + use<> {
        let stages = self.clone();
        move |push| {
            if push.kind == PushKind::Disconnection {
                stages.advance(Stage::Retired);
            }
            Ok(())
        }
    }

    /// Whether it was not there yet.
    pub(super) fn advance(&self, stage: Stage) -> bool {
        self.0.send_if_modified(|present| {
            let advances = *present < stage;
            *present = stage.max(*present);
            advances
        })
    }

    pub(super) fn is_at(&self, stage: Stage) -> bool {
        *self.0.borrow() >= stage
    }

    /// Waits for `stage`, or one after it: which, it returns.
    pub(super) async fn reaches(&self, stage: Stage) -> Stage {
        let mut stages = self.0.subscribe();
        // It fails only once the sender is gone, which we hold.
        let reached = stages.wait_for(|present| *present >= stage).await;
        reached.map_or(Stage::Abandoned, |reached| *reached)
    }
}
