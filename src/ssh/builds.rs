//! Which program of ours runs on a host: by its processor and its C library, read from the program's own headers.
//!
//! This same program where it fits, else one of a folder of builds. What cannot be told of the host is not held against a program: it
//! is tried there before anything is started. It refuses what is not for Linux.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sha2::{Digest as _, Sha256 as Hasher};
use stageline_core::id::Sha256;

use super::{Measured, SshError};

/// Programs that could be pushed, and what is known of them.
#[derive(Debug, Default)]
pub struct Builds {
    own: Option<PathBuf>,
    folders: Vec<PathBuf>,
    digests: Mutex<Vec<(PathBuf, Sha256)>>,
}

/// What a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    arch: &'static str,
    libc: Libc,
}

/// The C library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Libc {
    /// None: it runs anywhere.
    None,
    /// GNU's, of this version or a later one.
    Gnu(u32, u32),
    /// musl's.
    Musl,
}

impl Builds {
    /// This program, and whatever is in these folders.
    pub fn new(own: Option<PathBuf>, folders: Vec<PathBuf>) -> Self {
        Self {
            own,
            folders,
            digests: Mutex::default(),
        }
    }

    /// The agent's program for a host.
    ///
    /// # Errors
    /// [`SshError::Unfit`] with what the host is and what there is.
    pub fn fitting(&self, host: &Measured) -> Result<PathBuf, SshError> {
        let mut there = Vec::new();
        for path in self.candidates() {
            let Some(needs) = Needs::of(&path) else {
                continue;
            };
            if needs.fit(host) {
                return Ok(path);
            }
            there.push(format!("{} ({})", path.display(), needs.told()));
        }
        let facts = &host.facts;
        let there = if there.is_empty() {
            "no program for Linux".to_owned()
        } else {
            there.join(", ")
        };
        Err(SshError::Unfit {
            message: format!(
                "it is {} {} with {}, and there is {there} here",
                facts.os,
                facts.arch,
                if host.libc.is_empty() { "an unknown C library" } else { &host.libc }
            ),
            hint: "build stageline for that host and put the program into a folder that STAGELINE_AGENTS names; nothing was begun there".to_owned(),
        })
    }

    /// The native workers that lie beside a program and run on a host.
    pub(super) fn workers(&self, program: &Path, host: &Measured) -> Vec<PathBuf> {
        let beside = program.parent().map(std::fs::read_dir);
        let entries = beside.and_then(Result::ok).into_iter().flatten().flatten();
        let worker = |path: &PathBuf| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("");
            let plain = name
                .strip_prefix("stageline-worker")
                .is_some_and(|rest| !rest.contains('.'));
            plain && Needs::of(path).is_some_and(|needs| needs.fit(host))
        };
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(worker).collect();
        found.sort();
        found
    }

    /// The digest of a program, computed once.
    pub(super) fn digest(&self, path: &Path) -> Result<Sha256, SshError> {
        let mut known = self.digests.lock().expect("no holder panics");
        if let Some((_, digest)) = known.iter().find(|(other, _)| other == path) {
            return Ok(*digest);
        }
        let unreadable = |error: std::io::Error| SshError::Key {
            message: format!("cannot read {}: {error}", path.display()),
            hint: "is the program still where it was?".to_owned(),
        };
        let mut hasher = Hasher::new();
        let mut file = File::open(path).map_err(unreadable)?;
        std::io::copy(&mut file, &mut Feed(&mut hasher)).map_err(unreadable)?;
        let digest = Sha256(hasher.finalize().into());
        known.push((path.to_owned(), digest));
        Ok(digest)
    }

    fn candidates(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.own.iter().cloned().collect();
        for folder in &self.folders {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let program = |path: &PathBuf| {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or("");
                name.starts_with("stageline") && !name.starts_with("stageline-worker")
            };
            let mut found: Vec<PathBuf> =
                entries.map(|entry| entry.path()).filter(program).collect();
            found.sort();
            all.extend(found);
        }
        all
    }
}

struct Feed<'a>(&'a mut Hasher);

impl std::io::Write for Feed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Needs {
    /// Of a program for Linux of 64 bits; none of anything else.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
        };
        Elf { read: &read }.needs()
    }

    fn fit(&self, host: &Measured) -> bool {
        let facts = &host.facts;
        if facts.os != "linux" || facts.arch != self.arch {
            return false;
        }
        let said = host.libc.to_lowercase();
        match self.libc {
            Libc::None => true,
            Libc::Musl => said.is_empty() || said.contains("musl"),
            Libc::Gnu(major, minor) => {
                let gnu = said.contains("glibc") || said.contains("gnu libc");
                if !gnu {
                    return said.is_empty();
                }
                let version = said.split_ascii_whitespace().next_back().and_then(version);
                version.is_none_or(|found| found >= (major, minor))
            }
        }
    }

    fn told(&self) -> String {
        let libc = match self.libc {
            Libc::None => String::new(),
            Libc::Gnu(major, minor) => format!(", glibc {major}.{minor} or later"),
            Libc::Musl => ", musl".to_owned(),
        };
        format!("{}{libc}", self.arch)
    }
}

/// `2.36`, also in `2.36-9+deb12u4)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, digits.parse().ok()?))
}

/// No table of a program is larger.
const TABLE_MAX: usize = 16 << 20;

/// A program's headers, as far as they tell what it needs. Little-endian and of 64 bits, as all hosts are.
struct Elf<'a> {
    read: &'a dyn Fn(u64, usize) -> Option<Vec<u8>>,
}

/// A segment: its type, and where it is in the file and in memory.
struct Segment {
    kind: u32,
    at: u64,
    address: u64,
    size: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Elf<'_> {
    fn needs(&self) -> Option<Needs> {
        let head = (self.read)(0, 64)?;
        // The magic number, 64 bits, little-endian.
        if head.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let arch = match half(&head, 18)? {
            0x3e => "x86_64",
            0xb7 => "aarch64",
            _ => return None,
        };
        let segments = self.segments(&head)?;
        let interpreter = segments.iter().find(|segment| segment.kind == 3);
        let libc = match interpreter {
            None => Libc::None,
            Some(segment) => {
                let path = self.table(segment.at, segment.size)?;
                if String::from_utf8_lossy(&path).contains("musl") {
                    Libc::Musl
                } else {
                    let (major, minor) = self.gnu(&segments)?;
                    Libc::Gnu(major, minor)
                }
            }
        };
        Some(Needs { arch, libc })
    }

    fn table(&self, at: u64, size: u64) -> Option<Vec<u8>> {
        let size = usize::try_from(size)
            .ok()
            .filter(|size| *size <= TABLE_MAX)?;
        (self.read)(at, size)
    }

    fn segments(&self, head: &[u8]) -> Option<Vec<Segment>> {
        let (at, size, count) = (long(head, 32)?, half(head, 54)?, half(head, 56)?);
        let table = self.table(at, u64::from(size) * u64::from(count))?;
        let segment = |entry: &[u8]| {
            Some(Segment {
                kind: word(entry, 0)?,
                at: long(entry, 8)?,
                address: long(entry, 16)?,
                size: long(entry, 32)?,
            })
        };
        table
            .chunks_exact(usize::from(size).max(1))
            .map(segment)
            .collect()
    }

    /// The newest version of GNU's C library that a symbol of it asks for.
    fn gnu(&self, segments: &[Segment]) -> Option<(u32, u32)> {
        let dynamic = segments.iter().find(|segment| segment.kind == 2)?;
        let table = self.table(dynamic.at, dynamic.size)?;
        let entry = |tag: u64| {
            let mut entries = table.chunks_exact(16);
            entries
                .find(|entry| long(entry, 0) == Some(tag))
                .and_then(|entry| long(entry, 8))
        };
        let in_file = |address: u64| {
            let loaded = segments.iter().filter(|segment| segment.kind == 1);
            let mut holds = loaded.filter(|segment| {
                (segment.address..segment.address + segment.size).contains(&address)
            });
            holds
                .next()
                .map(|segment| segment.at + (address - segment.address))
        };
        let strings = self.table(in_file(entry(5)?)?, entry(10)?)?;
        // What it needs of which library, and of how many.
        let (needed, count) = (in_file(entry(0x6fff_fffe)?)?, entry(0x6fff_ffff)?);
        let (mut newest, mut at) = ((2, 0), needed);
        for _ in 0..count.min(1000) {
            let need = (self.read)(at, 16)?;
            let mut version_at = at + u64::from(word(&need, 8)?);
            for _ in 0..half(&need, 2)? {
                let one = (self.read)(version_at, 16)?;
                let name = strings.get(usize::try_from(word(&one, 8)?).ok()?..)?;
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(name);
                newest = newest.max(
                    name.strip_prefix("GLIBC_")
                        .and_then(version)
                        .unwrap_or((2, 0)),
                );
                version_at += u64::from(word(&one, 12)?);
            }
            at += u64::from(word(&need, 12)?);
        }
        Some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(arch: &str, libc: &str) -> Measured {
        let mut host = Measured {
            libc: libc.to_owned(),
            ..Measured::default()
        };
        host.facts.os = "linux".to_owned();
        host.facts.arch = arch.to_owned();
        host
    }

    #[test]
    fn a_program_fits_by_processor_and_c_library() {
        let needs = |libc| Needs {
            arch: "x86_64",
            libc,
        };
        let gnu = needs(Libc::Gnu(2, 34));
        for (libc, fits) in [
            ("glibc 2.36", true),
            ("glibc 2.34", true),
            ("ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35", true),
            ("ldd (GNU libc) 2.17", false),
            ("glibc 2.9", false),
            ("musl libc (x86_64)", false),
            ("", true),
        ] {
            assert_eq!(gnu.fit(&host("x86_64", libc)), fits, "{libc}");
            assert!(needs(Libc::None).fit(&host("x86_64", libc)), "{libc}");
        }
        assert!(needs(Libc::Musl).fit(&host("x86_64", "musl libc (x86_64)")));
        assert!(!needs(Libc::Musl).fit(&host("x86_64", "glibc 2.36")));
        assert!(!gnu.fit(&host("aarch64", "glibc 2.36")));
        let mac = Measured {
            facts: stageline_core::offer::Facts {
                os: "darwin".to_owned(),
                arch: "x86_64".to_owned(),
                ..Default::default()
            },
            libc: String::new(),
        };
        assert!(!needs(Libc::None).fit(&mac));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_program_says_what_it_needs() {
        let own = std::env::current_exe().expect("a program");
        let needs = Needs::of(&own).expect("it is one for Linux");
        assert_eq!(needs.arch, std::env::consts::ARCH);
        let Libc::Gnu(major, minor) = needs.libc else {
            return;
        };
        assert!(major == 2 && (17..100).contains(&minor), "{major}.{minor}");
    }

    #[test]
    fn what_there_is_and_what_is_wanted_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("stageline-arm"), b"\x7fELF\x02\x01").expect("written");
        let builds = Builds::new(None, vec![folder.path().to_owned()]);
        let error = builds
            .fitting(&host("riscv64", "glibc 2.36"))
            .expect_err("none");
        let text = error.to_string();
        assert!(
            text.contains("riscv64") && text.contains("glibc 2.36"),
            "{text}"
        );
        let mut own = std::env::current_exe().expect("a program");
        own = own.canonicalize().expect("it is there");
        let builds = Builds::new(Some(own), Vec::new());
        let error = builds
            .fitting(&host("x86_64", "glibc 2.4"))
            .expect_err("too old");
        assert!(error.to_string().contains(" here"), "{error}");
    }
}
