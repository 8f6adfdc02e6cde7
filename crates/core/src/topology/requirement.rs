//! `where` in the file: text, or a table of the same terms.
//!
//! In a table each key is what a term speaks of, and its value is a comparison as in the text: `vram = ">=24"`,
//! `gpu = "a|b"`, `gpus = ">=2, <8"`. A value without a sign means `=`; a list means any of its items (of `tools`: all of
//! them); `provider.FIELD` is a key in a table `provider`.

use super::read::Field;
use super::value::{At, Node, Table, Value};
use crate::diagnostic::{Diagnostic, shown};
use crate::offer::Requirement;

const CODE: &str = "topology/where";

pub(super) fn read(field: Field<'_>) -> Option<Requirement> {
    match &field.node.value {
        Value::Text(_) | Value::Untyped(_) => text(field),
        Value::Table(table) => self::table(field, table, ""),
        Value::Integer(_)
        | Value::Float(_)
        | Value::Bool(_)
        | Value::Datetime(_)
        | Value::List(_)
        | Value::Faulty
        | Value::Secret(_) => {
            field.wrong("a string or a table of terms");
            None
        }
    }
}

fn text(field: Field<'_>) -> Option<Requirement> {
    let given = field.text()?;
    match Requirement::parse(given) {
        Ok(requirement) => Some(requirement),
        Err(errors) => {
            for error in errors {
                let at = inner_place(field, given, error.span);
                report(field, at, error.message, error.hint);
            }
            None
        }
    }
}

fn report(field: Field<'_>, at: At, message: String, hint: Option<String>) {
    let mut diagnostic = Diagnostic::error(CODE, format!("`where`: {message}"));
    diagnostic.hint = hint;
    field.reader.report(at, diagnostic);
}

/// The place of a part of a string, when the file has the string as it is: without escapes and variables.
fn inner_place(field: Field<'_>, text: &str, span: std::ops::Range<usize>) -> At {
    let at = field.node.at;
    let source = field
        .reader
        .files
        .get(at.file)
        .and_then(|file| file.text.get(at.start..at.end));
    let quotes = [3, 1].into_iter().find(|quotes| {
        source.and_then(|source| source.get(*quotes..source.len().checked_sub(*quotes)?))
            == Some(text)
    });
    match quotes {
        Some(quotes) if span.end <= text.len() => At {
            start: at.start + quotes + span.start,
            end: at.start + quotes + span.end,
            ..at
        },
        Some(_) | None => at,
    }
}

fn table(field: Field<'_>, table: &Table, prefix: &str) -> Option<Requirement> {
    let mut all = Requirement::default();
    let mut whole = true;
    for (key, entry) in &table.entries {
        let name = format!("{prefix}{key}");
        if let (Value::Table(inner), "provider") = (&entry.node.value, name.as_str()) {
            match self::table(field, inner, "provider.") {
                Some(inner) => all = all.and(&inner),
                None => whole = false,
            }
            continue;
        }
        let Some(comparisons) = comparisons(field, &name, &entry.node) else {
            whole = false;
            continue;
        };
        for comparison in comparisons {
            match Requirement::parse(&format!("{name}{comparison}")) {
                Ok(term) => all = all.and(&term),
                Err(errors) => {
                    whole = false;
                    for error in errors {
                        let at = if error.span.end <= name.len() {
                            entry.key_at
                        } else {
                            entry.node.at
                        };
                        report(field, at, error.message, error.hint);
                    }
                }
            }
        }
    }
    whole.then_some(all)
}

/// The comparisons in a value, each with its sign.
fn comparisons(field: Field<'_>, name: &str, node: &Node) -> Option<Vec<String>> {
    let item = Field { node, ..field };
    let plain = |node: &Node| match &node.value {
        Value::Text(text) | Value::Untyped(text) | Value::Integer(text) | Value::Float(text) => {
            Some(text.clone())
        }
        Value::Bool(value) => Some(value.to_string()),
        Value::Datetime(_)
        | Value::List(_)
        | Value::Table(_)
        | Value::Faulty
        | Value::Secret(_) => None,
    };
    if let Value::List(items) = &node.value {
        let join = if name == "tools" { "+" } else { "|" };
        let texts: Option<Vec<String>> = items.iter().map(plain).collect();
        return match texts {
            Some(texts)
                if !texts.is_empty() && !texts.iter().any(|text| text.contains([',', '|'])) =>
            {
                Some(vec![format!("={}", texts.join(join))])
            }
            Some(_) | None => {
                let message = format!("the list of `{}` must have plain values", shown(name));
                report(field, node.at, message, None);
                None
            }
        };
    }
    let Some(text) = plain(node) else {
        if matches!(node.value, Value::Faulty) {
            return None;
        }
        let message = format!(
            "`{}` must be a comparison such as \">=24\", this is {}",
            shown(name),
            node.value.what()
        );
        report(field, item.node.at, message, None);
        return None;
    };
    let signed = |piece: &str| {
        let piece = piece.trim();
        match piece.strip_prefix('!') {
            Some(rest) if !rest.starts_with('=') => format!("!={rest}"),
            _ if piece.starts_with(['=', '<', '>', '!']) => piece.to_owned(),
            _ => format!("={piece}"),
        }
    };
    Some(text.split(',').map(signed).collect())
}
