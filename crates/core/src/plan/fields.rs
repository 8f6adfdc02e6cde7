//! The fields of a spec that differ, for people.
//!
//! Only changed resources come here, so the detour over JSON values costs nothing where nothing changed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::FieldChange;
use crate::resource::{Receipt, Spec};
use crate::unit::{Bytes, MicroDollars, Millis};

/// Longest value that is shown.
const SHOWN_MAX: usize = 120;

/// What differs between two specs, by path.
pub(super) fn diff(before: &Spec, after: &Spec) -> Vec<FieldChange> {
    let (before, after) = (flat(before), flat(after));
    let paths: std::collections::BTreeSet<&Vec<Part>> = before.keys().chain(after.keys()).collect();
    paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| FieldChange {
            path: written(path),
            before: before.get(path).cloned(),
            after: after.get(path).cloned(),
        })
        .collect()
}

/// Every field of a spec with its value, for the full view.
pub(crate) fn all(spec: &Spec) -> Vec<(String, String)> {
    let fields = flat(spec).into_iter();
    fields
        .map(|(path, value)| (written(&path), value))
        .collect()
}

/// Every field of a receipt with its value.
pub(crate) fn receipt(receipt: &Receipt) -> Vec<(String, String)> {
    let value = serde_json::to_value(receipt).expect("a receipt is plain data");
    let fields = flat_value(value).into_iter();
    fields
        .map(|(path, value)| (written(&path), value))
        .collect()
}

/// A step on the way to a value. Numbers sort as numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Key(String),
    Place(usize),
}

fn written(path: &[Part]) -> String {
    let mut text = String::new();
    for part in path {
        match part {
            Part::Key(key) if text.is_empty() => text.push_str(key),
            Part::Key(key) => {
                text.push('.');
                text.push_str(key);
            }
            Part::Place(place) => text.push_str(&format!("[{place}]")),
        }
    }
    text
}

fn flat(spec: &Spec) -> BTreeMap<Vec<Part>, String> {
    flat_value(serde_json::to_value(spec).expect("a spec is plain data"))
}

fn flat_value(value: Value) -> BTreeMap<Vec<Part>, String> {
    let mut found = BTreeMap::new();
    // Under the name of its kind, which the address says already.
    let Value::Object(kinds) = value else {
        return found;
    };
    for (_, value) in kinds {
        if let Value::Object(fields) = value {
            for (key, value) in fields {
                walk(&mut vec![Part::Key(key)], &value, &mut found);
            }
        }
    }
    found
}

fn walk(path: &mut Vec<Part>, value: &Value, found: &mut BTreeMap<Vec<Part>, String>) {
    let text = match value {
        Value::Object(fields) => match layers(fields) {
            Some(text) => text,
            None => {
                for (key, value) in fields {
                    path.push(Part::Key(key.clone()));
                    walk(path, value, found);
                    path.pop();
                }
                return;
            }
        },
        Value::Array(values) if values.iter().any(|value| value.is_object()) => {
            for (place, value) in values.iter().enumerate() {
                path.push(Part::Place(place));
                walk(path, value, found);
                path.pop();
            }
            return;
        }
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(|value| scalar("", value)).collect();
            format!("[{}]", texts.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            scalar(last_key(path), value)
        }
    };
    found.insert(path.clone(), shortened(&text));
}

fn last_key(path: &[Part]) -> &str {
    path.iter()
        .rev()
        .find_map(|part| match part {
            Part::Key(key) => Some(key.as_str()),
            Part::Place(_) => None,
        })
        .unwrap_or_default()
}

/// `0..8` rather than two numbers.
fn layers(fields: &serde_json::Map<String, Value>) -> Option<String> {
    let (start, end) = (fields.get("start")?, fields.get("end")?);
    (fields.len() == 2).then(|| format!("{start}..{end}"))
}

/// A value in the unit that its key tells.
fn scalar(key: &str, value: &Value) -> String {
    match (key, value.as_u64(), value.as_str()) {
        ("requirement", None, Some("")) => "any machine".to_owned(),
        (_, None, Some("")) => "\"\"".to_owned(),
        (_, None, Some(text)) => text.to_owned(),
        ("idle_timeout" | "max_lifetime" | "acquire_timeout", Some(n), _)
        | ("wait_for_capacity" | "gang_timeout", Some(n), _)
        | ("ready_timeout" | "request_timeout" | "took", Some(n), _) => Millis(n).to_string(),
        ("ceiling" | "price_per_hour" | "bid", Some(n), _) => format!("{}/h", MicroDollars(n)),
        ("memory" | "size" | "bytes" | "disk" | "files" | "vram", Some(n), _) => {
            Bytes(n).to_string()
        }
        _ => value.to_string(),
    }
}

fn shortened(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    if text.chars().count() <= SHOWN_MAX {
        return text;
    }
    let cut: String = text.chars().take(SHOWN_MAX - 3).collect();
    format!("{cut}...")
}
