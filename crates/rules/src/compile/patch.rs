//! Applies a change of some descriptors to a compiled domain, without compiling the others.
//!
//! Whatever is unusual about a change (a fault, a warning, a path that another rule has, patterns
//! in another order) is left to the compiler of the whole file, so that there is one place that
//! says what a file means.

use std::ops::Range;
use std::sync::Arc;

use super::layout::{Change, Layout};
use super::{Compiler, Options, RulePath};
use crate::fault::Findings;
use crate::file;
use crate::node::{Document, NODES_MAX};
use crate::options::LimitOptions;
use crate::reader::Reader;
use crate::rule::Rule;
use crate::rules::DomainRules;
use crate::text::{self, PIECES_MAX, SOURCE_BYTES_MAX};
use crate::tree::{Branch, is_pattern};

/// What a domain that can be patched was compiled from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) layout: Layout,
    /// The defaults of the file.
    pub(super) defaults: LimitOptions,
    pub(super) size: Size,
    /// Number of changes since the whole file was compiled.
    patches: u32,
}

/// What has a ceiling.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) nodes: usize,
    pub(super) pieces: usize,
    pub(super) descriptors: usize,
    pub(super) path_bytes: usize,
    /// Memory of the rules, in bytes.
    pub(super) held: usize,
}

/// Some descriptors of a file, compiled by themselves.
struct Part {
    branch: Branch,
    rules: Vec<Arc<Rule>>,
    /// `None` if there are no descriptors.
    layout: Option<Layout>,
    size: Size,
}

/// Stands before the descriptors of a part.
const HEAD: &str = "descriptors:\n";

/// After so many changes the whole file is compiled again: sizes of parts do not add up exactly.
const PATCHES_MAX: u32 = 10_000;

/// A part of so many bytes is small in any file.
const SMALL_BYTES: usize = 4096;

/// Places of nodes for each descriptor, of which the others are empty, besides some.
const PLACES_MAX: usize = 2;
const PLACES_SPARE: usize = 64;

/// Compiles a domain again after its file became `new`, of which only the changed descriptors are
/// read. `None` if the whole file has to be read.
pub(super) fn patch(
    domain: &DomainRules,
    origin: &Origin,
    [old, new]: [&[u8]; 2],
    options: &Options,
    findings: &Findings,
) -> Option<(DomainRules, Origin)> {
    if new.len() > SOURCE_BYTES_MAX || origin.patches == PATCHES_MAX {
        return None;
    }
    let changes = origin.layout.changes(old, new)?;
    let bytes = |of: fn(&Change) -> &Range<usize>| changes.iter().map(|it| of(it).len()).sum();
    let changed: usize = usize::max(bytes(|it| &it.old), bytes(|it| &it.new));
    if changed > new.len() / 4 + SMALL_BYTES {
        return None; // it takes no less time than the whole file
    }
    let mut patched = domain.clone();
    let (mut size, mut layouts) = (origin.size, Vec::with_capacity(changes.len()));
    for change in &changes {
        let part = |text: &[u8]| Part::compile(text, domain, origin, options, findings);
        let removed = part(old.get(change.old.clone())?)?;
        let added = part(new.get(change.new.clone())?)?;
        size = size.replace(removed.size, added.size);
        replace_nodes(&mut patched.branch, &removed.branch, &added.branch)?;
        for rule in &removed.rules {
            patched.rules.remove(&rule.path)?;
        }
        for rule in added.rules {
            patched.rules.insert(rule)?;
        }
        layouts.push(added.layout);
    }
    let layout = origin.layout.with(&changes, &layouts, HEAD.len())?;
    let is_full = size.nodes > NODES_MAX || size.pieces > PIECES_MAX;
    if is_full || patched.branch.places() > PLACES_MAX * layout.len() + PLACES_SPARE {
        return None;
    }
    let (defaults, patches) = (origin.defaults.clone(), origin.patches + 1);
    Some((patched, Origin { layout, defaults, size, patches }))
}

/// Puts the nodes of `added` in the place of those of `removed`. `None` if patterns would be tried
/// in another order, or if a descriptor is there twice.
fn replace_nodes(branch: &mut Branch, removed: &Branch, added: &Branch) -> Option<()> {
    let (before, after) = (removed.in_order(), added.in_order());
    let patterns = |list: &[(&str, &str, _)]| {
        let names = list.iter().map(|(key, value, _)| ((*key).to_owned(), (*value).to_owned()));
        names.filter(|(key, value)| is_pattern(key, value)).collect::<Vec<_>>()
    };
    if patterns(&before) != patterns(&after) {
        return None;
    }
    for (key, value, _) in before {
        if !added.has(key, value) {
            branch.remove(key, value)?;
        }
    }
    for (key, value, node) in after {
        if removed.has(key, value) {
            branch.replace(key, value, node.clone())?;
        } else {
            branch.add(key, value, node.clone())?;
        }
    }
    Some(())
}

// === impl Origin ===

impl Origin {
    /// Returns what a domain was compiled from, if it can be patched. The file has no fault.
    pub(super) fn new(
        text: &str,
        document: &Document<'_>,
        defaults: LimitOptions,
        (descriptors, path_bytes): (usize, usize),
    ) -> Option<Self> {
        let layout = Layout::new(text, document)?;
        let (nodes, pieces) = (document.len(), text::pieces(text));
        let size = Size { nodes, pieces, descriptors, path_bytes, held: 0 };
        Some(Self { layout, defaults, size, patches: 0 })
    }
}

// === impl Size ===

impl Size {
    fn replace(self, removed: Self, added: Self) -> Self {
        let new = |all: usize, less: usize, more: usize| all.saturating_sub(less) + more;
        Self {
            nodes: new(self.nodes, removed.nodes, added.nodes),
            pieces: new(self.pieces, removed.pieces, added.pieces),
            descriptors: new(self.descriptors, removed.descriptors, added.descriptors),
            path_bytes: new(self.path_bytes, removed.path_bytes, added.path_bytes),
            held: new(self.held, removed.held, added.held),
        }
    }
}

// === impl Part ===

impl Part {
    /// Compiles descriptors of the first level of a file. `None` if there is anything to report, or
    /// if a path is there twice.
    fn compile(
        text: &[u8],
        domain: &DomainRules,
        origin: &Origin,
        options: &Options,
        findings: &Findings,
    ) -> Option<Self> {
        let whole = [HEAD.as_bytes(), text].concat();
        let text = text::decode(&whole).ok()?;
        let before = findings.memory.held();
        let document = Document::parse(text, &findings.memory).ok()?;
        let mut compiler = Compiler::new(options.clone(), findings, None);
        compiler.defaults = origin.defaults.clone();
        compiler.store = domain.store;
        let mut branch = Branch::default();
        let mut reader = Reader::new(&document, findings);
        if document.root_len() != Some(1) {
            return None;
        }
        let list = file::read(&mut reader).descriptors;
        if let Some(list) = list {
            let name = String::from(&*domain.name);
            let mut rule_path = RulePath { path: name, levels: Vec::new() };
            compiler.branch(&mut reader, list, &mut branch, &mut rule_path);
        }
        let Compiler { rules, paths, descriptors, path_bytes, .. } = compiler;
        if paths.has_repeats() || !findings.is_empty() {
            return None;
        }
        let layout = match whole.len() > HEAD.len() {
            true => Some(Layout::new(text, &document)?),
            false => None,
        };
        let (nodes, pieces) = (document.len(), text::pieces(text));
        document.free(&findings.memory);
        let held = findings.memory.held() - before;
        let size = Size { nodes, pieces, descriptors, path_bytes, held };
        Some(Self { branch, rules, layout, size })
    }
}
