//! Secrets by reference, and environment variables.

use std::collections::BTreeMap;

use super::super::SecretRef;
use super::super::read::Field;
use super::super::value::Value;
use super::{argv, bounded, file, text};
use crate::diagnostic::{Diagnostic, shown, suggestion};

/// A secret by reference. A plain string is refused and not repeated.
pub(in crate::topology) fn secret(field: Field<'_>) -> Option<SecretRef> {
    const HINT: &str = "give it by reference: { env = \"NAME\" }, { file = \"path\" } or { command = [\"program\"] }";
    let name = field.label;
    if let Value::Secret(secret) = &field.node.value {
        return Some(secret.clone());
    }
    if matches!(field.node.value, Value::Text(_) | Value::Untyped(_)) {
        let message = format!("`{name}` is a secret and stands here as plain text");
        field.fault("topology/plain-secret", message, Some(HINT.to_owned()));
        return None;
    }
    let Some(table) = field.node.value.table() else {
        field.wrong("a secret by reference");
        return None;
    };
    let mut given = table.entries.iter();
    let (Some((way, entry)), None) = (given.next(), given.next()) else {
        field.fault(
            "topology/conflict",
            format!("`{name}` must have one of `env`, `file` and `command`"),
            Some(HINT.to_owned()),
        );
        return None;
    };
    let inner = Field {
        node: &entry.node,
        ..field
    };
    match way.as_str() {
        "env" => {
            let variable = inner.text()?;
            if !is_env_name(variable) {
                inner.bad(
                    format!(
                        "`{}` is not the name of an environment variable",
                        shown(variable)
                    ),
                    None,
                );
                return None;
            }
            Some(SecretRef::Env(variable.to_owned()))
        }
        "file" => file(inner).map(SecretRef::File),
        "command" => argv(inner).map(SecretRef::Command),
        other => {
            let message = format!("a secret has no key `{}`", shown(other));
            field.reader.report(
                entry.key_at,
                Diagnostic::error("topology/unknown-key", message)
                    .hint(suggestion(other, &["env", "file", "command"])),
            );
            None
        }
    }
}

pub(in crate::topology) fn env(field: Field<'_>) -> Option<BTreeMap<String, String>> {
    env_table(field, text)
}

pub(in crate::topology) fn secret_env(field: Field<'_>) -> Option<BTreeMap<String, SecretRef>> {
    env_table(field, secret)
}

fn env_table<T>(
    field: Field<'_>,
    convert: impl Fn(Field<'_>) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    let table = field.entries()?;
    if !bounded(field, table.entries.len()) {
        return None;
    }
    let mut read = BTreeMap::new();
    for (name, entry) in &table.entries {
        if let Some((message, hint)) = bad_env_name(name) {
            field.reader.report(
                entry.key_at,
                Diagnostic::error("topology/bad-variable", message).hint(hint),
            );
        }
        if let Some(value) = convert(Field {
            node: &entry.node,
            label: name,
            ..field
        }) {
            read.insert(name.clone(), value);
        }
    }
    Some(read)
}

fn is_env_name(name: &str) -> bool {
    let first = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.len() <= 256 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn bad_env_name(name: &str) -> Option<(String, &'static str)> {
    if !is_env_name(name) {
        let message = format!(
            "`{}` is not the name of an environment variable",
            shown(name)
        );
        return Some((message, "letters, digits and `_`, and no digit first"));
    }
    let ours = name == "STAGE" || name == "NUM_STAGES" || name.starts_with("STAGELINE_");
    ours.then(|| {
        let message =
            format!("the environment variable `{name}` is set for every worker by its agent");
        (
            message,
            "STAGE, NUM_STAGES and STAGELINE_* are taken; choose another name",
        )
    })
}
