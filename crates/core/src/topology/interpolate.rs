//! `${var.x}` in the string values of a tree.

use std::rc::Rc;

use super::value::{At, Entry, Node, Table, Value};
use super::vars::Vars;
use crate::diagnostic::{Diagnostic, shown};

/// Keys of the whole file that are never interpolated.
const LITERAL: [&str; 3] = ["vars", "name", "version"];

/// The whole file with every variable replaced by its value.
pub(super) fn file(root: &Table, vars: &Vars<'_>) -> Table {
    let entries = root.entries.iter().map(|(key, entry)| {
        let node = if LITERAL.contains(&key.as_str()) {
            entry.node.clone()
        } else {
            node(&entry.node, vars)
        };
        (key.clone(), Entry { node, ..*entry })
    });
    Table {
        entries: entries.collect(),
    }
}

fn node(from: &Node, vars: &Vars<'_>) -> Node {
    let value = match &from.value {
        Value::Text(text) if text.contains("${") => return string(text, from.at, vars),
        Value::List(items) => Value::List(items.iter().map(|item| node(item, vars)).collect()),
        Value::Table(inner) => Value::Table(table(inner, vars)),
        Value::Text(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Bool(_)
        | Value::Datetime(_)
        | Value::Untyped(_)
        | Value::Faulty
        | Value::Secret(_) => return from.clone(),
    };
    Node {
        value,
        at: from.at,
        var: None,
    }
}

fn table(from: &Table, vars: &Vars<'_>) -> Table {
    let entries = from.entries.iter().map(|(key, entry)| {
        let node = node(&entry.node, vars);
        (key.clone(), Entry { node, ..*entry })
    });
    Table {
        entries: entries.collect(),
    }
}

/// A string with variables in it: one alone keeps its type, else all are joined to a text.
fn string(text: &str, at: At, vars: &Vars<'_>) -> Node {
    if let Some(name) = alone(text) {
        return Node {
            value: vars.lookup(name, at),
            at,
            var: Some(Rc::from(name)),
        };
    }
    let value = join(text, at, vars).map_or(Value::Faulty, Value::Text);
    Node {
        value,
        at,
        var: None,
    }
}

/// The name of the variable that a text is nothing but.
fn alone(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("${")?.strip_suffix('}')?;
    let name = inner.trim().strip_prefix("var.")?;
    (!name.contains(['$', '{', '}'])).then_some(name)
}

fn join(text: &str, at: At, vars: &Vars<'_>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(dollar) = rest.find("${") {
        let (before, after) = rest.split_at(dollar);
        let after = &after[2..];
        // `$${` stands for `${` itself.
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let (inner, end) = after.split_once('}').unwrap_or((after, ""));
        let closed = after.contains('}');
        let name = inner.trim().strip_prefix("var.").filter(|_| closed);
        let Some(name) = name else {
            let close = if closed { "}" } else { "" };
            let message = format!("`${{{}{close}` is no variable", shown(inner));
            let hint = "a variable is `${var.NAME}`; `$${` writes `${` itself";
            let diagnostic = Diagnostic::error("topology/interpolation", message).hint(hint);
            vars.reader.report(at, diagnostic);
            return None;
        };
        out.push_str(&part(name, at, vars)?);
        rest = end;
    }
    out.push_str(rest);
    Some(out)
}

/// The value of a variable as a part of a text.
fn part(name: &str, at: At, vars: &Vars<'_>) -> Option<String> {
    match vars.lookup(name, at) {
        Value::Text(text)
        | Value::Untyped(text)
        | Value::Integer(text)
        | Value::Float(text)
        | Value::Datetime(text) => Some(text),
        Value::Bool(value) => Some(value.to_string()),
        Value::Secret(_) => {
            let message = format!("var.{name} is a secret and cannot be a part of a string");
            let hint =
                "a secret variable may be used only alone, and only where a secret is expected";
            let diagnostic = Diagnostic::error("topology/secret-variable", message).hint(hint);
            vars.reader.report(at, diagnostic);
            None
        }
        Value::List(_) | Value::Table(_) | Value::Faulty => None,
    }
}
