//! The topology that a command is about, and where its state is.

use std::path::{Path, PathBuf};

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Fingerprint, Name};
use stageline_core::topology::{self, SourceFile, Topology, VarSources};

use super::{Failure, Global};
use crate::ambient;
use crate::store::{Mode, StateUrl, Store};

/// The file that is read when no `-f` is given.
pub(crate) const TOPOLOGY: &str = "topology.toml";

/// A topology that was read without errors.
pub(crate) struct Project {
    /// What is declared.
    pub topology: Topology,
    /// Its digest.
    pub digest: Fingerprint,
    /// The files, for excerpts.
    pub files: Vec<SourceFile>,
    /// What is doubtful in them.
    pub warnings: Vec<Diagnostic>,
    /// The folder of the first file: relative paths start there.
    pub folder: PathBuf,
    /// Where its state is.
    pub place: Place,
}

/// Where a state is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub url: StateUrl,
    pub name: Name,
    pub workspace: Option<Name>,
}

impl Place {
    /// Opens the state there.
    pub async fn open(&self, mode: Mode) -> Result<Store, Failure> {
        Ok(Store::open(&self.url, &self.name, self.workspace.as_ref(), mode).await?)
    }

    /// The folder of the state.
    pub fn folder(&self) -> PathBuf {
        self.url.folder(&self.name, self.workspace.as_ref())
    }
}

impl Project {
    /// Reads the topology; all of its errors at once.
    pub fn load(global: &Global) -> Result<Self, Failure> {
        let files = sources(global)?;
        let vars = variables(global)?;
        let shown: Vec<SourceFile> = files.iter().chain(&vars.files).cloned().collect();
        let (topology, warnings) = topology::read(&files, &vars)
            .map_err(|errors| Failure::diagnostics(errors, shown.clone()))?;
        if let Some(name) = global
            .name
            .as_ref()
            .filter(|name| **name != *topology.name.as_str())
        {
            return Err(Failure::user(format!(
                "--name says `{name}`, and the topology is `{}`",
                topology.name
            ))
            .hint("leave --name away: it is for commands on a state without its topology"));
        }
        let folder = folder(global);
        let place = Place {
            url: state_url(global, &folder)?,
            name: topology.name.clone(),
            workspace: workspace(global)?,
        };
        Ok(Self {
            digest: topology::digest(&topology),
            topology,
            files: shown,
            warnings,
            folder,
            place,
        })
    }
}

/// The state that a command is about, with or without a topology file: ending machines needs none.
pub(crate) fn place(global: &Global) -> Result<Place, Failure> {
    let folder = folder(global);
    let url = state_url(global, &folder)?;
    let workspace = workspace(global)?;
    if let Some(name) = &global.name {
        let name = name
            .parse()
            .map_err(|error| Failure::user(format!("--name: {error}")))?;
        return Ok(Place {
            url,
            name,
            workspace,
        });
    }
    let read = sources(global).and_then(|files| {
        let vars = variables(global)?;
        topology::read(&files, &vars).map_err(|errors| Failure::diagnostics(errors, files))
    });
    match read {
        Ok((topology, _)) => Ok(Place {
            url,
            name: topology.name,
            workspace,
        }),
        Err(failure) => match recorded(&url).as_slice() {
            [name] => Ok(Place {
                url,
                name: name.clone(),
                workspace,
            }),
            [] => Err(failure),
            several => {
                let names: Vec<&str> = several.iter().map(Name::as_str).collect();
                Err(failure.hint(format!(
                    "without a topology that can be read, say which state is meant: --name {}",
                    names.join(" or --name ")
                )))
            }
        },
    }
}

/// The topologies that have a state at this place.
pub(crate) fn recorded(url: &StateUrl) -> Vec<Name> {
    let Ok(entries) = std::fs::read_dir(url.root()) else {
        return Vec::new();
    };
    let mut names: Vec<Name> = entries
        .flatten()
        .filter(|entry| entry.path().join("journal").is_dir())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    names.sort();
    names
}

fn sources(global: &Global) -> Result<Vec<SourceFile>, Failure> {
    if global.file.is_empty() {
        let path = Path::new(TOPOLOGY);
        if !path.exists() {
            return Err(Failure::user(format!("there is no {TOPOLOGY} here")).hint(
                "write one with `stageline init --template local`, or name one with -f FILE",
            ));
        }
        return Ok(vec![source(path)?]);
    }
    global.file.iter().map(|path| source(path)).collect()
}

fn source(path: &Path) -> Result<SourceFile, Failure> {
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::user(format!("cannot read {}: {error}", path.display()))
            .hint("give the path of a TOML file that is there and that you may read")
    })?;
    SourceFile::from_bytes(path.display().to_string(), bytes)
        .map_err(|fault| Failure::diagnostics(vec![*fault], Vec::new()))
}

fn variables(global: &Global) -> Result<VarSources, Failure> {
    Ok(VarSources {
        cli: global.var.clone(),
        files: global
            .var_file
            .iter()
            .map(|path| source(path))
            .collect::<Result<_, _>>()?,
        env: ambient::variables("STAGELINE_VAR_"),
    })
}

fn folder(global: &Global) -> PathBuf {
    let first = global.file.first().and_then(|file| file.parent());
    let first = first.filter(|folder| !folder.as_os_str().is_empty());
    first.unwrap_or(Path::new(".")).to_owned()
}

fn state_url(global: &Global, folder: &Path) -> Result<StateUrl, Failure> {
    match &global.state {
        Some(text) => Ok(text.parse()?),
        None => Ok(StateUrl::of(folder.join("state"))),
    }
}

fn workspace(global: &Global) -> Result<Option<Name>, Failure> {
    let parse = |text: &String| {
        text.parse()
            .map_err(|error| Failure::user(format!("--workspace: {error}")))
    };
    global.workspace.as_ref().map(parse).transpose()
}
