//! Files that hold a secret: keys, tokens, the operator's identity. All are read here, with the same checks.
//!
//! It refuses what others can read, what is no regular file, and what is longer than any secret. What it looks at and what
//! it reads is the same file, and a pipe in its place does not hold it up. No error holds anything of the content.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use secrecy::zeroize::Zeroizing;

/// Largest secret that is read, in bytes.
const SECRET_MAX: u64 = 64 << 10;

/// Why a file is no secret of its owner's.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// Others can read it.
    #[error("it can be read by others (mode {mode:o})")]
    Exposed {
        /// Its mode.
        mode: u32,
    },
    /// A folder, a pipe, a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// No text.
    #[error("it is not text")]
    NotText,
    /// Longer than any secret.
    #[error("it is longer than {SECRET_MAX} bytes")]
    TooLong,
    /// The system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The content of a file that only its owner can read.
///
/// # Errors
/// [`SecretFileError`]; that there is no file is one of [`io::ErrorKind::NotFound`].
pub fn read(path: &Path) -> Result<Zeroizing<String>, SecretFileError> {
    let no_waiting = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(no_waiting)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(SecretFileError::NotAFile);
    }
    let mode = meta.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretFileError::Exposed { mode });
    }
    let mut text = Zeroizing::new(String::new());
    match file.take(SECRET_MAX + 1).read_to_string(&mut text) {
        Ok(read) if read as u64 > SECRET_MAX => Err(SecretFileError::TooLong),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(SecretFileError::NotText),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_file_that_nobody_else_can_read_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, "canary").expect("written");
        for mode in [0o600, 0o400, 0o700] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            assert_eq!(read(&path).expect("a secret").as_str(), "canary");
        }
        for mode in [0o640, 0o604, 0o660, 0o644, 0o601, 0o620] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            let error = read(&path).expect_err("others can read it");
            assert!(error.to_string().contains(&format!("{mode:o}")), "{error}");
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
        assert!(matches!(
            read(folder.path()),
            Err(SecretFileError::NotAFile)
        ));
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|made| made.success()) {
            assert!(matches!(read(&pipe), Err(SecretFileError::NotAFile)));
        }
        let none = read(&folder.path().join("none"));
        let Err(SecretFileError::Io(error)) = none else {
            panic!("there is none");
        };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for (content, long) in [(vec![0xff, 0xfe], false), (vec![b'a'; 70_000], true)] {
            std::fs::write(&path, content).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
            let error = read(&path).expect_err("no secret");
            assert_eq!(matches!(error, SecretFileError::TooLong), long, "{error}");
        }
    }
}
