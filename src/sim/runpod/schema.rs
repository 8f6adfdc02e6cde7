//! What a body may have, as the API document says: each fault in words.

use serde_json::Value;

/// A field and what it must be.
pub(super) type Rule = (&'static str, fn(&Value) -> bool);

pub(super) fn text(value: &Value) -> bool {
    value.is_string()
}

pub(super) fn some_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

pub(super) fn text_or_null(value: &Value) -> bool {
    value.is_string() || value.is_null()
}

pub(super) fn flag(value: &Value) -> bool {
    value.is_boolean()
}

/// A whole number from 1 on, also one written as 1.0.
pub(super) fn positive(value: &Value) -> bool {
    value
        .as_f64()
        .is_some_and(|number| number >= 1.0 && number.fract() == 0.0)
}

pub(super) fn texts(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(text))
}

pub(super) fn pairs(value: &Value) -> bool {
    value.as_object().is_some_and(|all| all.values().all(text))
}

/// `12.8`.
pub(super) fn version(value: &Value) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts = value.as_str().and_then(|text| text.split_once('.'));
    parts.is_some_and(|(major, minor)| digits(major) && digits(minor))
}

pub(super) fn versions(value: &Value) -> bool {
    value.as_array().is_some_and(|all| all.iter().all(version))
}

pub(super) fn cloud(value: &Value) -> bool {
    matches!(value.as_str(), Some("SECURE" | "COMMUNITY"))
}

/// At most one kind of storage, whole.
pub(super) fn mounts(value: &Value) -> bool {
    const PERSISTENT: &[Rule] = &[
        ("size", |size| positive(size) && size.as_f64() >= Some(10.0)),
        ("path", text),
    ];
    const NETWORK: &[Rule] = &[("volumeId", text), ("path", text)];
    const MOUNTS: &[Rule] = &[
        ("persistent", |one| {
            faults(one, PERSISTENT, &["size", "path"]).is_empty()
        }),
        ("network", |all| {
            let all = all.as_array();
            all.is_some_and(|all| {
                let whole = |one: &Value| faults(one, NETWORK, &["volumeId", "path"]).is_empty();
                all.len() <= 1 && all.iter().all(whole)
            })
        }),
    ];
    faults(value, MOUNTS, &[]).is_empty()
}

/// What is wrong with an object: no object, a field too many, of the wrong kind, or missing.
pub(super) fn faults(value: &Value, rules: &[Rule], required: &[&str]) -> Vec<String> {
    let Some(object) = value.as_object() else {
        return vec!["$: an object is required".to_owned()];
    };
    let mut faults = Vec::new();
    for (name, value) in object {
        match rules.iter().find(|(rule, _)| rule == name) {
            None => faults.push(format!("$: additional properties '{name}' not allowed")),
            Some((_, fits)) if !fits(value) => faults.push(format!("$.{name}: not as specified")),
            Some(_) => {}
        }
    }
    let missing = required.iter().filter(|name| !object.contains_key(**name));
    faults.extend(missing.map(|name| format!("$: missing property '{name}'")));
    faults
}
