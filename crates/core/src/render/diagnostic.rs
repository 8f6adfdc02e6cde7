//! Draws diagnostics: what, where with an excerpt, and what to try.
//!
//! ```text
//! error[topology/unknown-offer]: offer `smal` is not declared
//!   --> topology.toml:14:11
//!    |
//! 14 | offers = ["smal"]
//!    |           ^^^^^^
//! hint: did you mean `small`?
//! ```
//!
//! Understandable without colour. An excerpt is one line, so that the cost does not grow with the file, and control
//! characters never reach the terminal. A secret that stands in a file as plain text is masked in every excerpt.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, Place, Severity};
use crate::topology::SourceFile;

/// Longest piece of a line that is shown around a place, in bytes: generated files have lines of any length.
const EXCERPT_MAX: usize = 2000;

/// All of them, in the order given, each followed by an empty line.
pub fn diagnostics(all: &[Diagnostic], files: &[SourceFile], color: bool, width: usize) -> String {
    let renderer = if color {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let drawing = Drawing {
        renderer: renderer.term_width(width.max(40)),
        sources: files.iter().map(Source::of).collect(),
        masked: all
            .iter()
            .filter(|diagnostic| diagnostic.code.ends_with("/plain-secret"))
            .filter_map(|diagnostic| diagnostic.place.as_ref())
            .collect(),
    };
    let mut text = String::new();
    for diagnostic in all {
        text.push_str(&drawing.one(diagnostic));
        text.push_str("\n\n");
    }
    text
}

/// The same for scripts: a list of objects with `severity`, `code`, `message`, and, where there are any, `hint`, `file`, and
/// line and column of start and end, from 1, columns in characters.
pub fn diagnostics_json(all: &[Diagnostic], files: &[SourceFile]) -> serde_json::Value {
    let sources: Vec<Source<'_>> = files.iter().map(Source::of).collect();
    let one = |diagnostic: &Diagnostic| {
        let mut object = serde_json::json!({
            "severity": diagnostic.severity,
            "code": diagnostic.code,
            "message": diagnostic.message,
        });
        if let Some(hint) = &diagnostic.hint {
            object["hint"] = hint.as_str().into();
        }
        if let Some(place) = &diagnostic.place {
            object["file"] = place.file.as_str().into();
            let source = sources.iter().find(|source| source.file.name == place.file);
            if let Some(source) = source {
                let (line, column) = source.position(place.span.start);
                let (end_line, end_column) = source.position(place.span.end);
                object["line"] = line.into();
                object["column"] = column.into();
                object["end_line"] = end_line.into();
                object["end_column"] = end_column.into();
            }
        }
        object
    };
    all.iter().map(one).collect()
}

/// A file, and where its lines begin.
struct Source<'a> {
    file: &'a SourceFile,
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    fn of(file: &'a SourceFile) -> Self {
        let breaks = file.text.bytes().enumerate();
        let after = breaks.filter_map(|(at, byte)| (byte == b'\n').then_some(at + 1));
        Self {
            file,
            lines: std::iter::once(0).chain(after).collect(),
        }
    }
}

impl Source<'_> {
    /// Line and column of an offset, from 1.
    fn position(&self, at: usize) -> (usize, usize) {
        let text = &self.file.text;
        let at = floor(text, at);
        let line = self.lines.partition_point(|begin| *begin <= at).max(1);
        let begin = self.lines.get(line - 1).copied().unwrap_or(0);
        (line, 1 + text[begin..at].chars().count())
    }
}

struct Drawing<'a> {
    renderer: Renderer,
    sources: Vec<Source<'a>>,
    /// Secrets that stand in the files as plain text.
    masked: Vec<&'a Place>,
}

impl Drawing<'_> {
    fn one(&self, diagnostic: &Diagnostic) -> String {
        let level = match diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let message = plain(&diagnostic.message);
        let title = level.primary_title(message.as_str()).id(diagnostic.code);
        let excerpt = diagnostic
            .place
            .as_ref()
            .and_then(|place| self.excerpt(place));
        let group = match &excerpt {
            Some(excerpt) => title.element(
                Snippet::source(excerpt.line.as_str())
                    .line_start(excerpt.number)
                    .path(excerpt.file.as_str())
                    .annotation(AnnotationKind::Primary.span(excerpt.span.clone())),
            ),
            None => Group::with_title(title),
        };
        let mut text = self.renderer.render(&[group]);
        if let Some(hint) = &diagnostic.hint {
            let hint = plain(hint);
            let level = Level::HELP.with_name(Some("hint"));
            let title = level.secondary_title(hint.as_str());
            text.push('\n');
            text.push_str(&self.renderer.render(&[Group::with_title(title)]));
        }
        text
    }

    fn excerpt(&self, place: &Place) -> Option<Excerpt> {
        let mut sources = self.sources.iter();
        let source = sources.find(|source| source.file.name == place.file)?;
        let text = &source.file.text;
        let start = floor(text, place.span.start);
        let number = source.lines.partition_point(|begin| *begin <= start);
        let begin = source.lines.get(number - 1).copied()?;
        let next = source.lines.get(number).map_or(text.len(), |next| next - 1);
        let end = floor(text, place.span.end).clamp(start, next.max(start));
        let line_end = next.min(floor(text, start.saturating_add(EXCERPT_MAX)));
        let line = text[begin..line_end.max(begin)].trim_end_matches('\r');
        let is_masked = |at: usize| {
            let mut of_file = self.masked.iter().filter(|other| other.file == place.file);
            of_file.any(|other| other.span.contains(&at))
        };
        let shown = |(at, c): (usize, char)| {
            if is_masked(begin + at) {
                hidden(c)
            } else {
                visible(c)
            }
        };
        // Replacing characters moves bytes: both ends are found again by what stands before them.
        let moved = |at: usize| {
            let before = line.get(..at.saturating_sub(begin).min(line.len()));
            before
                .unwrap_or(line)
                .char_indices()
                .map(|c| shown(c).len_utf8())
                .sum()
        };
        Some(Excerpt {
            file: plain(&place.file),
            line: line.char_indices().map(shown).collect(),
            number,
            span: moved(start)..moved(end),
        })
    }
}

/// One line of a file, as it is shown, and the place in it.
struct Excerpt {
    file: String,
    line: String,
    number: usize,
    span: std::ops::Range<usize>,
}

/// The nearest character boundary at or before an offset.
fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

fn visible(c: char) -> char {
    if c.is_control() && c != '\t' {
        '\u{fffd}'
    } else {
        c
    }
}

/// What stands for a character of a secret.
fn hidden(c: char) -> char {
    if c == '\t' { c } else { '*' }
}

fn plain(text: &str) -> String {
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Vec<SourceFile> {
        vec![SourceFile {
            name: "topology.toml".to_owned(),
            text: text.to_owned(),
        }]
    }

    fn place(span: std::ops::Range<usize>) -> Place {
        Place {
            file: "topology.toml".to_owned(),
            span,
        }
    }

    #[test]
    fn a_place_is_shown_with_its_line_and_the_hint_on_a_line_of_its_own() {
        let text = "version = 1\noffers = [\"smal\"]\n";
        let found = Diagnostic::error("topology/unknown-offer", "offer `smal` is not declared")
            .at(place(22..28))
            .hint("did you mean `small`?");
        let drawn = diagnostics(&[found], &file(text), false, 80);
        let wanted = "\
error[topology/unknown-offer]: offer `smal` is not declared
 --> topology.toml:2:11
  |
2 | offers = [\"smal\"]
  |           ^^^^^^
hint: did you mean `small`?

";
        assert_eq!(drawn, wanted);
    }

    #[test]
    fn any_span_and_any_bytes_are_drawn_and_no_escape_gets_through() {
        let text = "a = \"\u{1b}[31mé\u{202e}\"\r\nb\t= 2";
        for start in 0..=text.len() + 2 {
            for end in start..=text.len() + 3 {
                let found = Diagnostic::error("a/b", "\u{1b}[2J").at(place(start..end));
                let drawn = diagnostics(&[found], &file(text), false, 80);
                assert!(!drawn.contains('\u{1b}'), "{drawn:?}");
            }
        }
    }

    #[test]
    fn a_diagnostic_without_a_place_has_a_title_only() {
        let found = Diagnostic::warning("a/b", "so it is");
        assert_eq!(
            diagnostics(&[found], &[], false, 80),
            "warning[a/b]: so it is\n\n"
        );
    }

    #[test]
    fn scripts_get_lines_and_columns() {
        let text = "a = 1\né = [2]\n";
        let found = Diagnostic::error("a/b", "no").at(place(11..14)).hint("try");
        let json = diagnostics_json(&[found], &file(text));
        let wanted = serde_json::json!([{
            "severity": "error", "code": "a/b", "message": "no", "hint": "try", "file": "topology.toml",
            "line": 2, "column": 5, "end_line": 2, "end_column": 8,
        }]);
        assert_eq!(json, wanted);
        let end = Diagnostic::error("a/b", "no").at(place(99..99));
        assert_eq!(diagnostics_json(&[end], &file(text))[0]["line"], 3);
    }

    #[test]
    fn colour_is_the_callers_choice() {
        let found = [Diagnostic::error("a/b", "no")];
        assert!(diagnostics(&found, &[], true, 80).contains('\u{1b}'));
    }
}
