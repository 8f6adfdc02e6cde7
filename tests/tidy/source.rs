//! The files of this repository, and what of a Rust file is code, what is a text and what is a test.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A text between quotes, as it is written, with the line that it begins on.
pub(super) struct Literal {
    pub(super) line: usize,
    pub(super) text: String,
}

/// One file.
pub(super) struct File {
    /// Relative to the repository, with `/` between folders.
    pub(super) path: String,
    /// All of it.
    pub(super) text: String,
    /// Of a Rust file: the code, with comments, contents of literals and test items blanked; lines stay where they were.
    pub(super) code: String,
    /// Of a Rust file: its texts, those in test items left out.
    pub(super) literals: Vec<Literal>,
    /// Of a Rust file: the texts in its test items.
    pub(super) test_literals: Vec<Literal>,
    /// Of a Rust file: its test items, blanked like the code; all of it where the whole file is a test.
    pub(super) test_code: String,
}

impl File {
    /// A file with this content.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let mut file = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: String::new(),
            literals: vec![],
            test_literals: vec![],
            test_code: String::new(),
        };
        if path.ends_with(".rs") {
            let (code, literals) = blank(text);
            let (kept, tests) = cut_tests(&code);
            let in_test = |line: usize| tests.iter().any(|&(a, b)| a <= line && line <= b);
            let whole = file.is_test();
            let lines = (1..).zip(code.lines());
            let lines = lines.filter(|(line, _)| whole || in_test(*line));
            file.test_code = lines.map(|(_, text)| format!("{text}\n")).collect();
            let literals = literals.into_iter();
            (file.test_literals, file.literals) = literals.partition(|one| in_test(one.line));
            file.code = kept;
        }
        file
    }

    /// Whether it is Rust that ends up in a program of ours.
    pub(super) fn is_shipped(&self) -> bool {
        self.is_rust()
            && (self.path.starts_with("src/") || self.path.contains("/src/"))
            && !self.is_test()
    }

    /// Whether it is Rust.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the whole file is a test or belongs to one.
    pub(super) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.contains("/benches/")
    }
}

/// Where this repository is.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that git does not ignore and that is text.
pub(super) fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let ignored = Ignored::read(&root().join(".gitignore"));
        let mut files = vec![];
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(root().join(&folder)).expect("the folder was listed");
            for entry in entries {
                let entry = entry.expect("the folder can be read");
                let path = folder.join(entry.file_name());
                let name = path.to_string_lossy().replace('\\', "/");
                let kind = entry.file_type().expect("the entry has a type");
                if ignored.has(&name) {
                } else if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file()
                    && let Ok(text) = std::fs::read_to_string(root().join(&path))
                {
                    files.push(File::new(&name, &text));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    })
}

/// What `.gitignore` says, as far as this repository uses its grammar: `/path`, `/folder/*`, `!/path`, `*.ending`, `name`.
struct Ignored(Vec<String>);

impl Ignored {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("there is a .gitignore");
        Self(
            text.lines()
                .map(|line| line.trim_end_matches('/').to_owned())
                .collect(),
        )
    }

    fn has(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let matches = |rule: &str| match rule.strip_prefix('/') {
            Some(place) => match place.strip_suffix("/*") {
                Some(folder) => path
                    .rsplit_once('/')
                    .is_some_and(|(parent, _)| glob(folder, parent)),
                None => glob(place, path),
            },
            None => match rule.strip_prefix('*') {
                Some(ending) => name.ends_with(ending),
                None => name == rule,
            },
        };
        let rules = self
            .0
            .iter()
            .filter(|rule| !rule.is_empty() && !rule.starts_with('#'));
        name == ".git"
            || rules.fold(false, |so_far, rule| match rule.strip_prefix('!') {
                Some(kept) => so_far && !matches(kept),
                None => so_far || matches(rule),
            })
    }
}

/// `a/*/b` against a path, where `*` is one name.
fn glob(pattern: &str, path: &str) -> bool {
    pattern.split('/').count() == path.split('/').count()
        && pattern
            .split('/')
            .zip(path.split('/'))
            .all(|(a, b)| a == "*" || a == b)
}

/// Code with comments and the insides of literals blanked, and the texts.
fn blank(text: &str) -> (String, Vec<Literal>) {
    let mut code = String::with_capacity(text.len());
    let mut literals = vec![];
    let mut line = 1;
    let mut rest = text;
    let mut before = ' ';
    while let Some(next) = rest.chars().next() {
        let word = before.is_alphanumeric() || before == '_';
        let (taken, content) = match next {
            '/' if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            '/' if rest.starts_with("/*") => (block_comment(rest), None),
            '"' => quoted(rest),
            'r' | 'b' | 'c' if !word => prefixed(rest),
            '\'' if !word => (character(rest), None),
            _ => (0, None),
        };
        if taken == 0 {
            code.push(next);
            line += usize::from(next == '\n');
            before = next;
            rest = &rest[next.len_utf8()..];
            continue;
        }
        if let Some(content) = content {
            literals.push(Literal {
                line,
                text: content.to_owned(),
            });
            code.push_str("\"\"");
        }
        let lines = rest[..taken].matches('\n').count();
        code.extend(std::iter::repeat_n('\n', lines));
        line += lines;
        before = ' ';
        rest = &rest[taken..];
    }
    (code, literals)
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            match rest.chars().next() {
                Some(next) => at += next.len_utf8(),
                None => return at,
            }
        }
    }
}

/// A text in plain quotes: its length and what is in it.
fn quoted(text: &str) -> (usize, Option<&str>) {
    let mut escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return (at + 1, Some(&text[1..at])),
            _ => {}
        }
    }
    (text.len(), Some(&text[1..]))
}

/// A text that begins with letters: raw, of bytes, of C. Length 0 when it is none.
fn prefixed(text: &str) -> (usize, Option<&str>) {
    let letters = text.len() - text.trim_start_matches(['r', 'b', 'c']).len();
    let after = &text[letters..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if letters > 2 || !after[hashes..].starts_with('"') {
        return (0, None);
    }
    if !text[..letters].contains('r') {
        let (taken, content) = quoted(after);
        return (letters + taken, content);
    }
    let begin = letters + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    match text[begin..].find(&end) {
        Some(at) => (begin + at + end.len(), Some(&text[begin..begin + at])),
        None => (text.len(), Some(&text[begin..])),
    }
}

/// A character; length 0 when it is the beginning of a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text.char_indices().skip(1);
    match inside.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |at| 3 + at + 1),
        Some(_) => match inside.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Blanks every item under `#[cfg(test)]` and tells which lines these are.
fn cut_tests(code: &str) -> (String, Vec<(usize, usize)>) {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut cut = vec![];
    let mut rest = code;
    while let Some(begin) = rest.find(MARK) {
        kept.push_str(&rest[..begin]);
        let item = &rest[begin..];
        let taken = MARK.len() + item_end(&item[MARK.len()..]);
        let first = kept.matches('\n').count() + 1;
        let lines = item[..taken].matches('\n').count();
        cut.push((first, first + lines));
        kept.extend(std::iter::repeat_n('\n', lines));
        rest = &item[taken..];
    }
    kept.push_str(rest);
    (kept, cut)
}

/// Where an item ends: behind its closing brace, or its semicolon when it has none.
fn item_end(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, next) in item.char_indices() {
        match next {
            '{' | '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[test]
fn code_texts_and_tests_are_told_apart() {
    let file = File::new(
        "src/x.rs",
        "// std::fs\nfn a<'x>(b: &'x str) -> char { /* a /* b */ */ '\"' }\nconst C: &str = r#\"in \"quotes\" {\"#;\n\
         #[cfg(test)]\nmod tests {\n    const D: &str = \"te\\\"st\";\n}\nfn e() { f(b\"z\\n\") }\n",
    );
    assert!(!file.code.contains("std::fs"), "{}", file.code);
    assert!(!file.code.contains("mod tests"), "{}", file.code);
    assert!(file.code.contains("fn a<'x>(b: &'x str)"), "{}", file.code);
    assert_eq!(file.code.lines().nth(7), Some("fn e() { f(\"\") }"));
    let texts = |all: &[Literal]| -> Vec<(usize, String)> {
        all.iter().map(|one| (one.line, one.text.clone())).collect()
    };
    assert_eq!(
        texts(&file.literals),
        [(3, "in \"quotes\" {".to_owned()), (8, "z\\n".to_owned())]
    );
    assert_eq!(texts(&file.test_literals), [(6, "te\\\"st".to_owned())]);
}

#[test]
fn ignored_files_are_no_part_of_this() {
    let rules = [
        "/target",
        "/state/*",
        "!/state/README.md",
        "/examples/*/state",
        "*.gguf",
        "__pycache__",
    ];
    let ignored = Ignored(rules.map(str::to_owned).to_vec());
    for path in [
        "target",
        "state/demo",
        "examples/local/state",
        "a/b.gguf",
        "a/__pycache__",
        ".git",
    ] {
        assert!(ignored.has(path), "{path}");
    }
    for path in [
        "state",
        "state/README.md",
        "src/state",
        "examples/local",
        "src/target",
    ] {
        assert!(!ignored.has(path), "{path}");
    }
}
