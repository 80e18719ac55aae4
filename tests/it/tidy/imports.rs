//! Files of one crate import each other in one direction only, so that a reader can begin below. A
//! module may use what the modules around it define: these are the frame of its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, UseTree, Visibility};

use super::list;

/// The path of a module in its crate; empty for the root.
type Module = Vec<String>;

/// The files of one crate.
type Files = BTreeMap<Module, File>;

/// The paths that a file names.
#[derive(Debug, Default)]
struct File {
    imports: Vec<Import>,
    paths: BTreeSet<Vec<String>>,
}

/// A name that a file takes from a path.
#[derive(Debug)]
struct Import {
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

#[test]
fn files_of_a_crate_import_each_other_in_one_direction_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = vec![root.join("src")];
    for within in ["crates", "benches"] {
        let entries = fs::read_dir(root.join(within)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        sources.extend(paths.map(|path| if within == "crates" { path.join("src") } else { path }));
    }
    let crates: Vec<Files> = sources.iter().map(|source| read(source)).collect();
    assert!(crates.iter().map(Files::len).sum::<usize>() > 300, "few files were looked at");
    let circles = sources.iter().zip(&crates).flat_map(|(source, files)| {
        let source = source.strip_prefix(root).unwrap().display();
        circle(&arrows(files)).into_iter().map(move |arrow| format!("{source}: {arrow}"))
    });
    let circles: Vec<String> = circles.collect();
    assert!(circles.is_empty(), "these imports are a circle:\n{}", circles.join("\n"));
}

/// The product's files under a directory of sources, by their modules.
fn read(source: &Path) -> Files {
    let mut paths = Vec::new();
    list(source, &mut paths);
    // A directory that is a module of a file above it has no root here.
    let mut files = Files::from([(Module::new(), File::default())]);
    for path in paths {
        let mut module: Module = path
            .strip_prefix(source)
            .unwrap()
            .with_extension("")
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        let is_test = |part: &String| part == "tests" || part.ends_with("_tests");
        let crate_name = source.file_name().unwrap().to_str().unwrap();
        if module.iter().any(is_test) {
            continue;
        }
        if module.len() == 1 && ["lib", "main", crate_name].contains(&module[0].as_str()) {
            module.clear();
        }
        // A library and its program have one root here.
        let text = fs::read_to_string(&path).unwrap();
        files.entry(module).or_default().take(&text);
    }
    files
}

/// The modules that each module imports from, without those around it.
fn arrows(files: &Files) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let of = |(module, file): (&'_ Module, &'_ File)| {
        let aliases: BTreeMap<&str, &Vec<String>> =
            file.imports.iter().map(|it| (it.name.as_str(), &it.path)).collect();
        let imported = file.imports.iter().filter(|it| !it.is_reexport).map(|it| it.path.clone());
        let named = file.paths.iter().map(|path| {
            let alias = aliases.get(path[0].as_str());
            alias.map_or_else(|| path.clone(), |it| [it, &path[1..]].concat())
        });
        let defined = imported.chain(named).filter_map(|path| {
            let path = absolute(files, module, &path)?;
            // A module alone: the names that are taken from it are paths of their own.
            (!files.contains_key(&path)).then(|| definer(files, &path, 0))
        });
        defined.filter(|it| !module.starts_with(it)).cloned().collect::<BTreeSet<Module>>()
    };
    files
        .iter()
        .map(|(module, file)| {
            let found = of((module, file));
            (module, files.keys().filter(|it| found.contains(*it)).collect())
        })
        .collect()
}

/// The path from the crate's root; `None` for one that leaves the crate.
fn absolute(files: &Files, from: &Module, path: &[String]) -> Option<Vec<String>> {
    let first = path.first()?.as_str();
    let supers = path.iter().take_while(|part| *part == "super").count();
    match first {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([from, &path[1..]].concat()),
        "super" => Some([from.get(..from.len().checked_sub(supers)?)?, &path[supers..]].concat()),
        _ => {
            let below = [from.as_slice(), &path[..1]].concat();
            files.contains_key(&below).then(|| [from, path].concat())
        }
    }
}

/// The module that defines what the path names, through the re-exports on its way.
fn definer<'f>(files: &'f Files, path: &[String], depth: usize) -> &'f Module {
    let at = (0..=path.len()).rev().find(|&len| files.contains_key(&path[..len])).unwrap();
    let (module, file) = files.get_key_value(&path[..at]).unwrap();
    let reexport = path.get(at).and_then(|name| file.imports.iter().find(|it| it.name == *name));
    let further = reexport.filter(|_| depth < 8).and_then(|it| absolute(files, module, &it.path));
    further.map_or(module, |further| {
        definer(files, &[further, path[at + 1..].to_vec()].concat(), depth + 1)
    })
}

/// The arrows of all circles, and of the ways between two. Modules that import none of the rest, or
/// that none of the rest imports, are on no circle.
fn circle(arrows: &BTreeMap<&Module, BTreeSet<&Module>>) -> Vec<String> {
    let mut left: BTreeSet<&Module> = arrows.keys().copied().collect();
    loop {
        let is_left = |it: &&&Module| left.contains(**it);
        let imported: BTreeSet<&Module> =
            left.iter().flat_map(|it| arrows[it].iter().filter(is_left)).copied().collect();
        let kept: BTreeSet<&Module> = left
            .iter()
            .copied()
            .filter(|it| imported.contains(it) && arrows[it].iter().any(|to| left.contains(to)))
            .collect();
        if kept.len() == left.len() {
            break;
        }
        left = kept;
    }
    let shown =
        |from: &Module, to: &Module| format!("{} imports {}", from.join("::"), to.join("::"));
    let of = |from: &&Module| arrows[*from].iter().filter(|to| left.contains(**to)).copied();
    left.iter().flat_map(|from| of(from).map(|to| shown(from, to))).collect()
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let condition = |it: &Attribute| it.meta.require_list().map(|it| it.tokens.to_string());
    attributes
        .iter()
        .filter(|it| it.path().is_ident("cfg"))
        .any(|it| condition(it).is_ok_and(|it| it == "test" || it.starts_with("all (test")))
}

// === impl File ===

impl File {
    fn take(&mut self, text: &str) {
        self.visit_file(&syn::parse_file(text).unwrap());
    }

    fn take_tree(&mut self, before: &[String], tree: &UseTree, is_reexport: bool) {
        let with = |name: String| [before, &[name]].concat();
        let mut add = |name: String, path: Vec<String>| {
            self.imports.push(Import { name, path, is_reexport });
        };
        match tree {
            UseTree::Path(it) => self.take_tree(&with(it.ident.to_string()), &it.tree, is_reexport),
            UseTree::Group(it) => {
                it.items.iter().for_each(|tree| self.take_tree(before, tree, is_reexport));
            }
            UseTree::Name(it) if it.ident == "self" => {
                add(before.last().cloned().unwrap_or_default(), before.to_vec());
            }
            UseTree::Name(it) => add(it.ident.to_string(), with(it.ident.to_string())),
            UseTree::Rename(it) => add(it.rename.to_string(), with(it.ident.to_string())),
            UseTree::Glob(_) => add("*".to_owned(), with("*".to_owned())),
        }
    }
}

impl<'t> Visit<'t> for File {
    fn visit_item_mod(&mut self, item: &'t syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'t syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'t syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'t syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'t syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            let is_reexport = !matches!(item.vis, Visibility::Inherited);
            self.take_tree(&[], &item.tree, is_reexport);
        }
    }

    fn visit_path(&mut self, path: &'t syn::Path) {
        if path.segments.len() > 1 && path.leading_colon.is_none() {
            self.paths.insert(path.segments.iter().map(|it| it.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

#[test]
fn a_circle_is_found_through_paths_and_reexports() {
    let found = |files: &[(&str, &str)]| {
        let mut read = Files::new();
        for (module, text) in files {
            let module = module.split("::").filter(|part| !part.is_empty()).map(str::to_owned);
            read.entry(module.collect()).or_default().take(text);
        }
        circle(&arrows(&read))
    };
    let frame = ("", "mod a; mod b; mod c; pub use c::deep::D; fn main() { a::run() }");
    let below = ("b", "pub fn run() {} pub struct B;");
    assert!(found(&[frame, ("a", "use crate::b::B; use super::run;"), below]).is_empty());
    let both = ["a imports b", "b imports a"];
    for back in ["use crate::a::A;", "fn f() { super::a::f() }", "use super::a; type T = a::T;"] {
        assert_eq!(found(&[frame, ("a", "use crate::b::B;"), ("b", back)]), both, "{back}");
    }
    for fine in [
        "#[cfg(test)] use crate::a::A;",
        "#[cfg(test)] mod tests { use crate::a::A; }",
        "pub use crate::a::A;",
        "use super::a;",
    ] {
        assert!(found(&[frame, ("a", "use crate::b::B;"), ("b", fine)]).is_empty(), "{fine}");
    }
    let through = [frame, ("a", "use crate::D;"), ("c::deep", "use crate::a::A;"), ("c", "")];
    assert_eq!(found(&through), ["a imports c::deep", "c::deep imports a"]);
}
