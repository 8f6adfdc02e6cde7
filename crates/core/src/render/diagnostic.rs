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
    let renderer = renderer.term_width(width.max(40));
    let masked: Vec<&Place> = all
        .iter()
        .filter(|diagnostic| diagnostic.code.ends_with("/plain-secret"))
        .filter_map(|diagnostic| diagnostic.place.as_ref())
        .collect();
    let mut text = String::new();
    for diagnostic in all {
        text.push_str(&one(diagnostic, files, &masked, &renderer));
        text.push_str("\n\n");
    }
    text
}

fn one(
    diagnostic: &Diagnostic,
    files: &[SourceFile],
    masked: &[&Place],
    renderer: &Renderer,
) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let message = plain(&diagnostic.message);
    let title = level.primary_title(message.as_str()).id(diagnostic.code);
    let excerpt = diagnostic
        .place
        .as_ref()
        .and_then(|place| Excerpt::of(place, files, masked));
    let group = match &excerpt {
        Some(excerpt) => title.element(
            Snippet::source(excerpt.line.as_str())
                .line_start(excerpt.number)
                .path(excerpt.file.as_str())
                .annotation(AnnotationKind::Primary.span(excerpt.start..excerpt.end)),
        ),
        None => Group::with_title(title),
    };
    let mut text = renderer.render(&[group]);
    if let Some(hint) = &diagnostic.hint {
        let hint = plain(hint);
        let title = Level::HELP
            .with_name(Some("hint"))
            .secondary_title(hint.as_str());
        text.push('\n');
        text.push_str(&renderer.render(&[Group::with_title(title)]));
    }
    text
}

/// One line of a file, and the place in it.
struct Excerpt {
    file: String,
    line: String,
    number: usize,
    start: usize,
    end: usize,
}

impl Excerpt {
    fn of(place: &Place, files: &[SourceFile], masked: &[&Place]) -> Option<Self> {
        let text = &files.iter().find(|file| file.name == place.file)?.text;
        let start = floor(text, place.span.start);
        // The end of a file without a last newline is shown at its last line, not at an empty one after it.
        let begin = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let end_of_line = text[begin..].find('\n').map_or(text.len(), |at| begin + at);
        let end = floor(text, place.span.end).clamp(start, end_of_line.max(start));
        let number = 1 + text.as_bytes()[..begin]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let line_end = end_of_line.min(floor(text, start.saturating_add(EXCERPT_MAX)));
        let line = text[begin..line_end.max(begin)].trim_end_matches('\r');
        let is_masked = |at: usize| {
            let mut of_file = masked.iter().filter(|other| other.file == place.file);
            of_file.any(|other| other.span.contains(&at))
        };
        let clean: String = line
            .char_indices()
            .map(|(at, c)| {
                if is_masked(begin + at) {
                    hidden(c)
                } else {
                    visible(c)
                }
            })
            .collect();
        // Replacing characters moves bytes: both ends are found again by what stands before them.
        let moved = |at: usize| {
            let before = line
                .get(..at.saturating_sub(begin).min(line.len()))
                .unwrap_or(line);
            before.chars().map(|c| visible(c).len_utf8()).sum::<usize>()
        };
        Some(Self {
            file: plain(&place.file),
            start: moved(start),
            end: moved(end),
            line: clean,
            number,
        })
    }
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

/// A character of a secret that stands in the file as plain text: as long as the real one, so that places still fit.
fn hidden(c: char) -> char {
    match visible(c).len_utf8() {
        1 => '*',
        2 => '¤',
        3 => '※',
        _ => '\u{1f512}',
    }
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
    fn colour_is_the_callers_choice() {
        let found = [Diagnostic::error("a/b", "no")];
        assert!(diagnostics(&found, &[], true, 80).contains('\u{1b}'));
    }
}
