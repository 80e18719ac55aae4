//! The settings of the control plane: the table of docs/control-plane.md has those of its help.

use std::fs;
use std::process::Command;

use super::{ran, root};
use crate::support::control;
use crate::support::ratelease::inherited;

/// Rows of flag, variable and default, as the help of `serve` has them.
fn of_help(help: &str) -> Vec<[String; 3]> {
    let flags = help.split("\n      --").skip(1);
    let rows = flags.map(|text| {
        let flag = text.split([' ', '[', '\n']).next().unwrap_or_default();
        let flag = format!("--{flag}");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let of = |begin: &str| {
            let (_, rest) = text.split_once(begin)?;
            rest.split_once(']').map(|(value, _)| value.to_owned())
        };
        [flag, of("[env: ").unwrap_or_default(), of("[default: ").unwrap_or_default()]
    });
    rows.collect()
}

/// The same of the table. The help does not say as a default what a node has that is not named.
fn of_page(page: &str) -> Vec<[String; 3]> {
    let lines = page.lines().filter(|line| line.starts_with("| `--"));
    let cells = lines.map(|line| line.split('|').skip(1).map(|it| it.replace('`', "")));
    let rows = cells.map(|cells| {
        let mut cells = cells.map(|cell| cell.trim().to_owned());
        let mut row = [(); 3].map(|()| cells.next().unwrap_or_default());
        if row[2] == "all" {
            row[2].clear();
        }
        row
    });
    rows.collect()
}

#[test]
fn each_setting_of_the_control_plane_is_in_the_table() {
    let mut command = Command::new(control::binary());
    let help = ran(command.args(["serve", "--help"]).env_clear().envs(inherited()));
    let page = fs::read_to_string(root().join("docs/control-plane.md")).unwrap();
    let (mut of_help, mut of_page) = (of_help(&help.out), of_page(&page));
    assert!(of_help.len() > 10, "{}", help.out);
    of_help.sort();
    of_page.sort();
    assert_eq!(of_page, of_help);
}
