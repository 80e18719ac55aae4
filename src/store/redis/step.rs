//! One ask as a call of the script, and the script's reply as a grant.

use std::time::Duration;

use redis::{Cmd, Value};

use super::fault::Fault;
use crate::store::{Ask, Grant};

/// The script of one algorithm, and the name that servers know it by.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    sha: String,
}

/// An ask, ready to be sent as often as it takes.
#[derive(Debug)]
pub(super) struct Step<'a> {
    script: &'a Script,
    key: String,
    ask: &'a Ask,
}

/// Amounts are cut to this before they are sent. A limit is below it, so that it already means
/// "all", and Lua's doubles count it exactly.
const AMOUNT_MAX: u64 = 1 << 32;

// === impl Script ===

impl Script {
    pub(super) fn fixed_window() -> Self {
        let text = include_str!("../fixed_window.lua");
        Self { text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    pub(super) fn step<'a>(&'a self, ask: &'a Ask, key: String) -> Step<'a> {
        Step { script: self, key, ask }
    }
}

// === impl Step ===

impl Step<'_> {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The script by its name; a server that does not know it answers NOSCRIPT.
    pub(super) fn by_name(&self) -> Cmd {
        self.command("EVALSHA", &self.script.sha)
    }

    /// The script in full, which the server then knows by name too.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let ask = self.ask;
        let mut command = redis::cmd(name);
        command
            .arg(script)
            .arg(1)
            .arg(&self.key)
            .arg(ask.terms().requests_per_unit)
            .arg(ask.terms().window_seconds())
            .arg(ask.want.min(AMOUNT_MAX))
            .arg(ask.need.min(AMOUNT_MAX))
            .arg(u8::from(ask.charge_denied));
        if let Some(back) = ask.back {
            command.arg(back.tokens.min(AMOUNT_MAX));
            match back.epoch {
                Some(window) => command.arg(window),
                None => command.arg(""),
            };
        }
        command
    }

    /// Reads the reply. One that the script cannot have given is garbled: it is better to lose a
    /// lease than to spend tokens that nobody debited.
    pub(super) fn grant(&self, reply: &Value) -> Result<Grant, Fault> {
        let garbled = || Fault::Garbled(format!("{reply:.200?}"));
        let Value::Array(values) = reply else { return Err(garbled()) };
        let [
            Value::Int(tokens),
            Value::Int(left),
            Value::Int(overdrawn),
            Value::Int(window),
            Value::Int(reset_after_us),
        ] = values.as_slice()
        else {
            return Err(garbled());
        };
        let amount = |value: &i64| u64::try_from(*value).map_err(|_| garbled());
        let grant = Grant {
            tokens: amount(tokens)?,
            left: amount(left)?,
            overdrawn: *overdrawn != 0,
            epoch: amount(window)?,
            starts_after: Duration::ZERO,
            ends_after: Duration::from_micros(amount(reset_after_us)?).min(self.ask.ttl),
            reset_after: Duration::from_micros(amount(reset_after_us)?),
            retry_after: match left {
                0 => Duration::from_micros(amount(reset_after_us)?),
                _ => Duration::ZERO,
            },
        };
        if self.can_give(&grant) { Ok(grant) } else { Err(garbled()) }
    }

    fn can_give(&self, grant: &Grant) -> bool {
        let Ask { limit, want, need, .. } = self.ask;
        let limit_tokens = u64::from(limit.of_share(self.ask.share).requests_per_unit);
        grant.tokens <= (*want).max(*need)
            && (grant.tokens == 0 || grant.tokens >= *need)
            && grant.tokens.saturating_add(grant.left) <= limit_tokens
            && !(grant.overdrawn && grant.left > 0)
            && !grant.reset_after.is_zero()
            && grant.reset_after <= limit.window()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::rules::{Limit, Unit};
    use crate::store::Back;

    fn ask() -> Ask {
        let limit = Limit::fixed_window(10, Unit::Minute);
        Ask { want: 4, need: 2, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
    }

    #[test]
    fn amounts_are_cut_to_what_a_double_counts() {
        let script = Script::fixed_window();
        let back = Some(Back { tokens: u64::MAX, epoch: None });
        let ask = Ask { want: u64::MAX, need: u64::MAX, back, ..ask() };
        let command = script.step(&ask, "k".into()).by_name();
        let packed = String::from_utf8(command.get_packed_command()).unwrap();
        assert_eq!(packed.matches("4294967296").count(), 3, "{packed}");
        assert!(packed.ends_with("$0\r\n\r\n"), "a refund names no window: {packed}");
    }

    #[test]
    fn only_what_the_script_can_say_is_a_grant() {
        let script = Script::fixed_window();
        let ask = ask();
        let step = script.step(&ask, "k".into());
        let read = |values: [i64; 5]| {
            step.grant(&Value::Array(values.into_iter().map(Value::Int).collect()))
        };
        let grant = read([4, 6, 0, 28_333_333, 60_000_000]).unwrap();
        assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 6, false));
        assert_eq!(grant.reset_after, Duration::from_secs(60));
        for garbled in [
            [5, 5, 0, 1, 1],          // more than wanted
            [1, 5, 0, 1, 1],          // less than needed
            [4, 7, 0, 1, 1],          // more than the limit
            [0, 1, 1, 1, 1],          // overdrawn with tokens left
            [4, 6, 0, 1, 0],          // a window that has ended
            [4, 6, 0, 1, 60_000_001], // a window longer than it is
            [-1, 6, 0, 1, 1],
            [4, 6, 0, -1, 1],
        ] {
            assert!(matches!(read(garbled), Err(Fault::Garbled(_))), "{garbled:?}");
        }
        for reply in [Value::Nil, Value::Int(4), Value::Array(vec![Value::Int(4)])] {
            assert!(matches!(step.grant(&reply), Err(Fault::Garbled(_))), "{reply:?}");
        }
    }
}
