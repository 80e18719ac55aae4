//! `docs/settings-list.md` is written from the flags of `serve`.

use std::fmt::Write;
use std::path::Path;

use super::*;

/// Set to write the page instead of comparing it.
const UPDATE: &str = "UPDATE_DOCS";

const HEAD: &str = "\
# All settings

Every flag of `ratelease serve` and its environment variable: `--grpc-port` for `GRPC_PORT`.
[operate.md](operate.md#settings) explains those that need more than a line. Durations and booleans
are Go's: `20ms`, `1h30m`; `true`, `false`, `t`, `f`, `1`, `0`.

`UPDATE_DOCS=1 cargo test -p ratelease-cli --lib page` writes this page from the source.
";

fn page() -> String {
    let command = grammar::documented::<Cli>();
    let serve = command.find_subcommand("serve").expect("serve");
    let mut page = HEAD.to_owned();
    let mut last: Option<&str> = None;
    for arg in serve.get_arguments().filter(|arg| arg.get_help_heading().is_some()) {
        let heading = arg.get_help_heading().unwrap_or_default();
        if last != Some(heading) {
            let _ =
                write!(page, "\n## {heading}\n\n| setting | default | meaning |\n|---|---|---|\n");
            last = Some(heading);
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (meaning, variable) = match help.rsplit_once(" [env: ") {
            Some((meaning, variable)) => (meaning, variable.trim_end_matches(']').to_owned()),
            None => (help.as_str(), format!("--{}", arg.get_long().expect("a long name"))),
        };
        let default = arg.get_default_values().first().and_then(|value| value.to_str());
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let meaning = meaning.replace('|', "\\|").replace('*', "\\*");
        let _ = writeln!(page, "| `{variable}` | {default} | {meaning} |");
    }
    page
}

#[test]
fn the_page_of_all_settings_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings-list.md");
    let page = page();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).expect("the page");
    assert!(written == page, "{} is not up to date: run this test with {UPDATE}=1", path.display());
}
