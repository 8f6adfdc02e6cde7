//! Puts the agent onto a host that is ours, and starts it. All of it may be repeated: what is there already is used.
//!
//! Whether a program fits is found out before anything is sent. A program is run when the host's own digest of it is ours, and after
//! it has told its version there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use stageline_core::id::{RequestKey, Sha256};

use super::builds::BUILD_ONE;
use super::script;
use super::{Builds, Host, Measured, SshError};
use crate::agent::boot::Package;

/// What is told while an agent is on its way, and a worker.
pub const UPLOADS: [&str; 2] = ["uploading its agent", "uploading its worker"];

/// Longest that a program may be on its way.
pub const UPLOAD_MAX: Duration = Duration::from_secs(30 * 60);

/// Longest that anything else may take.
const SHORT: Duration = Duration::from_secs(30);

/// How much is read of a program at once.
const PIECE: usize = 128 << 10;

/// What is put onto a host.
pub struct Load<'a> {
    /// The machine that the host is.
    pub key: &'a RequestKey,
    /// What its agent is told.
    pub package: &'a Package,
    /// The host is ours only while it is marked so.
    pub marked: bool,
    /// Native workers go with it.
    pub native: bool,
}

/// Told what goes on, and how far it is.
pub type Told<'a> = &'a (dyn Fn(&str, Option<u8>) + Send + Sync);

/// Puts the agent there and starts it.
///
/// # Errors
/// [`SshError`]; where it may pass, doing it again goes on with what is there.
pub async fn push(
    host: &Host,
    builds: &Arc<Builds>,
    load: &Load<'_>,
    told: Told<'_>,
) -> Result<(), SshError> {
    told("looking which agent fits", None);
    let measured = host.measure().await?;
    let mut fitting = builds.fitting(&measured)?;
    if load.native {
        // One without a worker is of no use where another has it.
        fitting.sort_by_key(|program| builds.workers(program, &measured).is_empty());
    }
    let mut fitting = fitting.into_iter();
    let mut failed = None;
    let folder = loop {
        let Some(program) = fitting.next() else {
            return Err(failed.expect("at least one fits, and it was tried"));
        };
        match put_and_try(host, (builds, &measured), &program, (load, told)).await {
            Ok(folder) => break folder,
            // The next one needs less, perhaps.
            Err(unfit @ SshError::Unfit { .. }) => failed = failed.or(Some(unfit)),
            Err(other) => return Err(other),
        }
    };
    let folder = folder.to_string();
    told("starting its agent", None);
    let mut input = String::new();
    for (name, value) in load.package.environment() {
        input.push_str(&format!("{name}={value}\n"));
    }
    input.push_str("end\n");
    let marked = if load.marked { "marked" } else { "unmarked" };
    let own = load.package.config.own_end.as_ref();
    let own = own.map(|own| [own.id.as_str(), own.key.as_str()]);
    let mut words = vec![load.key.as_str(), folder.as_str(), marked];
    words.extend(own.into_iter().flatten());
    host.ask(script::START, &words, input, SHORT).await?;
    Ok(())
}

/// Puts a program there, and its workers with it, and sees it run; the folder that it is in.
async fn put_and_try(
    host: &Host,
    (builds, measured): (&Arc<Builds>, &Measured),
    program: &Path,
    (load, told): (&Load<'_>, Told<'_>),
) -> Result<Sha256, SshError> {
    let folder = digest(builds, program).await?;
    let agent = (UPLOADS[0], told);
    put(host, program, (folder, folder), "stageline", agent).await?;
    told("trying its agent", None);
    let words = folder.to_string();
    let words = [words.as_str(), words.as_str(), "stageline"];
    let tried = host.ask(script::TRY, &words, String::new(), SHORT).await;
    tried.map_err(|error| match error {
        SshError::Failed(why) => SshError::Unfit {
            message: format!("{} does not run there: {why}", program.display()),
            hint: BUILD_ONE.to_owned(),
        },
        other @ (SshError::Away(_)
        | SshError::Changed { .. }
        | SshError::Denied(_)
        | SshError::Key { .. }
        | SshError::Lost(_)
        | SshError::Unfit { .. }) => other,
    })?;
    if load.native {
        let workers = builds.workers(program, measured);
        put_workers(host, builds, (folder, workers), told).await?;
    }
    Ok(folder)
}

/// Sends the native workers that run on a host to where its agent runs from, unless they are there. Nothing is sent where none is
/// here, or where it runs from no folder of ours.
///
/// # Errors
/// As [`push`].
pub async fn send_workers(
    host: &Host,
    builds: &Arc<Builds>,
    key: &RequestKey,
    told: Told<'_>,
) -> Result<(), SshError> {
    let words = [key.as_str()];
    let from = host.ask(script::RUNS_FROM, &words, String::new(), SHORT);
    let Ok(folder) = from.await?.trim().parse() else {
        return Ok(());
    };
    let measured = host.measure().await?;
    let programs = builds.fitting(&measured)?.into_iter();
    let mut workers = programs.map(|program| builds.workers(&program, &measured));
    let workers = workers.find(|workers| !workers.is_empty());
    put_workers(host, builds, (folder, workers.unwrap_or_default()), told).await
}

async fn put_workers(
    host: &Host,
    builds: &Arc<Builds>,
    (folder, workers): (Sha256, Vec<PathBuf>),
    told: Told<'_>,
) -> Result<(), SshError> {
    for worker in workers {
        let name = worker.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| script::is_plain(name));
        if let Some(name) = name {
            let own = digest(builds, &worker).await?;
            put(host, &worker, (folder, own), name, (UPLOADS[1], told)).await?;
        }
    }
    Ok(())
}

async fn digest(builds: &Arc<Builds>, path: &Path) -> Result<Sha256, SshError> {
    let (builds, path) = (Arc::clone(builds), path.to_owned());
    let digest = tokio::task::spawn_blocking(move || builds.digest(&path)).await;
    digest.expect("reading a file does not panic and is never aborted")
}

/// Sends a program, unless it is there.
async fn put(
    host: &Host,
    path: &Path,
    (folder, own): (Sha256, Sha256),
    name: &str,
    (what, told): (&str, Told<'_>),
) -> Result<(), SshError> {
    let (folder, own) = (folder.to_string(), own.to_string());
    let words = [folder.as_str(), own.as_str(), name];
    if host
        .ask(script::HAS, &words, String::new(), SHORT)
        .await?
        .trim()
        == "has"
    {
        return Ok(());
    }
    let session = host.session().await?;
    let pieces = pieces(path, what, told).await?;
    let output = session
        .run(&script::PUT.with(&words), pieces, UPLOAD_MAX)
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    match (output.status, said.trim()) {
        (Some(0), "put") => Ok(()),
        (Some(0), "other") => Err(SshError::Lost(format!(
            "what arrived of {} has another digest",
            path.display()
        ))),
        _ => {
            let why = output.stderr.lines().last().unwrap_or_default();
            Err(SshError::Failed(format!(
                "{} cannot be put there: {why}",
                path.display()
            )))
        }
    }
}

/// A file, piece by piece.
async fn pieces<'a>(
    path: &Path,
    what: &'a str,
    told: Told<'a>,
) -> Result<BoxStream<'a, Result<Bytes, SshError>>, SshError> {
    let shown = path.display().to_string();
    let unreadable = move |error: std::io::Error| SshError::Key {
        message: format!("cannot read {shown}: {error}"),
        hint: "is the program still where it was?".to_owned(),
    };
    let file = tokio::fs::File::open(path).await.map_err(&unreadable)?;
    let whole = file.metadata().await.map_err(&unreadable)?.len().max(1);
    let stream = tokio_util::io::ReaderStream::with_capacity(file, PIECE);
    let mut sent = 0;
    let pieces = stream.map(move |piece| {
        let piece = piece.map_err(&unreadable)?;
        sent += piece.len() as u64;
        told(what, u8::try_from(sent.min(whole) * 100 / whole).ok());
        Ok(piece)
    });
    Ok(pieces.boxed())
}
