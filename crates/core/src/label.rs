//! Names that machines have at their provider, as whoever named them wrote them.
//!
//! A label is short, and has no character that a terminal would obey. It is there to be shown: that a machine is ours is said
//! by a whole [`RequestKey`](crate::id::RequestKey), and never by a label that resembles one.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::Lineage;

/// Characters of a name that are kept: more than any request key has, and enough to find the machine by.
const KEPT_MAX: usize = 96;

/// Digits of a lineage from which on a name is like ours: with `sl-` before them they are as long as the shortest names to which
/// anybody cuts, and no date and no word has as many.
const DIGITS_MIN: usize = 12;

/// Digits of a lineage in a request key.
const DIGITS: usize = 16;

/// The name of a machine, made harmless.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Label(String);

impl Label {
    /// What a provider calls a machine; none when that is blank.
    pub fn new(raw: &str) -> Option<Self> {
        let raw = raw.trim();
        (!raw.is_empty()).then(|| Self(harmless(raw)))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it looks like the name of a machine of ours, whole, cut off, or with something before or behind it: it begins like
    /// the key of any lineage, or has the beginning of a key of one of these somewhere.
    pub fn resembles_key<'a>(&self, lineages: impl IntoIterator<Item = &'a Lineage>) -> bool {
        let text: String = self.0.chars().map(folded).collect();
        let ours: Vec<String> = lineages.into_iter().map(ToString::to_string).collect();
        text.match_indices("sl-").any(|(at, sl)| {
            let digits = text[at + sl.len()..].chars();
            let digits: String = digits
                .take_while(char::is_ascii_hexdigit)
                .take(DIGITS)
                .collect();
            let ours = || ours.iter().any(|lineage| lineage.starts_with(&digits));
            digits.len() >= DIGITS_MIN && (at == 0 || ours())
        })
    }
}

/// As providers change names: in capitals, or with another character between words.
fn folded(c: char) -> char {
    match c {
        '_' | ' ' | '.' => '-',
        _ => c.to_ascii_lowercase(),
    }
}

/// The beginning of a text, escaped where it is not printable: also what turns the direction of a line around.
fn harmless(raw: &str) -> String {
    let mut text = String::new();
    let mut rest = raw.chars();
    for c in rest.by_ref().take(KEPT_MAX) {
        match c {
            '"' | '\'' | '\\' => text.push(c),
            _ => text.extend(c.escape_debug()),
        }
    }
    if rest.next().is_some() {
        text.push('…');
    }
    text
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(raw: &str) -> Label {
        Label::new(raw).expect("it is not blank")
    }

    #[test]
    fn a_label_is_short_and_obeyed_by_no_terminal() {
        assert_eq!(Label::new(" \t"), None);
        assert_eq!(label(" web-1 ").as_str(), "web-1");
        assert_eq!(
            label("a\u{1b}[2Jb\u{202e}c\nd").as_str(),
            "a\\u{1b}[2Jb\\u{202e}c\\nd"
        );
        let long = label(&"x".repeat(1000));
        assert_eq!(long.as_str(), format!("{}…", "x".repeat(KEPT_MAX)));
    }

    #[test]
    fn what_looks_like_a_key_is_told_from_what_others_call_their_machines() {
        let own = Lineage([0xab; 16]);
        let like = |name: &str| label(name).resembles_key([&own]);
        let digits = "ab".repeat(8);
        for name in [
            format!("sl-{digits}-01234567-g1a1-copy"),
            format!("sl-{digits}-01234567-g1"),
            format!("SL_{}", digits.to_uppercase()),
            format!("copy of sl-{digits}-01234567-g1a1"),
            format!("old-sl-{}", &digits[..DIGITS_MIN]),
            "sl-0123456789ab".to_owned(),
            "sl-0123456789abcdef-01234567-g1a1.old".to_owned(),
        ] {
            assert!(like(&name), "{name}");
        }
        for name in [
            "web-1",
            "sl-",
            "sl-web",
            "sl-20261130-trainer",
            "sl-deadbeef",
            "my-sl-0123456789abcdef-01234567-g1a1",
            "abababababababab",
        ] {
            assert!(!like(name), "{name}");
        }
    }
}
