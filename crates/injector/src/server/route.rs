//! The paths of the webhook, and their answers.

use std::convert::Infallible;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;
use tracing::{info, warn};

use super::Webhook;
use crate::fault::reason;
use crate::inject::Verdict;
use crate::review::{self, Answer, Reason};

/// Maximum bytes of a body: an API server takes no request above 3 MiB, and sends it on with some
/// fields around it.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum time until a body has arrived: with the chart, API servers wait 5 s for an answer.
const BODY_TIME_MAX: Duration = Duration::from_secs(3);

/// Answers a request.
pub(super) async fn answer(
    webhook: &Webhook,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(match (request.method(), path.as_str()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok"),
        (&Method::POST, "/inject") => inject(webhook, request, Reason::Namespace).await,
        (&Method::POST, "/unlabelled") => inject(webhook, request, Reason::PodAlone).await,
        (_, "/healthz" | "/inject" | "/unlabelled") => {
            text(StatusCode::METHOD_NOT_ALLOWED, "POST an AdmissionReview, or GET /healthz")
        }
        _ => text(StatusCode::NOT_FOUND, "the paths are /inject, /unlabelled and /healthz"),
    })
}

async fn inject(
    webhook: &Webhook,
    request: Request<Incoming>,
    reason: Reason,
) -> Response<Full<Bytes>> {
    let reading = read(webhook, request.into_body());
    let late = || Err((StatusCode::REQUEST_TIMEOUT, "the body did not arrive within 3 s".into()));
    let body = match timeout(BODY_TIME_MAX, reading).await.unwrap_or_else(|_| late()) {
        Ok(body) => body,
        Err((status, why)) => return refuse(status, &why),
    };
    let cluster = *webhook.cluster.borrow();
    match review::answer(&body, reason, &webhook.defaults, cluster) {
        Ok(answer) => {
            log(&answer);
            let mut response = Response::new(Full::from(answer.review.to_string()));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            response
        }
        Err(why) => refuse(StatusCode::BAD_REQUEST, &why),
    }
}

/// Reads a body, within the memory that all bodies share.
async fn read(webhook: &Webhook, body: Incoming) -> Result<Bytes, (StatusCode, String)> {
    let arriving = webhook.bodies.begin();
    let (mut body, mut read) = (Limited::new(body, BODY_BYTES_MAX), BytesMut::new());
    let full = || (StatusCode::SERVICE_UNAVAILABLE, "too many large bodies at a time".to_owned());
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = arriving.evicted() => return Err(full()),
        };
        match frame {
            None => return Ok(read.freeze()),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                if !arriving.grow(data.len()) {
                    return Err(full());
                }
                read.extend_from_slice(&data);
            }
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                let why = "the AdmissionReview has more than 4 MiB; make the pod smaller";
                return Err((StatusCode::PAYLOAD_TOO_LARGE, why.to_owned()));
            }
            Some(Err(error)) => {
                return Err((StatusCode::BAD_REQUEST, format!("the body breaks off: {error}")));
            }
        }
    }
}

fn log(answer: &Answer) {
    let Answer { pod, is_dry_run, warnings, .. } = answer;
    let verdict = match answer.verdict {
        Some(Verdict::Injected) => "injected",
        Some(Verdict::Kept) => "has the sidecar already",
        Some(Verdict::OptedOut) => "opted out",
        Some(Verdict::Refused) => "not injected",
        None => "is no new pod that can be read",
    };
    if warnings.is_empty() {
        info!(?pod, is_dry_run, "{verdict}");
    } else {
        warn!(?pod, is_dry_run, ?warnings, "{verdict}");
    }
}

fn refuse(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    let why = reason(why);
    warn!("a request without an answer: {why}");
    text(status, &why)
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}
