//! The two streams, and what is known of the terminal behind them.

use std::io::{self, IsTerminal as _, Write as _};

use stageline_core::diagnostic::{Diagnostic, Severity};
use stageline_core::render::{Level, View, beside, diagnostics};
use stageline_core::topology::SourceFile;

use super::wrap::wrapped;
use super::{Exit, Failure, Global, LogFormat, When};
use crate::ambient;

/// Width where there is no terminal.
const WIDTH: usize = 100;

/// Stdout for data, stderr for everything else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    /// Data as JSON.
    pub json: bool,
    /// Log lines as JSON.
    pub json_log: bool,
    /// Colour on stdout.
    pub color: bool,
    /// Colour on stderr.
    pub color_err: bool,
    /// Columns.
    pub width: usize,
    /// Stdout is a terminal.
    pub terminal: bool,
    /// Stderr is a terminal for people: something can move on it, and messages are wrapped at its width.
    pub lively: bool,
    /// Both ends of a question are there.
    pub can_ask: bool,
    /// `-q` counts down from 0, `-v` up.
    pub level: i32,
}

impl Console {
    pub fn new(global: &Global) -> Self {
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let plain = ambient::variable("NO_COLOR").is_some_and(|value| !value.is_empty())
            || ambient::variable("TERM").is_some_and(|value| value == "dumb");
        let color = |terminal: bool| match global.color {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && !plain,
        };
        Self {
            json: global.json,
            json_log: global.log_format == LogFormat::Json,
            color: color(out),
            color_err: color(err),
            width: width(out, err),
            terminal: out,
            lively: err && global.log_format == LogFormat::Text,
            can_ask: io::stdin().is_terminal() && err,
            level: i32::from(global.verbose) - i32::from(global.quiet),
        }
    }

    /// How pages on stdout are drawn.
    pub fn view(&self) -> View {
        let level = match self.level {
            i32::MIN..=-1 => Level::Summary,
            0 => Level::Changes,
            1.. => Level::Full,
        };
        View {
            level,
            width: self.width,
            color: self.color,
        }
    }

    /// A line of a list: a lead, `columns` wide, and text that is wrapped beside it on a terminal. Elsewhere a line stays
    /// one, so that it can be searched.
    pub fn row(&self, lead: &str, columns: usize, text: &str) -> String {
        let width = if self.terminal {
            self.width
        } else {
            usize::MAX
        };
        beside(lead, columns, text, width)
    }

    /// Writes data. A reader that went away (`| head`) is no fault.
    pub fn data(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Failure::user(format!("cannot write to stdout: {error}"))),
        }
    }

    /// Writes a value as JSON.
    pub fn document(&self, value: &impl serde::Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(value).expect("documents are plain data");
        text.push('\n');
        self.data(&text)
    }

    /// Says something on stderr, unless told to be quiet.
    pub fn say(&self, line: &str) {
        if self.level >= 0 {
            self.line(line);
        }
    }

    /// Says something on stderr in any case.
    pub fn line(&self, line: &str) {
        // There is nobody left to tell when stderr is gone.
        let _ = if self.json_log {
            let message = serde_json::json!({ "message": line });
            writeln!(io::stderr(), "{message}")
        } else {
            writeln!(io::stderr(), "{}", self.wrapped(line))
        };
    }

    /// A message as a terminal shows it best. Elsewhere each line stays one, so that it can be searched.
    fn wrapped(&self, text: &str) -> String {
        if self.lively {
            wrapped(text, self.width)
        } else {
            text.to_owned()
        }
    }

    /// Says why a command failed.
    pub fn failure(&self, failure: &Failure) {
        self.findings(&failure.diagnostics, &failure.files);
        if failure.message.is_empty() {
            return;
        }
        let label = if failure.exit == Exit::Bug {
            "bug"
        } else {
            "error"
        };
        if self.json_log {
            let hint = failure.hint.as_deref();
            let code = failure.exit as u8;
            let error = serde_json::json!({ "error": failure.message, "hint": hint, "exit": code });
            let _ = writeln!(io::stderr(), "{error}");
            return;
        }
        let label = self.paint("1;31", label);
        self.line(&format!("{label}: {}", failure.message));
        if let Some(hint) = &failure.hint {
            self.line(&format!("{}: {hint}", self.paint("1;36", "hint")));
        }
    }

    /// Draws findings with their places.
    pub fn findings(&self, findings: &[Diagnostic], files: &[SourceFile]) {
        if findings.is_empty() {
            return;
        }
        if self.json_log {
            for finding in findings {
                let line = serde_json::to_string(finding).expect("findings are plain data");
                let _ = writeln!(io::stderr(), "{line}");
            }
            return;
        }
        let shown: Vec<Diagnostic> = findings
            .iter()
            .filter(|one| one.severity == Severity::Error || self.level >= 0)
            .cloned()
            .collect();
        let text = diagnostics(&shown, files, self.color_err, self.width);
        let _ = write!(io::stderr(), "{}", self.wrapped(&text));
    }

    /// Asks for `yes`. Refuses to ask where nobody can answer.
    pub fn confirm(&self, question: &str) -> Result<bool, Failure> {
        if !self.can_ask {
            return Err(Failure::user("nobody can be asked: this is not a terminal").hint(
                "use --auto-approve; or save a plan with `stageline plan --out FILE` (with --destroy one that ends everything), review it and apply that file",
            ));
        }
        let mut err = io::stderr().lock();
        let question = self.wrapped(&format!("{question} Only `yes` is taken:"));
        write!(err, "{question} ")?;
        err.flush()?;
        drop(err);
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(answer.trim() == "yes")
    }

    /// Colour for stderr, if there is any.
    pub fn paint(&self, code: &str, text: &str) -> String {
        if self.color_err {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Columns of the terminal, or what COLUMNS says.
fn width(out: bool, err: bool) -> usize {
    let declared = ambient::variable("COLUMNS").and_then(|text| text.parse().ok());
    let measured = || {
        let size = match (out, err) {
            (true, _) => rustix::termios::tcgetwinsize(io::stdout()).ok(),
            (false, true) => rustix::termios::tcgetwinsize(io::stderr()).ok(),
            (false, false) => None,
        };
        size.map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0)
    };
    declared.or_else(measured).unwrap_or(WIDTH).clamp(40, 400)
}
