//! Every folder of `topologies/`: its files are read, and what is found must be drawn as in `errors.txt`.
//!
//! `topology.toml` comes first, then any other `.toml` in the order of their names; `vars.txt` gives `--var` lines
//! (`NAME=VALUE`), environment lines (`STAGELINE_VAR_X=VALUE`) and `file NAME` lines for files of variables. A folder without
//! faults or warnings has an empty `errors.txt`. `UPDATE_GOLDEN=1` writes the golden files again.

use std::fs;
use std::path::{Path, PathBuf};

use stageline_core::render;
use stageline_core::topology::{self, SourceFile, VarSources};

fn source(path: &Path) -> Result<SourceFile, Box<stageline_core::diagnostic::Diagnostic>> {
    let name = path
        .file_name()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    SourceFile::from_bytes(name, fs::read(path).expect("a readable file"))
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies");
    let mut all: Vec<PathBuf> = fs::read_dir(root)
        .expect("the cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    all
}

/// What reading a case prints.
fn outcome(case: &Path) -> String {
    let mut vars = VarSources::default();
    for line in fs::read_to_string(case.join("vars.txt"))
        .unwrap_or_default()
        .lines()
    {
        if let Some(file) = line.strip_prefix("file ") {
            vars.files
                .push(source(&case.join(file)).expect("a file of variables"));
            continue;
        }
        let (name, value) = line.split_once('=').expect("NAME=VALUE");
        if name.starts_with(topology::ENV_PREFIX) {
            vars.env.insert(name.to_owned(), value.to_owned());
        } else {
            vars.cli.push((name.to_owned(), value.to_owned()));
        }
    }
    let mut paths: Vec<PathBuf> = fs::read_dir(case)
        .expect("a case")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .filter(|path| !vars.files.iter().any(|file| path.ends_with(&file.name)))
        .collect();
    paths.sort_by_key(|path| (!path.ends_with("topology.toml"), path.clone()));
    let read: Result<Vec<SourceFile>, _> = paths.iter().map(|path| source(path)).collect();
    match read {
        Err(unreadable) => render::diagnostics(&[*unreadable], &[], false, 120),
        Ok(files) => {
            let found = match topology::read(&files, &vars) {
                Ok((_, warnings)) => warnings,
                Err(all) => all,
            };
            let all: Vec<SourceFile> = files.into_iter().chain(vars.files).collect();
            render::diagnostics(&found, &all, false, 120)
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whoever runs the test says by it that golden files shall be written"
)]
fn every_case_finds_what_its_golden_file_says() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    for case in cases {
        let golden = case.join("errors.txt");
        let found = outcome(&case);
        if update {
            fs::write(&golden, &found).expect("a writable golden file");
        }
        let wanted = fs::read_to_string(&golden).unwrap_or_default();
        assert!(
            wanted.lines().count() <= 80,
            "{}: over 80 lines",
            golden.display()
        );
        if found != wanted {
            wrong.push(format!(
                "{}\nwanted:\n{wanted}\nfound:\n{found}",
                case.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Reads and draws; the outcome does not matter, that there is one does.
fn survives(text: &str) {
    let files = [SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    }];
    if let Err(all) = topology::read(&files, &VarSources::default()) {
        assert!(!all.is_empty(), "an error without a diagnostic: {text}");
        for diagnostic in &all {
            let place = diagnostic.place.as_ref();
            assert!(
                place.is_none_or(|place| place.span.end <= text.len()),
                "{diagnostic:?}: {text}"
            );
        }
        render::diagnostics(&all[..all.len().min(3)], &files, false, 80);
    }
}

const MUTATED: [&str; 3] = ["valid-full", "interpolation", "where-table"];

#[test]
fn a_file_cut_at_any_byte_is_read_or_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies");
    for case in MUTATED {
        let text = fs::read_to_string(root.join(case).join("topology.toml")).expect("a case");
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            survives(&text[..end]);
        }
    }
}

#[test]
fn a_file_with_any_bytes_changed_is_read_or_refused() {
    const ODD: [&str; 16] = [
        "\"", "'", "[", "]", "{", "}", "=", ".", "\n", "$", "${", "\u{0}", "\u{e9}", "0", "-",
        "\"\"\"",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topologies");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    };
    for case in MUTATED {
        let text = fs::read_to_string(root.join(case).join("topology.toml")).expect("a case");
        for _ in 0..120 {
            let mut changed: Vec<char> = text.chars().collect();
            for _ in 0..=draw(3) {
                let at = draw(changed.len());
                let odd = ODD[draw(ODD.len())].chars();
                let cut = draw(2);
                changed.splice(at..at + cut, odd);
            }
            survives(&changed.into_iter().collect::<String>());
        }
    }
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whoever runs the test says by it that golden files shall be written"
)]
fn the_reference_page_is_the_definition() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/TOPOLOGY.md");
    let page = topology::reference_markdown();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).expect("a writable page");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/TOPOLOGY.md is old: run with UPDATE_GOLDEN=1"
    );
}

/// The codes in a folder's sources.
fn codes(folder: &Path, found: &mut std::collections::BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            codes(&path, found);
        } else if !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let quoted = text.split('"').skip(1).step_by(2);
            let is_code = |text: &&str| {
                let name = text.strip_prefix("topology/").unwrap_or_default();
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
            };
            found.extend(quoted.filter(is_code).map(str::to_owned));
        }
    }
}

#[test]
fn every_code_has_a_case() {
    // Files of megabytes are made by the unit tests.
    const ELSEWHERE: [&str; 1] = ["topology/too-large"];
    let mut found = std::collections::BTreeSet::new();
    codes(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src/topology"),
        &mut found,
    );
    assert!(found.len() > 30, "{found:?}");
    let golden: String = cases()
        .iter()
        .map(|case| fs::read_to_string(case.join("errors.txt")).expect("a golden file"))
        .collect();
    found.retain(|code| {
        !golden.contains(&format!("[{code}]")) && !ELSEWHERE.contains(&code.as_str())
    });
    assert!(found.is_empty(), "no case shows {found:?}");
}
