//! Which program of ours runs on a host: by its processor and its C library, read from the program's own headers.
//!
//! This same program where it fits, else one of a folder of builds. What cannot be told of the host is not held against a program, but
//! those that need least come first then: each is tried there before anything is started. It refuses what is not for Linux.

mod elf;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use sha2::{Digest as _, Sha256 as Hasher};
use stageline_core::id::Sha256;

pub(crate) use self::elf::Needs;
use super::{Measured, SshError};

/// What to do where no program of ours fits.
pub(crate) const BUILD_ONE: &str = "`packaging/build` makes programs for other machines; the folder that STAGELINE_AGENTS names, or `agents` beside the \
                                    program, is looked into";

/// Programs that could be pushed, and what is known of them.
#[derive(Debug, Default)]
pub struct Builds {
    own: Option<PathBuf>,
    folders: Vec<PathBuf>,
    digests: Mutex<Vec<(PathBuf, Sha256)>>,
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

    /// The agent's programs for a host, best first; at least one.
    ///
    /// # Errors
    /// [`SshError::Unfit`] with what the host is and what there is.
    pub fn fitting(&self, host: &Measured) -> Result<Vec<PathBuf>, SshError> {
        let all = self.candidates().into_iter();
        let all: Vec<(PathBuf, Needs)> = all
            .filter_map(|path| Needs::of(&path).map(|needs| (path, needs)))
            .collect();
        let fits = all.iter().filter(|(_, needs)| needs.fit(host));
        let mut fits: Vec<&(PathBuf, Needs)> = fits.collect();
        // A program that brings its own C library runs anywhere, and is slower where it allocates much.
        if host.libc.is_empty() {
            fits.sort_by_key(|(_, needs)| needs.libc);
        } else {
            let own = self.own.as_ref();
            fits.sort_by_key(|(path, needs)| (own != Some(path), needs.libc.is_any()));
        }
        if fits.is_empty() {
            return Err(unfit(host, &all));
        }
        Ok(fits.into_iter().map(|(path, _)| path.clone()).collect())
    }

    /// Whether there is a program for a machine of which its processor (empty where nobody tells) and perhaps its C library are known.
    ///
    /// # Errors
    /// As [`Builds::fitting`].
    pub fn could_fit(&self, told: &Measured) -> Result<(), SshError> {
        if !told.facts.arch.is_empty() {
            return self.fitting(told).map(|_| ());
        }
        let any = self
            .candidates()
            .iter()
            .any(|path| Needs::of(path).is_some());
        any.then_some(()).ok_or_else(|| unfit(told, &[]))
    }

    /// Whether a program that could be pushed to such a machine has native workers beside it. Where there is no program for it at
    /// all, that is told by [`Builds::could_fit`], and not here.
    pub(crate) fn could_bring_worker(&self, told: &Measured) -> bool {
        let fitting = |path: PathBuf| {
            let needs = Needs::of(&path)?;
            let mut host = told.clone();
            if host.facts.arch.is_empty() {
                needs.arch.clone_into(&mut host.facts.arch);
            }
            needs.fit(&host).then_some((path, host))
        };
        let mut fitting = self.candidates().into_iter().filter_map(fitting).peekable();
        fitting.peek().is_none()
            || fitting.any(|(path, host)| !self.workers(&path, &host).is_empty())
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
            let inside = entries(folder);
            let below = inside.iter().filter(|path| path.is_dir());
            let below: Vec<PathBuf> = below.flat_map(|folder| entries(folder)).collect();
            let program = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.unwrap_or("");
                let ours = name.starts_with("stageline") && !name.starts_with("stageline-worker");
                ours && path.is_file()
            };
            all.extend(inside.into_iter().chain(below).filter(program));
        }
        all
    }
}

/// What is in a folder, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// What a host is, and what there is.
fn unfit(host: &Measured, there: &[(PathBuf, Needs)]) -> SshError {
    let there: Vec<String> = there
        .iter()
        .map(|(path, needs)| format!("{} ({})", path.display(), needs.told()))
        .collect();
    let there = if there.is_empty() {
        "no program for Linux".to_owned()
    } else {
        there.join(", ")
    };
    let facts = &host.facts;
    let libc = if host.libc.is_empty() {
        "an unknown C library"
    } else {
        &host.libc
    };
    SshError::Unfit {
        message: format!(
            "it is {} {} with {libc}, and there is {there} here",
            facts.os, facts.arch
        ),
        hint: BUILD_ONE.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::elf::Libc;
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

    /// The head of a program for Linux that needs nothing: 64 bits, little-endian, no segments.
    fn needs_nothing(arch: u8) -> Vec<u8> {
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = arch;
        head
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn the_best_comes_first_and_what_needs_least_where_nothing_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = std::env::current_exe().expect("a program");
        let arch = std::env::consts::ARCH;
        let (this, other) = match arch {
            "x86_64" => (0x3e, 0xb7),
            _ => (0xb7, 0x3e),
        };
        // Each target has a folder of its own, with the workers beside the program.
        let mut put = Vec::new();
        for (name, arch) in [("any", this), ("other", other)] {
            let below = folder.path().join(name);
            std::fs::create_dir(&below).expect("made");
            for file in ["stageline", "stageline-worker"] {
                std::fs::write(below.join(file), needs_nothing(arch)).expect("written");
            }
            put.push(below.join("stageline"));
        }
        let builds = Builds::new(Some(own.clone()), vec![folder.path().to_owned()]);
        let fitting = |libc| builds.fitting(&host(arch, libc)).expect("some fit");
        let any = put[0].clone();
        assert_eq!(fitting("glibc 2.99"), [own.clone(), any.clone()]);
        assert_eq!(fitting(""), [any.clone(), own]);
        for without in ["no C library", "musl libc (x86_64)", "glibc 2.4"] {
            assert_eq!(fitting(without), std::slice::from_ref(&any), "{without}");
        }
        let workers = builds.workers(&any, &host(arch, "no C library"));
        assert_eq!(workers, [any.with_file_name("stageline-worker")]);
        // Of a folder, too.
        let gnu = folder.path().join("gnu");
        std::fs::create_dir(&gnu).expect("made");
        let gnu = gnu.join("stageline");
        std::os::unix::fs::symlink(std::env::current_exe().expect("a program"), &gnu)
            .expect("linked");
        let pushed = Builds::new(None, vec![folder.path().to_owned()]);
        let fitting = |libc| pushed.fitting(&host(arch, libc)).expect("some fit");
        assert_eq!(fitting("glibc 2.99"), [gnu.clone(), any.clone()]);
        assert_eq!(fitting(""), [any.clone(), gnu]);
        let elsewhere = if arch == "x86_64" {
            "aarch64"
        } else {
            "x86_64"
        };
        let there = builds.fitting(&host(elsewhere, "glibc 2.99"));
        assert_eq!(there.expect("it fits"), [put[1].clone()]);
    }

    #[test]
    fn whether_anything_could_be_pushed_is_known_before() {
        let folder = tempfile::tempdir().expect("a folder");
        // As on an operator's Mac: this program is a 64-bit Mach-O there.
        let own = folder.path().join("own");
        let mac = [0xcf, 0xfa, 0xed, 0xfe, 0x0c, 0x00, 0x00, 0x01];
        std::fs::write(&own, [&mac[..], &[0; 56]].concat()).expect("written");
        let none = Builds::new(Some(own), vec![folder.path().to_owned()]);
        for arch in ["", "x86_64"] {
            let error = none.could_fit(&host(arch, "")).expect_err("there is none");
            assert!(
                error.to_string().contains("no program for Linux"),
                "{error}"
            );
        }
        std::fs::write(folder.path().join("stageline"), needs_nothing(0xb7)).expect("written");
        for (arch, fits) in [("", true), ("aarch64", true), ("x86_64", false)] {
            assert_eq!(none.could_fit(&host(arch, "")).is_ok(), fits, "{arch}");
        }
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
