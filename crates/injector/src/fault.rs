//! What is wrong with an annotation, a default or a pod.

use std::fmt;

use ratelease_cli::safe;

/// Maximum characters that are quoted of what a client sent.
const SHOWN_MAX: usize = 60;

/// Maximum characters of each part of a fault, which may quote several texts.
const PART_MAX: usize = 1000;

/// Maximum characters of a reason why a request has no answer.
const REASON_MAX: usize = 300;

/// A reason why a pod cannot be given a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where it is: the name of an annotation or of a default, or a path in the pod.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
    /// How to fix it.
    pub fix: String,
}

// === impl Fault ===

impl Fault {
    /// Makes a fault of its three parts, of which what is too long is cut: they go to the log, to
    /// the client and into an annotation.
    pub fn new(
        place: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let part = |text: String| safe::cut(&text, PART_MAX);
        Self { place: part(place.into()), problem: part(problem.into()), fix: part(fix.into()) }
    }
}

/// One line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.problem, self.fix)
    }
}

/// The beginning of a value, in quotes and escaped.
pub fn excerpt(text: &str) -> String {
    format!("{:?}", cut(text))
}

/// The beginning of a text.
pub fn cut(text: &str) -> String {
    safe::cut(text, SHOWN_MAX)
}

/// The beginning of a reason that may quote what a client sent, on one line.
pub fn reason(text: &str) -> String {
    safe::line(&safe::cut(text, REASON_MAX))
}
