//! Tests of the trees of good, bad and hostile files.

use super::*;
use crate::memory::Memory;

/// Formats the tree: `line:column` and kind of each node, children in brackets.
fn outline(text: &str) -> String {
    let document = Document::parse(text, &Memory::default()).unwrap();
    document.root().map(|root| draw(&document, root)).unwrap_or_default()
}

fn draw(document: &Document<'_>, id: NodeId) -> String {
    let (node, is_alias) = document.node(id).unwrap();
    let Place { line, column } = node.place;
    let drawn = match &node.kind {
        Kind::Scalar(text, _) => format!("'{text}'"),
        Kind::List(items) => {
            let items = items.iter().map(|item| draw(document, *item));
            format!("[{}]", items.collect::<Vec<_>>().join(" "))
        }
        Kind::Map(pairs) => {
            let pair = |(key, value): &(NodeId, NodeId)| {
                format!("{}={}", draw(document, *key), draw(document, *value))
            };
            format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(" "))
        }
        Kind::Alias(_) => "alias of alias".to_owned(),
    };
    format!("{}{line}:{column}{drawn}", if is_alias { "*" } else { "" })
}

#[test]
fn every_node_knows_its_place_in_characters_from_1() {
    assert_eq!(
        outline("é: [ü, b]\r\nd:\n  - e: |\n      text\n    f: \"g\"\n"),
        "1:1{1:1'é'=1:4[1:5'ü' 1:8'b'] 2:1'd'=3:3[3:5{3:5'e'=4:7'text\n' 5:5'f'=5:8'g'}]}"
    );
}

#[test]
fn aliases_share_the_node_of_their_anchor() {
    assert_eq!(
        outline("a: &x {b: c}\nd: *x\ne: &x 1\nf: *x\n"),
        "1:1{1:1'a'=1:4{1:8'b'=1:11'c'} 2:1'd'=*1:4{1:8'b'=1:11'c'} 3:1'e'=3:4'1' 4:1'f'=*3:4'1'}"
    );
}

#[test]
fn a_second_document_is_refused_where_it_begins_unless_there_is_nothing_in_it() {
    for text in ["a: 1\n---\n", "a: 1\n...\n---\n# none\n---\n...\n", "--- {a: 1}\n---"] {
        assert!(outline(text).contains("'a'"), "{text}");
    }
    for (text, line) in [
        ("a: 1\n---\nb: 2\n", 3),
        ("a: 1\n---\n---\n- b\n", 4),
        ("a: 1\n---\n# c\n'b'\n", 4),
        ("---\n---\na: 1\n", 3),
        ("a: 1\n---\n][", 3),
        ("a: 1\n...\n---\n&x\n", 3),
    ] {
        let (place, why) = Document::parse(text, &Memory::default()).unwrap_err();
        assert!(why.starts_with("a second document, "), "{text}: {why}");
        assert!(place.line >= line, "{text}: {place:?}");
    }
    assert_eq!(outline("# none\n"), "");
    assert_eq!(outline(""), "");
}

#[test]
fn a_tag_determines_the_type_of_a_scalar() {
    let meaning = |text| {
        let document = Document::parse(text, &Memory::default()).unwrap();
        match document.node(document.root().unwrap()).unwrap().0.kind {
            Kind::Scalar(_, meaning) => meaning,
            _ => panic!("{text}"),
        }
    };
    let table = [
        ("5", Meaning::Int(5)),
        ("'5'", Meaning::Text),
        ("! 5", Meaning::Text),
        ("!!str 5", Meaning::Text),
        ("!mine 5", Meaning::Text),
        ("!!int '5'", Meaning::Int(5)),
        ("!!float 5", Meaning::Float(5.0)),
        ("!!bool 'yes'", Meaning::Bool(true)),
        ("!!null ''", Meaning::Null),
        ("|\n  5\n", Meaning::Text),
    ];
    for (text, expected) in table {
        assert_eq!(meaning(text), expected, "{text}");
    }
}
