//! The grammar, and versions of clusters.

use clap::CommandFactory;

use super::*;

#[test]
fn the_grammar_has_no_fault() {
    Cli::command().debug_assert();
}

#[test]
fn native_sidecars_are_there_from_1_29_on() {
    for (version, expected) in [
        ("1.28", false),
        ("1.29", true),
        ("v1.31.4", true),
        ("1.31+", true),
        ("1.9", false),
        ("2.0", true),
    ] {
        assert_eq!(cluster(version).unwrap().has_native_sidecars, expected, "{version}");
    }
    for bad in ["", "1", "x.y", "1."] {
        assert!(cluster(bad).is_err(), "{bad}");
    }
}
