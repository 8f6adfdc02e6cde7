//! What is wrong with a file, where, why, and what to try.
//!
//! A diagnostic is a value: it is made by the module that found the fault and drawn by `render`. It always has a code
//! and one sentence; it has a place when it came from a file.

use serde::Serialize;

/// Whether a diagnostic stops the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing is done until this is mended.
    Error,
    /// The command goes on.
    Warning,
}

/// A place in one of the files that were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file's name as the user gave it.
    pub file: String,
    /// Byte offsets into the file's text, start and end.
    pub span: std::ops::Range<usize>,
}

/// One finding about a file or a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Stops the command, or not.
    pub severity: Severity,
    /// `module/what`, stable: scripts and tests may match on it.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// Where, when it came from a file.
    pub place: Option<Place>,
    /// What to try.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error without a place or hint yet.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            message: message.into(),
            place: None,
            hint: None,
        }
    }

    /// A warning without a place or hint yet.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, message)
        }
    }

    /// Adds the place.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds what to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// "did you mean", or what there is.
pub fn suggestion(given: &str, known: &[&str]) -> String {
    if let Some(near) = nearest(given, known) {
        return format!("did you mean `{near}`?");
    }
    match known {
        [] => "there is none yet".to_owned(),
        [only] => format!("there is only `{only}`"),
        _ => {
            const SHOWN: usize = 20;
            let mut list: Vec<String> =
                known.iter().take(SHOWN).map(|k| format!("`{k}`")).collect();
            if known.len() > SHOWN {
                list.push(format!("{} more", known.len() - SHOWN));
            }
            format!("there are {}", list.join(", "))
        }
    }
}

/// The known word that was probably meant.
pub fn nearest<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    // Longer than any key or name: nothing is near, and comparing would cost.
    if given.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(given, word), *word))
        .filter(|(distance, word)| *distance <= 1.max(word.len().max(given.len()) / 3))
        .min()
        .map(|(_, word)| word)
}

/// A user's or a stranger's text for a message: cut, and without control characters.
pub fn shown(text: &str) -> String {
    const CHARS: usize = 60;
    let mut out: String = text
        .chars()
        .take(CHARS)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(CHARS).is_some() {
        out.push('…');
    }
    out
}
