//! Compiles parsed files to `Rules`. A load succeeds as a whole or reports every fault of every
//! file.

mod limit;

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use serde_json::Map;

use crate::fault::{Fault, Faults, Findings, Place, excerpt};
use crate::memory::{ARC, LoadBounds, Memory, MemoryUse, boxed, table_bytes};
use crate::node::{self, Document, decode};
use crate::options::{Descriptor, File, LimitOptions, RateLimit, read_file};
use crate::reader::{Parsed, Reader};
use crate::rule::{Attachment, Level, LevelMatch, Rule};
use crate::rules::{Branch, DomainRules, Node, Rules, composite, domain_of_candidate};
use crate::small_map::{SmallMap, TextMap};
use crate::store::{DomainStores, StoreId, StoreNames};
use crate::takes::metadata_bytes;
use crate::wildcard::{NESTED_MAX, SEARCHED_MAX};
use limit::CompiledLimit;

/// Options for compiling sources to rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `MERGE_DOMAIN_CONFIG`: several files may name one domain; the descriptors of a later one are
    /// added at its top level.
    pub merge_domains: bool,
    /// `REDIS_STORES`: the stores that rules may name.
    pub stores: StoreNames,
    /// `STORE_OF_DOMAIN`: the stores of domains whose rules name none.
    pub domain_stores: DomainStores,
    /// `USE_CALENDAR_MONTH_RATE_LIMIT`: a `month` of a fixed window is a calendar month in UTC.
    pub calendar_months: bool,
}

/// The result of a successful load.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The rules.
    pub rules: Rules,
    /// Things that load but may not do what their author meant, in order of file and place; at most
    /// 10 000.
    pub warnings: Vec<Fault>,
    /// The weight of the load. Its memory is an upper bound, up to twice the bytes that the
    /// allocator has.
    pub weight: Weight,
}

/// Maximum number of descriptors in one load, over all files.
pub(crate) const DESCRIPTORS_MAX: usize = 4_000_000;

/// Maximum bytes of the name of a domain: each of its dots may begin another domain's path.
const DOMAIN_BYTES_MAX: usize = 1024;
/// Maximum size, in bytes, of all paths and patterns of the rules of one load. Each rule holds the
/// text of all its levels, so a long key above many children is copied for each of them.
pub(crate) const PATH_BYTES_MAX: usize = 256 << 20;

/// Compiles `sources`, in order of their names. A single fault refuses the whole load.
///
/// # Errors
/// Every fault of every source, with its place.
pub fn load<S: Borrow<Source>>(sources: &[S], options: Options) -> Result<Loaded, Faults> {
    load_within(sources, options, usize::MAX)
}

/// Like [`load`], within these bounds.
///
/// # Errors
/// As [`load`]; of rules that need more memory, the faults up to there.
pub fn load_within<S: Borrow<Source>>(
    sources: &[S],
    options: Options,
    bounds: impl Into<LoadBounds>,
) -> Result<Loaded, Faults> {
    Ok(compile(sources, options, None, bounds.into())?.0)
}

/// Like [`load`], and also returns where each rule is written. This costs memory, so only tools use
/// it.
///
/// # Errors
/// As [`load`].
pub fn load_with_locations(
    sources: &[Source],
    options: Options,
) -> Result<(Loaded, RuleLocations), Faults> {
    compile(sources, options, Some(RuleLocations::default()), usize::MAX.into())
}

fn compile<S: Borrow<Source>>(
    sources: &[S],
    options: Options,
    places: Option<RuleLocations>,
    bounds: LoadBounds,
) -> Result<(Loaded, RuleLocations), Faults> {
    let mut sources: Vec<&Source> = sources.iter().map(Borrow::borrow).collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    let findings = Findings::within(bounds);
    let version = version(&sources, &options);
    let (stores, calendar_months) = (options.stores.clone(), options.calendar_months);
    let mut compiler = Compiler::new(options, &findings, places);
    for source in sources {
        compiler.source(source);
    }
    let places = compiler.places.take().unwrap_or_default();
    let weight = compiler.weight();
    let domains = compiler.finish();
    let weight = Weight { memory: findings.memory.used(), ..weight };
    let warnings = findings.finish()?;
    let rules = Rules::new(version, domains, stores, calendar_months);
    Ok((Loaded { rules, warnings, weight }, places))
}

/// Hashes everything that determines the rules. `sources` are in order of their names.
pub(crate) fn version(sources: &[&Source], options: &Options) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("ratelease 2026-11 version of rules");
    let mut write = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    let Options { merge_domains, stores, domain_stores, calendar_months } = options;
    // Two bits of one byte, so that the version is as before without the second one.
    write(&[u8::from(*merge_domains) | u8::from(*calendar_months) << 1]);
    stores.iter().for_each(|name| write(name.as_bytes()));
    domain_stores.iter().for_each(|(domain, store)| {
        write(domain.as_bytes());
        write(stores.name(store).as_bytes());
    });
    for source in sources {
        write(source.name.as_bytes());
        write(&source.text);
    }
    let mut version = [0; 8];
    version.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(version)
}

struct Compiler<'f> {
    findings: &'f Findings,
    options: Options,
    /// The defaults of the file being compiled.
    defaults: LimitOptions,
    /// The store of the domain being compiled.
    store: StoreId,
    domains: TextMap<Domain>,
    /// The rules of the domain being compiled.
    rules: Vec<Arc<Rule>>,
    /// Where each rule is written, if the caller asked for it.
    places: Option<RuleLocations>,
    paths: Paths,
    /// The levels of the previous rule. Most rules have the same levels as the rule before, and
    /// share them.
    levels: Arc<[Level]>,
    descriptors: usize,
    path_bytes: usize,
    /// Set once the load has exceeded a ceiling, which has been reported.
    is_full: bool,
}

struct Domain {
    branch: Branch,
    rules: Vec<Arc<Rule>>,
    file: String,
    line: u32,
    /// The store of every limit of the domain that names none, and of overrides.
    store: StoreId,
}

// === impl Domain ===

impl Domain {
    fn finish(self, memory: &Memory) -> DomainRules {
        let Self { branch, mut rules, store, .. } = self;
        rules.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        memory.shrink(&mut rules);
        let fingerprint = OnceLock::new();
        DomainRules { branch: branch.finish(memory), rules, store, fingerprint }
    }
}

/// Bytes of a domain besides its rules: its name, its entries in tables that double, and its part
/// of a set.
const DOMAIN_BYTES: usize = 1040;

/// The fault of a level whose patterns would cost a search too much together.
fn nested_too_deep() -> String {
    format!(
        "more than {NESTED_MAX} texts between the '*' of patterns of one key on one level end one \
         another, as 'a', 'aa' and 'aaa' do; use fewer, or patterns with one '*'"
    )
}

// === impl Compiler ===

impl<'f> Compiler<'f> {
    fn new(options: Options, findings: &'f Findings, places: Option<RuleLocations>) -> Self {
        Compiler {
            findings,
            options,
            defaults: LimitOptions::default(),
            store: StoreId::DEFAULT,
            domains: TextMap::default(),
            rules: Vec::new(),
            places,
            paths: Paths::default(),
            levels: Arc::default(),
            descriptors: 0,
            path_bytes: 0,
            is_full: false,
        }
    }

    /// Reports a fault for the first ceiling that the whole load exceeds, and only for that one.
    fn fault_once(&mut self, place: Place, message: String) {
        if !std::mem::replace(&mut self.is_full, true) {
            self.findings.fault(place, message);
        }
    }

    fn source(&mut self, source: &Source) {
        let memory = &self.findings.memory;
        if memory.is_exceeded() {
            return; // the fault names the source that exceeded it
        }
        self.findings.begin(&source.name);
        match decode(&source.text).and_then(|text| Document::parse(text, memory)) {
            Ok(document) => {
                self.file(&mut Reader::new(&document, self.findings));
                document.free(memory);
            }
            Err(_) if memory.is_exceeded() => {} // which is reported once
            Err((place, why)) => {
                self.findings.fault(place, format!("error loading config file: {why}"));
            }
        }
    }

    /// Returns the weight of all sources, which are read, without the part that
    /// [`finish`](Self::finish) takes.
    fn weight(&self) -> Weight {
        Weight {
            read: self.findings.memory.held().saturating_sub(self.paths.bytes()),
            descriptors: self.descriptors,
            rules: self.paths.taken.len(),
            path_bytes: self.path_bytes,
            wanted: self.paths.wanted.len(),
            ..Weight::default()
        }
    }

    /// The domains by their names, unless there is a fault.
    fn finish(self) -> SmallMap<Arc<DomainRules>> {
        let memory = &self.findings.memory;
        memory.give_back(self.paths.bytes());
        drop(self.paths);
        if self.findings.has_faults() {
            return SmallMap::default();
        }
        for domain in self.domains.values() {
            if domain.branch.nests_too_deep(memory) {
                self.findings.begin(&domain.file);
                self.findings.fault(Place { line: domain.line, column: 1 }, nested_too_deep());
            }
        }
        let domains = self.domains.into_iter();
        domains.map(|(name, domain)| (name, Arc::new(domain.finish(memory)))).collect()
    }

    fn file(&mut self, reader: &mut Reader<'_, '_>) {
        let file = read_file(reader);
        let name = file.domain.text();
        // Candidate rules are known by two more names.
        let names = if domain_of_candidate(name).is_some() { 9 } else { 5 };
        if self.findings.memory.take(DOMAIN_BYTES + names * name.len()).is_none() {
            return;
        }
        let merged = self.domain(&file);
        let is_new = merged.is_none();
        let mut domain = merged.unwrap_or_else(|| Domain {
            branch: Branch::default(),
            rules: Vec::new(),
            file: self.findings.file(),
            line: file.domain.place_or(file.place).line,
            store: self.options.domain_stores.find(domain_of_candidate(name).unwrap_or(name)),
        });
        domain.store = self.store_of_file(&file, is_new, &domain);
        self.store = domain.store;
        self.rules = std::mem::take(&mut domain.rules);
        self.defaults = self.settled(&file.defaults);
        self.default_algorithm();
        let mut rule_path = RulePath { path: name.to_owned(), levels: Vec::new() };
        if let Some(list) = file.descriptors {
            self.branch(reader, list, &mut domain.branch, &mut rule_path);
        }
        domain.rules = std::mem::take(&mut self.rules);
        self.domains.insert(name.into(), domain);
    }

    /// Refuses a default algorithm that has no window: the unit that a rule needs would depend on
    /// the top of its file.
    fn default_algorithm(&mut self) {
        if let Parsed::As(place, kind) = self.defaults.algorithm
            && !kind.has_window()
        {
            let name = kind.name();
            let message = format!("{name} cannot be a default; write it in each 'rate_limit'");
            self.findings.fault(place, message);
            self.defaults.algorithm = Parsed::Faulty;
        }
    }

    /// Removes and returns the domain that `file` adds to. Reports a fault if `file` may not add to
    /// it.
    fn domain(&mut self, file: &File<'_>) -> Option<Domain> {
        let name = file.domain.text();
        let place = file.domain.place_or(file.place);
        if name.is_empty() {
            if !file.domain.is_faulty() {
                let message =
                    "config file cannot have empty domain; add a line such as 'domain: shop'";
                self.findings.fault(place, message);
            }
            return None;
        }
        if name.len() > DOMAIN_BYTES_MAX {
            let message = format!(
                "the domain has {} bytes; expected at most {DOMAIN_BYTES_MAX}: shorten it",
                name.len()
            );
            self.findings.fault(place, message);
            return None;
        }
        let domain = self.domains.remove(name)?;
        if !self.options.merge_domains {
            let message = format!(
                "duplicate domain '{}' in config file; {}:{} has it already: rename one, or set \
                 MERGE_DOMAIN_CONFIG=true",
                excerpt(name),
                excerpt(&domain.file),
                domain.line
            );
            self.findings.fault(place, message);
            // Faults below the domain are still reported, but the rules are not checked against the
            // other file.
            return None;
        }
        Some(domain)
    }

    fn branch<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        list: &'d node::Node<'d>,
        branch: &mut Branch,
        rule_path: &mut RulePath,
    ) {
        reader.descriptors(list, |reader, descriptor| {
            self.descriptors += 1;
            if self.descriptors <= DESCRIPTORS_MAX {
                self.descriptor(reader, descriptor, branch, rule_path);
            } else {
                let message = format!("more than {DESCRIPTORS_MAX} descriptors in all files");
                self.fault_once(descriptor.place, message);
            }
        });
    }

    fn descriptor<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        descriptor: &Descriptor<'d>,
        branch: &mut Branch,
        rule_path: &mut RulePath,
    ) {
        let key = descriptor.key.text();
        let value = descriptor.value.text();
        if branch.take_room(key, value, &self.findings.memory).is_none() {
            return;
        }
        let up = rule_path.path.len();
        let start = rule_path.push(descriptor);
        let mut detached = Node::default();
        let node = self.insert(branch, descriptor, &rule_path.path).unwrap_or(&mut detached);
        rule_path.levels.push(self.level(descriptor, start));
        if let Some(limit) = &descriptor.rate_limit {
            node.rule = self.rule(descriptor, limit, rule_path);
        } else {
            self.warn_of_idle_flags(descriptor);
        }
        if let Some(list) = descriptor.descriptors {
            let mut children = Branch::default();
            self.branch(reader, list, &mut children, rule_path);
            if children.nests_too_deep(&self.findings.memory) {
                self.findings.fault(descriptor.place, nested_too_deep());
            }
            node.children =
                (!children.is_empty()).then(|| Box::new(children.finish(&self.findings.memory)));
        }
        rule_path.levels.pop();
        rule_path.path.truncate(up);
    }

    /// Inserts the descriptor's node and returns it. If its key is missing or taken, reports that
    /// and returns `None`.
    fn insert<'b>(
        &mut self,
        branch: &'b mut Branch,
        descriptor: &Descriptor<'_>,
        path: &str,
    ) -> Option<&'b mut Node> {
        let key = &descriptor.key;
        let value = &descriptor.value;
        if key.text().is_empty() {
            if !key.is_faulty() {
                let place = key.place_or(descriptor.place);
                self.findings.fault(place, "descriptor has empty key; add 'key: …'");
            }
            return None;
        }
        if value.is_faulty() {
            return None;
        }
        if !branch.has_room_for_pattern(key.text(), value.text()) {
            let message = format!(
                "more than {SEARCHED_MAX} patterns with text after '*', or 1 MiB of text between \
                 '*', of one key on one level; use fewer, or patterns with '*' at the end alone"
            );
            self.fault_once(key.place_or(descriptor.place), message);
            return None;
        }
        let node = branch.insert(key.text(), value.text());
        if node.is_none() {
            let message = format!(
                "duplicate descriptor composite key '{}'; its level has this key and value already",
                excerpt(path)
            );
            self.findings.fault(key.place_or(descriptor.place), message);
        }
        node
    }

    fn level(&self, descriptor: &Descriptor<'_>, start: u32) -> Level {
        let key = descriptor.key.text();
        let value = descriptor.value.text();
        let has_pattern = key.contains('*') || value.contains('*');
        let is_shared = descriptor.share_threshold.is_true();
        if is_shared && !has_pattern && !descriptor.key.is_faulty() && !descriptor.value.is_faulty()
        {
            let message = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found \
                 key '{}'",
                excerpt(&composite(key, value))
            );
            self.findings.fault(descriptor.share_threshold.place_or(descriptor.place), message);
        }
        let pattern = || if key.contains('*') { composite(key, value) } else { value.to_owned() };
        Level {
            shared: (is_shared && has_pattern).then(|| pattern().into()),
            value_to_metric: descriptor.value_to_metric.is_true(),
            matched: match value {
                _ if has_pattern => LevelMatch::Wildcard(composite(key, value).into()),
                "" => LevelMatch::Key,
                _ => LevelMatch::Value,
            },
            start,
        }
    }

    fn warn_of_idle_flags(&self, descriptor: &Descriptor<'_>) {
        for (row, flag) in descriptor.flags.iter() {
            if let Parsed::As(place, value) = *flag
                && value != row.default
            {
                let name = row.option.name;
                let message =
                    format!("'{name}' has no effect on a descriptor without 'rate_limit'");
                self.findings.warn(place, message);
            }
        }
        if let Parsed::As(place, _) = descriptor.metadata {
            let message = "'metadata' has no effect on a descriptor without 'rate_limit'";
            self.findings.warn(place, message);
        }
    }
}

// The paths of rules: extends them level by level, and makes each unique.

/// The levels from the domain down to the descriptor being compiled.
struct RulePath {
    path: String,
    levels: Vec<Level>,
}

/// The set of paths that are taken.
#[derive(Default)]
pub(crate) struct Paths {
    taken: HashSet<ByPath, RandomState>,
    /// For each path that more than one rule wanted: how many rules wanted it.
    wanted: TextMap<u32>,
}

/// Bytes of what makes a path unique.
const SUFFIX_BYTES: usize = 8;

/// A rule that is compared and hashed by its path.
struct ByPath(Arc<Rule>);

// === impl RulePath ===

impl RulePath {
    /// Adds `descriptor` to the path and returns the byte at which its text starts.
    fn push(&mut self, descriptor: &Descriptor<'_>) -> u32 {
        self.path.push('.');
        // `PATH_BYTES_MAX` keeps paths of rules far below 4 GiB.
        let start = u32::try_from(self.path.len()).unwrap_or(u32::MAX);
        let value = descriptor.value.text();
        self.path.push_str(descriptor.key.text());
        if !value.is_empty() {
            self.path.push('_');
            self.path.push_str(value);
        }
        start
    }

    /// Returns each level with its text: its key, and its value if it has one.
    fn iter(&self) -> impl Iterator<Item = (&Level, &str)> {
        let start = |level: &Level| usize::try_from(level.start).unwrap_or(usize::MAX);
        self.levels.iter().enumerate().map(move |(at, level)| {
            let next = self.levels.get(at + 1).map(|next| start(next).saturating_sub(1));
            let end = next.unwrap_or(self.path.len());
            (level, self.path.get(start(level)..end).unwrap_or_default())
        })
    }
}

// === impl Paths ===

impl Paths {
    /// Returns `path`, with a numeric suffix if it is taken. Keys and values may contain `_` and
    /// `.`, so two rules can have the same path; the second, in order of the files, gets `#2`.
    fn unique(&mut self, path: &str) -> Box<str> {
        if !self.taken.contains(path) {
            return path.into();
        }
        let mut wanted = self.wanted.get(path).copied().unwrap_or(1);
        let other = loop {
            wanted += 1;
            let other = format!("{path}#{wanted}");
            if !self.taken.contains(other.as_str()) {
                break other;
            }
        };
        // Stored so that a thousand rules with one path do not try a thousand suffixes each.
        self.wanted.insert(path.into(), wanted);
        other.into()
    }

    /// Takes the memory of a path that is to be made unique and taken.
    fn take_room(&self, path: &str, memory: &Memory) -> Option<()> {
        let size = (self.taken.len(), self.taken.capacity());
        memory.take_table(size, size_of::<ByPath>(), 1)?;
        memory.take_box(path.len() + SUFFIX_BYTES)?;
        if self.taken.contains(path) {
            let size = (self.wanted.len(), self.wanted.capacity());
            memory.take_table(size, size_of::<(Box<str>, u32)>(), 1)?;
            memory.take_box(path.len())?;
        }
        Some(())
    }

    /// Maximum bytes of the two tables while they grow: one of `taken` paths, and one of `wanted`
    /// paths, which several rules wanted. A table is freed when the next one is filled.
    pub(crate) fn growth(taken: usize, wanted: usize) -> [usize; 2] {
        let tables = [(taken, size_of::<ByPath>()), (wanted, size_of::<(Box<str>, u32)>())];
        tables.map(|(len, entry)| 2 * table_bytes(len, entry))
    }

    /// Bytes of the table, without the paths of rules.
    fn bytes(&self) -> usize {
        table_bytes(self.taken.capacity(), size_of::<ByPath>())
    }

    /// Marks the path of `rule` as taken.
    fn take(&mut self, rule: Arc<Rule>) {
        self.taken.insert(ByPath(rule));
    }
}

// === impl ByPath ===

impl Borrow<str> for ByPath {
    fn borrow(&self) -> &str {
        &self.0.path
    }
}

impl Hash for ByPath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.path.hash(state);
    }
}

impl PartialEq for ByPath {
    fn eq(&self, other: &Self) -> bool {
        self.0.path == other.0.path
    }
}

impl Eq for ByPath {}

// Compiles the `rate_limit` of a descriptor to a `Rule`.

/// Bytes of a replaced name while it is read, in a list that doubles.
const REPLACED_BYTES: usize = 128;

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns `None` if the `rate_limit` is faulty, after reporting the fault.
    fn rule(
        &mut self,
        descriptor: &Descriptor<'_>,
        limit: &RateLimit<'_>,
        rule_path: &RulePath,
    ) -> Option<Arc<Rule>> {
        self.warn_of_name(limit);
        let replaces = self.replaces(limit);
        let compiled = self.compiled_limit(limit, &descriptor.flags, rule_path)?;
        let CompiledLimit { allowance, leasing, shards, hold, flags, failure_mode } = compiled;
        self.take_room(descriptor, limit, rule_path)?;
        let (path, levels) = self.identity(rule_path, limit.place)?;
        let rule = Arc::new(Rule {
            path,
            name: limit.name.text().into(),
            allowance,
            replaces,
            flags,
            leasing,
            failure_mode,
            shards,
            hold,
            metadata: descriptor
                .metadata
                .value()
                .filter(|map: &&Map<_, _>| !map.is_empty())
                .map(|map| Box::new(map.clone())),
            levels,
            meter: Attachment::default(),
        });
        if let Some(places) = &mut self.places {
            places.note(&rule.path, &self.findings.file(), descriptor.place);
        }
        self.paths.take(Arc::clone(&rule));
        self.rules.push(Arc::clone(&rule));
        Some(rule)
    }

    /// Takes the memory of a rule.
    fn take_room(
        &self,
        descriptor: &Descriptor<'_>,
        limit: &RateLimit<'_>,
        rule_path: &RulePath,
    ) -> Option<()> {
        let memory = &self.findings.memory;
        let replaced = limit.replaces.iter().map(|it| it.name.text().len());
        let replaces: usize = replaced.map(|len| size_of::<Box<str>>() + boxed(len)).sum();
        let of_map = |map: &Map<_, _>| boxed(size_of_val(map)) + metadata_bytes(map);
        let metadata = descriptor.metadata.value().map_or(0, of_map);
        let name = boxed(limit.name.text().len());
        memory.take(ARC + size_of::<Rule>() + name + replaces + metadata)?;
        // The descriptor has both too, with places.
        memory.pass(metadata + limit.replaces.len() * REPLACED_BYTES)?;
        memory.take_growth(&self.rules)?;
        self.paths.take_room(&rule_path.path, memory)
    }

    fn replaces(&self, limit: &RateLimit<'_>) -> Box<[Box<str>]> {
        for replaced in &limit.replaces {
            let place = replaced.name.place_or(replaced.place);
            match replaced.name.text() {
                _ if replaced.name.is_faulty() => {}
                "" => {
                    let message = "should not have an empty replaces entry; write '- name: …'";
                    self.findings.fault(place, message);
                }
                name if name == limit.name.text() => {
                    let message = format!(
                        "replaces should not contain name of same descriptor; '{}' is this one",
                        excerpt(name)
                    );
                    self.findings.fault(place, message);
                }
                _ => {}
            }
        }
        limit.replaces.iter().map(|replaced| replaced.name.text().into()).collect()
    }

    fn warn_of_name(&self, limit: &RateLimit<'_>) {
        if let Parsed::As(place, name) = limit.name
            && name.contains(['"', '\\'])
        {
            let shown = excerpt(name);
            let message =
                format!("name '{shown}' has a quote or backslash, which Envoy does not escape");
            self.findings.warn(place, message);
        }
    }

    /// Returns the path, made unique, and its levels. If the text that rules hold exceeds
    /// its ceiling, reports that and returns `None`.
    fn identity(&mut self, rule_path: &RulePath, place: Place) -> Option<(Box<str>, Arc<[Level]>)> {
        self.path_bytes += rule_path.path.len();
        if *self.levels != *rule_path.levels {
            self.path_bytes += rule_path.levels.iter().map(Level::bytes).sum::<usize>();
            let bytes = rule_path.levels.iter().map(Level::bytes).sum::<usize>();
            self.findings.memory.take(ARC + bytes)?;
            self.levels = rule_path.levels.as_slice().into();
        }
        if self.path_bytes > PATH_BYTES_MAX {
            let mib = PATH_BYTES_MAX >> 20;
            let message =
                format!("keys and values of all rules exceed {mib} MiB together; shorten them");
            self.fault_once(place, message);
            return None;
        }
        Some((self.paths.unique(&rule_path.path), Arc::clone(&self.levels)))
    }
}

// === impl Level ===

impl Level {
    /// Returns its size in bytes, including its text.
    fn bytes(&self) -> usize {
        let pattern = match &self.matched {
            LevelMatch::Wildcard(pattern) => pattern.len(),
            LevelMatch::Key | LevelMatch::Value => 0,
        };
        size_of::<Level>() + pattern + self.shared.as_ref().map_or(0, |shared| shared.len())
    }
}

// Compiles the names of stores.

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns the store that the limit names, or else the store of its domain. `None` if the name
    /// is faulty, after reporting the fault.
    fn store_of_limit(&self, limit: &RateLimit<'_>) -> Option<StoreId> {
        match self.named(&limit.store) {
            Parsed::Absent => Some(self.store),
            Parsed::Faulty | Parsed::Refused(..) => None,
            Parsed::As(_, store) => Some(store),
        }
    }

    /// Returns the store of the domain that `file` configures, or adds to. All files of a domain
    /// have one store: overrides belong to no file.
    fn store_of_file(&self, file: &File<'_>, is_new: bool, domain: &Domain) -> StoreId {
        let Parsed::As(place, store) = self.named(&file.store) else { return domain.store };
        if !is_new && store != domain.store {
            let message = format!(
                "domain '{}' has another store in {}:{}; name the same one there and here",
                excerpt(file.domain.text()),
                excerpt(&domain.file),
                domain.line
            );
            self.findings.fault(place, message);
        }
        store
    }

    fn named(&self, name: &Parsed<&str>) -> Parsed<StoreId> {
        match name {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty | Parsed::Refused(..) => Parsed::Faulty,
            Parsed::As(place, name) => match self.options.stores.find(name) {
                Some(store) => Parsed::As(*place, store),
                None => self.refuse_store(*place, name),
            },
        }
    }

    fn refuse_store(&self, place: Place, name: &str) -> Parsed<StoreId> {
        let shown = excerpt(name);
        let known = self.options.stores.all();
        let meant = self.findings.suggestion(name, &[&known]);
        let message = format!(
            "unknown store '{shown}'; expected one of {}, as in REDIS_STORES{meant}",
            known.join(", ")
        );
        self.findings.fault(place, message);
        Parsed::Faulty
    }
}

// The text of a rule file, before parsing.

/// The text of one rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The name in faults, such as `shop.yaml`. Sources load in order of their names.
    pub name: String,
    /// The file's bytes. Loading is safe for any content.
    pub text: Vec<u8>,
}

// The place of each rule in the rule files, for tools. The sidecar does not keep it.

/// The place of each rule of a load, by its path.
#[derive(Debug, Default)]
pub struct RuleLocations {
    /// Names of the sources that have rules, in the order in which they were read.
    files: Vec<Box<str>>,
    /// The index of the file in `files`, and the place in that file.
    by_path: TextMap<(usize, Place)>,
}

/// The place where a rule's descriptor begins. Printed as `file:line:column`, as faults are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLocation<'p> {
    /// Name of the source.
    pub file: &'p str,
    /// The place in the source.
    pub place: Place,
}

// === impl RuleLocations ===

impl RuleLocations {
    /// Returns where the rule of this path is written; `None` if there is no such rule.
    pub fn of(&self, path: &str) -> Option<SourceLocation<'_>> {
        let (file, place) = self.by_path.get(path)?;
        Some(SourceLocation { file: self.files.get(*file)?, place: *place })
    }

    /// Records a rule of `file`. All rules of one file are recorded before the rules of the next.
    pub(crate) fn note(&mut self, path: &str, file: &str, place: Place) {
        if self.files.last().is_none_or(|last| **last != *file) {
            self.files.push(file.into());
        }
        self.by_path.insert(path.into(), (self.files.len() - 1, place));
    }
}

// === impl SourceLocation ===

impl fmt::Display for SourceLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        write!(f, "{}:{line}:{column}", self.file)
    }
}

/// The weight of a load: its part of the ceilings that hold for all loads. From the weights of
/// sources that were compiled one by one, a process knows whether one load of all would succeed,
/// and an upper bound of the memory of that load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// The memory of the load. A sum of weights uses it as an upper bound.
    pub memory: MemoryUse,
    /// Bytes taken when all sources of the load are read, without the table of paths.
    pub(crate) read: usize,
    pub(crate) descriptors: usize,
    pub(crate) rules: usize,
    pub(crate) path_bytes: usize,
    /// Paths that several of its rules wanted.
    pub(crate) wanted: usize,
}

// === impl Weight ===

impl Weight {
    /// An upper bound of the memory of one load of sources, if that is sure to succeed; `None` if
    /// only the load itself can tell. Each source is of one domain, by which it is named, and was
    /// loaded alone with the default options. They are in the order of their names.
    pub fn together<'w>(all: impl Iterator<Item = (&'w str, Self)>) -> Option<MemoryUse> {
        let mut sum = Self::default();
        let mut reading = 0;
        let mut contested = 0;
        let mut outer: Vec<&str> = Vec::new();
        for (domain, weight) in all {
            sum.add(weight);
            reading = reading.max(weight.memory.peak.saturating_sub(weight.read));
            // Rules of `shop` and of `shop.eu` may want one path, and the latter get another one.
            while outer.pop_if(|it| !domain.starts_with(*it)).is_some() {}
            if outer.iter().any(|it| domain.as_bytes().get(it.len()) == Some(&b'.')) {
                sum.wanted += weight.rules;
                contested += weight.path_bytes + boxed(1) * weight.rules;
            }
            outer.push(domain);
        }
        if sum.descriptors > DESCRIPTORS_MAX || sum.path_bytes > PATH_BYTES_MAX {
            return None;
        }
        let [taken, wanted] = Paths::growth(sum.rules, sum.wanted);
        let held = sum.memory.held + contested + wanted;
        let peak = (sum.read + reading + taken + contested + wanted).max(held);
        Some(MemoryUse { peak, held })
    }

    fn add(&mut self, other: Self) {
        let Self { memory, read, descriptors, rules, path_bytes, wanted } = other;
        self.memory.held += memory.held;
        // The larger of the two: a domain is read or finished while others are read.
        self.read += read.max(memory.held);
        self.descriptors += descriptors;
        self.rules += rules;
        self.path_bytes += path_bytes;
        self.wanted += wanted;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A domain, and its descriptors: the key, the number of values below it, and whether the
    /// compiler warns of it.
    type Domain = (String, Vec<(String, usize, bool)>);

    fn domains() -> impl Strategy<Value = Vec<Domain>> {
        let name =
            prop::sample::select(vec!["a", "a.b", "a.b.c", "a-b", "ab", "b", "b.a", "a.b#2"]);
        let key =
            prop::sample::select(vec!["a", "b", "b.c", "b.c.d", "c", "d_v1", "long-key-of-a-rule"]);
        let descriptor = (key.prop_map(str::to_owned), 0_usize..40, any::<bool>());
        let domain = (name.prop_map(str::to_owned), prop::collection::vec(descriptor, 0..6));
        prop::collection::vec(domain, 0..9).prop_map(|mut all| {
            all.sort();
            all.dedup_by(|a, b| a.0 == b.0);
            all
        })
    }

    fn source((domain, descriptors): &Domain) -> Source {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1";
        let mut text = format!("domain: {domain}\ndescriptors:\n");
        let mut seen = std::collections::BTreeSet::new();
        for (key, values, warns) in descriptors.iter().filter(|it| seen.insert(&it.0)) {
            let name = if *warns { ", name: 'a\"b'}" } else { "}" };
            text += &format!("- {{key: {key}, {limit}{name}, descriptors: [");
            (0..*values).for_each(|at| text += &format!("{{key: c, value: v{at}, {limit}}}}},"));
            text += "]}\n";
        }
        if descriptors.is_empty() {
            text += "- {key: none}\n";
        }
        Source { name: domain.clone(), text: text.into_bytes() }
    }

    fn load_of(sources: &[Source]) -> Loaded {
        load(sources, Options::default()).unwrap()
    }

    /// Returns the memory of one load of `sources`, and its bound by the weights of the sources.
    fn both(sources: &[Source]) -> (MemoryUse, MemoryUse) {
        let alone = sources.iter().map(|it| (&*it.name, load_of(std::slice::from_ref(it)).weight));
        (load_of(sources).weight.memory, Weight::together(alone).unwrap())
    }

    proptest! {
        #[test]
        fn a_load_takes_no_more_than_the_weights_of_its_sources(domains in domains()) {
            let sources: Vec<_> = domains.iter().map(source).collect();
            let (taken, bound) = both(&sources);
            prop_assert!(taken.peak <= bound.peak, "{taken:?} {bound:?}");
            prop_assert!(taken.held <= bound.held, "{taken:?} {bound:?}");
        }
    }

    #[test]
    fn the_bound_of_many_domains_is_near_to_what_they_take() {
        let domain = |at: usize| (format!("tenant-{at:05}"), vec![("user".to_owned(), 3, false)]);
        let sources: Vec<_> = (0..2000).map(|at| source(&domain(at))).collect();
        let (taken, bound) = both(&sources);
        assert_eq!(taken.held, bound.held);
        assert!(bound.peak <= taken.peak + taken.peak / 8, "{taken:?} {bound:?}");
    }

    #[test]
    fn what_may_exceed_a_ceiling_has_no_bound() {
        let half = Weight { descriptors: DESCRIPTORS_MAX / 2 + 1, ..Weight::default() };
        assert!(Weight::together([("a", half)].into_iter()).is_some());
        assert_eq!(Weight::together([("a", half), ("b", half)].into_iter()), None);
        let half = Weight { path_bytes: PATH_BYTES_MAX / 2 + 1, ..Weight::default() };
        assert_eq!(Weight::together([("a", half), ("b", half)].into_iter()), None);
    }
}
