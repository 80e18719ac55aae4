//! Enough of Rust's grammar to find names without mistaking comments, strings and tests for code.

/// The tokens of a file: identifiers, `::`, and single signs. Comments, literals and lifetimes are
/// omitted.
#[derive(Debug, Clone)]
pub(super) struct Source<'a> {
    pub(super) tokens: Vec<Token<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

/// A path in the source, complete even if it comes from a `use` with braces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path<'a> {
    pub(super) segments: Vec<&'a str>,
    pub(super) line: usize,
}

// === impl Source ===

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut tokens = Vec::new();
        let (mut rest, mut line) = (text, 1);
        while let Some(first) = rest.chars().next() {
            let length = token_length(rest, first);
            let (text, after) = rest.split_at(length);
            let is_name = (first.is_alphabetic() || first == '_') && !text.contains('"');
            let is_sign = text == "::" || (first.is_ascii_punctuation() && length == 1);
            if is_name || (is_sign && !matches!(first, '"' | '\'')) {
                tokens.push(Token { text, line });
            }
            line += text.matches('\n').count();
            rest = after;
        }
        Self { tokens }
    }

    /// The same source without its `#[cfg(test)] mod`s.
    pub(super) fn without_tests(&self) -> Self {
        const HEAD: [&str; 8] = ["#", "[", "cfg", "(", "test", ")", "]", "mod"];
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let head = self.tokens[at..].iter().map(|token| token.text).take(HEAD.len());
            if head.eq(HEAD) {
                at = self.end_of_item(at + HEAD.len());
            } else {
                tokens.push(self.tokens[at]);
                at += 1;
            }
        }
        Self { tokens }
    }

    /// The name of each function with a body, and the number of lines from the name to the end.
    pub(super) fn functions(&self) -> impl Iterator<Item = (Token<'a>, usize)> {
        self.tokens.windows(2).enumerate().filter_map(|(at, pair)| {
            // `fn(` is a type.
            if pair[0].text != "fn" || pair[1].text == "(" {
                return None;
            }
            let last = self.tokens.get(self.end_of_item(at).checked_sub(1)?)?;
            (last.text == "}").then_some((pair[1], last.line - pair[0].line + 1))
        })
    }

    /// Every path of two segments or more, and every path of a `use`.
    pub(super) fn paths(&self) -> Vec<Path<'a>> {
        let mut paths = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            // `use<'a>` is a bound.
            if self.tokens[at].text == "use" && !self.is_at(at + 1, "<") {
                let end = self.end_of_statement(at);
                expand(&self.tokens[at + 1..end], &[], &mut paths);
                at = end;
            } else {
                let path = path_at(&self.tokens[at..]);
                at += (2 * path.segments.len()).saturating_sub(1).max(1);
                if path.segments.len() > 1 {
                    paths.push(path);
                }
            }
        }
        paths
    }

    fn is_at(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.text == text)
    }

    /// The position after the `;` that ends an item without a body, or after the `}` of its body.
    fn end_of_item(&self, from: usize) -> usize {
        let (mut round, mut curly) = (0, 0);
        for (at, token) in self.tokens.iter().enumerate().skip(from) {
            match token.text {
                "(" | "[" => round += 1,
                ")" | "]" => round -= 1,
                "{" => curly += 1,
                "}" => curly -= 1,
                _ => {}
            }
            if round == 0 && curly == 0 && matches!(token.text, ";" | "}") {
                return at + 1;
            }
        }
        self.tokens.len()
    }

    fn end_of_statement(&self, from: usize) -> usize {
        let rest = self.tokens.iter().skip(from);
        from + rest.take_while(|token| token.text != ";").count()
    }
}

/// The path that begins here; empty if no name does.
fn path_at<'a>(tokens: &[Token<'a>]) -> Path<'a> {
    let mut segments = Vec::new();
    for pair in tokens.chunks(2) {
        if !is_name(pair[0].text) {
            break;
        }
        segments.push(pair[0].text);
        if pair.get(1).is_none_or(|token| token.text != "::") {
            break;
        }
    }
    Path { segments, line: tokens.first().map_or(0, |token| token.line) }
}

/// The paths of a `use` tree, each below `prefix`.
fn expand<'a>(tree: &[Token<'a>], prefix: &[&'a str], paths: &mut Vec<Path<'a>>) {
    let Some(open) = tree.iter().position(|token| token.text == "{") else {
        let names = tree.iter().map(|token| token.text).take_while(|name| *name != "as");
        let segments: Vec<_> = prefix.iter().copied().chain(names.filter(|n| is_name(n))).collect();
        if let Some(last) = tree.last() {
            paths.push(Path { segments, line: last.line });
        }
        return;
    };
    let head = tree[..open].iter().map(|token| token.text).filter(|name| is_name(name));
    let prefix: Vec<_> = prefix.iter().copied().chain(head).collect();
    let (mut depth, mut from) = (0, open + 1);
    for (at, token) in tree.iter().enumerate().skip(open) {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if (depth == 1 && token.text == ",") || depth == 0 {
            expand(&tree[from..at], &prefix, paths);
            from = at + 1;
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Number of bytes of the token, literal or comment at the start of `rest`, as [`Source`] defines
/// it.
fn token_length(rest: &str, first: char) -> usize {
    let until = |end: &str, from: usize| {
        rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    if rest.starts_with("::") {
        return 2;
    }
    if first == '\'' {
        let mut after = rest[1..].chars();
        return match (after.next(), after.next()) {
            (Some('\\'), _) => until("'", 3),
            (Some(letter), Some('\'')) => 2 + letter.len_utf8(),
            _ => 1, // a lifetime: its name follows
        };
    }
    if first == '"' {
        return 1 + string_length(&rest[1..]);
    }
    if first.is_alphanumeric() || first == '_' {
        let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let quote = rest[name..].trim_start_matches('#');
        let hashes = rest.len() - name - quote.len();
        return match &rest[..name] {
            "r" | "br" | "cr" if quote.starts_with('"') => {
                until(&format!("\"{}", "#".repeat(hashes)), name + hashes + 1)
            }
            "b" | "c" if quote.starts_with('"') && hashes == 0 => {
                name + 1 + string_length(&quote[1..])
            }
            _ => name,
        };
    }
    first.len_utf8()
}

/// Number of bytes from after a string's opening quote to after its closing one.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
