//! What holds of each file: its length, its first words, and that it names no place but ours.

use super::source::{File, files};
use super::{Findings, finds, none, shipped};

/// Lines of a Rust file, tests left out. Beyond that a reader loses the thread.
const LINES_MAX: usize = 600;

/// Hosts that may be named: where the project, its sources and its models are, and names that lead nowhere.
const HOSTS: &[&str] = &[
    "console.vast.ai",
    "api.runpod.io",
    "cloud.lambda.ai",
    "github.com",
    "huggingface.co",
    "json-schema.org",
    "spdx.org",
    "keepachangelog.com",
    "semver.org",
    "www.apache.org",
    "example.com",
    "example.org",
    "example.net",
];

fn long(files: &[File]) -> Findings {
    let mut findings = vec![];
    for file in shipped(files) {
        let lines = code_lines(file);
        if lines > LINES_MAX {
            findings.push(format!(
                "{}: {lines} lines without tests, at most {LINES_MAX}",
                file.path
            ));
        }
    }
    findings
}

/// Lines up to the last one that is not part of a test.
fn code_lines(file: &File) -> usize {
    let written = (1..).zip(file.code.lines());
    let last = written.filter(|(_, line)| !line.trim().is_empty()).last();
    last.map_or(0, |(number, _)| number)
}

fn undocumented(files: &[File]) -> Findings {
    let rust = files.iter().filter(|file| file.is_rust());
    rust.filter(|file| !file.text.starts_with("//! "))
        .map(|file| {
            format!(
                "{}: begins without `//!`: what it is for, what always holds, what it refuses",
                file.path
            )
        })
        .collect()
}

fn places(files: &[File]) -> Findings {
    // In pieces, so that this file does not hold what it looks for.
    let homes = [
        ("/", "root/"),
        ("/", "home/"),
        ("/", "Users/"),
        ("/", "work/"),
        ("C:", "\\Users"),
    ];
    let mut findings = vec![];
    for file in files {
        for (line, text) in (1..).zip(file.text.lines()) {
            for (a, b) in homes {
                let home = format!("{a}{b}");
                let absolute = |(at, _): (usize, &str)| {
                    !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~}*".contains(c))
                };
                if text.match_indices(&home).any(absolute) {
                    findings.push(format!(
                        "{}:{line}: `{home}..` is a place on somebody's computer",
                        file.path
                    ));
                }
            }
            if let Some(host) = hosts(text).find(|host| !known(host)) {
                findings.push(format!(
                    "{}:{line}: `{host}` is not among the hosts that may be named",
                    file.path
                ));
            }
            let source = text
                .strip_prefix("source = \"registry+")
                .unwrap_or(DEFAULT_REGISTRY);
            if !source.starts_with(DEFAULT_REGISTRY) {
                findings.push(format!(
                    "{}:{line}: a package that does not come from the default registry",
                    file.path
                ));
            }
        }
    }
    findings
}

/// How the lock file names the registry that every package comes from.
const DEFAULT_REGISTRY: &str = concat!("https://github.com/rust-lang/crates", ".io-index");

/// Hosts of the http and https URLs in a line, where they are written out.
fn hosts(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("://").filter_map(|(at, _)| {
        if !text[..at].ends_with("http") && !text[..at].ends_with("https") {
            return None;
        }
        let rest = &text[at + 3..];
        let rest = rest
            .rsplit_once('@')
            .filter(|(user, _)| !user.contains(['/', ' ', '"']))
            .map_or(rest, |(_, host)| host);
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || ".-[".contains(c)))
            .unwrap_or(rest.len());
        Some(&rest[..end]).filter(|host| !host.is_empty())
    })
}

fn known(host: &str) -> bool {
    let address = host.starts_with(|c: char| c.is_ascii_digit() || c == '[');
    let nowhere = [
        ".example",
        ".invalid",
        ".test",
        ".localhost",
        ".example.com",
        ".example.org",
        ".example.net",
    ];
    address
        || HOSTS.contains(&host)
        || !host.contains('.')
        || nowhere.iter().any(|end| host.ends_with(end))
}

#[test]
fn files_are_short() {
    none("files that are too long", &long(files()));
}

#[test]
fn a_long_file_is_found() {
    let code = "fn a() {}\n".repeat(601);
    finds(&long(&[File::new("src/x.rs", &code)]), "601");
    let tests = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{code}}}\n");
    none(
        "tests do not count",
        &long(&[File::new("src/x.rs", &tests)]),
    );
}

#[test]
fn every_module_says_what_it_is_for() {
    none("modules without a word", &undocumented(files()));
}

#[test]
fn a_module_without_a_word_is_found() {
    finds(
        &undocumented(&[File::new("src/x.rs", "use std::fmt;\n")]),
        "src/x.rs",
    );
}

#[test]
fn no_file_names_a_computer_of_ours() {
    none("places", &places(files()));
}

#[test]
fn a_place_of_ours_is_found() {
    let offence = |text: String| places(&[File::new("README.md", &text)]);
    finds(&offence(format!("cd /{}/x", "root")), "somebody's");
    finds(&offence(format!("\"/{}/me/x\"", "home")), "somebody's");
    finds(
        &offence(format!(
            "index = \"https{}//pypi.corp.{}/simple\"",
            ":", "lan"
        )),
        "hosts",
    );
    finds(
        &offence(format!(
            "source = \"registry+https{}//x.{}/y\"",
            ":", "example"
        )),
        "default registry",
    );
    none(
        "fine",
        &offence(format!(
            "target/{}/x https://github.com/a http://127.0.0.1:8080/v1 https://{{host}}/x",
            "root"
        )),
    );
}
