//! A page of text: width, colour, wrapping with a hanging indent.
//!
//! Colour is only added to what can be understood without it.

/// How something is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// How much is told.
    pub level: Level,
    /// Columns; at least 40 are used.
    pub width: usize,
    /// Whether colours are understood.
    pub color: bool,
}

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Counts and money.
    Summary,
    /// What changes, why, and what it costs.
    Changes,
    /// Everything, what is kept and the steps included.
    Full,
}

/// A colour by what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Made,
    Changed,
    Replaced,
    Ended,
    Dim,
    Strong,
}

impl Ink {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Made => "\x1b[32m",
            Self::Changed => "\x1b[33m",
            Self::Replaced => "\x1b[35m",
            Self::Ended => "\x1b[31m",
            Self::Dim => "\x1b[2m",
            Self::Strong => "\x1b[1m",
        }
    }
}

/// Text that grows line by line.
pub(super) struct Page {
    text: String,
    view: View,
}

impl Page {
    pub(super) fn new(view: &View) -> Self {
        Self {
            text: String::new(),
            view: *view,
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    pub(super) fn blank(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.blank();
        self.ink(Ink::Strong, text);
        self.text.push('\n');
    }

    fn ink(&mut self, ink: Ink, text: &str) {
        if self.view.color && ink != Ink::Plain {
            self.text.push_str(ink.code());
            self.text.push_str(text);
            self.text.push_str("\x1b[0m");
        } else {
            self.text.push_str(text);
        }
    }

    /// A paragraph: `lead` in colour, then text that is wrapped under itself or under `hang` columns.
    pub(super) fn item(&mut self, indent: usize, ink: Ink, lead: &str, text: &str) {
        push_spaces(&mut self.text, indent);
        self.ink(ink, lead);
        let start = indent + lead.chars().count();
        if lead.is_empty() {
            self.wrapped(start, start, text);
        } else {
            self.text.push(' ');
            self.wrapped(start + 1, indent + 4, text);
        }
    }

    /// A paragraph whose later lines begin under its first.
    pub(super) fn para(&mut self, indent: usize, text: &str) {
        push_spaces(&mut self.text, indent);
        self.wrapped(indent, indent, text);
    }

    fn wrapped(&mut self, start: usize, hang: usize, text: &str) {
        let width = self.view.width.max(40);
        let mut column = start;
        let mut gap = 0;
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let length = word.chars().count();
            if column + gap + length > width && column > hang {
                while self.text.ends_with(' ') {
                    self.text.pop();
                }
                self.text.push('\n');
                push_spaces(&mut self.text, hang);
                column = hang;
            } else {
                push_spaces(&mut self.text, gap);
                column += gap;
            }
            self.text.push_str(word);
            column += length;
            gap = 1;
        }
        self.text.push('\n');
    }
}

/// A line of which `lead`, `columns` wide, stands first, and whose text is wrapped beside it; half the width is left for text.
pub fn beside(lead: &str, columns: usize, text: &str, width: usize) -> String {
    if columns + text.chars().count() <= width {
        return format!("{lead}{text}\n");
    }
    let mut page = Page::new(&View {
        level: Level::Changes,
        width,
        color: false,
    });
    page.text.push_str(lead);
    page.wrapped(columns, columns.min(page.view.width / 2), text);
    page.finish()
}

fn push_spaces(text: &mut String, count: usize) {
    for _ in 0..count {
        text.push(' ');
    }
}

/// Rows as columns that stand under each other; the last column is not padded.
pub(super) fn table(page: &mut Page, indent: usize, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in rows {
        push_spaces(&mut page.text, indent);
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(cell);
            if column + 1 < row.len() {
                push_spaces(&mut line, widths[column] - cell.chars().count() + 2);
            }
        }
        page.text.push_str(line.trim_end());
        page.text.push('\n');
    }
}
