//! When rule files were changed, and how long it took until the change was in force.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ratelease_rules::Source;

use super::load::Load;

/// The time of change of each source that the rules in force were read from; never more than there
/// are sources.
#[derive(Debug, Default)]
pub(super) struct ChangeTimes {
    known: Option<HashMap<String, SystemTime>>,
}

// === impl ChangeTimes ===

impl ChangeTimes {
    /// Notes that the rules of `sources` are in force. Returns the age of the newest change that
    /// this put in force; `None` at the start, which follows no change, and if no file has a time.
    #[allow(clippy::disallowed_methods, reason = "files tell the time of day; only to be shown")]
    pub(super) fn note<L: Load>(
        &mut self,
        load: &mut L,
        sources: &[Arc<Source>],
    ) -> Option<Duration> {
        let change_times = sources.iter().filter_map(|source| {
            let changed = load.changed_at(source)?;
            Some((source.name.clone(), changed))
        });
        let change_times: HashMap<_, _> = change_times.collect();
        let before = self.known.replace(change_times)?;
        let changed =
            self.known.iter().flatten().filter(|(name, at)| before.get(*name) != Some(at));
        let newest = changed.map(|(_, at)| *at).max()?;
        // If the clock was set back meanwhile, there is no age to return.
        SystemTime::now().duration_since(newest).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_source::watch::Compiled;

    /// Files by name, and how many seconds ago each was changed.
    struct Files(HashMap<String, u64>);

    impl Load for Files {
        fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
            Ok(Vec::new())
        }

        fn compile(&mut self, _: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
            Ok(Compiled::default())
        }

        fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
            let ago = self.0.get(&source.name)?;
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(10_000 - ago))
        }
    }

    #[test]
    fn only_files_changed_since_the_last_load_count() {
        let source = |name: &str| Arc::new(Source { name: name.to_owned(), text: Vec::new() });
        let sources = [source("a.yaml"), source("b.yaml")];
        let mut change_times = ChangeTimes::default();
        let files = |a, b| Files([("a.yaml".into(), a), ("b.yaml".into(), b)].into());
        assert_eq!(change_times.note(&mut files(50, 10), &sources), None, "the start");
        assert_eq!(change_times.note(&mut files(50, 10), &sources), None, "no file has changed");
        let took = change_times.note(&mut files(20, 10), &sources).expect("a.yaml has changed");
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let expected = since_epoch - Duration::from_secs(10_000 - 20);
        assert!(expected.abs_diff(took) < Duration::from_secs(60), "{took:?}, not {expected:?}");
    }
}
