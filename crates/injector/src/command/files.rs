//! `ratelease-injector inject`: manifests from files or standard input.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, eprint_line};
use ratelease_cli::safe::Safe;
use serde_json::json;

use super::InjectFlags;
use crate::inject::{Cluster, Verdict};
use crate::manifest::{self, Manifest, Report};

pub(super) const NOTES: &str = "\
Reads YAML or JSON, of several documents too, and prints it with the sidecar in each Pod,
Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, Job, CronJob and PodTemplate,
also within a List. All other documents are printed byte by byte as they are. Faults go to standard
error, and a pod with a fault stays as it is.

Exit status: 0 no fault, 1 a pod has a fault, 2 a file cannot be read; then nothing is printed.

Examples:
  ratelease-injector inject --default redis=redis:6379 shop.yaml | kubectl apply -f -
  helm template shop | ratelease-injector inject --default rules=shop-rules";

/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Flags of `inject`.
#[derive(Debug, Args)]
pub struct FilesFlags {
    /// Files with manifests; - or none for standard input
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    inject: InjectFlags,
    /// Version of the cluster: before 1.32 some nodes may lack native sidecars
    #[arg(long, value_name = "VERSION", default_value = "1.32", value_parser = super::cluster)]
    kubernetes_version: Cluster,
    /// Print what became of each pod, a line of JSON each, in place of the manifests
    #[arg(long)]
    json: bool,
}

/// Prints the manifests with the sidecar.
pub(crate) fn run(flags: &FilesFlags, out: &mut Out) -> CliResult {
    let defaults = flags.inject.defaults()?;
    let stdin = [PathBuf::from("-")];
    let files = if flags.files.is_empty() { &stdin[..] } else { &flags.files };
    let (mut manifests, mut faults) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.display().to_string();
        match read(file) {
            Ok(text) => {
                match manifest::inject_all((&name, &text), &defaults, flags.kubernetes_version) {
                    Ok(manifest) => manifests.push(manifest),
                    Err(found) => faults.extend(found.iter().map(ToString::to_string)),
                }
            }
            Err(why) => faults.push(format!("{name}: {why}")),
        }
    }
    if !faults.is_empty() {
        return Err(CliError::new(faults.join("\n")));
    }
    print(&manifests, flags.json, out)
}

fn read(file: &Path) -> Result<String, String> {
    let limited = |from: Box<dyn Read>| {
        let mut bytes = Vec::new();
        from.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = match file.to_str() {
        Some("-") => limited(Box::new(io::stdin())),
        _ => fs::File::open(file).and_then(|file| limited(Box::new(file))),
    };
    let bytes = bytes.map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {} MiB; split it", FILE_BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8; save it as UTF-8".to_owned())
}

fn print(manifests: &[Manifest], is_json: bool, out: &mut Out) -> CliResult {
    let pods = || manifests.iter().flat_map(|manifest| &manifest.pods);
    for (at, manifest) in manifests.iter().enumerate().filter(|_| !is_json) {
        let before = at.checked_sub(1).map(|before| manifests[before].text.as_str());
        out.bytes(between(before, &manifest.text).as_bytes())?;
        out.bytes(manifest.text.as_bytes())?;
    }
    for pod in pods() {
        if is_json {
            out.json(&to_json(pod))?;
        }
        report(pod);
    }
    Ok(Completion::clean_if(pods().all(|pod| pod.faults.is_empty())))
}

/// What separates the documents of two files.
fn between(before: Option<&str>, after: &str) -> &'static str {
    match before {
        None | Some("") => "",
        Some(_) if after.starts_with("---") => "",
        Some(text) if text.ends_with('\n') => "---\n",
        Some(_) => "\n---\n",
    }
}

fn to_json(pod: &Report) -> serde_json::Value {
    let verdict = match pod.verdict {
        Verdict::Injected => "injected",
        Verdict::Kept => "kept",
        Verdict::OptedOut => "opted out",
        Verdict::Refused => "refused",
    };
    let faults = pod
        .faults
        .iter()
        .map(|fault| json!({"place": fault.place, "problem": fault.problem, "fix": fault.fix}));
    json!({
        "pod": pod.place,
        "verdict": verdict,
        "faults": faults.collect::<Vec<_>>(),
        "warnings": pod.warnings,
    })
}

/// Faults and warnings, a line each. They quote the manifest, which may hold anything.
fn report(pod: &Report) {
    for fault in &pod.faults {
        eprint_line(Safe(format_args!("{}: not injected: {fault}", pod.place)));
    }
    for warning in &pod.warnings {
        eprint_line(Safe(format_args!("{}: warning: {warning}", pod.place)));
    }
}
