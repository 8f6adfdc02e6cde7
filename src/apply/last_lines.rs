//! What a machine that failed printed last.

use stageline_core::resource::{Cause, LeaseReceipt};

use super::step::Run;

/// How much of a machine's own output is asked for when it fails.
const LOG_TAIL: usize = 16 << 10;

/// How many of its last lines are shown, and how much of each.
const LINES: usize = 60;
const LINE_MAX: usize = 200;

/// How much is shown of why there are none.
const WHY_MAX: usize = 400;

impl Run<'_> {
    /// The end of what a machine printed; where that cannot be had, one line that says why and what to do.
    pub(super) async fn last_lines(&self, held: &LeaseReceipt) -> Vec<String> {
        let provider = self
            .effects
            .providers
            .get(&held.provider, &held.provider_kind);
        let Ok(provider) = provider else {
            return Vec::new();
        };
        match provider.logs(&held.machine, LOG_TAIL).await {
            Ok(log) => last(&log),
            Err(cause) => vec![why_none(&cause)],
        }
    }
}

/// Its last lines, without what a terminal would obey.
fn last(log: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.trim().lines().collect();
    let from = lines.len().saturating_sub(LINES);
    let shown = lines[from..].iter();
    shown.map(|line| harmless(line, LINE_MAX)).collect()
}

fn why_none(cause: &Cause) -> String {
    let hint = cause.hint.as_ref();
    let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
    harmless(&format!("(no log: {}{hint})", cause.message), WHY_MAX)
}

fn harmless(line: &str, max: usize) -> String {
    let plain = line.chars().filter(|c| !c.is_control());
    plain.take(max).collect()
}

#[cfg(test)]
mod tests {
    use stageline_core::resource::FailureClass;

    use super::*;

    #[test]
    fn the_last_sixty_lines_are_shown_and_no_terminal_obeys_them() {
        let log: String = (1..=100)
            .map(|n| format!("\u{1b}[2Jline\u{7} {n}\r\n"))
            .collect();
        let shown = last(log.as_bytes());
        let wanted: Vec<String> = (41..=100).map(|n| format!("[2Jline {n}")).collect();
        assert_eq!(shown, wanted);
        assert_eq!(last("x".repeat(1000).as_bytes()), ["x".repeat(200)]);
        assert_eq!(last(b"\n\n"), [""; 0]);
    }

    #[test]
    fn where_there_is_no_log_one_line_says_why_and_what_to_do() {
        let cause = Cause::new(FailureClass::Config, "the provider keeps none\nof it");
        let cause = cause.hint("log in");
        assert_eq!(
            why_none(&cause),
            "(no log: the provider keeps noneof it; log in)"
        );
    }
}
