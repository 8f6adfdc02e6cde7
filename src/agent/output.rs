//! What a worker writes to stderr: scrubbed of secrets that we know, kept to a size, readable while it grows.
//!
//! What always holds: a secret value given to a worker is not in its log, however the writes were cut; the log takes at
//! most twice [`KEEP`] on disk. A secret shorter than [`SECRET_MIN`] bytes is not looked for, since it would shred the
//! log without hiding anything.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use secrecy::{ExposeSecret as _, SecretString};

/// How much of a log is served at least, when it was written.
pub const KEEP: u64 = 1 << 20;

/// Shorter values are found everywhere by chance.
pub const SECRET_MIN: usize = 4;

/// What stands in place of a secret.
const MASK: &[u8] = b"***";

/// Replaces known values in a stream.
#[derive(Clone)]
pub struct Scrubber {
    /// The values, also base64 and URL-encoded; longest first.
    values: Vec<Vec<u8>>,
    held: Vec<u8>,
}

impl Scrubber {
    /// Looks for these values.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut values = Vec::new();
        for secret in secrets {
            let text = secret.expose_secret();
            if text.len() < SECRET_MIN {
                continue;
            }
            let base64 = base64::engine::general_purpose::STANDARD_NO_PAD.encode(text);
            values.push(url_encoded(text));
            values.push(base64.into_bytes());
            values.push(text.as_bytes().to_vec());
        }
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self {
            values,
            held: Vec::new(),
        }
    }

    /// Takes bytes and returns what is safe by now: an end that may become a secret is held back.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.values.is_empty() {
            return bytes.to_vec();
        }
        self.held.extend_from_slice(bytes);
        let mut safe = Vec::with_capacity(self.held.len());
        let mut at = 0;
        while at < self.held.len() {
            let rest = &self.held[at..];
            if let Some(value) = self.values.iter().find(|value| rest.starts_with(value)) {
                safe.extend_from_slice(MASK);
                at += value.len();
            } else if self.values.iter().any(|value| value.starts_with(rest)) {
                break;
            } else {
                safe.push(rest[0]);
                at += 1;
            }
        }
        self.held.drain(..at);
        safe
    }

    /// A text of its own without the values, whatever the stream is at.
    pub fn text(&self, text: &str) -> String {
        let mut scrubber = Self {
            values: self.values.clone(),
            held: Vec::new(),
        };
        let mut safe = scrubber.push(text.as_bytes());
        safe.extend(scrubber.finish());
        String::from_utf8_lossy(&safe).into_owned()
    }

    /// What was held back, at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

fn url_encoded(text: &str) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte);
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a vector cannot fail");
        }
    }
    encoded
}

/// A log that keeps its last [`KEEP`] bytes at least: a file, and the one before it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    written: u64,
}

impl LogFile {
    /// Opens a log to append to it.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: PathBuf) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path)?;
        let written = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            written,
        })
    }

    /// Appends; starts a new file when this one is full.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.written >= KEEP {
            std::fs::rename(&self.path, before(&self.path))?;
            *self = Self::open(self.path.clone())?;
        }
        self.file.write_all(bytes)?;
        self.written += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(())
    }
}

fn before(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".1");
    path.with_file_name(name)
}

/// The last `max` bytes of a log, and where the file that is written to ends now.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn tail(path: &Path, max: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let max = max.min(2 * KEEP);
    let (mut bytes, end) = tail_of(path, max)?;
    let rest = max.saturating_sub(u64::try_from(bytes.len()).unwrap_or(max));
    if rest > 0 {
        let (mut older, _) = tail_of(&before(path), rest)?;
        older.append(&mut bytes);
        bytes = older;
    }
    Ok((bytes, end))
}

fn tail_of(path: &Path, max: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        other => other?,
    };
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(end.saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok((bytes, end))
}

/// What was written after `from`, and where the file ends now. A file that was begun anew is read from its begin.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn since(path: &Path, from: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((Vec::new(), from));
        }
        other => other?,
    };
    let length = file.metadata()?.len();
    let from = if length < from { 0 } else { from };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(KEEP).read_to_end(&mut bytes)?;
    let end = from + u64::try_from(bytes.len()).unwrap_or(0);
    Ok((bytes, end))
}

/// The last lines of a worker's log on one page, for a message: at most `lines` of them.
pub fn last_lines(path: &Path, lines: usize) -> String {
    let bytes = tail(path, 4096).map(|(bytes, _)| bytes).unwrap_or_default();
    let text = crate::machine::plain::message(&String::from_utf8_lossy(&bytes), 4096);
    let kept: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    kept[kept.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(text: &[u8], size: usize, secrets: &[SecretString]) -> String {
        let mut scrubber = Scrubber::new(secrets);
        let mut out: Vec<u8> = text
            .chunks(size)
            .flat_map(|piece| scrubber.push(piece))
            .collect();
        out.extend(scrubber.finish());
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn known_values_vanish_however_the_stream_is_cut() {
        let secrets = ["hunter2/é".to_owned().into(), "abc".to_owned().into()];
        let base64 = base64::engine::general_purpose::STANDARD.encode("hunter2/é");
        let text = format!("key=hunter2/é hunter {base64} hunter2%2F%C3%A9 abc hunter2/");
        for size in 1..text.len() {
            let plain = scrubbed(text.as_bytes(), size, &secrets);
            assert_eq!(
                plain,
                "key=*** hunter ***== *** abc hunter2/".replace(
                    "***==",
                    &format!("***{}", &base64[base64.trim_end_matches('=').len()..])
                ),
                "{size}"
            );
        }
    }

    #[test]
    fn a_log_keeps_its_end_and_forgets_its_begin() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path.clone()).expect("opened");
        let line = [b'x'; 1 << 16];
        for _ in 0..50 {
            log.append(&line).expect("written");
        }
        log.append(b"end").expect("written");
        let (bytes, end) = tail(&path, u64::MAX).expect("read");
        assert!(u64::try_from(bytes.len()).expect("small") >= KEEP);
        assert!(bytes.ends_with(b"xend"));
        let on_disk: u64 = std::fs::read_dir(dir.path())
            .expect("listed")
            .map(|entry| entry.expect("there").metadata().expect("there").len())
            .sum();
        assert!(on_disk <= 2 * KEEP + (1 << 17), "{on_disk}");
        log.append(b"more").expect("written");
        assert_eq!(since(&path, end).expect("read").0, b"more");
    }

    #[test]
    fn a_message_holds_the_last_lines_only() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.log");
        std::fs::write(&path, "one\ntwo\n\n\u{1b}[31mthree\u{1b}[0m\n").expect("written");
        assert_eq!(last_lines(&path, 2), "two\nthree");
        assert_eq!(last_lines(&dir.path().join("none"), 2), "");
    }
}
