//! Steps that rollouts take without a call: the next step of the plan, another choice of pods where
//! chosen ones have gone, and the end after the limit of time.
//!
//! Each replica looks at each rollout every second. A step is a transaction that is taken only if the
//! rollout is as it was when it was looked at, so that two replicas take it once. A rollout that
//! cannot go on holds up no other one: each has a turn of its own, and no end waits for turns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::api::publish::approve_end;
use crate::api::{App, Problem};
use crate::auth::Caller;
use crate::gate::Gate;
use crate::push::ROLLOUT_AUTHOR;
use crate::store::{Author, PodRow, Rollout, Stage, StoreError, wanted};

/// Interval of the looks at rollouts.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks from one that reads the rows of all pods to the next.
const LOOKS_OF_PODS: u64 = 5;

/// Maximum time of a turn, which may compile all published rules, and of reading all rollouts.
const TURN_MAX: Duration = Duration::from_secs(60);

/// How long chosen pods may be away until others are chosen, in milliseconds: a pod that restarts is
/// back before, and its place does not go to another one.
const AWAY_MAX: i64 = 60_000;

/// A step that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Due {
    /// The end: the rollout has been without a step for too long.
    End,
    /// The next step of its plan.
    Advance,
    /// The step that it is at, with other pods.
    Choose,
}

/// The state between looks.
#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    /// The time from which the chosen share of a rollout has differed from the percentage, by
    /// rollout.
    off_since: BTreeMap<i64, i64>,
    /// Versions of steps whose wait is over, and whose gate was found shut.
    shut: BTreeSet<i64>,
    /// Why a rollout cannot go on, by rollout; of [`ALL`] if none of them can.
    stuck: BTreeMap<i64, String>,
}

/// No rollout has this number.
const ALL: i64 = 0;

/// The steps that a look takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// The ends after the limits of time.
    Ends,
    /// All others.
    Others,
}

/// Takes the steps of all rollouts. It does not return.
pub async fn take_steps(app: Arc<App>) {
    tokio::join!(look_often(&app, Steps::Ends), look_often(&app, Steps::Others));
}

async fn look_often(app: &App, steps: Steps) {
    let mut seen = Seen::default();
    loop {
        sleep(LOOK_INTERVAL).await;
        if app.published.borrow().rollouts.is_empty() {
            seen = Seen::default();
            app.stuck.lock().clear();
            continue;
        }
        let looked = look(app, steps, &mut seen).await;
        seen.note(ALL, looked);
        if steps == Steps::Others {
            app.stuck.lock().clone_from(&seen.stuck);
        }
    }
}

/// Gives each rollout its turn.
async fn look(app: &App, steps: Steps, seen: &mut Seen) -> Result<(), Problem> {
    seen.looks += 1;
    let reads_pods = steps == Steps::Others && seen.looks.is_multiple_of(LOOKS_OF_PODS);
    let read = async {
        let store = app.store.reserved();
        let rollouts = store.open_rollouts().await?;
        let pods = if reads_pods { Some(store.pod_versions().await?) } else { None };
        Ok((rollouts, pods))
    };
    let (rollouts, pods) = in_time(read).await?;
    let is_open = |id: &i64| *id == ALL || rollouts.iter().any(|it| it.id == *id);
    seen.off_since.retain(|id, _| is_open(id));
    seen.stuck.retain(|id, _| is_open(id));
    for rollout in &rollouts {
        let turn = match steps {
            Steps::Ends => in_time(end_if_late(app, rollout)).await,
            Steps::Others => in_time(go_on(app, rollout, pods.as_deref(), seen)).await,
        };
        seen.note(rollout.id, turn);
    }
    Ok(())
}

/// Waits [`TURN_MAX`] at most.
async fn in_time<T>(turn: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let late = || StoreError::Unavailable(format!("no answer within {TURN_MAX:?}"));
    timeout(TURN_MAX, turn).await.unwrap_or_else(|_| Err(late().into()))
}

async fn end_if_late(app: &App, rollout: &Rollout) -> Result<(), Problem> {
    match due_by_time(rollout, app.store.now()) {
        Some(Due::End) => take(app, rollout, &Due::End).await,
        _ => Ok(()),
    }
}

/// Takes the step that is due, unless that is the end. `pods` has all pods, in the looks that read
/// them.
async fn go_on(
    app: &App,
    rollout: &Rollout,
    pods: Option<&[PodRow]>,
    seen: &mut Seen,
) -> Result<(), Problem> {
    let due = match due_by_time(rollout, app.store.now()) {
        Some(Due::End) => return Ok(()),
        Some(Due::Advance) => advance_if_open(app, rollout, seen).await?,
        due => due,
    };
    let choice = || pods.and_then(|pods| seen.choice(rollout, pods, app.store.now()));
    match due.or_else(choice) {
        Some(due) => take(app, rollout, &due).await,
        None => Ok(()),
    }
}

/// The step that is due by the time alone.
fn due_by_time(rollout: &Rollout, now: i64) -> Option<Due> {
    if rollout.ends_at().is_some_and(|at| at <= now) {
        return Some(Due::End);
    }
    rollout.next_at().filter(|at| *at <= now).map(|_| Due::Advance)
}

/// Whether the chosen pods have shown enough for the next step.
async fn advance_if_open(
    app: &App,
    rollout: &Rollout,
    seen: &mut Seen,
) -> Result<Option<Due>, StoreError> {
    let version = rollout.last().version;
    let rows = app.store.connected_pods(Some(&rollout.names())).await?;
    let hits = app.store.hits(version).await?;
    let Some(why) = Gate::of(rollout, &rows, &hits, app.store.now()).why() else {
        return Ok(Some(Due::Advance));
    };
    if seen.shut.insert(version) {
        warn!(rollout = rollout.id, version, "the wait is over, and the next step waits: {why}");
    }
    Ok(None)
}

// === impl Seen ===

impl Seen {
    /// Notes how the turn of a rollout ended, or that of [`ALL`], and warns of a problem once.
    fn note(&mut self, id: i64, turn: Result<(), Problem>) {
        let Err(Problem { detail, .. }) = turn else {
            self.stuck.remove(&id);
            return;
        };
        if self.stuck.get(&id) != Some(&detail) {
            match id {
                ALL => warn!("{detail}: steps of rollouts wait"),
                rollout => warn!(rollout, "{detail}: its next step waits"),
            }
            self.stuck.insert(id, detail);
        }
    }

    /// Whether other pods are to be chosen: those that a step has chosen have been gone for a while, or
    /// there were none when it was taken.
    fn choice(&mut self, rollout: &Rollout, pods: &[PodRow], now: i64) -> Option<Due> {
        let step = rollout.last();
        let percent = rollout.present().percent?;
        let is_off = |domain: &str| {
            let Some(share) = step.shares.iter().find(|it| it.domain == domain) else {
                return Some(0); // begun by an earlier release
            };
            let (serve, chosen) = share.now(rollout.into(), pods);
            let wanted = wanted(percent, serve);
            let is_off = (chosen == 0 && wanted > 0) || chosen.abs_diff(wanted) > tolerated(wanted);
            is_off.then_some(if share.chosen == 0 { 0 } else { AWAY_MAX })
        };
        let off = rollout.domains.iter().filter_map(|it| is_off(&it.domain));
        let Some(patience) = off.min() else {
            self.off_since.remove(&rollout.id);
            return None;
        };
        let since = *self.off_since.entry(rollout.id).or_insert(now);
        (now - since >= patience).then(|| {
            self.off_since.remove(&rollout.id);
            Due::Choose
        })
    }
}

/// How far the number of chosen pods may be from the percentage while pods come and go. Each new
/// choice of pods begins the evidence again.
fn tolerated(wanted: usize) -> usize {
    (wanted / 4).max(1)
}

/// Takes a step, unless another replica or a client has taken one meanwhile.
async fn take(app: &App, rollout: &Rollout, due: &Due) -> Result<(), Problem> {
    let reason = match due {
        Due::End => "no step was taken in time",
        Due::Advance => "the wait is over",
        Due::Choose => "other pods serve its domains now",
    };
    let number = rollout.number();
    let is_last = *due == Due::Advance && rollout.planned(number + 1).is_none();
    let approved = match is_last {
        true => Some(approve_end(app, &Caller::of_objects(None), rollout).await?),
        false => None,
    };
    let pods = app.store.pod_versions().await?;
    let author = Author { name: ROLLOUT_AUTHOR.to_owned(), reason: reason.to_owned() };
    let mut write = app.store.begin(&author).await?;
    let present = write.rollout(rollout.id).await?;
    let present = present.filter(|it| it.last().version == rollout.last().version);
    let Some(present) = present else { return Ok(()) };
    if let Some(approved) = approved
        && !approved.is_current(&mut write).await?
    {
        return Ok(()); // the next look tries again
    }
    let version = match due {
        Due::End => write.end_rollout(&present, Stage::Aborted).await?,
        Due::Advance => write.take_step(&present, number + 1, &pods).await?,
        Due::Choose => write.take_step(&present, number, &pods).await?,
    };
    let after = write.rollout(rollout.id).await?;
    let stage = after.as_ref().map_or(Stage::Aborted, |it| it.last().stage);
    write.note_rollout(after.as_ref().unwrap_or(&present), stage, version.number).await?;
    write.commit().await?;
    app.wake_follower();
    let version = version.number;
    info!(rollout = rollout.id, version, "a rollout is at the stage {}: {reason}", stage.name());
    Ok(())
}
