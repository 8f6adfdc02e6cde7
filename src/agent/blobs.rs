//! Model files by content: whole, or only the parts that the stages here need, at their own places in a sparse file.
//!
//! What always holds: a range is listed as present only after its bytes were synced, so that a crash loses time and never
//! truth; a file is written by one transfer at a time; a file that nothing refers to is removed. It refuses to begin a
//! transfer that the disk cannot hold. A worker is given the path and reads only what its layers need.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use stageline_core::id::Sha256;
use stageline_core::unit::Bytes;

use super::facts;
use super::folder::{self, FolderError};
use crate::machine::control::{Refusal, Span};
use crate::machine::spans::Spans;

/// Left free for logs, rosters and the system when a model is taken.
const RESERVE: u64 = 32 << 20;

/// After so many bytes they are synced and listed: what a cut transfer has to send again at most.
const SYNC_EVERY: u64 = 32 << 20;

/// What of a file is present (`have.json` beside it).
#[derive(Debug, Default, Serialize, Deserialize)]
struct Have {
    size: Bytes,
    present: Spans,
}

/// All model files of an agent.
#[derive(Debug)]
pub struct Blobs {
    root: PathBuf,
    /// Bytes that may still be written, for tests of a full disk; real agents have no such limit.
    quota: Mutex<Option<u64>>,
    /// One transfer per file at a time.
    turns: Mutex<BTreeMap<Sha256, Arc<tokio::sync::Mutex<()>>>>,
}

impl Blobs {
    /// The files below this folder.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            quota: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    /// From now on only so many bytes can be written, as if the disk were full then.
    pub fn limit_writes(&self, bytes: u64) {
        *self.quota.lock().expect("no holder panics") = Some(bytes);
    }

    fn dir(&self, sha256: &Sha256) -> PathBuf {
        self.root.join(sha256.to_string())
    }

    /// Where the file is, present or not.
    pub fn path(&self, sha256: &Sha256) -> PathBuf {
        self.dir(sha256).join("model.gguf")
    }

    /// Waits until no other transfer of this file is on its way. Hold the guard while writing.
    pub async fn turn(&self, sha256: &Sha256) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().expect("no holder panics");
            Arc::clone(turns.entry(*sha256).or_default())
        };
        turn.lock_owned().await
    }

    /// What of the file is present; nothing when the file is not as long as it was.
    pub fn present(&self, sha256: &Sha256) -> Spans {
        let have: Option<Have> = folder::read_json(&self.dir(sha256).join("have.json"))
            .ok()
            .flatten();
        let length = std::fs::metadata(self.path(sha256)).map(|meta| meta.len());
        match (have, length) {
            (Some(have), Ok(length)) if length == have.size.0 => have.present,
            (Some(_) | None, Ok(_) | Err(_)) => Spans::default(),
        }
    }

    /// Begins, or goes on with, a transfer of these ranges.
    ///
    /// # Errors
    /// [`Refusal`] when the disk cannot hold what is missing, or cannot be written.
    pub fn begin(
        self: &Arc<Self>,
        sha256: &Sha256,
        size: Bytes,
        needed: &Spans,
    ) -> Result<Transfer, Refusal> {
        if needed.end() > size.0 {
            return Err(Refusal::new(
                "bad-request",
                format!(
                    "byte {} is asked of a model of {} bytes",
                    needed.end(),
                    size.0
                ),
            ));
        }
        let present = self.present(sha256);
        self.check_room(needed.without(&present).bytes())?;
        let dir = self.dir(sha256);
        folder::make_dir(&dir).map_err(refusal)?;
        let path = self.path(sha256);
        let open = || -> std::io::Result<File> {
            let file = OpenOptions::new()
                .create(true)
                .truncate(present.is_empty())
                .write(true)
                .mode(0o600)
                .open(&path)?;
            file.set_len(size.0)?;
            Ok(file)
        };
        let file = open().map_err(|source| {
            refusal(FolderError::Io {
                verb: "write",
                path: path.clone(),
                source,
            })
        })?;
        Ok(Transfer {
            blobs: Arc::clone(self),
            dir,
            file,
            size,
            present,
            unsynced: Vec::new(),
            unsynced_bytes: 0,
        })
    }

    /// Refuses what the disk cannot hold.
    ///
    /// # Errors
    /// [`Refusal`] with both numbers.
    pub fn check_room(&self, missing: u64) -> Result<(), Refusal> {
        if missing == 0 {
            return Ok(());
        }
        let mut free = facts::disk(&self.root).0;
        if let Some(quota) = *self.quota.lock().expect("no holder panics") {
            free = free.min(quota.saturating_add(RESERVE));
        }
        if free < missing.saturating_add(RESERVE) {
            let message = format!(
                "the disk at {} has {} free; the model still needs {} and {} must stay free",
                self.root.display(),
                Bytes(free),
                Bytes(missing),
                Bytes(RESERVE)
            );
            return Err(full(message));
        }
        Ok(())
    }

    /// Takes bytes off the quota of tests; fails as a full disk does.
    fn spend(&self, bytes: u64) -> std::io::Result<()> {
        let mut quota = self.quota.lock().expect("no holder panics");
        if let Some(left) = quota.as_mut() {
            *left = left
                .checked_sub(bytes)
                .ok_or(std::io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }

    /// A new file for a download, which [`Blobs::adopt`] takes later.
    ///
    /// # Errors
    /// [`Refusal`] when the disk cannot hold it or cannot be written.
    pub fn download(&self, sha256: &Sha256, size: Bytes) -> Result<(File, PathBuf), Refusal> {
        self.check_room(size.0)?;
        let dir = self.dir(sha256);
        folder::make_dir(&dir).map_err(refusal)?;
        let path = dir.join("download");
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| {
                refusal(FolderError::Io {
                    verb: "write",
                    path: path.clone(),
                    source,
                })
            })?;
        Ok((file, path))
    }

    /// Takes a whole, synced and verified file from [`Blobs::download`].
    ///
    /// # Errors
    /// [`Refusal`] when the disk does not take it.
    pub fn adopt(&self, sha256: &Sha256, size: Bytes) -> Result<(), Refusal> {
        let (dir, path) = (self.dir(sha256), self.path(sha256));
        std::fs::rename(dir.join("download"), &path).map_err(|source| {
            refusal(FolderError::Io {
                verb: "write",
                path: path.clone(),
                source,
            })
        })?;
        let have = Have {
            size,
            present: Spans::whole(size.0),
        };
        folder::write_json(&dir.join("have.json"), &have).map_err(refusal)
    }

    /// Removes every file but these. What cannot be removed is left; it costs room only.
    pub fn keep_only(&self, keep: &BTreeSet<Sha256>) {
        let Ok(entries) = std::fs::read_dir(&self.root) else {
            return;
        };
        for entry in entries.flatten() {
            let sha256 = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if sha256.is_none_or(|sha256: Sha256| !keep.contains(&sha256))
                && let Err(error) = std::fs::remove_dir_all(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "cannot remove an unused model");
            }
        }
    }
}

/// One transfer into a file.
#[derive(Debug)]
pub struct Transfer {
    blobs: Arc<Blobs>,
    dir: PathBuf,
    file: File,
    size: Bytes,
    present: Spans,
    unsynced: Vec<Span>,
    unsynced_bytes: u64,
}

impl Transfer {
    /// What is present and synced.
    pub fn present(&self) -> &Spans {
        &self.present
    }

    /// Takes some bytes.
    ///
    /// # Errors
    /// [`Refusal`] when they lie beyond the file's end or the disk does not take them.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Refusal> {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = offset.saturating_add(length);
        if end > self.size.0 {
            return Err(Refusal::new(
                "bad-request",
                format!("byte {end} was sent of a model of {} bytes", self.size.0),
            ));
        }
        let wrote = self
            .blobs
            .spend(length)
            .and_then(|()| self.file.write_all_at(data, offset));
        wrote.map_err(|source| self.failed("write", source))?;
        self.unsynced.push(Span { start: offset, end });
        self.unsynced_bytes += length;
        if self.unsynced_bytes >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Makes what was written durable, then lists it.
    ///
    /// # Errors
    /// [`Refusal`] when the disk does not take it; nothing more is listed then.
    pub fn sync(&mut self) -> Result<(), Refusal> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|source| self.failed("sync", source))?;
        let mut present = self.present.clone();
        for span in &self.unsynced {
            present.add(*span);
        }
        let have = Have {
            size: self.size,
            present,
        };
        folder::write_json(&self.dir.join("have.json"), &have).map_err(refusal)?;
        self.present = have.present;
        self.unsynced.clear();
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// Ends the transfer; everything needed must be present.
    ///
    /// # Errors
    /// [`Refusal`] when something is missing or the disk does not take it.
    pub fn finish(mut self, needed: &Spans) -> Result<(), Refusal> {
        self.sync()?;
        let missing = needed.without(&self.present).bytes();
        if missing > 0 {
            return Err(Refusal::new(
                "blob-incomplete",
                format!("the transfer ended and {} are missing", Bytes(missing)),
            ));
        }
        Ok(())
    }

    fn failed(&self, verb: &'static str, source: std::io::Error) -> Refusal {
        refusal(FolderError::Io {
            verb,
            path: self.dir.clone(),
            source,
        })
    }
}

/// A disk that does not take something, as the operator is told.
pub fn refusal(error: FolderError) -> Refusal {
    if error.is_full() {
        full(error.to_string())
    } else {
        Refusal::new("disk", error.to_string())
            .hint("look at the permissions and the health of the machine's disk")
    }
}

fn full(message: String) -> Refusal {
    Refusal::new("disk-full", message).hint(
        "free some disk there, or ask for more with `disk` in the lease or its offer's `where`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Sha256 = Sha256([7; 32]);

    fn spans(ranges: &[(u64, u64)]) -> Spans {
        let span = |&(start, end)| Span { start, end };
        ranges.iter().map(span).collect::<Vec<_>>().into()
    }

    #[test]
    fn only_what_was_synced_is_present_after_a_crash() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Arc::new(Blobs::new(dir.path().join("blobs")));
        let needed = spans(&[(0, 4), (8, 12)]);
        let mut transfer = blobs.begin(&MODEL, Bytes(16), &needed).expect("begun");
        transfer.write(0, b"head").expect("written");
        transfer.sync().expect("synced");
        transfer.write(8, b"tail").expect("written");
        drop(transfer);
        assert_eq!(blobs.present(&MODEL), spans(&[(0, 4)]));
        let transfer = blobs.begin(&MODEL, Bytes(16), &needed).expect("resumed");
        let refusal = transfer.finish(&needed).expect_err("incomplete");
        assert_eq!(refusal.code, "blob-incomplete");
        let mut transfer = blobs.begin(&MODEL, Bytes(16), &needed).expect("resumed");
        transfer.write(8, b"tail").expect("written");
        transfer.finish(&needed).expect("whole");
        assert!(blobs.present(&MODEL).covers(&needed));
        let file = std::fs::read(blobs.path(&MODEL)).expect("there");
        assert_eq!(file, b"head\0\0\0\0tail\0\0\0\0");
    }

    #[test]
    fn a_full_disk_is_said_and_nothing_half_written_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Arc::new(Blobs::new(dir.path().join("blobs")));
        let needed = spans(&[(0, 8)]);
        let mut transfer = blobs.begin(&MODEL, Bytes(8), &needed).expect("begun");
        blobs.limit_writes(4);
        transfer.write(0, b"head").expect("fits");
        let refusal = transfer.write(4, b"tail").expect_err("full");
        assert_eq!(refusal.code, "disk-full");
        drop(transfer);
        assert!(blobs.present(&MODEL).is_empty());
        let refusal = blobs.begin(&MODEL, Bytes(8), &needed).expect_err("full");
        assert_eq!(refusal.code, "disk-full");
        assert!(refusal.message.contains("32 MiB"), "{}", refusal.message);
    }

    #[test]
    fn a_file_of_another_length_is_no_longer_present() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Arc::new(Blobs::new(dir.path().to_owned()));
        let needed = spans(&[(0, 4)]);
        let mut transfer = blobs.begin(&MODEL, Bytes(4), &needed).expect("begun");
        transfer.write(0, b"head").expect("written");
        transfer.finish(&needed).expect("whole");
        std::fs::write(blobs.path(&MODEL), b"he").expect("cut");
        assert!(blobs.present(&MODEL).is_empty());
    }

    #[test]
    fn what_nothing_refers_to_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let blobs = Arc::new(Blobs::new(dir.path().to_owned()));
        for model in [MODEL, Sha256([8; 32])] {
            blobs
                .begin(&model, Bytes(4), &spans(&[(0, 4)]))
                .expect("begun");
        }
        blobs.keep_only(&[MODEL].into());
        assert!(blobs.path(&MODEL).exists());
        assert!(!blobs.path(&Sha256([8; 32])).exists());
    }
}
