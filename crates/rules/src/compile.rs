//! Compiles parsed files to `Rules`. A load succeeds as a whole or reports every fault of every
//! file.

mod cache;
mod layout;
mod limit;
mod patch;
mod path;
mod rule;
mod store;

use std::sync::Arc;

use crate::fault::{Fault, Faults, Findings, Place, excerpt};
use crate::file;
use crate::locations::RuleLocations;
use crate::memory::{Memory, MemoryUse};
use crate::node::{self, Document};
use crate::options::{Descriptor, File, LimitOptions};
use crate::parsed::Parsed;
use crate::reader::Reader;
use crate::rule::{Level, LevelMatch, Rule};
use crate::rules::{DomainRules, RuleList, Rules};
use crate::small_map::TextMap;
use crate::source::Source;
use crate::store::{DomainStores, StoreId, StoreNames};
use crate::text;
use crate::tree::{Branch, Node, composite};
use crate::wildcard::SEARCHED_MAX;
pub use cache::{Compilation, Keeps, RulesCache};
use path::{Paths, RulePath};

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
}

/// The result of a successful load.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The rules.
    pub rules: Rules,
    /// Things that load but may not do what their author meant, in order of file and place; at most
    /// 10 000.
    pub warnings: Vec<Fault>,
    /// What the load took at most: an upper bound, up to twice what the allocator has.
    pub memory: MemoryUse,
}

/// Maximum number of descriptors in one load, over all files.
const DESCRIPTORS_MAX: usize = 4_000_000;

/// Maximum bytes of the name of a domain: each of its dots may begin another domain's path.
const DOMAIN_BYTES_MAX: usize = 1024;
/// Maximum size, in bytes, of all paths and patterns of the rules of one load. Each rule holds the
/// text of all its levels, so a long key above many children is copied for each of them.
const PATH_BYTES_MAX: usize = 256 << 20;

/// Compiles `sources`, in order of their names. A single fault refuses the whole load.
///
/// # Errors
/// Every fault of every source, with its place.
pub fn load(sources: &[Source], options: Options) -> Result<Loaded, Faults> {
    load_within(sources, options, usize::MAX)
}

/// Like [`load`], within so many bytes of `memory`, without the texts of the sources.
///
/// # Errors
/// As [`load`]; of rules that need more memory, the faults up to there.
pub fn load_within(sources: &[Source], options: Options, memory: usize) -> Result<Loaded, Faults> {
    compile(&in_order(sources), options, None, memory).map(|(loaded, _)| loaded)
}

/// Like [`load`], and also returns where each rule is written. This costs memory, so only tools use
/// it.
pub fn load_with_locations(
    sources: &[Source],
    options: Options,
) -> Result<(Loaded, RuleLocations), Faults> {
    let (loaded, places) =
        compile(&in_order(sources), options, Some(RuleLocations::default()), usize::MAX)?;
    Ok((loaded, places.unwrap_or_default()))
}

fn in_order(sources: &[Source]) -> Vec<&Source> {
    let mut sorted: Vec<&Source> = sources.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    sorted
}

/// Compiles sources, which are in order of their names.
fn compile(
    sorted: &[&Source],
    options: Options,
    places: Option<RuleLocations>,
    memory: usize,
) -> Result<(Loaded, Option<RuleLocations>), Faults> {
    let findings = Findings::within(memory);
    let version = version(sorted, &options);
    let mut compiler = Compiler::new(options, &findings, places);
    for source in sorted {
        compiler.source(source);
    }
    let (stores, places) = (compiler.options.stores.clone(), compiler.places.take());
    let domains = compiler.finish();
    let memory = findings.memory.used();
    let warnings = findings.finish()?;
    let rules = Rules::new(version, domains, stores);
    Ok((Loaded { rules, warnings, memory }, places))
}

/// Hashes everything that determines the rules. `sources` are in order of their names.
fn version(sources: &[&Source], options: &Options) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("ratelease 2026-11 version of rules");
    let mut write = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    let Options { merge_domains, stores, domain_stores } = options;
    write(&[u8::from(*merge_domains)]);
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
    fn finish(self, name: Box<str>, memory: &Memory) -> DomainRules {
        let Self { branch, rules, store, .. } = self;
        let (branch, rules) = (branch.finish(memory), RuleList::new(rules, memory));
        DomainRules { name, branch, rules, store }
    }
}

/// Bytes of a domain besides its rules: what it is known by, in tables that double.
const DOMAIN_BYTES: usize = 768;

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
        match text::decode(&source.text).and_then(|text| Document::parse(text, memory)) {
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

    /// The domains, unless there is a fault.
    fn finish(self) -> Vec<Arc<DomainRules>> {
        let memory = &self.findings.memory;
        memory.give_back(self.paths.bytes());
        drop(self.paths);
        if self.findings.has_faults() {
            return Vec::new();
        }
        let domains = self.domains.into_iter();
        domains.map(|(name, domain)| Arc::new(domain.finish(name, memory))).collect()
    }

    fn file(&mut self, reader: &mut Reader<'_, '_>) {
        let file = file::read(reader);
        let name = file.domain.text();
        if self.findings.memory.take(DOMAIN_BYTES + 4 * name.len()).is_none() {
            return;
        }
        let merged = self.domain(&file);
        let is_new = merged.is_none();
        let mut domain = merged.unwrap_or_else(|| Domain {
            branch: Branch::default(),
            rules: Vec::new(),
            file: self.findings.file(),
            line: file.domain.place_or(file.place).line,
            store: self.options.domain_stores.find(name),
        });
        domain.store = self.store_of_file(&file, is_new, &domain);
        self.store = domain.store;
        self.rules = std::mem::take(&mut domain.rules);
        self.defaults = self.settled(&file.defaults);
        let mut rule_path = RulePath { path: name.to_owned(), levels: Vec::new() };
        if let Some(list) = file.descriptors {
            self.branch(reader, list, &mut domain.branch, &mut rule_path);
        }
        domain.rules = std::mem::take(&mut self.rules);
        self.domains.insert(name.into(), domain);
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
        let (key, value) = (descriptor.key.text(), descriptor.value.text());
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
            node.children =
                (!children.is_empty()).then(|| Arc::new(children.finish(&self.findings.memory)));
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
        let (key, value) = (&descriptor.key, &descriptor.value);
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

    fn level(&mut self, descriptor: &Descriptor<'_>, start: u32) -> Level {
        let (key, value) = (descriptor.key.text(), descriptor.value.text());
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

    fn warn_of_idle_flags(&mut self, descriptor: &Descriptor<'_>) {
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
