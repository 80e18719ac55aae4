//! The parts of rules, calls and answers, in the contract's terms.

/// The rules of one model.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// Domains with their top levels.
    pub(crate) domains: Vec<(String, Vec<Written>)>,
    pub(crate) global_shadow: bool,
    pub(crate) global_quota: bool,
}

/// A descriptor of a rule file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    pub(crate) key: String,
    /// Empty if the descriptor has none.
    pub(crate) value: String,
    pub(crate) limit: Option<WrittenLimit>,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) children: Vec<Written>,
}

#[derive(Debug, Clone)]
pub(crate) struct WrittenLimit {
    pub(crate) requests: u32,
    /// An index into [`UNITS`]; `None` is `unlimited`.
    pub(crate) unit: Option<usize>,
    pub(crate) name: String,
    pub(crate) replaces: Vec<String>,
}

/// Names and seconds, in the order of the protocol's numbers.
pub(crate) const UNITS: [(&str, u64); 7] = [
    ("SECOND", 1),
    ("MINUTE", 60),
    ("HOUR", 3_600),
    ("DAY", 86_400),
    ("MONTH", 30 * 86_400),
    ("YEAR", 365 * 86_400),
    ("WEEK", 7 * 86_400),
];

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) domain: String,
    pub(crate) hits: u32,
    pub(crate) descriptors: Vec<Asked>,
}

/// A descriptor of a call.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) entries: Vec<(String, String)>,
    /// Requests and an index into [`UNITS`].
    pub(crate) limit: Option<(u32, usize)>,
    pub(crate) hits: Option<u64>,
}

/// An answer, in the protocol's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) over: bool,
    pub(crate) statuses: Vec<Status>,
    /// Index of the status that the headers describe.
    pub(crate) headers: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Status {
    pub(crate) over: bool,
    /// Whether the limit is exceeded, even if shadow mode admits the request.
    pub(crate) exceeds: bool,
    /// Requests, unit and name.
    pub(crate) limit: Option<(u32, &'static str, String)>,
    pub(crate) remaining: u32,
    /// Whether the call is denied and another of its descriptors has the same count: the remaining
    /// number may include the hits of that one or not.
    pub(crate) is_vague: bool,
    /// In seconds.
    pub(crate) reset: Option<u64>,
    /// The name of its statistics, without the reference's replacements for unsafe characters.
    pub(crate) stats: Option<String>,
}
