//! What a local folder needs beyond being an object store: it is made durably, checked, and swept.
//!
//! Every put is synced, file and folder: `object_store` does that when told to. A reader makes nothing here.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use rustix::fs::{OFlags, openat};

use super::{JOURNAL, Mode, PLANS, SNAPSHOT, StoreError};

/// What is left of a put is swept when it is this much older than the probe: no put takes so long.
const LEFTOVER_AGE: Duration = Duration::from_secs(60);

/// A folder as objects.
pub(super) struct Opened {
    pub(super) objects: Arc<dyn ObjectStore>,
    /// None for a reader when there is none yet.
    pub(super) folder: Option<PathBuf>,
}

/// Opens a folder; a writer makes it.
pub(super) fn open(root: &Path, mode: Mode) -> Result<Opened, StoreError> {
    let place = root.display().to_string();
    match fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(StoreError::NotAFolder { place }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match mode {
            // Nothing is recorded, and a reader leaves it at that.
            Mode::Read => {
                return Ok(Opened {
                    objects: Arc::new(InMemory::new()),
                    folder: None,
                });
            }
            Mode::Write => create(root)
                .map_err(|error| StoreError::of_io(&place, "making the folder", &error))?,
        },
        Err(error) => return Err(StoreError::of_io(&place, "opening the folder", &error)),
    }
    check(root)?;
    let objects = synced(root)
        .map_err(|error| StoreError::of_object(&place, "opening the folder", &error))?;
    Ok(Opened {
        objects: Arc::new(objects),
        folder: Some(root.to_owned()),
    })
}

/// The file system whose puts are durable when they return.
pub(super) fn synced(root: &Path) -> Result<LocalFileSystem, object_store::Error> {
    Ok(LocalFileSystem::new_with_prefix(root)?.with_fsync(true))
}

/// A file in the place of a folder, or a folder that is gone, would be listed as empty: as if nothing were deployed.
pub(super) fn check(root: &Path) -> Result<(), StoreError> {
    let place = root.display().to_string();
    for (path, must_exist) in [
        (root.to_owned(), true),
        (root.join(JOURNAL), false),
        (root.join(SNAPSHOT), false),
        (root.join(PLANS), false),
    ] {
        match fs::symlink_metadata(&path).and_then(|_| fs::metadata(&path)) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                return Err(StoreError::NotAFolder {
                    place: path.display().to_string(),
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if must_exist || fs::symlink_metadata(&path).is_ok() {
                    return Err(StoreError::Corrupt {
                        place,
                        object: path.display().to_string(),
                        what: "the folder has vanished".to_owned(),
                    });
                }
            }
            Err(error) => return Err(StoreError::of_io(&place, "opening the folder", &error)),
        }
    }
    Ok(())
}

/// The names of the files in a folder; none where there is no folder. Only names: a look at each file costs more than
/// all of them together.
pub(super) async fn names(folder: PathBuf) -> io::Result<Vec<String>> {
    let look = move || {
        let listed = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut names = Vec::new();
        for entry in listed {
            let entry = entry?;
            if let (Ok(name), false) =
                (entry.file_name().into_string(), entry.file_type()?.is_dir())
            {
                names.push(name);
            }
        }
        Ok(names)
    };
    let looked = tokio::task::spawn_blocking(look).await;
    looked.map_err(io::Error::other)?
}

/// Reads small files of one folder, one after the other, into the same place.
pub(super) struct Lines {
    folder: OwnedFd,
    most: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// None of them is longer than `most`.
    pub(super) fn in_folder(folder: &Path, most: u64) -> io::Result<Self> {
        Ok(Self {
            folder: File::open(folder)?.into(),
            most,
            buffer: Vec::new(),
        })
    }

    /// A file that is one line; none if it is not, and a closer look must tell what it is. Its end is the line's end: it
    /// need not be asked for.
    pub(super) fn read(&mut self, name: &str) -> io::Result<Option<&[u8]>> {
        const PIECE: usize = 16 << 10;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(
            &self.folder,
            name,
            flags,
            rustix::fs::Mode::empty(),
        )?);
        let mut end = 0;
        loop {
            if self.buffer.len() < end + PIECE {
                self.buffer.resize(end + PIECE, 0);
            }
            let more = file.read(&mut self.buffer[end..end + PIECE])?;
            end += more;
            if more < PIECE || end as u64 > self.most {
                let line = &self.buffer[..end];
                let whole = line.last() == Some(&b'\n') && end as u64 <= self.most;
                return Ok(whole.then_some(line));
            }
        }
    }
}

/// Makes a folder and all above it, durably.
fn create(root: &Path) -> io::Result<()> {
    if root.as_os_str().is_empty() || root.is_dir() {
        return Ok(());
    }
    let parent = root.parent().unwrap_or_else(|| Path::new(""));
    create(parent)?;
    match fs::create_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && root.is_dir() => {}
        other => other?,
    }
    sync_folder(parent)
}

/// Syncs the names in a folder.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    File::open(folder)?.sync_all()
}

/// Removes what killed writers left: staged files (`N.json#1`) and probes. Best effort; both ages are of one file
/// system, so no two clocks are compared. A slow put whose file is taken away is repeated by its own writer.
pub(super) fn sweep(root: &Path, now: Option<SystemTime>) {
    let Some(now) = now else { return };
    for folder in [
        root.to_owned(),
        root.join(JOURNAL),
        root.join(SNAPSHOT),
        root.join(PLANS),
    ] {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let old = entry
                .metadata()
                .and_then(|meta| meta.modified())
                .is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > LEFTOVER_AGE));
            if old && is_leftover(name) {
                // Somebody else may have swept it.
                drop(fs::remove_file(entry.path()));
            }
        }
    }
}

fn is_leftover(name: &str) -> bool {
    let staged = name
        .rsplit_once('#')
        .is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    staged || name.starts_with(super::PROBE)
}
