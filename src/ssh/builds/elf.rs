//! What a program needs of the machine that it is to run on, read from its own headers: the processor, and which C library.
//!
//! It believes no length that a header tells beyond a limit, and refuses what is not for Linux of 64 bits.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::super::Measured;

/// What a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Its processor, in the words of facts.
    pub(crate) arch: &'static str,
    pub(super) libc: Libc,
}

/// The C library that a program is linked with; what needs less is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Libc {
    /// None: it runs anywhere.
    None,
    /// GNU's, of this version or a later one.
    Gnu(u32, u32),
    /// musl's.
    Musl,
}

impl Libc {
    /// Whether it does not matter which one the machine has.
    pub(super) fn is_any(self) -> bool {
        self == Self::None
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

    /// The same of a program that is at hand.
    pub(crate) fn read(program: &[u8]) -> Option<Self> {
        let read = |at: u64, len: usize| {
            let at = usize::try_from(at).ok()?;
            program.get(at..at.checked_add(len)?).map(<[u8]>::to_vec)
        };
        Elf { read: &read }.needs()
    }

    pub(super) fn fit(&self, host: &Measured) -> bool {
        let facts = &host.facts;
        facts.os == "linux" && facts.arch == self.arch && self.runs_with(&host.libc)
    }

    /// Whether a C library that calls itself so does; an empty name is not known, and does.
    pub(crate) fn runs_with(&self, libc: &str) -> bool {
        let said = libc.to_lowercase();
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

    /// For people.
    pub(crate) fn told(&self) -> String {
        let libc = match self.libc {
            Libc::None => ", with any C library".to_owned(),
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
