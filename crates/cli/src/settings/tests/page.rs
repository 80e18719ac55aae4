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
are Go's: `20ms`, `1h30m`; `true`, `false`, `t`, `f`, `1`, `0`. A name that ends in `_FILE` is that
of a file that holds the secret.

`UPDATE_DOCS=1 cargo test -p ratelease-cli --lib page` writes this page from the source.
";

/// What stands for the settings of a second Redis.
const ALIKE: &str = "Each as the setting without `PERSECOND_`";

/// The names of a setting, its default and its meaning.
type Row = [String; 3];

fn page() -> String {
    let command = grammar::documented::<Cli>();
    let serve = command.find_subcommand("serve").expect("serve");
    let mut sections: Vec<(&str, Vec<Row>)> = Vec::new();
    for arg in serve.get_arguments() {
        let Some(heading) = arg.get_help_heading() else { continue };
        if sections.last().is_none_or(|(last, _)| *last != heading) {
            sections.push((heading, Vec::new()));
        }
        let (_, rows) = sections.last_mut().expect("a section");
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (meaning, variable) = match help.rsplit_once(" [env: ") {
            Some((meaning, variable)) => (meaning, variable.trim_end_matches(']').to_owned()),
            None => (help.as_str(), format!("--{}", arg.get_long().expect("a long name"))),
        };
        let default = arg.get_default_values().first().and_then(|value| value.to_str());
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let meaning = meaning.replace('|', "\\|").replace('*', "\\*");
        add(rows, format!("`{variable}`"), default, &meaning);
    }
    let mut page = HEAD.to_owned();
    for (heading, rows) in sections {
        let _ = write!(page, "\n## {heading}\n\n| setting | default | meaning |\n|---|---|---|\n");
        for [names, default, meaning] in rows {
            let _ = writeln!(page, "| {names} | {default} | {meaning} |");
        }
    }
    page
}

/// Adds a row, or a name to the last one: a secret has one with its file, and all that a second
/// Redis has as the first one have one.
fn add(rows: &mut Vec<Row>, name: String, default: String, meaning: &str) {
    let is_alike = meaning.starts_with("As --redis-");
    let file = meaning.strip_prefix("File that holds it, in place of ");
    match rows.last_mut() {
        Some([names, _, last]) if file.is_some() || (is_alike && last == ALIKE) => {
            let _ = write!(names, ", {name}");
            if let Some((_, note)) = file.and_then(|file| file.split_once("; ")) {
                let _ = write!(last, "; the file is {note}");
            }
        }
        _ if is_alike => rows.push([name, String::new(), ALIKE.to_owned()]),
        _ => rows.push([name, default, meaning.to_owned()]),
    }
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
