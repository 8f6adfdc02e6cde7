//! What the documents and the examples must say, so that they do not fall behind the code.

use std::collections::BTreeSet;

use super::source::{File, files};
use super::{Findings, finds, none, shipped};

/// Lines of the page that everybody reads first. Longer, and nobody does.
const ARCHITECTURE_MAX: usize = 200;

fn text<'a>(files: &'a [File], path: &str) -> &'a str {
    let file = files.iter().find(|file| file.path == path);
    file.map_or("", |file| file.text.as_str())
}

/// The modules of a package that stand right below its root.
fn modules<'a>(files: &'a [File], src: &str) -> BTreeSet<&'a str> {
    let below = shipped(files).filter_map(|file| file.path.strip_prefix(src)?.strip_suffix(".rs"));
    below
        .filter(|name| !name.contains('/') && !["lib", "main"].contains(name))
        .collect()
}

fn map(files: &[File]) -> Findings {
    let page = text(files, "docs/ARCHITECTURE.md");
    let mut findings = vec![];
    for src in ["src/", "crates/core/src/"] {
        for name in modules(files, src) {
            if !page.contains(&format!("| `{name}` |")) {
                findings.push(format!(
                    "docs/ARCHITECTURE.md: the map lacks `{name}` of {src}"
                ));
            }
        }
    }
    let lines = page.lines().count();
    if lines >= ARCHITECTURE_MAX {
        findings.push(format!(
            "docs/ARCHITECTURE.md: {lines} lines, must be fewer than {ARCHITECTURE_MAX}"
        ));
    }
    findings
}

/// Links between our own pages lead somewhere.
fn links(files: &[File]) -> Findings {
    let mut findings = vec![];
    for page in files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, text) in (1..).zip(page.text.lines()) {
            for target in targets(text) {
                let path = resolve(folder, target.split('#').next().unwrap_or_default());
                let there =
                    |file: &File| file.path == path || file.path.starts_with(&format!("{path}/"));
                if !path.is_empty() && !files.iter().any(there) {
                    findings.push(format!(
                        "{}:{line}: the link `{target}` leads nowhere",
                        page.path
                    ));
                }
            }
        }
    }
    findings
}

/// Where the links of a line lead, other places on the network left out.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let after = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    let inside = after.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    inside.filter(|target| !target.contains("://") && !target.starts_with('#'))
}

fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
    {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// The variants of `Exit` with their numbers, as they stand in the code.
pub(super) fn exits(files: &[File]) -> Vec<(&str, &str)> {
    let code = files
        .iter()
        .find(|file| file.path == "src/cli/exit.rs")
        .map_or("", |file| file.code.as_str());
    let body = code
        .split_once("enum Exit {")
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or("", |(body, _)| body);
    let variants = body
        .lines()
        .filter_map(|line| line.trim().trim_end_matches(',').split_once(" = "));
    variants.collect()
}

fn exit_codes(files: &[File]) -> Findings {
    let page = text(files, "README.md");
    let missing = exits(files)
        .into_iter()
        .filter(|(_, number)| !page.contains(&format!("| {number} |")));
    missing
        .map(|(name, number)| format!("README.md: the table of exit codes lacks {number} ({name})"))
        .collect()
}

fn examples(files: &[File]) -> Findings {
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let names: BTreeSet<&str> = paths
        .iter()
        .filter_map(|path| path.strip_prefix("examples/")?.split_once('/'))
        .map(|(name, _)| name)
        .collect();
    let mut findings = vec![];
    for name in names {
        for part in ["README.md", "topology.toml"] {
            if !paths.contains(&format!("examples/{name}/{part}").as_str()) {
                findings.push(format!("examples/{name}: has no {part}"));
            }
        }
        if !paths.contains(&format!("plans/{name}.txt").as_str()) {
            findings.push(format!(
                "examples/{name}: its plan is not in plans/{name}.txt"
            ));
        }
    }
    findings
}

fn version(files: &[File]) -> Findings {
    let manifest = text(files, "Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    let version = version.unwrap_or_default().trim_matches('"');
    let log = text(files, "CHANGELOG.md");
    match log.contains(&format!("## {version}")) {
        true => vec![],
        false => vec![format!("CHANGELOG.md: says nothing of version {version}")],
    }
}

#[test]
fn the_map_shows_every_module() {
    none("the map", &map(files()));
}

#[test]
fn a_module_that_is_not_on_the_map_is_found() {
    let page = File::new("docs/ARCHITECTURE.md", "| `store` | keeps |\n");
    let code = [
        File::new("src/store.rs", "//! x"),
        File::new("src/apply.rs", "//! x"),
        page,
    ];
    let findings = map(&code);
    finds(&findings, "`apply`");
    assert_eq!(findings.len(), 1, "{findings:?}");
    finds(
        &map(&[File::new("docs/ARCHITECTURE.md", &"x\n".repeat(200))]),
        "fewer",
    );
}

#[test]
fn links_lead_somewhere() {
    none("links", &links(files()));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = File::new(
        "docs/A.md",
        "[b](B.md#x) [c](../README.md) [d](https://github.com) [e](#e)",
    );
    let findings = links(&[page, File::new("README.md", "")]);
    finds(&findings, "B.md#x");
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn exit_codes_are_in_the_readme() {
    none("exit codes", &exit_codes(files()));
    assert!(
        exits(files()).len() > 8,
        "the exit codes were not found in the code"
    );
}

#[test]
fn an_exit_code_that_the_readme_lacks_is_found() {
    let code = File::new(
        "src/cli/exit.rs",
        "pub enum Exit {\n    Done = 0,\n    User = 1,\n}\n",
    );
    let findings = exit_codes(&[code, File::new("README.md", "| 0 | done |")]);
    finds(&findings, "lacks 1 (User)");
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn examples_are_whole() {
    none("examples", &examples(files()));
}

#[test]
fn half_an_example_is_found() {
    let findings = examples(&[File::new("examples/x/README.md", "")]);
    finds(&findings, "examples/x: has no topology.toml");
    finds(&findings, "plans/x.txt");
}

/// What the README says about testing is what is run before a change lands.
fn test_command(files: &[File]) -> Findings {
    let readme = text(files, "README.md");
    let mut commands = readme.lines().filter_map(|line| line.strip_prefix("    "));
    let Some(command) = commands.find(|line| line.contains("cargo test")) else {
        return vec!["README.md: has no test command".to_owned()];
    };
    let run = text(files, ".ci/run");
    match run.lines().any(|line| line == command) {
        true => vec![],
        false => vec![format!(
            ".ci/run: does not run `{command}`, which the README names"
        )],
    }
}

#[test]
fn what_the_readme_says_about_testing_is_what_is_run() {
    none("the test command", &test_command(files()));
    let readme = File::new("README.md", "x\n\n    cargo test --all\n");
    finds(
        &test_command(&[readme, File::new(".ci/run", "cargo test\n")]),
        "cargo test --all",
    );
}

#[test]
fn the_changelog_knows_this_version() {
    none("versions", &version(files()));
    finds(
        &version(&[File::new("Cargo.toml", "version = \"9.9.9\"")]),
        "9.9.9",
    );
}
