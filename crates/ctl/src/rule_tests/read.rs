//! Parses a YAML file to cases, and reports every fault.

use ratelease_engine::verdict::Code;
use ratelease_rules::duration::parse_duration;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX};
use ratelease_rules::yaml::{self, Yaml, YamlKind};
use ratelease_rules::{Fault, Place, Source, excerpt, nearest};

use super::{Case, Expect, NO_RULE, Status, Step, Suite};

/// Maximum number of repetitions of one step.
const TIMES_MAX: u32 = 1_000_000;

/// Reads `source`.
///
/// # Errors
/// All faults of the file, in order of their places.
pub(super) fn suite(source: &Source) -> Result<Suite, Vec<Fault>> {
    let root = yaml::read(source).map_err(|faults| faults.iter().cloned().collect::<Vec<_>>())?;
    let mut reader = Reader { file: &source.name, faults: Vec::new(), domain: String::new() };
    let nothing = Yaml::null(Place::START);
    let suite = reader.suite(root.as_ref().unwrap_or(&nothing));
    reader.faults.sort();
    match suite {
        Some(suite) if reader.faults.is_empty() => Ok(suite),
        _ => Err(reader.faults),
    }
}

struct Reader<'s> {
    file: &'s str,
    faults: Vec<Fault>,
    /// Domain of requests that do not name one.
    domain: String,
}

/// The values of a map by name.
struct Fields<'y> {
    place: Place,
    found: Vec<(&'y str, &'y Yaml)>,
}

// === impl Fields ===

impl<'y> Fields<'y> {
    fn get(&self, name: &str) -> Option<&'y Yaml> {
        self.found.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

// === impl Reader: the contents of a test file ===

impl Reader<'_> {
    fn suite(&mut self, root: &Yaml) -> Option<Suite> {
        let fields = self.fields(root, "a file of cases", &["rules", "domain", "cases"])?;
        if let Some(domain) = fields.get("domain") {
            self.domain = self.text(domain, "'domain'").unwrap_or_default();
        }
        let rules = self.needed(&fields, "rules", "'rules: …', the path of the rules from here");
        let rules = rules.and_then(|rules| self.text(rules, "'rules'"));
        let cases = self.needed(&fields, "cases", "'cases:', a list");
        let cases = cases.map(|cases| self.list(cases, "'cases'")).unwrap_or_default();
        let cases = cases.iter().zip(1..).map(|(case, number)| self.case(case, number)).collect();
        Some(Suite { rules: rules?, cases })
    }

    fn case(&mut self, case: &Yaml, number: usize) -> Case {
        let unnamed = Case { name: format!("case {number}"), steps: Vec::new() };
        let Some(fields) = self.fields(case, "a case", &["name", "steps"]) else { return unnamed };
        let name = fields.get("name").and_then(|name| self.text(name, "'name'"));
        let steps = self.needed(&fields, "steps", "'steps:', a list");
        let steps = steps.map(|steps| self.list(steps, "'steps'")).unwrap_or_default();
        let mut at_us = 0;
        let mut read = Vec::new();
        for step in steps {
            if let Some(step) = self.step(step, at_us) {
                at_us = step.at_us;
                read.push(step);
            }
        }
        Case { name: name.unwrap_or(unnamed.name), steps: read }
    }

    fn step(&mut self, step: &Yaml, before_us: u64) -> Option<Step> {
        let fields = self.fields(step, "a step", &["at", "request", "times", "expect"])?;
        let at_us = self.at(fields.get("at"), before_us);
        let times = fields.get("times").map(|times| (times, self.number(times, "'times'")));
        let times = match times {
            None => Some(1),
            Some((_, Some(times @ 1..=TIMES_MAX))) => Some(times),
            Some((yaml, Some(_))) => {
                self.fault(yaml.place, format!("'times' must be from 1 to {TIMES_MAX}"));
                None
            }
            Some((_, None)) => None,
        };
        let request = self.needed(&fields, "request", "'request: {descriptors: […]}'");
        let request = request.and_then(|request| self.request(request));
        let expect = self.needed(&fields, "expect", "'expect: {code: ok}'");
        let count = request.as_ref().map(|(_, descriptors, _)| descriptors.len());
        let expect = expect.and_then(|expect| self.expect(expect, count));
        let (domain, descriptors, hits) = request?;
        Some(Step { at_us: at_us?, domain, descriptors, hits, times: times?, expect: expect? })
    }

    fn at(&mut self, at: Option<&Yaml>, before_us: u64) -> Option<u64> {
        let Some(at) = at else { return Some(before_us) };
        let text = self.text(at, "'at'")?;
        let micros = parse_duration(&text).and_then(|at| u64::try_from(at.as_micros()).ok());
        let Some(micros) = micros else {
            let shown = excerpt(&text);
            self.fault(at.place, format!("'at' must be a duration such as 1m30s, found '{shown}'"));
            return None;
        };
        if micros < before_us {
            self.fault(at.place, "'at' is before the previous step; time does not go back");
            return None;
        }
        Some(micros)
    }

    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn request(&mut self, request: &Yaml) -> Option<(String, Vec<Vec<(String, String)>>, u64)> {
        let fields = self.fields(request, "a request", &["domain", "descriptors", "hits"])?;
        let domain = match fields.get("domain") {
            Some(domain) => self.text(domain, "'domain'")?,
            None => self.domain.clone(),
        };
        if domain.is_empty() {
            let message = "no domain; add 'domain: …' to the request, or to the file";
            self.fault(fields.place, message);
        }
        let hits = match fields.get("hits") {
            Some(hits) => self.number(hits, "'hits'")?,
            None => 1,
        };
        let list = self.needed(&fields, "descriptors", "'descriptors: [{key: value}]'")?;
        let items = self.list(list, "'descriptors'");
        if items.len() > DESCRIPTORS_MAX {
            let message = format!("a request has {DESCRIPTORS_MAX} descriptors at most");
            self.fault(list.place, message);
        }
        let descriptors = items.iter().map(|item| self.descriptor(item)).collect();
        Some((domain, descriptors, hits.into()))
    }

    fn descriptor(&mut self, descriptor: &Yaml) -> Vec<(String, String)> {
        let YamlKind::Map(pairs) = &descriptor.kind else {
            let found = descriptor.describe();
            let message = format!(
                "a descriptor is a map of its entries, such as {{user_id: alice}}, \
                                   found {found}"
            );
            self.fault(descriptor.place, message);
            return Vec::new();
        };
        if pairs.is_empty() || pairs.len() > ENTRIES_MAX {
            let message = format!("a descriptor has from 1 to {ENTRIES_MAX} entries");
            self.fault(descriptor.place, message);
        }
        let mut entries = Vec::new();
        for (key, value) in pairs {
            let key = self.text(key, "an entry's key");
            let value = match value.kind {
                YamlKind::Null => Some(String::new()),
                _ => self.text(value, "an entry's value"),
            };
            entries.extend(key.zip(value));
        }
        entries
    }

    fn expect(&mut self, expect: &Yaml, descriptors: Option<usize>) -> Option<Expect> {
        let names = ["code", "rule", "remaining", "descriptors"];
        let fields = self.fields(expect, "an expectation", &names)?;
        let code = fields.get("code").and_then(|code| self.code(code));
        let mut one = Status { code: None, ..self.status(&fields) };
        let Some(list) = fields.get("descriptors") else {
            let is_empty = one.rule.is_none() && one.remaining.is_none();
            if !is_empty && descriptors.is_some_and(|count| count != 1) {
                let message = "the request has several descriptors; say of which, by \
                               'descriptors: [{rule: …}, {}]'";
                self.fault(fields.place, message);
            }
            if is_empty && code.is_none() {
                self.fault(fields.place, "nothing is expected; write 'code: ok' or 'over_limit'");
            }
            return Some(Expect { code, statuses: vec![one] });
        };
        if one.rule.take().is_some() || one.remaining.take().is_some() {
            let message = "'rule' and 'remaining' belong in 'descriptors' if it is present";
            self.fault(fields.place, message);
        }
        let items = self.list(list, "'descriptors'");
        if descriptors.is_some_and(|count| count != items.len()) {
            let count = descriptors.unwrap_or_default();
            let found = items.len();
            let message =
                format!("the request has {count} descriptors; expected as many, found {found}");
            self.fault(list.place, message);
        }
        let mut statuses = Vec::new();
        for item in items {
            let fields = self.fields(item, "a descriptor's expectation", &names[..3]);
            statuses.push(fields.map(|fields| self.status(&fields)).unwrap_or_default());
        }
        Some(Expect { code, statuses })
    }

    fn status(&mut self, fields: &Fields<'_>) -> Status {
        let code = fields.get("code").and_then(|code| self.code(code));
        let rule = fields.get("rule").and_then(|rule| {
            let text = match rule.kind {
                YamlKind::Null => Some(NO_RULE.to_owned()),
                _ => self.text(rule, "'rule'"),
            };
            Some((rule.place, text?))
        });
        let remaining = fields
            .get("remaining")
            .and_then(|yaml| Some((yaml.place, self.number(yaml, "'remaining'")?)));
        Status { code, rule, remaining }
    }

    fn code(&mut self, code: &Yaml) -> Option<(Place, Code)> {
        let text = self.text(code, "'code'")?;
        match text.to_ascii_lowercase().as_str() {
            "ok" => Some((code.place, Code::Ok)),
            "over_limit" => Some((code.place, Code::OverLimit)),
            _ => {
                let shown = excerpt(&text);
                self.fault(code.place, format!("'code' is ok or over_limit, found '{shown}'"));
                None
            }
        }
    }
}

// === impl Reader: values ===

impl Reader<'_> {
    fn fault(&mut self, place: Place, message: impl Into<String>) {
        let Place { line, column } = place;
        let fault = Fault { file: self.file.to_owned(), line, column, message: message.into() };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Returns the values of a map; reports names that are not in `known`.
    fn fields<'y>(&mut self, map: &'y Yaml, what: &str, known: &[&str]) -> Option<Fields<'y>> {
        let YamlKind::Map(pairs) = &map.kind else {
            let (found, names) = (map.describe(), known.join(", "));
            self.fault(map.place, format!("{what} is a map with {names}; found {found}"));
            return None;
        };
        let mut fields = Fields { place: map.place, found: Vec::new() };
        for (key, value) in pairs {
            let YamlKind::Scalar(name) = &key.kind else {
                self.fault(key.place, format!("expected a name, found {}", key.describe()));
                continue;
            };
            if !known.contains(&name.as_str()) {
                let hint = match nearest(name, known) {
                    Some(meant) => format!("; did you mean '{meant}'?"),
                    None => format!("; it has {}", known.join(", ")),
                };
                self.fault(key.place, format!("{what} has no '{}'{hint}", excerpt(name)));
            } else if fields.get(name).is_some() {
                self.fault(key.place, format!("'{name}' occurs twice here; remove one"));
            } else {
                fields.found.push((name, value));
            }
        }
        Some(fields)
    }

    fn needed<'y>(&mut self, fields: &Fields<'y>, name: &str, add: &str) -> Option<&'y Yaml> {
        let found = fields.get(name);
        if found.is_none() {
            self.fault(fields.place, format!("no '{name}'; add {add}"));
        }
        found
    }

    fn list<'y>(&mut self, list: &'y Yaml, what: &str) -> Vec<&'y Yaml> {
        let YamlKind::List(items) = &list.kind else {
            self.fault(list.place, format!("{what} is a list, found {}", list.describe()));
            return Vec::new();
        };
        if items.is_empty() {
            self.fault(list.place, format!("{what} is empty"));
        }
        items.iter().collect()
    }

    fn text(&mut self, scalar: &Yaml, what: &str) -> Option<String> {
        let YamlKind::Scalar(text) = &scalar.kind else {
            self.fault(scalar.place, format!("{what} must be text, found {}", scalar.describe()));
            return None;
        };
        Some(text.clone())
    }

    fn number(&mut self, scalar: &Yaml, what: &str) -> Option<u32> {
        let number = match &scalar.kind {
            YamlKind::Scalar(text) => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            let found = scalar.describe();
            self.fault(scalar.place, format!("{what} must be a whole number, found {found}"));
        }
        number
    }
}
