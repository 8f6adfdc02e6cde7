//! TOML text to a tree whose every value knows the file and the bytes it came from, and the merge of several files.
//!
//! Holds for every tree: strings are decoded, numbers are kept as written (money must not pass through a float), and a
//! merged value keeps the place of the file that gave it. Nothing here knows a key but `model`, `pipeline` and `stages`,
//! which the merge rules name.

use std::collections::BTreeMap;
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::diagnostic::{Diagnostic, Place};

/// Largest file that is read, in bytes: a topology of thousands of tables is far below it.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Syntax errors shown for one file; what follows the first few is mostly their echo.
const SYNTAX_ERRORS_MAX: usize = 20;

/// A file that was read: its name as the user gave it, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The name as the user gave it.
    pub name: String,
    /// The whole text.
    pub text: String,
}

impl SourceFile {
    /// A file from what was read from disk; refuses what is too large or no UTF-8 text.
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> Result<Self, Box<Diagnostic>> {
        let name = name.into();
        if bytes.len() > FILE_BYTES_MAX {
            return Err(Box::new(too_large(&name, bytes.len())));
        }
        String::from_utf8(bytes)
            .map(|text| Self { name: name.clone(), text })
            .map_err(|error| {
                let at = error.utf8_error().valid_up_to();
                let line = 1 + error.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
                let message = format!("`{name}` is no UTF-8 text: the byte at offset {at}, line {line}, begins no character");
                Box::new(
                    Diagnostic::error("topology/not-text", message)
                        .hint("save the file as UTF-8; UTF-16 and Latin-1 are not TOML"),
                )
            })
    }
}

fn too_large(name: &str, len: usize) -> Diagnostic {
    let message = format!("`{name}` has {len} bytes; at most {FILE_BYTES_MAX} are read");
    Diagnostic::error("topology/too-large", message)
        .hint("split it and give several -f, or use `count`")
}

/// Where a value stands: a file by number, and bytes in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) file: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl At {
    fn new(file: usize, span: std::ops::Range<usize>) -> Self {
        Self {
            file,
            start: span.start,
            end: span.end,
        }
    }

    pub(super) fn place(self, names: &[String]) -> Option<Place> {
        let file = names.get(self.file)?.clone();
        Some(Place {
            file,
            span: self.start..self.end,
        })
    }
}

/// A value and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) at: At,
    /// The variable that the value came from, whole.
    pub(super) var: Option<Rc<str>>,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    /// Decimal digits with a sign; too many of them are the reader's to refuse.
    Integer(String),
    /// As written, without underscores.
    Float(String),
    Bool(bool),
    Datetime(String),
    List(Vec<Node>),
    Table(Table),
    /// A `--var` or environment value of a variable without a type: text that may stand for a number or bool.
    Untyped(String),
    /// A value that could not be had, which was reported: it reads as none, silently.
    Faulty,
    /// A secret variable: only a secret may take it. It is a reference already.
    Secret(super::SecretRef),
}

/// A table's keys, each with the place of the key itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key_at: At,
    pub(super) node: Node,
}

impl Value {
    /// The table that it is.
    pub(super) fn table(&self) -> Option<&Table> {
        if let Self::Table(table) = self {
            Some(table)
        } else {
            None
        }
    }

    /// What it is called in messages.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Untyped(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::Datetime(_) => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Secret(_) => "a secret",
            Self::Faulty => "faulty",
        }
    }
}

/// A file as a tree, and its syntax errors. With errors the tree is that of the file without the lines they stand on, or
/// empty when it cannot be read even so.
pub(super) fn parse(source: &SourceFile, file: usize) -> (Table, Vec<Diagnostic>) {
    if source.text.len() > FILE_BYTES_MAX {
        return (
            Table::default(),
            vec![too_large(&source.name, source.text.len())],
        );
    }
    let (root, errors) = DeTable::parse_recoverable(&source.text);
    let mut lines = std::collections::BTreeSet::new();
    let errors: Vec<Diagnostic> = errors
        .iter()
        .map(|error| syntax(source, error))
        // After the first on a line come its echoes.
        .filter(|(line, _)| lines.insert(*line))
        .map(|(_, diagnostic)| diagnostic)
        .take(SYNTAX_ERRORS_MAX)
        .collect();
    if errors.is_empty() {
        (table(root.into_inner(), file), errors)
    } else {
        (mended(&source.text, &errors, file), errors)
    }
}

/// What can be read around syntax errors. Lines are emptied and not removed, so that places stay true.
fn mended(text: &str, errors: &[Diagnostic], file: usize) -> Table {
    const ROUNDS: usize = 3;
    let mut bytes = text.as_bytes().to_vec();
    let mut wrong: Vec<usize> = errors
        .iter()
        .filter_map(|error| error.place.as_ref().map(|place| place.span.start))
        .collect();
    for _ in 0..ROUNDS {
        for at in wrong {
            let at = at.min(bytes.len());
            let begin = bytes[..at]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            let line = bytes[begin..].iter_mut().take_while(|byte| **byte != b'\n');
            line.for_each(|byte| *byte = b' ');
        }
        let text = String::from_utf8_lossy(&bytes);
        let (root, errors) = DeTable::parse_recoverable(&text);
        if errors.is_empty() {
            return table(root.into_inner(), file);
        }
        let spans = errors.iter().map(toml::de::Error::span);
        wrong = spans
            .map(|span| span.map_or(0, |span| span.start))
            .collect();
    }
    Table::default()
}

/// A syntax error and where its line begins. The parser's words, but where they do not say what to do.
fn syntax(source: &SourceFile, error: &toml::de::Error) -> (usize, Diagnostic) {
    let text = source.text.as_str();
    let end = text.len();
    let span = error.span().unwrap_or(end..end);
    let place = Place {
        file: source.name.clone(),
        span: span.start.min(end)..span.end.min(end),
    };
    let before = text.get(..place.span.start).unwrap_or_default();
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let rest = text.get(place.span.start..).unwrap_or_default();
    let nothing = matches!(
        rest.trim_start_matches([' ', '\t', '\r']).chars().next(),
        None | Some('\n' | '#')
    );
    let words = error.message().lines().next().unwrap_or("not TOML");
    let unquoted = words.starts_with("string values must be quoted");
    let (message, hint) = if unquoted && nothing {
        ("a value is missing after `=`", None)
    } else if unquoted {
        ("a string must stand in quotes", Some("such as \"text\""))
    } else if words == "duplicate key" {
        (
            "this key or table stands here a second time",
            Some("each may stand once in a file; `[[..]]` begins one item of a list"),
        )
    } else {
        (words, None)
    };
    let mut diagnostic = Diagnostic::error("topology/syntax", message).at(place);
    diagnostic.hint = hint.map(str::to_owned);
    (line, diagnostic)
}

fn table(from: DeTable<'_>, file: usize) -> Table {
    let entries = from
        .into_iter()
        .map(|(key, value)| {
            let key_at = At::new(file, key.span());
            let node = node(value, file);
            (key.into_inner().into_owned(), Entry { key_at, node })
        })
        .collect();
    Table { entries }
}

fn node(from: Spanned<DeValue<'_>>, file: usize) -> Node {
    let at = At::new(file, from.span());
    let value = match from.into_inner() {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => Value::Integer(decimal(number.as_str(), number.radix())),
        DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
        DeValue::Boolean(value) => Value::Bool(value),
        DeValue::Datetime(date) => Value::Datetime(date.to_string()),
        DeValue::Array(items) => {
            Value::List(items.into_iter().map(|item| node(item, file)).collect())
        }
        DeValue::Table(inner) => Value::Table(table(inner, file)),
    };
    Node {
        value,
        at,
        var: None,
    }
}

fn decimal(digits: &str, radix: u32) -> String {
    if radix == 10 {
        return digits.to_owned();
    }
    // Beyond 128 bits it is out of every range, and the digits as written say so as well.
    i128::from_str_radix(digits, radix).map_or_else(|_| digits.to_owned(), |n| n.to_string())
}

/// Lays `over` upon `base`: tables key by key, anything else replaces.
pub(super) fn merge(base: &mut Table, over: Table) {
    merge_at(base, over, &mut Vec::new());
}

fn merge_at(base: &mut Table, over: Table, path: &mut Vec<String>) {
    drop_alternatives(base, &over, path);
    for (key, entry) in over.entries {
        let old = base.entries.get_mut(&key);
        match (old.map(|old| &mut old.node.value), entry.node.value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                path.push(key);
                merge_at(old, new, path);
                path.pop();
            }
            (_, value) => {
                let node = Node {
                    value,
                    ..entry.node
                };
                base.entries.insert(key, Entry { node, ..entry });
            }
        }
    }
}

/// Keys of which a table has one: when a later file gives another, the earlier one goes.
fn drop_alternatives(base: &mut Table, over: &Table, path: &[String]) {
    const SECRET: [&str; 3] = ["env", "file", "command"];
    let is_secret = |table: &Table| {
        let mut keys = table.entries.keys();
        !table.entries.is_empty() && keys.all(|key| SECRET.contains(&key.as_str()))
    };
    let in_pipeline = path.first().is_some_and(|first| first == "pipeline");
    let gone: &[&str] = match path {
        // The whole list again: what an earlier file said of single stages is void.
        [_, _] if in_pipeline && over.entries.contains_key("stages") => &["stage"],
        [_, _, key] if in_pipeline && key == "model" => {
            let given = |key| over.entries.contains_key(key);
            if given("path") || given("url") {
                &["path", "url"]
            } else {
                &[]
            }
        }
        [_, .., last] if last != "env" && is_secret(base) && is_secret(over) => &SECRET,
        _ => &[],
    };
    base.entries.retain(|key, _| !gone.contains(&key.as_str()));
}
