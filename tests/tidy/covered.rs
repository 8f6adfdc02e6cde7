//! What must be covered by a test: each code of a diagnostic, each exit code.

use std::collections::BTreeMap;

use super::docs::exits;
use super::source::{File, files};
use super::{Findings, finds, none, shipped};

/// What a code of a diagnostic begins with.
const FAMILIES: &[&str] = &["topology/", "plan/", "model/"];

fn untested(files: &[File]) -> Findings {
    let mut codes = BTreeMap::new();
    for file in shipped(files) {
        for literal in file.literals.iter().filter(|one| is_code(&one.text)) {
            codes
                .entry(literal.text.as_str())
                .or_insert((&file.path, literal.line));
        }
    }
    codes.retain(|code, _| !files.iter().any(|file| shows(file, code)));
    let finding =
        |(code, (path, line))| format!("{path}:{line}: no test and no golden file shows `{code}`");
    codes.into_iter().map(finding).collect()
}

/// Whether a test, or a golden file of one, has this code in it.
fn shows(file: &File, code: &str) -> bool {
    if file.is_rust() && !file.is_test() {
        return file.test_literals.iter().any(|one| has(&one.text, code));
    }
    file.is_test() && !file.path.starts_with("tests/tidy") && has(&file.text, code)
}

/// Whether a text has the code, and not a longer one that begins like it.
fn has(text: &str, code: &str) -> bool {
    text.match_indices(code).any(|(at, _)| {
        let after = &text[at + code.len()..];
        !after.starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
    })
}

fn is_code(text: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let name = text.strip_prefix(family);
        name.is_some_and(|name| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        })
    })
}

/// Exit codes that no test of the program expects by number, and no test of the mapping by name.
fn unexpected(files: &[File]) -> Findings {
    let own = |file: &&File| !file.path.starts_with("tests/tidy");
    let expects = |name: &str, number: &str| {
        files.iter().filter(own).any(|file| {
            let by_number = file.is_test() && file.text.contains(&format!(".exits({number})"));
            by_number || file.test_code.contains(&format!("Exit::{name}"))
        })
    };
    let missing = exits(files)
        .into_iter()
        .filter(|(name, number)| !expects(name, number));
    missing
        .map(|(name, number)| format!("no test expects the exit code {number} ({name})"))
        .collect()
}

#[test]
fn every_exit_code_has_a_test() {
    none("exit codes that no test expects", &unexpected(files()));
}

#[test]
fn an_exit_code_without_a_test_is_found() {
    let code = "pub enum Exit {\n    Done = 0,\n    User = 1,\n    Bug = 70,\n}\n\
                #[cfg(test)]\nmod tests { const A: Exit = Exit::Bug; }\n";
    let test = File::new("tests/cli/a.rs", "world.run(\"plan\").exits(1);");
    let findings = unexpected(&[File::new("src/cli/exit.rs", code), test]);
    finds(&findings, "code 0 (Done)");
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn every_code_of_a_diagnostic_has_a_test() {
    none("codes that no test shows", &untested(files()));
}

#[test]
fn a_code_without_a_test_is_found() {
    let source = File::new("src/x.rs", "fn a() { b(\"plan/blind\"); b(\"plan/bli\") }");
    let golden = File::new(
        "crates/core/tests/plans/x/plan.txt",
        "error[plan/blind]: no",
    );
    let findings = untested(&[source, golden]);
    finds(&findings, "plan/bli`");
    assert_eq!(findings.len(), 1, "{findings:?}");
    let own =
        "fn a() { b(\"plan/bli\") }\n#[cfg(test)]\nmod tests { const A: &str = \"plan/bli\"; }\n";
    none("a test beside it", &untested(&[File::new("src/y.rs", own)]));
}
