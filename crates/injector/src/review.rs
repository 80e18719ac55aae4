//! The AdmissionReviews of an API server: what is asked, and the answer. Pure.
//!
//! Every answer lets the pod start. What keeps it from getting the sidecar is in the warnings,
//! which the API server hands to the client, and in an annotation of the pod.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::annotation::{Defaults, NAMESPACE_LABEL, STATUS};
use crate::fault::{self, Fault, cut, excerpt};
use crate::inject::{Cluster, Injection, Verdict, inject, refuse};

/// The version of an AdmissionReview that is understood.
const VERSION: &str = "admission.k8s.io/v1";
/// Maximum bytes of a review whose pod is looked at. Real pods have some 10 KiB.
///
/// It bounds the memory of the webhook, whose limit is 128 MiB in the chart. A pod of small maps
/// takes some 55 times its text, so at most 28 MiB here. One review is parsed at a time, since the
/// webhook has one thread and does not wait between parsing and answering.
pub const REVIEW_BYTES_MAX: usize = 512 << 10;
/// Maximum bytes of the uid of a review; API servers make UUIDs of 36.
const UID_MAX: usize = 64;
/// Maximum bytes of a warning: the API server may cut longer ones.
const WARNING_MAX: usize = 256;
/// Maximum number of warnings of an answer.
const WARNINGS_MAX: usize = 10;

/// Why the webhook was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The namespace has the label.
    Namespace,
    /// The pod has a label that asks for the sidecar, and its namespace has none.
    PodAlone,
}

/// An answer, and what is worth a line in the log.
#[derive(Debug)]
pub struct Answer {
    /// The AdmissionReview with the response.
    pub review: Value,
    /// What became of the pod; `None` if the review is not about a new pod that can be read.
    pub verdict: Option<Verdict>,
    /// Namespace and name of the pod, as far as they are known.
    pub pod: String,
    /// Whether nothing will be stored.
    pub is_dry_run: bool,
    /// The warnings of the answer.
    pub warnings: Vec<String>,
}

/// As much of any review as an answer needs.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "apiVersion")]
    version: String,
    kind: String,
    request: EnvelopeRequest,
}

#[derive(Deserialize)]
struct EnvelopeRequest {
    uid: String,
}

#[derive(Deserialize)]
struct Review {
    request: Request,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    resource: Value,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

/// Answers a review.
///
/// # Errors
/// Why the body is no AdmissionReview that could be answered: without its uid there is no answer.
pub fn answer(
    body: &[u8],
    reason: Reason,
    defaults: &Defaults,
    cluster: Cluster,
) -> Result<Answer, String> {
    let envelope: Envelope = serde_json::from_slice(body).map_err(|error| {
        fault::reason(&format!("expected an AdmissionReview with a request: {error}"))
    })?;
    if envelope.kind != "AdmissionReview" {
        return Err(format!("expected kind AdmissionReview, found {}", excerpt(&envelope.kind)));
    }
    let uid = envelope.request.uid;
    if uid.len() > UID_MAX {
        return Err(format!("expected a uid of at most {UID_MAX} bytes, found {}", excerpt(&uid)));
    }
    if envelope.version != VERSION {
        let version = cut(&envelope.version);
        let why = format!("an AdmissionReview of {VERSION} is expected, this is {version}");
        let fix = format!("put {VERSION:?} into admissionReviewVersions");
        let fault = Fault::new("the webhook", why, fix);
        return Ok(Answer::without_pod(&version, &uid, &fault));
    }
    if body.len() > REVIEW_BYTES_MAX {
        let why = format!("has {} bytes, more than {REVIEW_BYTES_MAX}", body.len());
        let fault = Fault::new("the pod", why, "make it smaller");
        return Ok(Answer::without_pod(VERSION, &uid, &fault));
    }
    match serde_json::from_slice::<Review>(body) {
        Ok(review) => Ok(review.request.answer(&uid, reason, defaults, cluster)),
        Err(error) => {
            let fault = Fault::new(
                "the request",
                fault::reason(&error.to_string()),
                "see the API server's log",
            );
            Ok(Answer::without_pod(VERSION, &uid, &fault))
        }
    }
}

// === impl Request ===

impl Request {
    fn answer(self, uid: &str, reason: Reason, defaults: &Defaults, cluster: Cluster) -> Answer {
        let is_new = self.operation == "CREATE"
            && self.resource["resource"] == "pods"
            && self.sub_resource.as_deref().unwrap_or_default().is_empty();
        let mut answer = Answer {
            review: json!({}),
            verdict: None,
            pod: self.title(),
            is_dry_run: self.dry_run.unwrap_or_default(),
            warnings: Vec::new(),
        };
        let fault = self.missing_label();
        let injection = match reason {
            _ if !is_new => None,
            Reason::Namespace => Some(inject(self.object, defaults, cluster)),
            Reason::PodAlone => Some(refuse(self.object, fault)),
        };
        answer.verdict = injection.as_ref().map(|injection| injection.verdict);
        answer.warnings = injection.as_ref().map(warnings).unwrap_or_default();
        let patch = injection.map(|injection| injection.patch).filter(|patch| !patch.0.is_empty());
        let patch = patch.and_then(|patch| serde_json::to_vec(&patch).ok());
        answer.review = review(VERSION, uid, patch.as_deref(), &answer.warnings);
        answer
    }

    fn title(&self) -> String {
        let meta = &self.object["metadata"];
        let name = meta["name"].as_str().or_else(|| meta["generateName"].as_str());
        format!("{}/{}", self.namespace(), cut(name.unwrap_or_default()))
    }

    /// The beginning of the name of the namespace.
    fn namespace(&self) -> String {
        cut(self.namespace.as_deref().unwrap_or_default())
    }

    fn missing_label(&self) -> Fault {
        let (label, value) = NAMESPACE_LABEL;
        let namespace = self.namespace();
        let problem = format!("has no label {label}={value}");
        let fix = format!("kubectl label namespace {namespace} {label}={value}");
        Fault::new(format!("namespace {namespace}"), problem, fix)
    }
}

/// The warnings of an injection, each short enough for the API server to pass on. The annotation
/// has the full text of a refusal.
fn warnings(injection: &Injection) -> Vec<String> {
    let faults = injection.faults.iter().map(|fault| format!("ratelease: not injected: {fault}"));
    let warnings = injection.warnings.iter().map(|warning| format!("ratelease: {warning}"));
    faults.chain(warnings).take(WARNINGS_MAX).map(|text| shortened(&text)).collect()
}

fn shortened(text: &str) -> String {
    if text.len() <= WARNING_MAX {
        return text.to_owned();
    }
    let more = format!("… (annotation {STATUS})");
    let end = text.floor_char_boundary(WARNING_MAX - more.len());
    format!("{}{more}", &text[..end])
}

/// An AdmissionReview that admits the pod.
fn review(version: &str, uid: &str, patch: Option<&[u8]>, warnings: &[String]) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if let Some(patch) = patch {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch).into();
    }
    if !warnings.is_empty() {
        response["warnings"] = warnings.into();
    }
    json!({"apiVersion": version, "kind": "AdmissionReview", "response": response})
}

// === impl Answer ===

impl Answer {
    /// The answer to a review whose pod was not looked at.
    fn without_pod(version: &str, uid: &str, fault: &Fault) -> Self {
        let warnings = vec![shortened(&format!("ratelease: not injected: {fault}"))];
        Self {
            review: review(version, uid, None, &warnings),
            verdict: None,
            pod: String::new(),
            is_dry_run: false,
            warnings,
        }
    }
}

#[cfg(test)]
mod tests;
