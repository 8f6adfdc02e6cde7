//! What the manifests must say: why each dependency is there, and that the lints hold everywhere.

use super::source::{File, files};
use super::{Findings, finds, none};

/// Everything that the pure package may depend on. None of these opens a file or a socket as we use it.
const CORE: &[&str] = &[
    "annotate-snippets",
    "base64",
    "blake3",
    "jiff",
    "petgraph",
    "schemars",
    "serde",
    "serde_json",
    "similar",
    "strsim",
    "thiserror",
    "toml",
];

/// Lines that must stand in certain files.
const REQUIRED: &[(&str, &str)] = &[
    ("Cargo.toml", "unsafe_code = \"forbid\""),
    ("Cargo.toml", "missing_docs = \"warn\""),
    ("Cargo.toml", "print_stdout = \"warn\""),
    ("Cargo.toml", "print_stderr = \"warn\""),
    ("Cargo.toml", "unwrap_used = \"warn\""),
    ("Cargo.toml", "exit = \"warn\""),
    ("Cargo.toml", "too_many_lines = \"warn\""),
    ("Cargo.toml", "wildcard_enum_match_arm = \"warn\""),
    ("Cargo.toml", "allow_attributes = \"warn\""),
    ("Cargo.toml", "disallowed_methods = \"warn\""),
    ("clippy.toml", "too-many-lines-threshold = 70"),
];

/// A dependency: its line, its name, what it asks for, and whether a comment stands above it.
struct Dependency<'a> {
    line: usize,
    name: &'a str,
    wants: &'a str,
    table: &'a str,
    explained: bool,
}

fn dependencies(manifest: &File) -> Vec<Dependency<'_>> {
    let mut found = vec![];
    let mut table = "";
    let mut above = "";
    for (line, text) in (1..).zip(manifest.text.lines()) {
        if let Some(name) = text.strip_prefix('[') {
            table = name.trim_end_matches(']');
        } else if let (true, Some((name, wants))) =
            (table.ends_with("dependencies"), text.split_once('='))
            && !text.starts_with([' ', '#'])
        {
            let explained = above.starts_with("# ");
            found.push(Dependency {
                line,
                name: name.trim(),
                wants,
                table,
                explained,
            });
        }
        above = text;
    }
    found
}

fn manifests(files: &[File]) -> impl Iterator<Item = &File> {
    files
        .iter()
        .filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"))
}

fn unexplained(files: &[File]) -> Findings {
    let mut findings = vec![];
    for manifest in manifests(files) {
        for one in dependencies(manifest).iter().filter(|one| !one.explained) {
            findings.push(format!(
                "{}:{}: `{}` needs a sentence above it that says why it is here",
                manifest.path, one.line, one.name
            ));
        }
    }
    findings
}

fn core_list(files: &[File]) -> Findings {
    let mut findings = vec![];
    for manifest in manifests(files).filter(|file| file.path == "crates/core/Cargo.toml") {
        for one in dependencies(manifest) {
            if one.table != "dependencies" || !CORE.contains(&one.name) {
                findings.push(format!(
                    "{}:{}: `{}` in [{}] is not on the list of what the pure package may use",
                    manifest.path, one.line, one.name, one.table
                ));
            }
            if one.name == "jiff" && !one.wants.contains("default-features = false") {
                findings.push(format!(
                    "{}:{}: `jiff` with its defaults reads a clock",
                    manifest.path, one.line
                ));
            }
        }
    }
    findings
}

fn lints(files: &[File]) -> Findings {
    let mut findings = vec![];
    for (path, line) in REQUIRED {
        let there = |file: &File| file.path == *path && file.text.lines().any(|text| text == *line);
        if !files.iter().any(there) {
            findings.push(format!("{path}: `{line}` is missing"));
        }
    }
    for manifest in manifests(files) {
        if !manifest.text.contains("[lints]\nworkspace = true") {
            findings.push(format!(
                "{}: does not take the lints of the workspace",
                manifest.path
            ));
        }
    }
    findings
}

#[test]
fn every_dependency_says_why_it_is_here() {
    none("dependencies without a reason", &unexplained(files()));
}

#[test]
fn a_dependency_without_a_reason_is_found() {
    let text = "[dependencies]\n# Reads.\na = \"1\"\nb = \"1\"\n[features]\nc = []\n";
    let findings = unexplained(&[File::new("crates/x/Cargo.toml", text)]);
    finds(&findings, ":4: `b`");
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn the_core_depends_on_what_is_pure() {
    none("dependencies of the core", &core_list(files()));
    assert!(manifests(files()).any(|file| file.path == "crates/core/Cargo.toml"));
}

#[test]
fn another_dependency_of_the_core_is_found() {
    let core = |text| core_list(&[File::new("crates/core/Cargo.toml", text)]);
    finds(&core("[dependencies]\ntokio = \"1\"\n"), "tokio");
    finds(&core("[dev-dependencies]\nserde = \"1\"\n"), "serde");
    finds(
        &core("[target.'cfg(unix)'.dependencies]\nrustix = \"1\"\n"),
        "rustix",
    );
    finds(&core("[dependencies]\njiff = \"1\"\n"), "clock");
}

#[test]
fn the_lints_hold_everywhere() {
    none("lints", &lints(files()));
}

#[test]
fn a_missing_lint_is_found() {
    let findings = lints(&[File::new("Cargo.toml", "[workspace.lints.rust]\n")]);
    finds(&findings, "unsafe_code");
    finds(&findings, "does not take");
}
