//! A file as the rules see it: its text, its code, and its code without tests.

use super::Finding;

/// A text file of the repository.
pub(crate) struct File {
    /// Relative to the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and literals blanked, line by line as before; empty unless it is Rust.
    pub(crate) code: String,
    /// The code with what stands under `#[cfg(test)]` blanked too; empty for a `tests.rs`.
    pub(crate) product: String,
}

impl File {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { code(text) } else { String::new() };
        let product = if path.ends_with("/tests.rs") { String::new() } else { without_tests(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, product }
    }

    pub(crate) fn is_source(&self) -> bool {
        self.path.starts_with("src/") && self.path.ends_with(".rs")
    }

    /// Whether it lies in the folder of that layer.
    pub(crate) fn is_in(&self, layer: &str) -> bool {
        let inside = self.path.strip_prefix("src/").and_then(|path| path.strip_prefix(layer));
        self.is_source() && inside.is_some_and(|path| path.starts_with('/'))
    }

    /// Its module's path from the root of the crate.
    pub(crate) fn module(&self) -> Vec<&str> {
        let path = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        path.strip_suffix("/mod").unwrap_or(path).split('/').collect()
    }

    /// Every path in its code (see [`paths`]) and the line where it stands.
    pub(crate) fn product_paths(&self) -> impl Iterator<Item = (usize, &str)> {
        self.product.lines().zip(1..).flat_map(|(line, number)| paths(line).map(move |path| (number, path)))
    }

    pub(crate) fn finding(&self, line: usize, what: String, remedy: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, what, remedy }
    }
}

/// The words of a line of code, those joined by `::` as one (`crate::` before a brace keeps its colons).
pub(crate) fn paths(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !is_word(c) && c != ':').map(|word| word.trim_start_matches(':'));
    let words = words.map(|word| if word.ends_with("::") { word } else { word.trim_end_matches(':') });
    words.filter(|word| !word.is_empty())
}

/// Blanks comments, strings and characters.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let literal = literal(rest, word);
        let (piece, after) = rest.split_at(if literal > 0 { literal } else { word.max(first.len_utf8()) });
        code.extend(piece.chars().map(|c| if literal > 0 { blank(c) } else { c }));
        rest = after;
    }
    code
}

/// How long the comment, string or character is that begins here, at a word of that length; 0 where code does.
fn literal(rest: &str, word: usize) -> usize {
    let mut chars = rest.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('/'), Some('/'), _) => rest.find('\n').unwrap_or(rest.len()),
        (Some('/'), Some('*'), _) => comment(rest),
        (Some('"'), ..) => 1 + quoted(&rest[1..], '"'),
        (Some('\''), Some('\\'), _) => 1 + quoted(&rest[1..], '\''),
        (Some('\''), Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ if ["r", "br", "cr"].contains(&&rest[..word]) => raw(&rest[word..]).map_or(0, |length| word + length),
        _ => 0,
    }
}

/// The length of a raw string without its prefix, if this is one.
fn raw(rest: &str) -> Option<usize> {
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let text = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.find(&end).map_or(rest.len(), |at| hashes + 1 + at + end.len()))
}

/// The length of a block comment, which may hold others.
fn comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    for (at, _) in rest.char_indices() {
        if rest[at..].starts_with("/*") {
            depth += 1;
        } else if rest[..at].ends_with("*/") {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    rest.len()
}

/// The length up to and with the closing quote.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Blanks each item under `#[cfg(test)]`: up to its semicolon or its closing brace.
fn without_tests(code: &str) -> String {
    let Some(start) = code.find("#[cfg(test)]") else { return code.to_owned() };
    let (before, item) = code.split_at(start);
    let mut depth = 0_usize;
    let end = item.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0 && matches!(c, ';' | '}')).then_some(at + 1)
    });
    let (item, after) = item.split_at(end.unwrap_or(item.len()));
    let blanked: String = item.chars().map(blank).collect();
    format!("{before}{blanked}{}", without_tests(after))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn blank(c: char) -> char {
    if c == '\n' { c } else { ' ' }
}

#[test]
fn only_code_is_seen() {
    for (text, seen) in [
        (r#"a("b // \" c"); // d"#, "a"),
        ("a /* b /* c */ d */ e", "a e"),
        (r##"r#"a " b"# c r"\" d"##, "c d"),
        ("let r#type = x;", "let r type x"),
        (r"f('a', '\'', b'c') g", "f b g"),
        ("fn f<'a>(b: &'a str) -> crate::C", "fn f a b a str crate::C"),
        ("use crate::{a, b::C};", "use crate:: a b::C"),
    ] {
        assert_eq!(paths(&code(text)).collect::<Vec<_>>().join(" "), seen, "of {text}");
    }
    let lines = "a \"b\nc\"\n/* d\n*/ e\n";
    assert_eq!(code(lines).lines().count(), lines.lines().count());
}

#[test]
fn tests_are_no_product() {
    let text = "a;\n#[cfg(test)]\nmod t;\nb;\n#[cfg(test)]\nmod u { fn v() { w; } }\nc;\n";
    assert_eq!(without_tests(text).split_whitespace().collect::<String>(), "a;b;c;");
    assert_eq!(File::new("src/machine/gate/tests.rs", "a").product, "");
}
