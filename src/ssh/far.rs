//! What is asked of a host, and its answers read: who has it, what it is, take it, give it back.
//!
//! An answer that is not what our scripts print is an error, and never "nobody". The mark is one line of JSON that says who has the
//! host, since when and for what; it is not secret.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes as Piece;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use stageline_core::id::{LeaseId, Lineage, Name, RequestKey};
use stageline_core::offer::{Facts, Gpu};
use stageline_core::resource::Contact;
use stageline_core::unit::{Bytes, Timestamp};

use super::script::{self, Script};
use super::{Host, SshError};
use crate::machine::plain;

/// Longest that a short script may take; one that ends processes waits for them.
const SHORT: Duration = Duration::from_secs(30);
const ENDING: Duration = Duration::from_secs(60);

/// Longest that taking a host may take, on top of the way there.
const CLAIMING: Duration = Duration::from_secs(12);

/// The version of [`Mark`].
const FORMAT: u32 = 1;

/// Who has a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The version of this.
    format: u32,
    /// The machine that the host is.
    pub request_key: RequestKey,
    /// Whose topology's life.
    pub lineage: Lineage,
    /// Which lease of it.
    pub lease: LeaseId,
    /// By which offer.
    pub offer: Name,
    /// Somebody at a computer, for people.
    pub who: String,
    /// Since when, by that computer's clock.
    pub since: Timestamp,
}

impl Mark {
    /// A mark that is about to be set.
    pub fn new(
        request_key: RequestKey,
        (lineage, lease): (Lineage, LeaseId),
        offer: Name,
        who: String,
        since: Timestamp,
    ) -> Self {
        Self {
            format: FORMAT,
            request_key,
            lineage,
            lease,
            offer,
            who,
            since,
        }
    }

    /// As it is written: the key alone for scripts, all of it, and that it is whole.
    fn text(&self) -> String {
        let json = serde_json::to_string(self).expect("a mark is plain data");
        format!("{}\n{json}\nend\n", self.request_key)
    }

    fn read(lines: &[&str]) -> Result<Self, SshError> {
        let wrong = |why: &str| {
            SshError::Failed(format!(
                "the mark of who has it cannot be read ({why}): ~/.stageline/*/mark"
            ))
        };
        let [key, json, "end"] = lines else {
            return Err(wrong("it is not whole"));
        };
        let mark: Self =
            serde_json::from_str(json).map_err(|_| wrong("another version wrote it"))?;
        if mark.format != FORMAT || mark.request_key.as_str() != *key {
            return Err(wrong("another version wrote it"));
        }
        Ok(Self {
            who: plain::message(&mark.who, 80),
            ..mark
        })
    }

    /// In a sentence: `alice@laptop has it for lease.gpu[0] since ...`.
    pub fn told(&self) -> String {
        format!(
            "{} has it for {} since {}",
            self.who, self.lease, self.since
        )
    }
}

/// A machine that leaves traces on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Processes of it run.
    pub runs: bool,
    /// Its agent was started, in this boot of the host or in an earlier one.
    pub started: Option<bool>,
    /// Where the agent says that it listens.
    pub contact: Option<Contact>,
    /// The last line that its program printed.
    pub last: String,
}

/// What is seen on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Who has it; none is nobody.
    pub mark: Option<Mark>,
    /// Machines that leave traces.
    pub traces: BTreeMap<RequestKey, Trace>,
}

impl Seen {
    fn read(text: &str) -> Result<Self, SshError> {
        let mut seen = Self::default();
        let (mut boot, mut mark) = ("", Vec::new());
        for line in text.lines() {
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
            let traces = &mut seen.traces;
            match what {
                "boot" => boot = rest,
                "mark" => mark.push(rest),
                "runs" => trace(traces, key, line)?.runs = true,
                "started" => trace(traces, key, line)?.started = Some(value == boot),
                "contact" => trace(traces, key, line)?.contact = serde_json::from_str(value).ok(),
                "last" => trace(traces, key, line)?.last = plain::message(value, 200),
                _ => return Err(odd(line)),
            }
        }
        if boot.is_empty() {
            return Err(odd(text.lines().next().unwrap_or_default()));
        }
        if !mark.is_empty() {
            seen.mark = Some(Mark::read(&mark)?);
        }
        Ok(seen)
    }
}

/// The traces of a machine.
fn trace<'a>(
    traces: &'a mut BTreeMap<RequestKey, Trace>,
    key: &str,
    line: &str,
) -> Result<&'a mut Trace, SshError> {
    let key = key.parse().map_err(|_| odd(line))?;
    Ok(traces.entry(key).or_default())
}

/// What a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// As far as it can be seen from without.
    pub facts: Facts,
    /// Its C library as it calls itself: `glibc 2.36`.
    pub libc: String,
}

impl Measured {
    fn read(text: &str) -> Result<Self, SshError> {
        let mut found = Self::default();
        for line in text.lines() {
            let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
            let rest = rest.trim();
            let facts = &mut found.facts;
            let number = |at: usize| rest.split_ascii_whitespace().nth(at)?.parse::<u64>().ok();
            let kib =
                |at: usize| number(at).map_or(Bytes(0), |kib| Bytes(kib.saturating_mul(1024)));
            match what {
                "os" => facts.os = plain::message(rest, 40).to_lowercase(),
                "arch" => facts.arch = arch(&plain::message(rest, 40)),
                "libc" => found.libc = plain::message(rest, 80),
                "cpus" => facts.cpus = rest.parse().unwrap_or(0),
                "memory" => facts.memory = kib(0),
                // A file system's name may have spaces; what is behind it has not.
                "disk" => {
                    let fields: Vec<&str> = rest.split_ascii_whitespace().rev().collect();
                    let free = fields.get(2).and_then(|field| field.parse::<u64>().ok());
                    facts.disk = Bytes(free.unwrap_or(0).saturating_mul(1024));
                }
                "gpu" => {
                    let mut fields = rest.rsplitn(3, ',').map(str::trim);
                    let (driver, vram, model) = (fields.next(), fields.next(), fields.next());
                    let mib = vram.and_then(|mib| mib.parse::<u64>().ok());
                    if let (Some(model), Some(mib)) = (model, mib) {
                        facts.gpus.push(Gpu {
                            model: plain::message(model, 80),
                            vram: Bytes(mib.saturating_mul(1 << 20)),
                        });
                        facts.driver = driver.map(|driver| plain::message(driver, 40));
                    }
                }
                _ => return Err(odd(line)),
            }
        }
        if found.facts.os.is_empty() || found.facts.arch.is_empty() {
            return Err(SshError::Failed("it does not say what it is".to_owned()));
        }
        Ok(found)
    }
}

/// The word of Rust's `std::env::consts::ARCH`.
fn arch(machine: &str) -> String {
    match machine {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    }
    .to_owned()
}

fn odd(line: &str) -> SshError {
    let line = plain::message(line, 80);
    SshError::Failed(format!(
        "it answers what none of our scripts prints: `{line}`"
    ))
}

/// How a try to take a host ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is ours.
    Ours,
    /// Somebody else's, or ours by the same key.
    Taken(Box<Mark>),
}

/// How a machine on a host was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No process, no folder, no mark of it is there.
    Gone,
    /// This is left.
    Left(String),
}

impl Host {
    /// Runs a script that ends well, and returns what it prints.
    pub(super) async fn ask(
        &self,
        script: Script,
        words: &[&str],
        input: String,
        within: Duration,
    ) -> Result<String, SshError> {
        let session = self.session().await?;
        let input = futures::stream::iter([Ok(Piece::from(input))]).boxed();
        let output = session.run(&script.with(words), input, within).await?;
        if output.status == Some(0) {
            return String::from_utf8(output.stdout).map_err(|_| odd("no text"));
        }
        let status = output.status.map_or("it was killed".to_owned(), |status| {
            format!("exit status {status}")
        });
        let said = output
            .stderr
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty());
        let said = said.map(|line| format!(": {}", plain::message(line, 200)));
        Err(SshError::Failed(format!(
            "a command failed there ({status}){}",
            said.unwrap_or_default()
        )))
    }

    /// Who has it, and what runs of ours.
    ///
    /// # Errors
    /// [`SshError`] when that cannot be seen.
    pub async fn look(&self) -> Result<Seen, SshError> {
        Seen::read(&self.ask(script::LOOK, &[], String::new(), SHORT).await?)
    }

    /// What it is.
    ///
    /// # Errors
    /// [`SshError`] when that cannot be seen.
    pub async fn measure(&self) -> Result<Measured, SshError> {
        Measured::read(&self.ask(script::MEASURE, &[], String::new(), SHORT).await?)
    }

    /// Takes it, if nobody has it.
    ///
    /// # Errors
    /// [`SshError`]; it is in doubt after [`SshError::Lost`] only.
    pub async fn claim(&self, mark: &Mark) -> Result<Claimed, SshError> {
        let key = mark.request_key.as_str();
        let said = self
            .ask(script::CLAIM, &[key], mark.text(), CLAIMING)
            .await?;
        let mut lines = said.lines();
        match lines.next() {
            Some("claimed") => Ok(Claimed::Ours),
            Some("taken") => {
                let lines: Vec<&str> = lines
                    .filter_map(|line| line.strip_prefix("mark "))
                    .collect();
                Ok(Claimed::Taken(Box::new(Mark::read(&lines)?)))
            }
            other => Err(odd(other.unwrap_or_default())),
        }
    }

    /// Ends a machine: its processes, its folder, its mark. May be repeated.
    ///
    /// # Errors
    /// [`SshError`] when it is not known what came of it.
    pub async fn end(&self, key: &RequestKey) -> Result<Ended, SshError> {
        let said = self
            .ask(script::END, &[key.as_str()], String::new(), ENDING)
            .await?;
        match said.trim() {
            "ended" => Ok(Ended::Gone),
            other => match other.strip_prefix("left ") {
                Some(left) => Ok(Ended::Left(plain::message(left, 200))),
                None => Err(odd(other)),
            },
        }
    }

    /// The last bytes of what the agent and its program said.
    ///
    /// # Errors
    /// [`SshError`] when they cannot be had.
    pub async fn logs(&self, key: &RequestKey, tail: usize) -> Result<Vec<u8>, SshError> {
        let tail = tail.min(64 << 10).to_string();
        let session = self.session().await?;
        let command = script::LOGS.with(&[key.as_str(), &tail]);
        let output = session
            .run(&command, futures::stream::empty().boxed(), SHORT)
            .await?;
        Ok(output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark::new(
            "sl-0102030405060708-aabbccdd-g1a2".parse().expect("a key"),
            (Lineage([7; 16]), "lease.gpu[0]".parse().expect("a lease")),
            "own".parse().expect("a name"),
            "alice@laptop".to_owned(),
            "2026-01-02T03:04:05Z".parse().expect("a time"),
        )
    }

    #[test]
    fn a_mark_comes_back_as_it_was_set_and_half_of_one_is_none() {
        let text = mark().text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(Mark::read(&lines), Ok(mark()));
        for cut in 0..lines.len() {
            assert!(matches!(
                Mark::read(&lines[..cut]),
                Err(SshError::Failed(_))
            ));
        }
        let newer = text.replace("\"format\":1", "\"format\":2");
        let lines: Vec<&str> = newer.lines().collect();
        assert!(Mark::read(&lines).is_err());
    }

    #[test]
    fn what_is_seen_is_read_and_nothing_else_is() {
        let key = mark().request_key;
        let marked: String = mark()
            .text()
            .lines()
            .map(|line| format!("mark {line}\n"))
            .collect();
        let text = format!(
            "boot b1\n{marked}runs {key}\nstarted {key} b1\ncontact {key} {{\"direct\":[\"10.0.0.1:4\"]}}\nlast {key} bye\u{1b}[0m\n"
        );
        let seen = Seen::read(&text).expect("readable");
        assert_eq!(seen.mark, Some(mark()));
        let trace = &seen.traces[&key];
        assert!(trace.runs && trace.started == Some(true));
        assert_eq!(trace.last, "bye");
        assert_eq!(
            trace.contact.as_ref().map(|contact| contact.direct.len()),
            Some(1)
        );
        let earlier = Seen::read(&format!("boot b2\nstarted {key} b1\n")).expect("readable");
        assert_eq!(earlier.traces[&key].started, Some(false));
        assert_eq!(earlier.mark, None);
        // An empty answer is none, and a banner of the host's is no answer.
        for text in [
            "",
            "Welcome!\nboot b1\n",
            "boot b1\nmark half\n",
            "boot b1\nruns ../x\n",
        ] {
            assert!(Seen::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_is_measured() {
        let text = "os Linux\narch arm64\nlibc glibc 2.36\ncpus 8\nmemory 16384 kB\ndisk /dev/my disk 100 60 40 60% /\ngpu NVIDIA A100, SXM, 81920, 550.54\n";
        let found = Measured::read(text).expect("readable");
        let facts = found.facts;
        assert_eq!(
            (facts.os.as_str(), facts.arch.as_str(), facts.cpus),
            ("linux", "aarch64", 8)
        );
        assert_eq!(facts.memory, Bytes(16 << 20));
        assert_eq!(facts.disk, Bytes(40 << 10));
        assert_eq!(facts.gpus[0].model, "NVIDIA A100, SXM");
        assert_eq!(found.libc, "glibc 2.36");
        assert!(Measured::read("arch x\n").is_err());
    }
}
