//! The rules that neither the compiler nor clippy checks, checked on the text of the sources.
//!
//! Each rule is a function from files to findings. One test runs it over this repository and wants none; another gives it
//! a small offence and wants it found, so that no rule is silently blind. A finding names the file, the line and what to
//! do. Only text is read here: nothing is built and nothing is run.

mod arrows;
mod covered;
mod docs;
mod files;
mod manifests;
mod reliability;
mod source;
mod words;

use source::File;

/// What a rule found: where, and what is wrong there.
type Findings = Vec<String>;

/// Fails with every finding, so that one run shows all there is to mend.
#[track_caller]
fn none(rule: &str, findings: &Findings) {
    assert!(
        findings.is_empty(),
        "{rule}:\n  {}\n",
        findings.join("\n  ")
    );
}

/// A rule that does not see this offence checks nothing.
#[track_caller]
fn finds(findings: &Findings, what: &str) {
    assert!(
        findings.iter().any(|finding| finding.contains(what)),
        "no finding speaks of `{what}`: {findings:?}"
    );
}

/// Rust files that are part of what is shipped, with their tests cut out.
fn shipped(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.is_shipped())
}
