//! The images that ours is built from, and those that the demo runs.

use super::read;

/// Images without a digest, with the reason.
const BY_TAG: [(&str, &str); 1] = [(
    "envoyproxy/envoy:v1.40.0",
    "no source of its digest could be had; scripts/pin-images adds it",
)];

#[test]
fn images_are_named_by_digest() {
    let files = ["Dockerfile", "docker-compose.yml"].map(read);
    let named = |line: &str| {
        let rest = ["# syntax=", "FROM ", "image: "]
            .iter()
            .find_map(|before| line.trim_start().strip_prefix(before))?;
        rest.split(' ').next().map(str::to_owned)
    };
    let images: Vec<_> = files.iter().flat_map(|file| file.lines().filter_map(named)).collect();
    assert!(images.len() >= 7, "{images:?}");
    for image in images.iter().filter(|image| !image.starts_with("ratelease:")) {
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        let is_digest =
            |it: &str| it.len() == 64 && it.bytes().all(|b| b"0123456789abcdef".contains(&b));
        let by_tag = BY_TAG.iter().any(|(tag, _)| tag == image);
        assert!(digest.map_or(by_tag, is_digest), "{image} has no digest: run scripts/pin-images");
    }
}
