//! Messages for a terminal, broken between words at its width.
//!
//! Always holds: a command in backquotes, a path, an address and a number stay whole, so that what is copied off a
//! terminal is what was written; a word that is wider than the terminal is left to the terminal. Lines that somebody else
//! wrote (excerpts of files, logs of machines) are refused: they stay as they are.

use textwrap::core::{Word, display_width};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// The text with no line wider than this, where words allow it; what is carried over is indented.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| one(line, width)).collect();
    lines.join("\n")
}

fn one(line: &str, width: usize) -> String {
    if display_width(line) <= width || somebody_elses(line) {
        return line.to_owned();
    }
    let words = line.trim_start_matches(' ');
    let indent = &line[..line.len() - words.len()];
    let hang = " ".repeat(indent.len() + label(words).unwrap_or(4));
    let options = Options::new(width)
        .initial_indent(indent)
        .subsequent_indent(&hang)
        .break_words(false)
        .word_separator(WordSeparator::Custom(pieces))
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(words, options)
}

/// Columns of `hint: `, `error: ` and their like, under which the rest is put.
fn label(line: &str) -> Option<usize> {
    let (label, _) = line.split_once(": ")?;
    let columns = display_width(label);
    (columns <= "error".len() && !label.contains(' ')).then_some(columns + 2)
}

/// A line of an excerpt or of a log: a bar stands before it, or an arrow.
fn somebody_elses(line: &str) -> bool {
    let mut colour = false;
    let bare = line.chars().filter(|character| {
        let shown = !colour && *character != '\u{1b}';
        colour = !shown && *character != 'm';
        shown
    });
    let bare: String = bare.collect();
    let lead = bare
        .trim_start()
        .trim_start_matches(|c: char| c.is_ascii_digit());
    let lead = lead.trim_start();
    lead.starts_with('|') || lead.starts_with("-->")
}

/// Words, each with the spaces behind it; what stands in backquotes is one, with whatever touches it.
fn pieces(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let mut rest = line;
    Box::new(std::iter::from_fn(move || {
        let mut quoted = false;
        let mut spaces = false;
        let end = rest.char_indices().find_map(|(at, character)| {
            let closes = quoted || rest[at + character.len_utf8()..].contains('`');
            let over = spaces && character != ' ';
            match character {
                '`' if closes => quoted = !quoted,
                ' ' => spaces = !quoted,
                _ => {}
            }
            over.then_some(at)
        });
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then(|| Word::from(piece))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_hangs_under_its_text_and_a_command_stays_whole() {
        let hint =
            "hint: say `stageline state unlock --name demo`, or wait until process 17 of box ends";
        let expected = "\
hint: say
      `stageline state unlock --name demo`,
      or wait until process 17 of box ends";
        assert_eq!(wrapped(hint, 44), expected);
        let painted = hint.replace("hint", "\u{1b}[1;36mhint\u{1b}[0m");
        let expected = expected.replace("hint", "\u{1b}[1;36mhint\u{1b}[0m");
        assert_eq!(wrapped(&painted, 44), expected, "colours have no width");
        assert_eq!(wrapped(hint, 200), hint);
    }

    #[test]
    fn what_is_wider_than_the_terminal_is_left_to_it() {
        let path = format!("/{}", "long/".repeat(20));
        let text = format!("error: cannot read {path}: it is not there");
        let expected = format!("error: cannot read\n       {path}:\n       it is not there");
        assert_eq!(wrapped(&text, 40), expected);
        let one = "x".repeat(60);
        assert_eq!(wrapped(&one, 40), one);
    }

    #[test]
    fn each_line_is_wrapped_for_itself_with_its_own_indent() {
        let text = "lease.node[0]: the machine did not become ready within 5m\n  its host is noted for a week and not taken";
        let expected = "\
lease.node[0]: the machine did not
    become ready within 5m
  its host is noted for a week and not
      taken";
        assert_eq!(wrapped(text, 40), expected);
        assert_eq!(wrapped("a\n\nb\n", 40), "a\n\nb\n");
    }

    #[test]
    fn a_backquote_without_its_other_half_quotes_nothing() {
        let text = "the worker said: unexpected ` in the middle of what it was given to read";
        assert!(wrapped(text, 40).lines().all(|line| line.len() <= 40));
        let wide = "die Maschine heißt „größer“ und läuft in Zürich, Straße 1";
        assert!(
            wrapped(wide, 40).lines().count() == 2,
            "by columns, not bytes"
        );
    }

    #[test]
    fn excerpts_and_logs_stay_as_they_are() {
        let line = "stages = { on = \"lease.nod\", split = \"auto\" }";
        for lead in [
            "  | ",
            "22 | ",
            "   |    ",
            "  --> ",
            "\u{1b}[1m22\u{1b}[0m | ",
        ] {
            let text = format!("{lead}{line}");
            assert_eq!(wrapped(&text, 40), text);
        }
    }
}
