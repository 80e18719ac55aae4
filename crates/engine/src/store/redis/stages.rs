//! The stages of a connection, from its login to its end.

use tokio::sync::watch;

/// The present stage of a connection, which tasks can wait on.
#[derive(Debug, Clone)]
pub(super) struct Stages(watch::Sender<Stage>);

/// The stages follow each other in this order; any may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Logged in; nothing else is known.
    New,
    /// A command has had its result.
    Proven,
    /// To be replaced. Commands in flight may still be answered.
    Retired,
    /// To be replaced, since nothing arrived for too long, or nothing valid. Whatever still arrives
    /// is ignored.
    Abandoned,
}

// === impl Stages ===

impl Stages {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Stage::New))
    }

    /// Advances to `stage`. Returns whether that stage is new.
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

    /// Waits for `stage` or a later one, and returns the stage reached.
    pub(super) async fn reaches(&self, stage: Stage) -> Stage {
        let mut stages = self.0.subscribe();
        // It fails only if the sender is dropped, which we hold.
        let reached = stages.wait_for(|present| *present >= stage).await;
        reached.map_or(Stage::Abandoned, |reached| *reached)
    }
}
