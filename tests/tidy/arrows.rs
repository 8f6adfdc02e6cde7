//! Who may know whom. An arrow that must not exist is written down here, with its reason.

use std::collections::BTreeMap;

use super::source::{File, files};
use super::{Findings, finds, none, shipped};

/// From a module and all below it, to modules and all below them, and why not.
const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    (
        "provider",
        &[
            "core::plan",
            "core::state",
            "core::journal",
            "apply",
            "store",
            "observe",
        ],
        "an adapter sells machines and knows nothing of plans, state or journals",
    ),
    (
        "agent",
        &[
            "core::plan",
            "core::state",
            "core::journal",
            "store",
            "apply",
            "observe",
            "provider",
        ],
        "an agent obeys and decides nothing",
    ),
    (
        "machine",
        &["core::plan", "core::journal", "store", "apply", "observe"],
        "hands on a machine do what they are told",
    ),
    (
        "pipeline",
        &[
            "core::plan",
            "core::state",
            "core::journal",
            "store",
            "apply",
            "observe",
            "provider",
            "agent",
            "machine",
        ],
        "the data plane knows rosters and workers only",
    ),
    (
        "gateway",
        &[
            "core::plan",
            "core::state",
            "core::journal",
            "store",
            "apply",
            "observe",
            "provider",
            "agent",
            "machine",
        ],
        "the gateway knows pipelines only",
    ),
    (
        "store",
        &[
            "provider", "machine", "agent", "gateway", "apply", "observe",
        ],
        "the store keeps what it is given",
    ),
    (
        "observe",
        &["apply", "store"],
        "asking changes nothing and writes nothing",
    ),
    (
        "ambient",
        &[
            "provider", "machine", "agent", "pipeline", "gateway", "apply", "observe", "store",
        ],
        "it only reads what is around us",
    ),
];

/// Where a provider adapter may be named: where things are wired together, in adapters, and where simulators meet.
const WIRING: &[&str] = &["cli", "provider", "machine::sim"];

/// Doubles for tests, which nothing else may lean on.
const DOUBLES: &[&str] = &[
    "provider::sim",
    "machine::sim",
    "ambient::fake",
    "store::testing",
];

fn arrows(files: &[File]) -> Findings {
    let adapters: Vec<String> = shipped(files)
        .map(|file| module(&file.path))
        .filter(|module| module.len() == 2 && module[0] == "provider")
        .map(|module| module.join("::"))
        .collect();
    let mut findings = vec![];
    for file in shipped(files).filter(|file| file.path.starts_with("src/")) {
        let from = module(&file.path).join("::");
        for (line, to) in paths(file) {
            if let Some(why) = objection(&from, &to.join("::"), &adapters) {
                findings.push(format!(
                    "{}:{line}: uses `{}`, but {why}",
                    file.path,
                    to.join("::")
                ));
            }
        }
    }
    findings
}

/// Why this arrow must not exist, if so.
fn objection<'a>(from: &str, to: &str, adapters: &[String]) -> Option<&'a str> {
    let wires = |module: &&&str| within(from, module);
    let names = |modules: &[String]| modules.iter().any(|module| within(to, module));
    let doubles: Vec<String> = DOUBLES.iter().map(|&one| one.to_owned()).collect();
    if within(to, "cli") && !within(from, "cli") && from != "main" {
        return Some("nothing but `main` knows the command line");
    }
    if names(adapters) && WIRING.iter().find(wires).is_none() {
        return Some("differences between providers are declared traits, not names");
    }
    let double = DOUBLES.iter().any(|double| within(from, double));
    if names(&doubles)
        && !double
        && !DOUBLES
            .iter()
            .any(|one| one.starts_with(&format!("{from}::")))
    {
        return Some("doubles are for tests");
    }
    FORBIDDEN
        .iter()
        .filter(|(module, ..)| within(from, module))
        .find(|(_, targets, _)| targets.iter().any(|target| within(to, target)))
        .map(|(.., why)| *why)
}

/// Whether a path is a module or something in it.
fn within(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The module that a file is: `src/agent/log.rs` is `agent::log`; the library itself has no name.
fn module(path: &str) -> Vec<String> {
    let place = path
        .trim_start_matches("src/")
        .trim_end_matches(".rs")
        .trim_end_matches("/mod");
    match place {
        "lib" => vec![],
        _ => place.split('/').map(str::to_owned).collect(),
    }
}

/// Every path in a file from the root of the library on, with its line; `core` is the pure package.
fn paths(file: &File) -> Vec<(usize, Vec<String>)> {
    let home = module(&file.path);
    let mut imports = BTreeMap::new();
    let written = written(&file.code);
    for one in written
        .iter()
        .filter(|one| one.in_use && one.path.len() > 1)
    {
        imports.insert(
            one.name.clone(),
            absolute(&home, &one.path, &BTreeMap::new()),
        );
    }
    let absolute = |one: Written| {
        let path = absolute(&home, &one.path, &imports)?;
        (!path.is_empty()).then_some((one.line, path))
    };
    written.into_iter().filter_map(absolute).collect()
}

/// A path as it stands in the code, one for each branch of a `{ }`.
pub(super) struct Written {
    pub(super) line: usize,
    pub(super) path: Vec<String>,
    /// What it is known by from here on, when it is an import.
    name: String,
    in_use: bool,
}

/// Every path and every single word in the code.
pub(super) fn written(code: &str) -> Vec<Written> {
    let tokens = tokens(code);
    let mut found = vec![];
    let mut at = 0;
    while at < tokens.len() {
        let (line, token) = tokens[at];
        let in_use = at > 0 && tokens[at - 1].1 == "use";
        let mut leaves = vec![];
        let next = if is_word(token) && !KEYWORDS.contains(&token) {
            tree(&tokens, at, &[], &mut leaves)
        } else {
            at
        };
        let written = |(path, name)| Written {
            line,
            path,
            name,
            in_use,
        };
        found.extend(leaves.into_iter().map(written));
        at = next.max(at + 1);
    }
    found
}

/// Words that begin no path of interest.
const KEYWORDS: &[&str] = &["use", "pub", "mod", "fn", "let", "impl", "as", "in"];

/// A path with all its branches, from `tokens[at]` on: the leaves with the names they are known by, and where it ends.
fn tree<'a>(
    tokens: &[(usize, &'a str)],
    mut at: usize,
    stem: &[&'a str],
    leaves: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = stem.to_vec();
    while let Some((_, token)) = tokens.get(at) {
        at += 1;
        if *token == "{" {
            loop {
                at = tree(tokens, at, &path, leaves);
                match tokens.get(at).map(|(_, token)| *token) {
                    Some(",") if tokens.get(at + 1).is_some_and(|next| next.1 == "}") => {
                        return at + 2;
                    }
                    Some(",") => at += 1,
                    _ => return at + 1,
                }
            }
        }
        if is_word(token) || *token == "*" {
            path.push(token);
        }
        match tokens.get(at).map(|(_, token)| *token) {
            Some("::") => at += 1,
            _ => break,
        }
        let goes_on = tokens
            .get(at)
            .is_some_and(|(_, next)| is_word(next) || *next == "{" || *next == "*");
        if !goes_on {
            break;
        }
    }
    let mut name = path.last().copied().unwrap_or_default();
    if tokens.get(at).is_some_and(|next| next.1 == "as") {
        name = tokens.get(at + 1).map_or(name, |next| next.1);
        at += 2;
    }
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    if name == "self" {
        path.pop();
        name = path.last().copied().unwrap_or_default();
    }
    leaves.push((owned(&path), name.to_owned()));
    at
}

/// A path from the root of the library on, where that can be told.
fn absolute(
    home: &[String],
    path: &[String],
    imports: &BTreeMap<String, Option<Vec<String>>>,
) -> Option<Vec<String>> {
    let rest = &path[1.min(path.len())..];
    match path.first()?.as_str() {
        "crate" | "stageline" => Some(rest.to_vec()),
        "stageline_core" => Some([&["core".to_owned()], rest].concat()),
        "self" => Some([home, rest].concat()),
        "super" => {
            let up = path.iter().take_while(|word| *word == "super").count();
            Some([&home[..home.len().saturating_sub(up)], &path[up..]].concat())
        }
        first => {
            let known = imports.get(first)?.as_ref()?;
            Some([known, rest].concat())
        }
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::`, and every other sign for itself.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = vec![];
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if first.is_alphanumeric() || first == '_' {
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push((line, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

#[test]
fn nobody_knows_whom_they_must_not() {
    none("arrows that must not exist", &arrows(files()));
}

#[test]
fn a_forbidden_arrow_is_found_however_it_is_written() {
    let findings = |path: &str, code: &str| {
        let adapter = File::new("src/provider/local.rs", "//! x");
        arrows(&[adapter, File::new(path, code)])
    };
    let offences = [
        (
            "src/apply/lease.rs",
            "use crate::provider::local::Local;",
            "provider::local",
        ),
        (
            "src/apply.rs",
            "use crate::{store, provider::{self, local}};",
            "provider::local",
        ),
        (
            "src/apply.rs",
            "use crate::provider; fn a() { provider::local::new() }",
            "provider::local",
        ),
        (
            "src/apply.rs",
            "use crate::provider as p; fn a() { p::local::new() }",
            "provider::local",
        ),
        (
            "src/apply.rs",
            "use super::provider::local;",
            "provider::local",
        ),
        (
            "src/provider/local.rs",
            "use stageline_core::plan::Plan;",
            "core::plan",
        ),
        (
            "src/provider/local.rs",
            "fn a(b: &crate::core::state::State) {}",
            "core::state",
        ),
        (
            "src/agent/log.rs",
            "use super::super::store::Store;",
            "store::Store",
        ),
        ("src/store.rs", "use crate::cli::Exit;", "cli::Exit"),
        (
            "src/observe.rs",
            "use crate::machine::sim::SimMachines;",
            "doubles",
        ),
    ];
    for (path, code, what) in offences {
        finds(&findings(path, code), what);
    }
    let fine = [
        ("src/cli/session.rs", "use crate::provider::local::Local;"),
        ("src/apply.rs", "use crate::provider::{Provider, Traits};"),
        ("src/main.rs", "fn main() { stageline::cli::main() }"),
        (
            "src/apply.rs",
            "#[cfg(test)] mod tests { use crate::provider::sim::World; }",
        ),
    ];
    for (path, code) in fine {
        none("no offence", &findings(path, code));
    }
}
