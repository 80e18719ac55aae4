//! The grammar, and versions of clusters.

use clap::CommandFactory;

use super::*;
use NativeSidecars::{Absent, OnAllNodes, OnSomeNodes};

#[test]
fn the_grammar_has_no_fault() {
    Cli::command().debug_assert();
}

#[test]
fn native_sidecars_are_there_from_1_29_on_and_on_all_nodes_from_1_32_on() {
    for (version, expected) in [
        ("1.28", Absent),
        ("1.29", OnSomeNodes),
        ("v1.31.4", OnSomeNodes),
        ("1.32+", OnAllNodes),
        ("1.9", Absent),
        ("2.0", OnAllNodes),
    ] {
        assert_eq!(cluster(version).unwrap().native_sidecars, expected, "{version}");
    }
    for bad in ["", "1", "x.y", "1."] {
        assert!(cluster(bad).is_err(), "{bad}");
    }
}
