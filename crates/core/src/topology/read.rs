//! Reads tables by the definition of the keys: unknown keys, missing keys, and a value of each kind.
//!
//! Every fault becomes a diagnostic and reading goes on, so that all faults of a file are found at once. A value that
//! was faulty reads as none; whoever asked fills in something harmless, since the topology is not handed out then.

use std::cell::RefCell;
use std::fmt::Write as _;

use super::keys::{Choice, Key, Kind, Need, TableDef};
use super::value::{At, Node, SourceFile, Table, Value};
use crate::diagnostic::{Diagnostic, Severity, shown, suggestion};

/// Where diagnostics gather, and the files that they point into.
pub(super) struct Reader<'a> {
    pub(super) files: Vec<&'a SourceFile>,
    names: Vec<String>,
    found: RefCell<Vec<(At, Diagnostic)>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(files: Vec<&'a SourceFile>) -> Self {
        let names = files.iter().map(|file| file.name.clone()).collect();
        Self {
            files,
            names,
            found: RefCell::default(),
        }
    }

    pub(super) fn report(&self, at: At, diagnostic: Diagnostic) {
        let diagnostic = match at.place(&self.names) {
            Some(place) => diagnostic.at(place),
            None => diagnostic,
        };
        self.found.borrow_mut().push((at, diagnostic));
    }

    /// A fault without a place: what came from the command line or the environment.
    pub(super) fn report_nowhere(&self, diagnostic: Diagnostic) {
        let last = At {
            file: usize::MAX,
            ..At::default()
        };
        self.found.borrow_mut().push((last, diagnostic));
    }

    /// Whether an error was found so far.
    pub(super) fn has_error(&self) -> bool {
        let found = self.found.borrow();
        found
            .iter()
            .any(|(_, diagnostic)| diagnostic.severity == Severity::Error)
    }

    /// Everything found, in the order of the files.
    pub(super) fn into_found(self) -> Vec<Diagnostic> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(at, _)| *at);
        found.dedup();
        found
            .into_iter()
            .map(|(_, diagnostic)| diagnostic)
            .collect()
    }

    /// `topology.toml:12`, for a message that speaks of a second place.
    pub(super) fn line(&self, at: At) -> String {
        let Some(file) = self.files.get(at.file) else {
            return "another place".to_owned();
        };
        let before = file.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("{}:{line}", file.name)
    }
}

/// A table that is being read.
pub(super) struct Fields<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub(super) def: &'static TableDef,
    pub(super) table: &'a Table,
    /// Its address, such as `lease.gpu`; empty for the root.
    pub(super) path: String,
    pub(super) at: At,
}

/// A value that is being read.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) reader: &'a Reader<'a>,
    pub(super) key: &'static Key,
    /// What it is called in messages: the key, or the user's own name in a table such as `env`.
    pub(super) label: &'a str,
    pub(super) node: &'a Node,
}

impl<'a> Fields<'a> {
    /// Opens a table and refuses what its definition does not know.
    pub(super) fn open(
        reader: &'a Reader<'a>,
        def: &'static TableDef,
        table: &'a Table,
        path: String,
        at: At,
    ) -> Self {
        for (name, entry) in &table.entries {
            if def.key(name).is_none() {
                reader.report(entry.key_at, unknown_key(def, &path, name));
            }
        }
        Self {
            reader,
            def,
            table,
            path,
            at,
        }
    }

    /// Opens the table that stands in a field.
    pub(super) fn inside(field: Field<'a>, def: &'static TableDef, path: String) -> Option<Self> {
        let table = field.entries()?;
        Some(Self::open(field.reader, def, table, path, field.node.at))
    }

    /// The address of a key of this table.
    pub(super) fn address(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Whether the file gives this key.
    pub(super) fn has(&self, name: &str) -> bool {
        self.table.entries.contains_key(name)
    }

    /// The place of a key, or of the table when it does not have it.
    pub(super) fn at_key(&self, name: &str) -> At {
        self.table
            .entries
            .get(name)
            .map_or(self.at, |entry| entry.key_at)
    }

    /// The place of a value, or of the table when it does not have it.
    pub(super) fn at_value(&self, name: &str) -> At {
        self.table
            .entries
            .get(name)
            .map_or(self.at, |entry| entry.node.at)
    }

    pub(super) fn key(&self, name: &str) -> &'static Key {
        self.def
            .key(name)
            .expect("the reader asks for keys of the definition only")
    }

    /// The field as the file gives it; a required one that is missing is reported.
    pub(super) fn get(&self, name: &str) -> Option<Field<'a>> {
        let key = self.key(name);
        match self.table.entries.get(name) {
            Some(entry) => Some(Field {
                reader: self.reader,
                key,
                label: key.name,
                node: &entry.node,
            }),
            None => {
                if matches!(key.need, Need::Required) {
                    let message = format!("{} needs `{name}`", self.title());
                    let hint = format!(
                        "such as `{name} = {}`: {}",
                        key.example,
                        first_sentence(key.doc)
                    );
                    self.reader.report(
                        self.at,
                        Diagnostic::error("topology/missing-key", message).hint(hint),
                    );
                }
                None
            }
        }
    }

    /// Reads a key by its kind; without it, the definition's default.
    pub(super) fn read<T>(
        &self,
        name: &str,
        convert: impl Fn(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        if let Some(field) = self.get(name) {
            return convert(field);
        }
        let key = self.key(name);
        let Need::Default(text) = key.need else {
            return None;
        };
        let node = Node {
            value: Value::Untyped(text.to_owned()),
            at: self.at,
            var: None,
        };
        convert(Field {
            reader: self.reader,
            key,
            label: key.name,
            node: &node,
        })
    }

    /// Reports a fault of a key.
    pub(super) fn fault(
        &self,
        at: At,
        code: &'static str,
        message: String,
        hint: impl Into<String>,
    ) {
        self.reader
            .report(at, Diagnostic::error(code, message).hint(hint));
    }

    /// What the table is called in messages.
    pub(super) fn title(&self) -> String {
        if self.path.is_empty() {
            "a topology".to_owned()
        } else {
            format!("`{}`", self.path)
        }
    }
}

impl<'a> Field<'a> {
    /// Reports a fault of this value, which may have come from a variable.
    pub(super) fn fault(
        self,
        code: &'static str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        let mut message = message.into();
        if let Some(var) = &self.node.var {
            let _ = write!(message, " (the value of var.{var})");
        }
        let mut diagnostic = Diagnostic::error(code, message);
        diagnostic.hint = hint;
        self.reader.report(self.node.at, diagnostic);
    }

    /// Reports that the value is not of the type it must be.
    pub(super) fn wrong(self, wanted: &str) {
        let hint = match (&self.node.value, self.key.kind) {
            (Value::Faulty, _) => return,
            (Value::Secret(_), _) => {
                let message = format!("`{}` takes no secret", self.label);
                let hint = "a secret variable may be used only where a secret is expected";
                return self.fault("topology/secret-variable", message, Some(hint.to_owned()));
            }
            (Value::Text(text), Kind::Integer { .. } | Kind::Bool | Kind::Version)
                if text.parse::<i64>().is_ok() || text.parse::<bool>().is_ok() =>
            {
                format!("without quotes: `{} = {text}`", self.key.name)
            }
            _ => format!("such as `{} = {}`", self.key.name, self.key.example),
        };
        let message = format!(
            "`{}` must be {wanted}, this is {}",
            shown(self.label),
            self.node.value.what()
        );
        self.fault("topology/wrong-type", message, Some(hint));
    }

    /// Reports a value of the right type that is not allowed.
    pub(super) fn bad(self, message: impl Into<String>, hint: Option<String>) {
        self.fault("topology/bad-value", message, hint);
    }

    /// A text without nul bytes, which no path, argument or variable can hold. A variable's number or bool is text where
    /// text is needed: `engine_args = ["--threads", "${var.threads}"]`.
    pub(super) fn text(self) -> Option<&'a str> {
        let text = match (&self.node.value, &self.node.var) {
            (Value::Text(text) | Value::Untyped(text), _)
            | (Value::Integer(text) | Value::Float(text), Some(_)) => text.as_str(),
            (Value::Bool(true), Some(_)) => "true",
            (Value::Bool(false), Some(_)) => "false",
            (_, _) => {
                self.wrong("a string");
                return None;
            }
        };
        if text.contains('\0') {
            self.bad(
                format!("`{}` has a nul byte in it", shown(self.label)),
                None,
            );
            return None;
        }
        Some(text)
    }

    /// The items of a list.
    pub(super) fn list(self) -> Option<Vec<Field<'a>>> {
        let Value::List(items) = &self.node.value else {
            self.wrong("a list");
            return None;
        };
        Some(items.iter().map(|node| Self { node, ..self }).collect())
    }

    /// The entries of a table whose keys are the user's.
    pub(super) fn entries(self) -> Option<&'a Table> {
        let table = self.node.value.table();
        if table.is_none() {
            self.wrong("a table");
        }
        table
    }
}

fn unknown_key(def: &TableDef, path: &str, name: &str) -> Diagnostic {
    let what = if path.is_empty() {
        "a topology".to_owned()
    } else {
        format!("`{path}`")
    };
    let message = format!("{what} has no key `{}`", shown(name));
    let known: Vec<&str> = def.keys.iter().map(|key| key.name).collect();
    Diagnostic::error("topology/unknown-key", message).hint(suggestion(name, &known))
}

/// The names of a fixed set.
pub(super) fn names_of(choices: &[Choice]) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}

/// The first sentence of a doc text.
pub(super) fn first_sentence(doc: &str) -> &str {
    doc.find(". ").map_or(doc, |end| &doc[..=end])
}
