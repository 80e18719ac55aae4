//! Compiles sets of sources that follow one another, and compiles only what changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::patch::{Origin, patch};
use super::{Compiler, DESCRIPTORS_MAX, Loaded, Options, PATH_BYTES_MAX, compile, version};
use crate::fault::{FINDINGS_KEPT_MAX, Fault, Faults, Findings};
use crate::memory::MemoryUse;
use crate::node::Document;
use crate::reader::Reader;
use crate::rules::{DomainRules, Rules};
use crate::source::Source;
use crate::text;

/// Compiles sets of sources that follow one another. What did not change is shared by their rules.
///
/// The rules are those that [`load`](crate::load) compiles, and so are faults and warnings.
#[derive(Debug)]
pub struct RulesCache {
    options: Options,
    keeps: Keeps,
    /// By the names of the sources: those of the last set that was good.
    known: BTreeMap<String, Known>,
    /// The names of the last sources that had to be compiled together, as those that add to one
    /// domain have to be.
    merged: Option<Vec<String>>,
}

/// What a [`RulesCache`] keeps of each source besides its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// A hash of the text. A source that changed is compiled as a whole.
    Hashes,
    /// The text. Of a source that changed a little only the changed descriptors are compiled.
    Texts,
}

/// How many sources of a set were compiled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compilation {
    /// Sources that were compiled as a whole.
    pub compiled: usize,
    /// Sources of which only changed descriptors were compiled.
    pub patched: usize,
    /// Sources that did not change.
    pub reused: usize,
}

/// A good source, compiled.
#[derive(Debug)]
struct Known {
    text: KnownText,
    domain: Arc<DomainRules>,
    warnings: Vec<Fault>,
    /// What it takes, in bytes.
    held: usize,
    descriptors: usize,
    path_bytes: usize,
    /// `None` if it cannot be patched.
    origin: Option<Origin>,
}

#[derive(Debug)]
enum KnownText {
    Hash(blake3::Hash),
    Text(Arc<Source>),
}

/// Bytes of what a descriptor can be patched by, in a list that doubles.
const ORIGIN_BYTES: usize = 2 * size_of::<u32>();

// === impl RulesCache ===

impl RulesCache {
    /// Makes a cache that knows no sources.
    pub fn new(options: Options, keeps: Keeps) -> Self {
        Self { options, keeps, known: BTreeMap::new(), merged: None }
    }

    /// Compiles `sources`, in order of their names. A single fault refuses the whole load.
    ///
    /// # Errors
    /// Every fault of every source, with its place.
    pub fn load(&mut self, sources: &[Arc<Source>]) -> Result<(Loaded, Compilation), Faults> {
        self.load_within(sources, usize::MAX)
    }

    /// Like [`RulesCache::load`], within so many bytes of `memory` besides what the rules of the
    /// last set take.
    ///
    /// # Errors
    /// As [`RulesCache::load`]; of rules that need more memory, the faults up to there.
    pub fn load_within(
        &mut self,
        sources: &[Arc<Source>],
        memory: usize,
    ) -> Result<(Loaded, Compilation), Faults> {
        let mut sorted: Vec<&Arc<Source>> = sources.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(done) = self.renew(&sorted, memory) {
            return Ok(done);
        }
        // A fault, or rules that depend on several sources.
        let sorted = texts(&sorted);
        let (loaded, _) = compile(&sorted, self.options.clone(), None, memory)?;
        Ok((loaded, Compilation { compiled: sorted.len(), ..Compilation::default() }))
    }

    /// Compiles each source by itself, as far as it changed. `None` if there is a fault, or if
    /// sources have to be compiled together.
    fn renew(&mut self, sources: &[&Arc<Source>], memory: usize) -> Option<(Loaded, Compilation)> {
        let are_named = |names: &Vec<String>| names.iter().eq(sources.iter().map(|it| &it.name));
        if self.merged.as_ref().is_some_and(are_named)
            || !sources.is_sorted_by(|a, b| a.name < b.name)
        {
            return None;
        }
        let mut done = Compilation::default();
        let mut fresh = Vec::with_capacity(sources.len());
        let mut used = MemoryUse::default();
        for source in sources {
            fresh.push(self.changed(source, memory, &mut used, &mut done)?);
        }
        let known = sources.iter().zip(&fresh).map(|(source, fresh)| match fresh {
            Some(fresh) => Some(fresh),
            None => self.known.get(&source.name),
        });
        let known: Vec<&Known> = known.collect::<Option<_>>()?;
        if !fit_together(&known) {
            let names = || sources.iter().map(|source| source.name.clone()).collect();
            self.merged = self.options.merge_domains.then(names);
            return None;
        }
        used.held = known.iter().map(|known| known.held).sum();
        let warnings = known.iter().flat_map(|known| known.warnings.iter().cloned()).collect();
        let domains = known.iter().map(|known| Arc::clone(&known.domain)).collect();
        let version = version(&texts(sources), &self.options);
        let rules = Rules::new(version, domains, self.options.stores.clone());
        let next = sources.iter().zip(fresh).filter_map(|(source, fresh)| {
            let known = fresh.or_else(|| self.known.remove(&source.name))?;
            Some((source.name.clone(), known))
        });
        self.known = next.collect();
        Some((Loaded { rules, warnings, memory: used }, done))
    }

    /// Compiles `source`, as far as it changed: `Some(None)` if it did not, `None` if it has a
    /// fault. Of `memory`, others have `used` some.
    fn changed(
        &self,
        source: &Arc<Source>,
        memory: usize,
        used: &mut MemoryUse,
        done: &mut Compilation,
    ) -> Option<Option<Known>> {
        let known = self.known.get(&source.name);
        if known.is_some_and(|known| known.text.is_of(source)) {
            done.reused += 1;
            return Some(None);
        }
        let findings = || {
            let findings = Findings::within(memory.checked_sub(used.held)?);
            findings.begin(&source.name);
            Some(findings)
        };
        let patched = known.and_then(|known| self.patched(known, source, findings()?));
        let is_patched = patched.is_some();
        let (known, peak) = patched.or_else(|| self.compiled(source, findings()?))?;
        used.peak = used.peak.max(used.held + peak);
        used.held += known.held;
        done.patched += usize::from(is_patched);
        done.compiled += usize::from(!is_patched);
        Some(Some(known))
    }

    /// Returns also the memory that this took at most.
    fn patched(
        &self,
        known: &Known,
        source: &Arc<Source>,
        findings: Findings,
    ) -> Option<(Known, usize)> {
        let (KnownText::Text(old), Some(origin)) = (&known.text, &known.origin) else {
            return None;
        };
        let texts = [&*old.text, &*source.text];
        // What does not change is shared, except for tables that get another entry.
        findings.memory.take(known.held)?;
        let (domain, origin) = patch(&known.domain, origin, texts, &self.options, &findings)?;
        let known = Known {
            held: origin.size.held,
            text: KnownText::Text(Arc::clone(source)),
            domain: Arc::new(domain),
            warnings: Vec::new(),
            descriptors: origin.size.descriptors,
            path_bytes: origin.size.path_bytes,
            origin: Some(origin),
        };
        Some((known, findings.memory.used().peak))
    }

    /// Returns also the memory that this took at most.
    fn compiled(&self, source: &Arc<Source>, findings: Findings) -> Option<(Known, usize)> {
        let memory = &findings.memory;
        let text = text::decode(&source.text).ok()?;
        let document = Document::parse(text, memory).ok()?;
        let mut compiler = Compiler::new(self.options.clone(), &findings, None);
        compiler.file(&mut Reader::new(&document, &findings));
        let Compiler { descriptors, path_bytes, .. } = compiler;
        let can_be_patched = self.keeps == Keeps::Texts
            && findings.is_empty()
            && !compiler.paths.has_repeats()
            && text.len() == source.text.len();
        let origin = can_be_patched.then(|| {
            memory.take(descriptors * ORIGIN_BYTES)?;
            let defaults = compiler.defaults.clone();
            Origin::new(text, &document, defaults, (descriptors, path_bytes))
        });
        document.free(memory);
        let domain = compiler.finish().pop()?;
        let MemoryUse { peak, held } = memory.used();
        let warnings = findings.finish().ok()?;
        let text = match self.keeps {
            Keeps::Hashes => KnownText::Hash(blake3::hash(&source.text)),
            Keeps::Texts => KnownText::Text(Arc::clone(source)),
        };
        let mut origin = origin.flatten();
        if let Some(origin) = &mut origin {
            origin.size.held = held;
        }
        let known = Known { text, domain, warnings, held, descriptors, path_bytes, origin };
        Some((known, peak))
    }
}

fn texts<'s>(sources: &[&'s Arc<Source>]) -> Vec<&'s Source> {
    sources.iter().map(|source| &***source).collect()
}

/// Whether sources that were compiled by themselves have the rules that they have together.
fn fit_together(known: &[&Known]) -> bool {
    let sum = |of: fn(&Known) -> usize| known.iter().map(|known| of(known)).sum::<usize>();
    if sum(|known| known.descriptors) > DESCRIPTORS_MAX
        || sum(|known| known.path_bytes) > PATH_BYTES_MAX
        || sum(|known| known.warnings.len()) >= FINDINGS_KEPT_MAX
    {
        return false;
    }
    let mut by_name = BTreeMap::new();
    let named = known.iter().map(|known| &known.domain);
    let are_different = named.map(|it| by_name.insert(&*it.name, it)).all(|it| it.is_none());
    are_different
        && by_name.values().all(|inner| {
            let prefixes = inner.name.match_indices('.').filter_map(|(at, _)| inner.name.get(..at));
            let mut outer = prefixes.filter_map(|name| by_name.get(name));
            // Paths of both begin alike, and could be equal.
            outer.all(|outer| inner.rules.iter().all(|rule| outer.rules.find(&rule.path).is_none()))
        })
}

// === impl KnownText ===

impl KnownText {
    fn is_of(&self, source: &Arc<Source>) -> bool {
        match self {
            Self::Hash(hash) => *hash == blake3::hash(&source.text),
            Self::Text(known) => Arc::ptr_eq(known, source) || known.text == source.text,
        }
    }
}
