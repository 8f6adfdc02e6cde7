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
