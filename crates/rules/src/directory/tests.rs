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
    let sources = read_directory(dir, dotfiles).unwrap();
    sources.into_iter().map(|source| source.name).collect()
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
    let sources = read_directory(dir.path(), Dotfiles::Skip).unwrap();
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
    assert_eq!(read_directory(dir.path(), Dotfiles::Skip).unwrap()[0].text, b"old");
    symlink("..2026_02", at("..next")).unwrap();
    fs::rename(at("..next"), at("..data")).unwrap();
    assert_eq!(read_directory(dir.path(), Dotfiles::Skip).unwrap()[0].text, b"new");
    let outside = tempfile::tempdir().unwrap();
    symlink(dir.path(), outside.path().join("link")).unwrap();
    assert_eq!(names(&outside.path().join("link"), Dotfiles::Skip), ["shop.yaml"]);
    assert_eq!(names(outside.path(), Dotfiles::Skip), ["link/shop.yaml"]);
}

#[test]
fn a_loop_of_links_and_a_dangling_one_are_named() {
    let dir = directory(&[("a/b/c.yaml", "")]);
    symlink(dir.path(), dir.path().join("a/b/up")).unwrap();
    let error = read_directory(dir.path(), Dotfiles::Skip).unwrap_err();
    assert!(matches!(&error, ReadError::Loop(path) if path.ends_with("a/b/up")), "{error}");
    let dir = directory(&[]);
    symlink("nowhere", dir.path().join("gone")).unwrap();
    assert!(names(dir.path(), Dotfiles::Skip).is_empty());
    symlink("nowhere", dir.path().join("gone.yaml")).unwrap();
    let error = read_directory(dir.path(), Dotfiles::Skip).unwrap_err().to_string();
    assert!(
        error.ends_with("gone.yaml: does not exist, or is a link to nothing; create it"),
        "{error}"
    );
}

#[test]
fn a_path_that_is_no_directory_is_named() {
    let dir = directory(&[("a.yaml", "")]);
    let error = read_directory(&dir.path().join("a.yaml"), Dotfiles::Skip).unwrap_err();
    assert!(matches!(error, ReadError::NotADirectory(_)), "{error}");
    let error = read_directory(&dir.path().join("none"), Dotfiles::Skip).unwrap_err();
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
    let error = read_directory(dir.path(), Dotfiles::Skip).unwrap_err();
    assert!(matches!(error, ReadError::TooDeep(_)), "{error}");
}

#[test]
fn of_a_large_file_one_byte_too_many_is_read_and_the_load_refuses_it() {
    let dir = directory(&[]);
    let file = File::create(dir.path().join("big.yaml")).unwrap();
    file.set_len(SOURCE_BYTES_MAX as u64 * 4).unwrap();
    let sources = read_directory(dir.path(), Dotfiles::Skip).unwrap();
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
    let error = read_directory(dir.path(), Dotfiles::Skip).unwrap_err().to_string();
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
