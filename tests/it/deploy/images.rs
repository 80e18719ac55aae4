//! The images that ours is built from, and those that the demo runs.

use std::process::Command;

use super::read;
use crate::support::control::binary as control_binary;

/// Images without a digest, with the reason.
const BY_TAG: [(&str, &str); 2] = [
    (
        "envoyproxy/envoy:v1.40.0",
        "no source of its digest could be had; scripts/pin-images adds it",
    ),
    ("postgres:17.6-alpine", "no source of its digest could be had; scripts/pin-images adds it"),
];

/// Images that are built here.
const OWN: [&str; 2] = ["ratelease:", "ratelease-control:"];

/// The image that a line of one of the files names; none for a stage of the same Dockerfile.
fn image(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    match words.next()? {
        "FROM" => words.find(|word| !word.starts_with("--")).filter(|name| name.contains(':')),
        "image:" => words.next(),
        _ => None,
    }
}

#[test]
fn images_are_named_by_digest() {
    let files = ["Dockerfile", "docker-compose.yml"].map(read);
    let images: Vec<_> = files.iter().flat_map(|file| file.lines().filter_map(image)).collect();
    assert!(images.len() >= 8, "{images:?}");
    let is_own = |image: &str| OWN.iter().any(|own| image.starts_with(own));
    for image in images.iter().filter(|image| !is_own(image)) {
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        let is_digest =
            |it: &str| it.len() == 64 && it.bytes().all(|b| b"0123456789abcdef".contains(&b));
        let by_tag = BY_TAG.iter().any(|(tag, _)| tag == image);
        assert!(digest.map_or(by_tag, is_digest), "{image} has no digest: run scripts/pin-images");
    }
}

/// A variable of another name would be ignored.
#[test]
fn the_variables_of_the_control_plane_are_those_of_its_program() {
    let compose = read("docker-compose.yml");
    let service = compose.split("\n  control:\n").nth(1).expect("the service `control`");
    let service = service.split("\n\n").next().expect("its lines");
    let is_name = |it: &&str| it.starts_with("CONTROL_") || it.starts_with("DATABASE_");
    let names = service.lines().filter_map(|line| line.trim().split(':').next());
    let names: Vec<_> = names.filter(is_name).collect();
    let help = Command::new(control_binary()).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known = |name: &&&str| help.contains(&format!("[env: {name}"));
    assert_eq!(names.iter().filter(known).count(), 5, "{names:?}\n{help}");
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(read("Dockerfile").contains("\nFROM base AS ratelease-control\n"));
    assert!(service.contains("target: ratelease-control}"), "{service}");
}

/// The compiler of the image and `rust-toolchain.toml` name the same version.
#[test]
fn the_image_is_built_by_the_compiler_of_the_repository() {
    let toolchain = read("rust-toolchain.toml");
    let version = toolchain.lines().find_map(|line| line.strip_prefix("channel = "));
    let version = version.expect("a channel").trim_matches('"');
    let dockerfile = read("Dockerfile");
    let rust = dockerfile.lines().filter_map(image).find_map(|it| it.strip_prefix("rust:"));
    assert!(rust.is_some_and(|tag| tag.starts_with(&format!("{version}-"))), "{rust:?}");
}
