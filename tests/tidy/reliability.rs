//! What docs/RELIABILITY.md says is tested: each promise names tests, each named test is there, and each variable that
//! makes one run longer is read by a test.

use super::source::{File, files};
use super::{Findings, finds, none};

const PAGE: &str = "docs/RELIABILITY.md";

/// Where a module may stand.
const ROOTS: &[&str] = &[
    "tests/",
    "src/",
    "crates/core/src/",
    "crates/core/tests/",
    "crates/worker/src/",
];

/// The promises are sections with a number, from this heading to the next one of its rank.
const PROMISES: &str = "## What is promised";

/// How many there are.
const PROMISES_MIN: usize = 9;

fn page(files: &[File]) -> &str {
    let page = files.iter().find(|file| file.path == PAGE);
    page.map_or("", |file| file.text.as_str())
}

/// What stands between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A path of modules with a function at its end.
fn is_test_name(span: &str) -> bool {
    span.contains("::")
        && span
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b':')
}

/// Tests that the page names and that are not there.
fn absent(files: &[File]) -> Findings {
    let mut findings = vec![];
    for (line, text) in (1..).zip(page(files).lines()) {
        for name in spans(text).filter(|span| is_test_name(span)) {
            if !there(files, name) {
                findings.push(format!("{PAGE}:{line}: there is no test `{name}`"));
            }
        }
    }
    findings
}

fn there(files: &[File], name: &str) -> bool {
    let Some((module, function)) = name.rsplit_once("::") else {
        return false;
    };
    let path = module.replace("::", "/");
    let beside = path.strip_suffix("/tests").unwrap_or(&path);
    let stands = |file: &&File| {
        ROOTS.iter().any(|root| {
            let rest = file.path.strip_prefix(root);
            rest.and_then(|rest| rest.strip_suffix(".rs"))
                .is_some_and(|rest| [path.as_str(), beside].contains(&rest))
        })
    };
    files
        .iter()
        .filter(stands)
        .any(|file| is_test(&file.test_code, function))
}

/// Whether this function is there with a test's attribute somewhere above it.
fn is_test(code: &str, function: &str) -> bool {
    let mut marked = false;
    for line in code.lines().map(str::trim) {
        if line.starts_with("#[") {
            marked |= line == "#[test]" || line.starts_with("#[tokio::test");
        } else if let Some(rest) = line.strip_prefix("async fn ").or(line.strip_prefix("fn ")) {
            if marked && rest.split('(').next() == Some(function) {
                return true;
            }
            marked = false;
        }
    }
    false
}

/// Promises without a test.
fn bare(files: &[File]) -> Findings {
    let (_, rest) = page(files).split_once(PROMISES).unwrap_or_default();
    let promises = rest.split("\n## ").next().unwrap_or_default();
    let sections: Vec<&str> = promises.split("\n### ").skip(1).collect();
    let mut findings: Findings = sections
        .iter()
        .filter(|section| !spans(section).any(is_test_name))
        .map(|section| {
            let title = section.lines().next().unwrap_or_default();
            format!("{PAGE}: no test is named for `{title}`")
        })
        .collect();
    if sections.len() < PROMISES_MIN {
        findings.push(format!("{PAGE}: {} promises are named", sections.len()));
    }
    findings
}

/// Variables that no test reads.
fn unread(files: &[File]) -> Findings {
    let tests = || files.iter().filter(|file| file.path.starts_with("tests/"));
    let names = page(files)
        .split(|c: char| !(c.is_ascii_uppercase() || c == '_'))
        .filter(|word| word.starts_with("STAGELINE_"));
    let unread = names.filter(|name| {
        let quoted = format!("\"{name}\"");
        !tests().any(|file| !file.path.starts_with("tests/tidy") && file.text.contains(&quoted))
    });
    unread
        .map(|name| format!("{PAGE}: no test reads {name}"))
        .collect()
}

#[test]
fn every_test_that_the_page_on_reliability_names_is_there() {
    none("tests that are named", &absent(files()));
    none("variables that are named", &unread(files()));
}

#[test]
fn every_promise_names_its_tests() {
    none("promises", &bare(files()));
}

#[test]
fn a_test_or_a_variable_that_is_not_there_is_found() {
    let named = "`a::b::one` `a::b::two` `a::b::three` `a::tests::four` `a::b` STAGELINE_TEST_X";
    let code = "#[test]\nfn one() {}\n\nfn two() {}\n\n#[tokio::test(start_paused = true)]\n\
                #[ignore = \"long\"]\nasync fn three() {}\n";
    let inline = "fn a() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn four() {}\n}\n";
    let files = [
        File::new(PAGE, named),
        File::new("tests/a/b.rs", code),
        File::new("src/a.rs", inline),
    ];
    let findings = absent(&files);
    finds(&findings, "`a::b::two`");
    finds(&findings, "`a::b`");
    assert_eq!(findings.len(), 2, "{findings:?}");
    finds(&unread(&files), "STAGELINE_TEST_X");
}

#[test]
fn a_promise_without_a_test_is_found() {
    let text = format!("{PROMISES}\n\n### 1. A\n\n`a::b`\n\n### 2. B\n\nc\n\n## D\n\n### E\n");
    let findings = bare(&[File::new(PAGE, &text)]);
    finds(&findings, "`2. B`");
    finds(&findings, "2 promises");
    assert_eq!(findings.len(), 2, "{findings:?}");
}
