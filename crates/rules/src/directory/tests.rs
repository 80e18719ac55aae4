//! Tests of directories as they are mounted, linked and broken.

use std::os::unix::fs::symlink;

use super::*;

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn names(dir: &Path, dotfiles: Dotfiles) -> Vec<String> {
    let found = read_directory(dir, dotfiles, Endings::Yaml).unwrap();
    found.sources.into_iter().map(|source| source.name).collect()
}

#[test]
fn reads_yaml_files_below_the_directory_in_order_of_their_names() {
    let dir = directory(&[
        ("b.yaml", "b"),
        ("a.yml", "a"),
        ("team/z.yaml", "z"),
        ("team.yaml", "t"),
        (".hidden.yaml", "h"),
        (".git/x.yaml", "x"),
        ("..data/c.yaml", "c"),
        ("README.md", ""),
        ("c.yaml~", ""),
    ]);
    let all = [".git/x.yaml", ".hidden.yaml", "a.yml", "b.yaml", "team.yaml", "team/z.yaml"];
    assert_eq!(names(dir.path(), Dotfiles::Read), all);
    assert_eq!(names(dir.path(), Dotfiles::Skip), all[2..]);
    let sources = read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap().sources;
    assert_eq!(sources[1], Source { name: "b.yaml".into(), text: b"b".to_vec() });
}

#[test]
fn an_empty_directory_is_no_rules() {
    assert!(names(tempfile::tempdir().unwrap().path(), Dotfiles::Skip).is_empty());
}

#[test]
fn follows_links_as_a_config_map_lays_them() {
    let dir = directory(&[("..2026_01/shop.yaml", "old"), ("..2026_02/shop.yaml", "new")]);
    let at = |name: &str| dir.path().join(name);
    symlink("..2026_01", at("..data")).unwrap();
    symlink("..data/shop.yaml", at("shop.yaml")).unwrap();
    assert_eq!(
        read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap().sources[0].text,
        b"old"
    );
    symlink("..2026_02", at("..next")).unwrap();
    fs::rename(at("..next"), at("..data")).unwrap();
    assert_eq!(
        read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap().sources[0].text,
        b"new"
    );
    let outside = tempfile::tempdir().unwrap();
    symlink(dir.path(), outside.path().join("link")).unwrap();
    assert_eq!(names(&outside.path().join("link"), Dotfiles::Skip), ["shop.yaml"]);
    assert_eq!(names(outside.path(), Dotfiles::Skip), ["link/shop.yaml"]);
}

/// Returns the names of the rule files, and the files that were left out.
fn found(dir: &Path, endings: Endings) -> (Vec<String>, Vec<(String, &'static str)>) {
    let Found { sources, left_out } = read_directory(dir, Dotfiles::Skip, endings).unwrap();
    (sources.into_iter().map(|source| source.name).collect(), left_out)
}

#[test]
fn links_that_lead_nowhere_or_back_are_left_out_and_the_rest_is_read() {
    let dir = directory(&[("a/b/c.yaml", ""), ("d.yaml", "")]);
    let link = |to: &Path, name: &str| symlink(to, dir.path().join(name)).unwrap();
    link(dir.path(), "a/b/up");
    link(Path::new("nowhere"), "gone.yaml");
    link(Path::new("nowhere"), "gone");
    link(Path::new("self.yaml"), "self.yaml");
    link(Path::new("d.yaml/below"), "below.yaml");
    let (names, left_out) = found(dir.path(), Endings::Yaml);
    assert_eq!(names, ["a/b/c.yaml", "d.yaml"]);
    let expected = ["below.yaml", "gone", "gone.yaml", "self.yaml"].map(|it| (it, DANGLING));
    let expected = [&[("a/b/up", LOOP)], &expected[..]].concat();
    assert_eq!(left_out.iter().map(|(name, why)| (&**name, *why)).collect::<Vec<_>>(), expected);
}

#[test]
fn files_of_other_names_are_rule_files_for_the_reference_and_else_they_are_told() {
    let dir = directory(&[
        ("config", ""),
        ("CONFIG.YAML", ""),
        ("a.json", ""),
        ("team/b.yaml.bak", ""),
        ("b.yaml", ""),
        ("README.md", ""),
        (".hidden", ""),
        ("..data/config", ""),
    ]);
    let (names, left_out) = found(dir.path(), Endings::Yaml);
    assert_eq!(names, ["b.yaml"]);
    let expected = ["CONFIG.YAML", "a.json", "config", "team/b.yaml.bak"];
    assert_eq!(left_out, expected.map(|it| (it.to_owned(), OTHER_ENDING)));
    let (names, left_out) = found(dir.path(), Endings::Any);
    let all = ["CONFIG.YAML", "README.md", "a.json", "b.yaml", "config", "team/b.yaml.bak"];
    assert_eq!((names.as_slice(), left_out.len()), (&all.map(str::to_owned)[..], 0));
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    let dir = directory(&[("a.yaml", "")]);
    let error =
        read_directory(&dir.path().join("a.yaml"), Dotfiles::Skip, Endings::Yaml).unwrap_err();
    assert!(matches!(error, ReadError::NotADirectory(_)), "{error}");
    let error =
        read_directory(&dir.path().join("none"), Dotfiles::Skip, Endings::Yaml).unwrap_err();
    assert!(matches!(error, ReadError::Missing(_)), "{error}");
    let denied = ReadError::at(Path::new("/rules"), io::ErrorKind::PermissionDenied.into());
    assert_eq!(
        denied.to_string(),
        "/rules: permission denied; let the user of this process read it"
    );
}

#[test]
fn depth_is_bounded() {
    let nested = |levels| format!("{}x.yaml", "d/".repeat(levels));
    let dir = directory(&[(&nested(DIRECTORY_DEPTH_MAX - 1), "")]);
    assert_eq!(names(dir.path(), Dotfiles::Skip).len(), 1);
    let dir = directory(&[(&nested(DIRECTORY_DEPTH_MAX), "")]);
    let error = read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap_err();
    assert!(matches!(error, ReadError::TooDeep(_)), "{error}");
}

#[test]
fn of_a_large_file_one_byte_too_many_is_read_and_the_load_refuses_it() {
    let dir = directory(&[]);
    let file = File::create(dir.path().join("big.yaml")).unwrap();
    file.set_len(SOURCE_BYTES_MAX as u64 * 4).unwrap();
    let sources = read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap().sources;
    assert_eq!(sources[0].text.len(), SOURCE_BYTES_MAX + 1);
    let faults = crate::load(&sources, crate::Options::default()).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "big.yaml:1:1: error loading config file: file is larger than 16 MiB; split it"
    );
}

#[test]
fn the_number_of_files_is_bounded() {
    let dir = directory(&[]);
    for n in 0..=FILES_MAX {
        File::create(dir.path().join(format!("{n}.yaml"))).unwrap();
    }
    let error = read_directory(dir.path(), Dotfiles::Skip, Endings::Yaml).unwrap_err().to_string();
    assert!(
        error.ends_with("holds more than 10000 rule files; move what is not rules elsewhere"),
        "{error}"
    );
}

#[test]
fn anything_but_a_regular_file_is_skipped() {
    let dir = directory(&[("a.yaml", "")]);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s.yaml")).unwrap();
    assert_eq!(names(dir.path(), Dotfiles::Skip), ["a.yaml"]);
}
