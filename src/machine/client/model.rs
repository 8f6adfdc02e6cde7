//! Model files on the operator's side: found, checked against their digest once, read in pieces.
//!
//! What always holds: bytes are sent only out of a file whose digest was checked by this process and which has not
//! changed since, as far as its length and time of change tell.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use secrecy::SecretString;
use sha2::Digest as _;
use stageline_core::id::Sha256;
use stageline_core::resource::ModelRef;
use stageline_core::unit::Bytes;

use crate::machine::control::Refusal;
use crate::machine::fetch;

/// Files that were checked.
#[derive(Default)]
pub(super) struct Models {
    /// Held while a file is checked, so that parallel deliveries of one model read it once.
    checked: tokio::sync::Mutex<BTreeMap<PathBuf, Checked>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Checked {
    sha256: Sha256,
    stamp: Stamp,
}

/// What changes when a file does.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
}

/// A model file whose digest was checked.
#[derive(Debug)]
pub(super) struct ModelFile {
    path: PathBuf,
    file: File,
}

impl Models {
    /// Opens a file and checks it, the first time by reading all of it.
    pub(super) async fn open(
        &self,
        path: &Path,
        model: &ModelRef,
    ) -> Result<Arc<ModelFile>, Refusal> {
        let mut checked = self.checked.lock().await;
        opened(&mut checked, path, model).await
    }

    /// Where the file of a URL is kept, fetched when it is not there yet, or not what it was.
    pub(super) async fn fetched(
        &self,
        url: &str,
        token: Option<&SecretString>,
        model: &ModelRef,
        cache: &Path,
        progress: impl Fn(u64),
    ) -> Result<PathBuf, Refusal> {
        let path = cache.join(format!("{}.gguf", model.sha256));
        // One fetch at a time also keeps two deliveries from writing one file.
        let mut checked = self.checked.lock().await;
        if opened(&mut checked, &path, model).await.is_ok() {
            return Ok(path);
        }
        let disk = |error: std::io::Error| {
            let message = format!("cannot keep the model in {}: {error}", cache.display());
            Refusal::new("disk", message)
        };
        std::fs::create_dir_all(cache).map_err(disk)?;
        let temporary = path.with_extension("download");
        let file = File::create(&temporary).map_err(disk)?;
        let fetched = fetch::fetch(url, token, &model.sha256, model.size, file, progress).await;
        if fetched.is_err() {
            std::fs::remove_file(&temporary).ok();
        }
        fetched?;
        std::fs::rename(&temporary, &path).map_err(disk)?;
        Ok(path)
    }
}

/// Opens a file that is checked unless it is known.
async fn opened(
    checked: &mut BTreeMap<PathBuf, Checked>,
    path: &Path,
    model: &ModelRef,
) -> Result<Arc<ModelFile>, Refusal> {
    let known = checked.get(path).cloned();
    let (owned, wanted, size) = (path.to_owned(), model.sha256, model.size);
    let work = move || check(&owned, wanted, size, known);
    let found = tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Refusal::new("internal", error.to_string())));
    let (file, now) = found?;
    checked.insert(path.to_owned(), now);
    Ok(Arc::new(file))
}

fn check(
    path: &Path,
    wanted: Sha256,
    size: Bytes,
    known: Option<Checked>,
) -> Result<(ModelFile, Checked), Refusal> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let message = format!("the model {shown} cannot be read: {error}");
        Refusal::new("model-missing", message).hint("put the file there, or correct `path`")
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let stamp = stamp(&file).map_err(unreadable)?;
    if stamp.length != size.0 {
        let (is, was) = (stamp.length, size.0);
        let message = format!("the model {shown} has {is} bytes; the plan was made for {was}");
        return Err(changed(message));
    }
    let same = known
        .as_ref()
        .is_some_and(|known| known.stamp == stamp && known.sha256 == wanted);
    if !same {
        let found = digest(&mut file).map_err(unreadable)?;
        if found != wanted {
            let message =
                format!("the model {shown} is another file: its sha256 is {found}, not {wanted}");
            return Err(changed(message));
        }
    }
    let model = ModelFile {
        path: path.to_owned(),
        file,
    };
    let checked = Checked {
        sha256: wanted,
        stamp,
    };
    Ok((model, checked))
}

fn changed(message: String) -> Refusal {
    Refusal::new("model-changed", message).hint("plan again if the new file is meant")
}

fn stamp(file: &File) -> std::io::Result<Stamp> {
    let meta = file.metadata()?;
    Ok(Stamp {
        length: meta.len(),
        modified: meta.modified().ok(),
    })
}

fn digest(file: &mut File) -> std::io::Result<Sha256> {
    let mut digest = sha2::Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(Sha256(digest.finalize().into()));
        }
        digest.update(&buffer[..read]);
    }
}

impl ModelFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `length` bytes at `offset`, off the threads that others wait on.
    pub(super) async fn read(
        self: &Arc<Self>,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let model = Arc::clone(self);
        let read = move || -> std::io::Result<Vec<u8>> {
            let mut bytes = vec![0; length];
            model.file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| {
                let message = format!("the model {} cannot be read: {error}", self.path.display());
                changed(message)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use stageline_core::resource::ModelOrigin;

    fn model(path: &Path, bytes: &[u8]) -> ModelRef {
        ModelRef {
            sha256: Sha256(sha2::Sha256::digest(bytes).into()),
            size: Bytes(u64::try_from(bytes.len()).expect("small")),
            origin: ModelOrigin::Operator(path.to_owned()),
            token: None,
        }
    }

    #[tokio::test]
    async fn a_changed_file_is_told_apart_from_a_missing_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("m.gguf");
        let models = Models::default();
        let wanted = model(&path, b"weights");
        let missing = models.open(&path, &wanted).await.expect_err("missing");
        assert_eq!(missing.code, "model-missing");
        std::fs::write(&path, b"weights").expect("written");
        let file = models.open(&path, &wanted).await.expect("right");
        assert_eq!(file.read(2, 3).await.expect("read"), b"igh");
        std::fs::write(&path, b"Weights").expect("written");
        let changed = models.open(&path, &wanted).await.expect_err("changed");
        assert!(changed.message.contains("is another file"), "{changed}");
        std::fs::write(&path, b"weight").expect("written");
        let cut = models.open(&path, &wanted).await.expect_err("cut");
        assert!(cut.message.contains("has 6 bytes"), "{cut}");
    }
}
