//! The topology that a command is about, and where its state is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Fingerprint, Name};
use stageline_core::topology::{self, SourceFile, Topology, VarSources};

use super::{Failure, Global, own_hosts, setup_file};
use crate::ambient;
use crate::store::{self, Mode, StateUrl, Store, Surroundings, folder_name};

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
    /// What stays on this computer wherever the state is: machines of `local`, models that were fetched.
    pub local: PathBuf,
    /// Keys of hosts that the topology names, by `address:port`, where it can be read: they count more than what is recorded, also
    /// for commands that need no topology.
    pub host_keys: BTreeMap<String, String>,
}

impl Place {
    /// Opens the state there.
    pub async fn open(&self, mode: Mode) -> Result<Store, Failure> {
        let around = Surroundings::of_process().beside(self.folder());
        let workspace = self.workspace.as_ref();
        Ok(Store::open_in(&self.url, &self.name, workspace, mode, around).await?)
    }

    /// The folder for what stays on this computer. Beside the state, where that is a folder.
    pub fn folder(&self) -> PathBuf {
        let name = folder_name(&self.name, self.workspace.as_ref());
        self.url.root().unwrap_or(&self.local).join(name)
    }
}

impl Project {
    /// Reads the topology; all of its errors at once.
    pub fn load(global: &Global) -> Result<Self, Failure> {
        let files = sources(global)?;
        let vars = variables(global)?;
        let shown: Vec<SourceFile> = files.iter().chain(&vars.files).cloned().collect();
        let (mut topology, warnings) = topology::read(&files, &vars)
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
        setup_file::read_in(&mut topology, &folder)?;
        let place = Place {
            url: state_url(global, topology.state.as_deref(), &folder)?,
            name: topology.name.clone(),
            workspace: workspace(global)?,
            local: folder.join("state"),
            host_keys: own_hosts::host_keys(&topology),
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
    let read = sources(global).and_then(|files| {
        let vars = variables(global)?;
        topology::read(&files, &vars).map_err(|errors| Failure::diagnostics(errors, files))
    });
    let declared = read
        .as_ref()
        .ok()
        .and_then(|(topology, _)| topology.state.as_deref());
    let url = state_url(global, declared, &folder)?;
    let workspace = workspace(global)?;
    let told = read
        .as_ref()
        .map(|(topology, _)| own_hosts::host_keys(topology));
    let host_keys = told.unwrap_or_default();
    let of = |name| Place {
        url: url.clone(),
        name,
        workspace: workspace.clone(),
        local: folder.join("state"),
        host_keys: host_keys.clone(),
    };
    if let Some(name) = &global.name {
        let name = name
            .parse()
            .map_err(|error| Failure::user(format!("--name: {error}")))?;
        return Ok(of(name));
    }
    let failure = match read {
        Ok((topology, _)) => return Ok(of(topology.name)),
        Err(failure) => failure,
    };
    match recorded(&url).as_slice() {
        [name] => Ok(of(name.clone())),
        [] if url.is_shared() => Err(failure.hint(
            "without a topology that can be read, say which state in that bucket is meant: --name NAME",
        )),
        [] => Err(failure),
        several => {
            let names: Vec<&str> = several.iter().map(Name::as_str).collect();
            Err(failure.hint(format!(
                "without a topology that can be read, say which state is meant: --name {}",
                names.join(" or --name ")
            )))
        }
    }
}

/// The topologies that have a state in a folder; a bucket is not asked.
pub(crate) fn recorded(url: &StateUrl) -> Vec<Name> {
    let Some(Ok(entries)) = url.root().map(std::fs::read_dir) else {
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

/// The states beside one, in its folder or its bucket, those of workspaces too; without that one.
pub(crate) async fn beside(place: &Place) -> Result<Vec<Place>, Failure> {
    let around = Surroundings::of_process().beside(place.folder());
    let found = store::states_at(&place.url, &around).await?;
    let of = |folder: &String| {
        let (name, workspace) = match folder.split_once('.') {
            Some((name, workspace)) => (name, Some(workspace.parse().ok()?)),
            None => (folder.as_str(), None),
        };
        Some(Place {
            name: name.parse().ok()?,
            workspace,
            ..place.clone()
        })
    };
    let own = place.folder();
    let places = found.iter().filter_map(of);
    Ok(places.filter(|place| place.folder() != own).collect())
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

/// The folder of the first topology file: relative paths start there.
pub(crate) fn folder(global: &Global) -> PathBuf {
    let first = global.file.first().and_then(|file| file.parent());
    let first = first.filter(|folder| !folder.as_os_str().is_empty());
    first.unwrap_or(Path::new(".")).to_owned()
}

/// `--state` comes first, then the topology, then the folder beside it.
fn state_url(global: &Global, declared: Option<&str>, folder: &Path) -> Result<StateUrl, Failure> {
    match (&global.state, declared) {
        (Some(text), _) => Ok(text.parse()?),
        (None, Some(text)) => Ok(match text.parse()? {
            StateUrl::Folder(root) => StateUrl::of(folder.join(root)),
            bucket @ StateUrl::Bucket(_) => bucket,
        }),
        (None, None) => Ok(StateUrl::of(folder.join("state"))),
    }
}

fn workspace(global: &Global) -> Result<Option<Name>, Failure> {
    let parse = |text: &String| {
        text.parse()
            .map_err(|error| Failure::user(format!("--workspace: {error}")))
    };
    global.workspace.as_ref().map(parse).transpose()
}
