//! `true` or `false`, also out of a variable.

use super::super::keys::Kind;
use super::super::read::Field;
use super::super::value::Value;

/// One of the two; where a table may stand too, that is said of what is neither.
pub(in crate::topology) fn boolean(field: Field<'_>) -> Option<bool> {
    let value = if let Value::Bool(value) = field.node.value {
        Some(value)
    } else if let Value::Untyped(text) = &field.node.value {
        text.parse().ok()
    } else {
        None
    };
    if value.is_none() {
        let or_table = matches!(field.key.kind, Kind::BoolOrTable(_));
        field.wrong(if or_table {
            "`true`, `false`, or a table"
        } else {
            "`true` or `false`"
        });
    }
    value
}
