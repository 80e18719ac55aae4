//! What is probably wrong with a text that is not YAML. The parser says where it could not go on,
//! which may be a line or more behind the mistake.

use crate::fault::{Place, excerpt};
use crate::node::DEPTH_MAX;

/// Says how to mend `text`, in which the parser stopped at `place` with this message; `None` if that
/// is not clear.
pub(crate) fn hint(message: &str, place: Place, text: &str) -> Option<String> {
    let line = line(text, place.line);
    let is_about = |what: &str| message.contains(what);
    if line.split_once(": ").is_some_and(|(_, value)| value.trim_start().starts_with('*')) {
        return Some(r#"a value that starts with '*' needs quotes, such as "*.pdf""#.to_owned());
    }
    if let Some(rest) = message.strip_prefix("unexpected character: `") {
        let first = rest.chars().next()?;
        return Some(format!("a value that starts with '{first}' needs quotes"));
    }
    if is_about("tab") {
        let number = (place.line..).zip(text.lines().skip(at(place.line))).find_map(tabbed)?;
        return Some(format!("line {number}: YAML is indented with spaces, not with tabs"));
    }
    if is_about("quoted scalar") {
        return Some("close the quote that begins here, in its line".to_owned());
    }
    if let Some((bracket, number)) = open_bracket(text, place) {
        let end = if bracket == '[' { ']' } else { '}' };
        return Some(format!("the '{bracket}' of line {number} is not closed; add its '{end}'"));
    }
    if is_about("mapping values are not allowed") || is_about("simple key") {
        return colon(is_about("mapping values"), place, text);
    }
    let is_indented = is_about("expected '-' indicator") || is_about("block mapping");
    is_indented.then(|| "indent it by as many spaces as what it stands beside".to_owned())
}

/// Names the line without a colon, or what else keeps a colon from ending a key.
fn colon(ends_no_key: bool, place: Place, text: &str) -> Option<String> {
    let line = line(text, place.line);
    let end = line.char_indices().nth(at(place.column)).map_or(line.len(), |(end, _)| end);
    if ends_no_key && line.get(..end)?.contains(": ") {
        return Some("a value with ': ' in it needs quotes".to_owned());
    }
    let has_text = |(_, line): &(u32, &str)| !line.is_empty() && !line.starts_with('#');
    let above = (1..place.line).zip(text.lines().map(str::trim));
    let (number, above) = above.filter(has_text).last()?;
    let has_colon = above.contains(": ") || above.ends_with(':');
    if !has_colon {
        let above = excerpt(above);
        return Some(format!("line {number}, '{above}', needs a colon and a space after its key"));
    }
    ends_no_key
        .then(|| format!("it is indented more than line {number}, which has a value already"))
}

fn at(number: u32) -> usize {
    number.saturating_sub(1) as usize
}

fn line(text: &str, number: u32) -> &str {
    text.lines().nth(at(number)).unwrap_or_default()
}

/// The number of a line that is indented with a tab.
fn tabbed((number, line): (u32, &str)) -> Option<u32> {
    let indent = line.len() - line.trim_start().len();
    line.get(..indent)?.contains('\t').then_some(number)
}

/// The bracket around `place` that begins in a line above it, with the number of that line; `None`
/// also if more are open than the parser lets nest, so that some of them are text.
fn open_bracket(text: &str, place: Place) -> Option<(char, u32)> {
    let mut open = Vec::new();
    for (number, line) in (1..=place.line).zip(text.lines()) {
        let end = if number == place.line { at(place.column) } else { usize::MAX };
        let mut quote = None;
        let mut before = (':', ' '); // the last character that is no blank, and the last one
        for character in line.chars().take(end) {
            let begins = !open.is_empty() || matches!(before, (':' | '-', ' '));
            match (quote, character) {
                (Some(open), _) if open == character => quote = None,
                (Some(_), _) => {}
                (None, '#') if before.1 == ' ' => break,
                (None, '"' | '\'') if begins => quote = Some(character),
                (None, '[' | '{') if begins && open.len() == DEPTH_MAX => return None,
                (None, '[' | '{') if begins => open.push((character, number)),
                (None, ']' | '}') => _ = open.pop(),
                (None, _) => {}
            }
            before.1 = character;
            if character != ' ' {
                before.0 = character;
            }
        }
    }
    open.pop().filter(|(_, number)| *number < place.line)
}

#[cfg(test)]
mod tests {
    use crate::{Options, Source, load};

    /// The refusal of a file with these lines, without the file's name.
    fn refusal(lines: &[&str]) -> String {
        let text = format!("{}\n", lines.join("\n")).into_bytes();
        let refused = load(&[Source { name: "a".to_owned(), text }], Options::default());
        refused.unwrap_err().to_string()
    }

    #[test]
    fn a_text_that_is_no_yaml_is_refused_with_the_line_and_how_to_mend_it() {
        let tabs = "YAML is indented with spaces, not with tabs";
        let colon = "needs a colon and a space after its key";
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        for (lines, mended) in [
            (&["domain: d", "descriptors:", "\t- key: a"][..], format!("line 3: {tabs}")),
            (&["descriptors:", "  - key: a", "\t  value: b"], format!("line 3: {tabs}")),
            (&["- key a", &format!("  {limit}")], format!("line 1, '- key a', {colon}")),
            (&["domain d", "descriptors:"], format!("line 1, 'domain d', {colon}")),
            (&["descriptors", "- key: a"], format!("line 1, 'descriptors', {colon}")),
            (&["rate_limit:", "  unit:day", "  x: 1"], format!("line 2, 'unit:day', {colon}")),
            (&["rate_limit:", "  unit: day", "  x 1"], format!("line 3, 'x 1', {colon}")),
            (&["- key: a", "  rate_limit", "    x: 1"], format!("line 2, 'rate_limit', {colon}")),
            (&["key: a: b"], "a value with ': ' in it needs quotes".to_owned()),
            (&["domain: d", "  x: y"], "it is indented more than line 1".to_owned()),
            (&["requests_per_unit: %5"], "a value that starts with '%' needs quotes".to_owned()),
            (&["key: @a"], "a value that starts with '@' needs quotes".to_owned()),
            (&["key: *.pdf"], "needs quotes, such as \"*.pdf\"".to_owned()),
            (&["key: \"a", limit], "close the quote that begins here".to_owned()),
            (&["x: [", "- key: a"], "the '[' of line 1 is not closed; add its ']'".to_owned()),
            (&["x: [{a: 1}", "y: 2"], "the '[' of line 1 is not closed; add its ']'".to_owned()),
            (&["x: {a: '{', b: 1", "- y: 2"], "the '{' of line 1 is not closed".to_owned()),
            (&["- key: [a", "  value: b"], "the '[' of line 1 is not closed".to_owned()),
            (&["x:", "  - a: 1", "   b: 2"], "indent it by as many spaces".to_owned()),
        ] {
            let found = refusal(lines);
            assert!(found.contains(&mended), "{lines:#?}\n{found}");
        }
        let within = refusal(&["x: [", "  {a: 1 b: 2},", "]"]);
        assert!(!within.contains("is not closed"), "{within}");
    }
}
