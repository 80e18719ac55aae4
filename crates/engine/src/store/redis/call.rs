//! A script call on one key, which can be sent several times.

use redis::Cmd;

/// All scripts of the store.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) fixed_window: Script,
    pub(super) gcra: Script,
    pub(super) sliding_window: Script,
    pub(super) sliding_log: Script,
    pub(super) pool: Script,
    pub(super) beat: Script,
}

/// A script, and the hash by which servers identify it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    sha: String,
}

/// A call of one script.
#[derive(Debug)]
pub(super) struct Call<'a> {
    script: &'a Script,
    key: String,
    arguments: Vec<u64>,
}

// === impl Scripts ===

impl Default for Scripts {
    fn default() -> Self {
        Self {
            fixed_window: Script::new(include_str!("../fixed_window.lua")),
            gcra: Script::new(include_str!("../gcra.lua")),
            sliding_window: Script::new(include_str!("../sliding_window.lua")),
            sliding_log: Script::new(include_str!("../sliding_log.lua")),
            pool: Script::new(include_str!("../pool.lua")),
            beat: Script::new(include_str!("../beat.lua")),
        }
    }
}

impl Scripts {
    /// The commands that load all scripts into a server, one for each; their replies are not read.
    pub(super) fn loads(&self) -> impl Iterator<Item = Cmd> + use<'_> {
        let Self { fixed_window, gcra, sliding_window, sliding_log, pool, beat } = self;
        let all = [fixed_window, gcra, sliding_window, sliding_log, pool, beat];
        all.into_iter().map(|script| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.text).set_no_response(true);
            load
        })
    }
}

// === impl Script ===

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn call(&self, key: String, arguments: Vec<u64>) -> Call<'_> {
        Call { script: self, key, arguments }
    }
}

// === impl Call ===

impl Call<'_> {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Calls the script by its hash; a server that does not know it replies NOSCRIPT.
    pub(super) fn by_name(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha)
    }

    /// Calls the script with its text, after which the server knows it by hash too.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(1).arg(&self.key).arg(&self.arguments);
        command
    }
}
