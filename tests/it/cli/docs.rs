//! The command blocks of `docs/`: each runs and prints what the page shows, or is listed here with
//! the reason why it does not run.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::check_envoy::{LOG, SLOTS};
use super::{ran, root};
use crate::support::control;
use crate::support::ports::free_port;
use crate::support::ratectl::ratectl;
use crate::support::ratelease::{BINARY, inherited};

/// Languages of blocks that show commands.
const LANGUAGES: [&str; 3] = ["console", "sh", "bash"];

/// Blocks that are not run: the page, how the block begins, and why.
const NOT_RUN: [(&str, &str, &str); 24] = [
    ("accuracy.md", "$ cargo bench --bench accuracy", "takes ten minutes"),
    ("capacity.md", "$ scripts/bench-shard", "takes three minutes"),
    ("cli.md", "$ ratectl completions bash >", "writes into /etc"),
    ("faults.md", "$ scripts/faults", "takes minutes; cargo test --test faults is the small scale"),
    ("operate.md", "$ curl -s localhost:6070/hotkeys", "needs a pod on the fixed port 6070"),
    (
        "http.md",
        "$ curl http://localhost:8080/shouldAllow",
        "needs a pod on the fixed port 8080; contract::scoped",
    ),
    ("injection.md", "$ ratelease-injector inject", "needs a Kubernetes cluster to apply to"),
    ("install.md", "$ cargo build", "builds a release; scripts/test-install runs it"),
    ("install.md", "$ docker compose up", "needs Docker; scripts/test-containers"),
    ("install.md", "$ for image", "needs a cluster with Istio; scripts/test-istio"),
    ("install.md", "$ docker build", "needs Envoy Gateway; scripts/test-envoy-gateway"),
    ("operate.md", "$ redis-cli -h new-redis", "needs two servers; ops::moved runs it"),
    ("operate.md", "$ ratelease serve", "serves until a signal"),
    ("operate.md", "OTEL_EXPORTER_OTLP_ENDPOINT=", "variables for a collector elsewhere"),
    ("operate.md", "$ sudo apt-get install", "installs; scripts/release --check does without"),
    ("operate.md", "$ sha256sum", "needs a release; scripts/release --check does it"),
    ("performance.md", "$ RATELEASE_BIN=target/dist/ratelease", "needs a release build"),
    ("performance.md", "$ cargo bench", "takes a quarter of an hour"),
    ("recipes.md", "$ ratelease serve", "serves until a signal; cargo test --test recipes"),
    ("llm.md", "$ python3", "serves until a signal; cargo test --test recipes llm::page"),
    ("llm.md", "$ ask()", "needs Envoy; cargo test --test recipes llm::page runs it"),
    ("llm.md", "$ RATELIMIT_BIN", "needs Envoy; cargo test --test envoy runs scripts/demo --llm"),
    ("runbooks.md", "$ kubectl port-forward", "needs a Kubernetes cluster"),
    ("xds.md", "CONFIG_TYPE=GRPC_XDS_SOTW", "serves until a signal; tests/it/xds does it"),
];

/// What the pages call `broken.yaml`.
const BROKEN: &str = "\
domain: shop
descriptors:
  - key: user_id
    rate_limit:
      unit: minute
      requests_per_unit: 10
      lease: {tll: 5s}
  - key: path
    value: /search
    rate_limit: {unit: fortnight, requests_per_unit: 50}
  - key: country
    shadow_mode: true
";

/// What `new/shop.yaml` of the pages has in place of the text of config/rules/shop.yaml.
const NEW: [(&str, &str); 3] = [
    ("requests_per_unit: 5000", "requests_per_unit: 8000"),
    ("unit: hour\n      requests_per_unit: 1000", "unit: day\n      requests_per_unit: 1000"),
    (
        "  # No limit at all: monitoring passes, and is not counted.\n  - key: user_id\n    \
         value: monitoring\n    rate_limit:\n      unlimited: true\n\n",
        "",
    ),
];

/// An action that `envoyfilter.yaml` of the pages has besides the access log of another test.
const UNLIMITED: &str = "            - actions: [{generic_key: {descriptor_value: hello}}]\n";

/// Directories and files of the repository that commands name.
const LINKED: [&str; 5] = ["config", "docs", "envoy", "tests", "docker-compose.yml"];

/// Pages whose blocks are run one after the other in one shell, as a reader types them.
const ONE_SHELL: [&str; 1] = ["control-plane.md"];

/// The addresses that those pages show, each with the variable that gives the program another one.
const ADDRESSES: [(&str, &str); 5] = [
    ("127.0.0.1:8090", "CONTROL_HTTP_LISTEN"),
    ("127.0.0.1:18000", "CONTROL_PODS_LISTEN"),
    ("127.0.0.1:8080", "PORT"),
    ("127.0.0.1:8081", "GRPC_PORT"),
    ("127.0.0.1:6070", "DEBUG_PORT"),
];

/// Stands between the outputs of two commands.
const MARK: &str = "\u{1}";

/// A block of commands.
#[derive(Debug)]
struct Block {
    /// The page, below docs/.
    page: String,
    /// Line of the first command, from 1.
    line: usize,
    lines: Vec<String>,
}

/// All blocks of commands in a page.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<(bool, Block)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let language = language.split(' ').next().unwrap_or_default();
                let block = Block { page: page.to_owned(), line: number + 1, lines: Vec::new() };
                open = Some((LANGUAGES.contains(&language), block));
            }
            (Some(_), Some(_)) => {
                found.extend(open.take().filter(|(is_shown, _)| *is_shown).map(|(_, it)| it));
            }
            (None, Some((_, block))) => block.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    found
}

/// The blocks of a page; those of one shell as one block.
fn joined(blocks: Vec<Block>) -> Vec<Block> {
    let mut joined: Vec<Block> = Vec::new();
    for block in blocks {
        match joined.last_mut() {
            Some(last) if ONE_SHELL.contains(&last.page.as_str()) => last.lines.extend(block.lines),
            _ => joined.push(block),
        }
    }
    joined
}

/// All pages below docs/, by their path there.
fn pages(dir: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            self::pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
}

/// The directory in which the commands run: what of the repository they name, and files that only
/// the pages have.
fn scene() -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in LINKED {
        symlink(root().join(name), dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("broken.yaml"), BROKEN).unwrap();
    fs::write(dir.path().join("envoyfilter.yaml"), format!("{LOG}{UNLIMITED}")).unwrap();
    fs::create_dir(dir.path().join("slots")).unwrap();
    fs::write(dir.path().join("slots/slots.yaml"), SLOTS.1).unwrap();
    let new = dir.path().join("new");
    fs::create_dir(&new).unwrap();
    for entry in fs::read_dir(root().join("config/rules")).unwrap() {
        let path = entry.unwrap().path();
        let mut text = fs::read_to_string(&path).unwrap();
        if path.ends_with("shop.yaml") {
            for (old, new) in NEW {
                assert!(text.contains(old), "config/rules/shop.yaml has no {old:?}");
                text = text.replace(old, new);
            }
        }
        fs::write(new.join(path.file_name().unwrap()), text).unwrap();
    }
    dir
}

/// Runs the commands of a block in one shell, and returns the output of each.
fn outputs(scene: &Path, commands: &[&str], env: &[(&str, String)]) -> Vec<String> {
    // What a page starts in the background ends with its shell.
    let mut script = "exec 2>&1\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n".to_owned();
    for command in commands {
        // The status goes to the next command, which may be `echo $?`.
        script.push_str(&format!("{command}\nset -- $?; printf '{MARK}'; (exit $1)\n"));
    }
    let binaries = [Path::new(BINARY), ratectl(), control::binary()];
    let binaries = binaries.map(|path| path.parent().unwrap().to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: OsString =
        std::env::join_paths(binaries.into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]).current_dir(scene).stdin(Stdio::null());
    let env = env.iter().map(|(name, value)| (name, value));
    let ran = ran(bash.env_clear().envs(inherited()).envs(env).env("PATH", path));
    ran.out.split(MARK).map(|output| output.trim_end().to_owned()).collect()
}

/// A name of the page and what takes its place, or a variable and its value.
type Pairs = Vec<(&'static str, String)>;

/// The addresses of a page, each with a free one in its place, and the variables that say so.
fn addresses() -> (Pairs, Pairs) {
    let each = ADDRESSES.iter().map(|(shown, variable)| {
        let port = free_port().to_string();
        let free = format!("127.0.0.1:{port}");
        let value = if variable.ends_with("LISTEN") { free.clone() } else { port };
        ((*shown, free), (*variable, value))
    });
    each.unzip()
}

/// A text with other addresses.
fn at_addresses<'t>(text: &str, from_to: impl Iterator<Item = (&'t str, &'t str)>) -> String {
    from_to.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Numbers of changes in the JSON of the control plane: how many a command makes is its own affair.
const COUNTERS: [&str; 4] = ["\"revision\":", "\"position\":", "\"number\":", "\"next\":"];

/// A text without what differs from run to run: times, such as `2026-11-23T10:00:00.5Z`, the ids of
/// tokens, such as that of `admin/0123456789ab`, and numbers of changes.
fn steady(text: &str) -> String {
    let is_time = |part: &str| {
        let digits = part.bytes().filter(u8::is_ascii_digit).count();
        digits >= 14 && part.ends_with('Z') && part.contains('T') && part.contains('-')
    };
    let is_id = |id: &str| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = text.split('"').map(|part| match part.strip_prefix("admin/") {
        _ if is_time(part) => "TIME",
        Some(id) if is_id(id) => "TOKEN",
        _ => part,
    });
    let text = parts.collect::<Vec<_>>().join("\"");
    COUNTERS.iter().fold(text, |text, name| {
        let mut parts = text.split(name);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, rest| text + name + rest.trim_start_matches(char::is_numeric))
    })
}

/// Whether an output is the one shown. A line `…` stands for any lines.
fn is_shown(output: &str, shown: &str) -> bool {
    let mut rest = output;
    for (at, part) in shown.split("\n…").enumerate() {
        match rest.find(part) {
            Some(found) if at > 0 || found == 0 => rest = &rest[found + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || shown.ends_with('…')
}

/// The differences between what a block shows and what its commands print.
fn faults(scene: &Path, block: &Block) -> Vec<String> {
    let Block { page, line, lines } = block;
    let (addresses, env) = match ONE_SHELL.contains(&page.as_str()) {
        true => addresses(),
        false => (Vec::new(), Vec::new()),
    };
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, String::new())),
            (None, Some((_, shown))) => {
                shown.push_str(line);
                shown.push('\n');
            }
            (None, None) => {
                return vec![format!("docs/{page}:{line}: no `$ ` before the command")];
            }
        }
    }
    let forth = || addresses.iter().map(|(shown, free)| (*shown, free.as_str()));
    let back = || addresses.iter().map(|(shown, free)| (free.as_str(), *shown));
    let typed: Vec<_> =
        commands.iter().map(|(command, _)| at_addresses(command, forth())).collect();
    let typed: Vec<_> = typed.iter().map(String::as_str).collect();
    let outputs = outputs(scene, &typed, &env);
    let each = commands.iter().zip(outputs.iter().map(|it| at_addresses(it, back())));
    let differs =
        each.filter(|((_, shown), output)| !is_shown(&steady(output), &steady(shown.trim_end())));
    differs
        .map(|((command, shown), output)| {
            format!("docs/{page}:{line}: {command}\nshows\n{shown}\nand prints\n{output}\n")
        })
        .collect()
}

#[test]
fn each_command_of_the_pages_prints_what_they_show() {
    let (docs, scene) = (root().join("docs"), scene());
    let mut paths = Vec::new();
    pages(&docs, &mut paths);
    let (mut all, mut unused) = (Vec::new(), NOT_RUN.to_vec());
    let mut run = 0;
    for path in paths {
        let page = path.strip_prefix(&docs).unwrap().to_str().unwrap().to_owned();
        for block in joined(blocks(&page, &fs::read_to_string(&path).unwrap())) {
            let text = block.lines.join("\n");
            let mut reasons = NOT_RUN.iter();
            let reason = reasons.find(|(of, begin, _)| *of == page && text.starts_with(begin));
            match reason {
                Some(reason) => unused.retain(|it| it != reason),
                None => {
                    run += 1;
                    all.extend(faults(scene.path(), &block));
                }
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert_eq!(unused, [], "no block begins like this");
    assert!(run > 10, "only {run} blocks were run");
}

#[test]
fn times_ids_of_tokens_and_numbers_of_changes_may_differ_and_nothing_else() {
    let at = |time: &str, by: &str| steady(&format!("{{\"at\":\"{time}\",\"by\":\"{by}\"}}"));
    assert_eq!(at("2026-11-23T10:00:00Z", "a"), at("2026-11-23T10:00:00.123Z", "a"));
    assert_ne!(at("2026-11-23T10:00:00Z", "a"), at("2026-11-23T10:00:00Z", "b"));
    assert_ne!(at("2026-11-23T10:00:00Z", "a"), at("never", "a"));
    assert_eq!(steady("\"admin/0123456789ab\""), steady("\"admin/ba9876543210\""));
    assert_ne!(steady("\"admin/0123456789ab\""), steady("\"write/0123456789ab\""));
    assert_eq!(steady("{\"number\":12,\"a\":1}"), steady("{\"number\":7,\"a\":1}"));
    assert_ne!(steady("{\"number\":12,\"a\":1}"), steady("{\"number\":12,\"a\":2}"));
}

#[test]
fn a_block_that_shows_something_else_is_found() {
    let scene = scene();
    let of = |text: &str| {
        let page = format!("```console\n{text}\n```\n```yaml\n$ false\n```\n");
        let blocks = blocks("a.md", &page);
        assert_eq!(blocks.len(), 1, "{blocks:?}");
        faults(scene.path(), &blocks[0]).len()
    };
    assert_eq!(of("$ echo a\na\n$ false\n$ echo $?\n1"), 0);
    assert_eq!(of("$ seq 5\n1\n…\n4\n5"), 0);
    assert_eq!(of("$ seq 5\n1\n2\n…"), 0);
    assert_eq!(of("$ seq 5\n1\n2"), 1);
    assert_eq!(of("$ echo a\nb"), 1);
    assert_eq!(of("echo a"), 1);
}
