//! The version differs for different sets of rules, and only for those.

use super::*;

fn version(sources: &[(&str, &str)], options: Options) -> u64 {
    let source = |(name, text): &(&str, &str)| Source {
        name: (*name).to_owned(),
        text: text.as_bytes().to_vec(),
    };
    let sources: Vec<_> = sources.iter().map(source).collect();
    load(&sources, options).unwrap().rules.version()
}

#[test]
fn is_the_same_for_the_same_files_in_any_order() {
    let (a, b) = (("a.yaml", "domain: a"), ("b.yaml", "domain: b"));
    assert_eq!(version(&[a, b], NO_MERGE), version(&[b, a], NO_MERGE));
}

#[test]
fn differs_with_name_text_options_and_number_of_files() {
    let versions = [
        version(&[], NO_MERGE),
        version(&[], MERGE),
        version(&[("a.yaml", "domain: a")], NO_MERGE),
        version(&[("a.yaml", "domain: a ")], NO_MERGE),
        version(&[("b.yaml", "domain: a")], NO_MERGE),
        version(&[("a.yaml", "domain: a"), ("b.yaml", "domain: b")], NO_MERGE),
    ];
    for (index, version) in versions.iter().enumerate() {
        assert!(!versions[..index].contains(version), "{index}");
    }
}

#[test]
fn is_fixed_so_that_pods_of_two_releases_agree() {
    assert_eq!(version(&[("a.yaml", "domain: a")], NO_MERGE), 12_055_830_816_136_134_646);
}
