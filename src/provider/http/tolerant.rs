//! Fields of answers, read as loosely as providers write them: numbers in quotes, nulls, yes as 1. Pure.

use serde_json::Value;
use stageline_core::unit::MicroDollars;

use super::clear;

/// The longest text of a provider's that is repeated.
const WORDS_MAX: usize = 240;

/// A number, also one in quotes; what is not finite is none.
pub fn number(value: &Value, field: &str) -> Option<f64> {
    let found = value.get(field)?;
    let number = match found {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number.filter(|number| number.is_finite())
}

/// A text that says something.
pub fn text(value: &Value, field: &str) -> Option<String> {
    let text = clear(value.get(field)?.as_str()?, WORDS_MAX);
    (!text.is_empty()).then_some(text)
}

/// A yes or no.
pub fn flag(value: &Value, field: &str) -> Option<bool> {
    match value.get(field)? {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_i64().map(|number| number != 0),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Dollars, rounded up to whole micro-dollars; the noise of floating point is no micro-dollar.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and the number is not negative"
)]
pub fn money(dollars: f64) -> Option<MicroDollars> {
    let micro = dollars * 1e6;
    let whole = (micro - 1e-3).ceil();
    (dollars.is_finite() && dollars > 0.0 && whole < 1e15)
        .then(|| MicroDollars(whole.max(1.0) as u64))
}
