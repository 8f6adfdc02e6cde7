//! Words that must not stand in certain places.

use super::arrows::written;
use super::source::{File, files};
use super::{Findings, finds, none, shipped};

/// What would make the pure package impure: files, sockets, clocks, dice, the environment, waiting, printing, hash order.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "ToSocketAddrs",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "SystemTime",
    "Instant",
    "now",
    "HashMap",
    "HashSet",
    "RandomState",
    "rand",
    "getrandom",
    "async",
    "await",
    "tokio",
    "futures",
    "println",
    "eprintln",
    "print",
    "eprint",
    "dbg",
    "thread_local",
    "unsafe",
];

/// Modules that must not know one provider from another, except by what it declares.
const NEUTRAL: &[&str] = &[
    "crates/core/src/offer",
    "crates/core/src/plan",
    "crates/core/src/state",
    "crates/core/src/resource",
    "crates/core/src/journal",
    "crates/core/src/graph",
    "crates/core/src/retry",
    "crates/core/src/event",
    "crates/core/src/render",
    "src/apply",
    "src/observe",
    "src/store",
    "src/machine",
    "src/pipeline",
    "src/gateway",
    "src/agent",
];

/// The kinds of providers, built or planned; but not `command`, which is an engine's name too.
const KINDS: &[&str] = &["local", "ssh", "vastai", "lambda", "runpod", "sim"];

fn impure(files: &[File]) -> Findings {
    let mut findings = vec![];
    for file in shipped(files).filter(|file| file.path.starts_with("crates/core/")) {
        for one in written(&file.code) {
            let path = one.path.join("::");
            let meant = |word: &&&str| match word.contains("::") {
                true => path == **word || path.starts_with(&format!("{word}::")),
                // A value called `now` is what a pure function takes; a path that ends so reads a clock.
                false if **word == "now" => {
                    one.path.len() > 1 && one.path.last().is_some_and(|last| last == "now")
                }
                false => one.path.iter().any(|part| part == **word),
            };
            if let Some(word) = IMPURE.iter().find(meant) {
                findings.push(format!(
                    "{}:{}: `{word}` has no place in the pure package",
                    file.path, one.line
                ));
            }
        }
    }
    findings
}

fn kinds(files: &[File]) -> Findings {
    let neutral = |file: &&File| {
        NEUTRAL.iter().any(|place| {
            let rest = file.path.strip_prefix(place);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    let mut findings = vec![];
    for file in shipped(files).filter(neutral) {
        for literal in file
            .literals
            .iter()
            .filter(|one| KINDS.contains(&one.text.as_str()))
        {
            findings.push(format!(
                "{}:{}: `{}` may be a provider's kind; branch on declared traits",
                file.path, literal.line, literal.text
            ));
        }
    }
    findings
}

fn allows(files: &[File]) -> Findings {
    let mut findings = vec![];
    for file in files.iter().filter(|file| file.is_rust()) {
        for (line, code) in (1..).zip(file.text.lines()) {
            let code = code.trim_start();
            if code.starts_with("#[allow") || code.starts_with("#![allow") {
                findings.push(format!(
                    "{}:{line}: write `#[expect(lint, reason = \"..\")]`, which ends with its cause",
                    file.path
                ));
            }
        }
    }
    findings
}

#[test]
fn the_core_is_pure() {
    none("impure words in the core", &impure(files()));
}

#[test]
fn an_impure_word_is_found() {
    for offence in [
        "use std::fs;",
        "use std::{collections::BTreeMap, fs::File};",
        "fn a() { let b = std::env::var(\"A\"); }",
        "use std::time::{Duration, Instant};",
        "fn a() { jiff::Timestamp::now() }",
        "async fn a() {}",
        "fn a() { println!(\"\") }",
        "use std::collections::HashMap;",
    ] {
        finds(
            &impure(&[File::new("crates/core/src/plan.rs", offence)]),
            "pure package",
        );
    }
    let fine = "use std::time::Duration; fn a(now: Timestamp) { b(now) } // println! HashMap";
    none(
        "fine",
        &impure(&[File::new("crates/core/src/plan.rs", fine)]),
    );
}

#[test]
fn providers_are_not_told_apart_by_name() {
    none("names of providers", &kinds(files()));
}

#[test]
fn a_name_of_a_provider_is_found() {
    let offence = "fn a(b: &Name) { if b == \"vastai\" {} }";
    finds(
        &kinds(&[File::new("crates/core/src/plan/lease.rs", offence)]),
        "vastai",
    );
    finds(&kinds(&[File::new("src/apply.rs", offence)]), "vastai");
    none(
        "wiring",
        &kinds(&[File::new("src/cli/session.rs", offence)]),
    );
}

#[test]
fn lints_are_expected_with_a_reason() {
    none("lints that are switched off", &allows(files()));
}

#[test]
fn a_lint_that_is_switched_off_is_found() {
    finds(
        &allows(&[File::new("src/x.rs", "  #[allow(dead_code)]")]),
        "expect",
    );
}
