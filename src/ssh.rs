//! Logging in to a machine that has no agent yet: host keys that are known, scripts of ours, and the agent's program.
//!
//! What always holds: a host is known by one key, which the topology says, or the state, or the connection before; a host that shows
//! another one is sent nothing, and both fingerprints are told. Our own key is a file that nobody else can read, or stays in the SSH
//! agent. What is secret goes over standard input and never into arguments. A program is run only when the host itself says that it
//! has the digest of ours. Every answer has a size limit, every call a deadline. It refuses passwords, and to forward anything of ours.

mod builds;
mod far;
mod key;
mod own;
mod push;
mod script;
#[cfg(feature = "ssh")]
mod session;
#[cfg(not(feature = "ssh"))]
#[path = "ssh/without.rs"]
mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stageline_core::resource::{Cause, FailureClass};
use tokio::time::Instant;

pub use builds::Builds;
pub(crate) use builds::{BUILD_ONE, Needs};
pub use far::{Claimed, Ended, Mark, Measured, Seen, Trace};
pub use key::HostKey;
pub use own::{HostPair, OwnKey};
pub use push::{Load, UPLOAD_MAX, UPLOADS, push, send_workers};
pub use session::Session;

/// From the first packet until somebody answers, and until we are let in.
#[cfg(feature = "ssh")]
const DIAL_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A host that did not answer is not asked again before this: whoever asks meanwhile gets the same answer.
const AWAY_FOR: Duration = Duration::from_secs(2);

/// Where a host is, and as whom we log in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// As whom.
    pub user: String,
    /// Its name or address.
    pub address: String,
    /// Where its SSH server listens.
    pub port: u16,
}

impl Place {
    /// What the host is known by: its address and port, whoever logs in.
    pub fn host(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }

    /// `user@host`, `host:port` or `ssh://user@host:port`, with this user and port 22 where nothing else is said; none when it is
    /// nothing of the kind.
    pub fn parse(text: &str, user: &str) -> Option<Self> {
        let rest = text.strip_prefix("ssh://").unwrap_or(text);
        let (user, rest) = rest.rsplit_once('@').unwrap_or((user, rest));
        let (address, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, after)) => (address, after.strip_prefix(':')),
            None => match rest.split_once(':') {
                // More than one is an address of IPv6.
                Some((address, port)) if !port.contains(':') => (address, Some(port)),
                Some(_) | None => (rest, None),
            },
        };
        let port = port.map_or(Some(22), |port| port.parse().ok())?;
        let plain = |text: &str, more: &str| {
            let own = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            !text.is_empty() && !text.starts_with('-') && text.chars().all(own)
        };
        (plain(user, ".-_") && plain(address, ".-_:%")).then(|| Self {
            user: user.to_owned(),
            address: address.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.host())
    }
}

/// What we have to log in with, and to push.
#[derive(Clone, Debug, Default)]
pub struct Means {
    /// As whom, where nothing else is said.
    pub user: String,
    /// The socket of the SSH agent.
    pub agent: Option<PathBuf>,
    /// The keys of hosts and machines that are on record.
    pub host_keys: Arc<BTreeMap<String, String>>,
    /// Programs that could be pushed.
    pub builds: Arc<Builds>,
}

/// How a host is logged in to.
#[derive(Clone, Debug)]
pub struct Login {
    /// Where and as whom.
    pub place: Place,
    /// A key that was made for this machine; tried first.
    pub own: Option<Arc<OwnKey>>,
    /// Files of private keys, tried in order; none asks the SSH agent.
    pub keys: Vec<PathBuf>,
    /// The socket of the SSH agent.
    pub agent: Option<PathBuf>,
    /// The key that the host must show; none takes the first one, which the caller records before anything secret is sent.
    pub known: Option<HostKey>,
}

/// Why something could not be done on a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SshError {
    /// Nobody answers, or not in SSH; that may pass.
    #[error("no answer: {0}")]
    Away(String),
    /// It shows another key than it is known by.
    #[error("the host shows another key than it is known by: known {known}, shown {met}")]
    Changed {
        /// The fingerprint that it should have.
        known: String,
        /// The one that it has.
        met: String,
    },
    /// It does not let us in.
    #[error("the host does not let us in: {0}")]
    Denied(String),
    /// Our own key cannot be used.
    #[error("{message}")]
    Key {
        /// What is wrong with it.
        message: String,
        /// What to do now.
        hint: String,
    },
    /// The connection broke while something ran there: what came of it is not known.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// What was run there failed.
    #[error("{0}")]
    Failed(String),
    /// No program of ours runs there.
    #[error("{message}")]
    Unfit {
        /// What the host is, and what there is for it.
        message: String,
        /// What to do now.
        hint: String,
    },
}

impl SshError {
    /// Whether nothing was sent that could have had an effect.
    pub fn before_all(&self) -> bool {
        !matches!(self, Self::Lost(_))
    }

    /// Whether waiting may help.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Lost(_))
    }

    /// Whether the host itself is not what it should be, or not yet.
    pub fn is_the_hosts(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Denied(_))
    }

    /// Who must act, and how.
    pub fn cause(&self, place: &Place) -> Cause {
        let message = format!("host {place}: {self}");
        match self {
            Self::Away(_) => Cause::new(FailureClass::Unknown, message).hint(format!(
                "see whether it is up and whether `ssh -p {} {}@{}` gets there; a host that is gone for good comes out of `hosts`",
                place.port, place.user, place.address
            )),
            Self::Changed { .. } => Cause::new(FailureClass::Auth, message).hint(
                "nothing was sent to it. If it was set up anew, write its key as `host_key` of that host, as its console shows it; if not, somebody else answers there",
            ),
            Self::Denied(_) => Cause::new(FailureClass::Auth, message).hint(format!(
                "put the public half of that key into ~/.ssh/authorized_keys of {} there, or name another `key`",
                place.user
            )),
            Self::Key { hint, .. } => Cause::new(FailureClass::Auth, message).hint(hint.clone()),
            Self::Lost(_) => Cause::new(FailureClass::Unknown, message)
                .hint("run the same command again: it looks first at what came of it"),
            Self::Failed(_) => Cause::new(FailureClass::Config, message)
                .hint(format!("log in as {} and see whether that user may write in its home", place.user)),
            Self::Unfit { hint, .. } => Cause::new(FailureClass::OfferGone, message).hint(hint.clone()),
        }
    }
}

/// A host, and the connection to it that is kept.
#[derive(Debug)]
pub struct Host {
    login: Login,
    /// The lock is held while it is connected to, so that this happens once.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    met: Mutex<Option<HostKey>>,
    peer: Mutex<Option<IpAddr>>,
    away: Mutex<Option<(Instant, SshError)>>,
}

impl Host {
    /// Nothing is connected to before something is asked.
    pub fn new(login: Login) -> Self {
        Self {
            login,
            session: tokio::sync::Mutex::default(),
            met: Mutex::default(),
            peer: Mutex::default(),
            away: Mutex::default(),
        }
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.login.place
    }

    /// The address that answered last.
    pub fn peer(&self) -> Option<IpAddr> {
        *self.peer.lock().expect("no holder panics")
    }

    /// The connection to it, made anew when the one before has ended. Within this process it must show the same key each time.
    ///
    /// # Errors
    /// [`SshError`] when there is none to be had.
    pub async fn session(&self) -> Result<Arc<Session>, SshError> {
        let mut slot = self.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_closed()) {
            return Ok(Arc::clone(session));
        }
        if let Some(error) = self.just_away() {
            return Err(error);
        }
        let mut login = self.login.clone();
        let met = self.met.lock().expect("no holder panics").clone();
        login.known = login.known.or(met);
        let opened = tokio::time::timeout(CONNECT_MAX, Session::open(&login)).await;
        let opened = opened.unwrap_or_else(|_| {
            let seconds = CONNECT_MAX.as_secs();
            Err(SshError::Away(format!(
                "nobody was let in within {seconds} s"
            )))
        });
        let away = opened
            .as_ref()
            .err()
            .filter(|error| matches!(error, SshError::Away(_)));
        *self.away.lock().expect("no holder panics") =
            away.map(|error| (Instant::now(), error.clone()));
        let session = Arc::new(opened?);
        *self.met.lock().expect("no holder panics") = Some(session.host_key().clone());
        *self.peer.lock().expect("no holder panics") = Some(session.peer());
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Why nobody answered a moment ago.
    fn just_away(&self) -> Option<SshError> {
        let away = self.away.lock().expect("no holder panics");
        let (_, error) = away.as_ref().filter(|(at, _)| at.elapsed() < AWAY_FOR)?;
        Some(error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        for (text, read) in [
            ("gpu1", "me@gpu1:22"),
            ("root@gpu1", "root@gpu1:22"),
            ("gpu1:2222", "me@gpu1:2222"),
            ("ssh://ubuntu@192.0.2.7:2222", "ubuntu@192.0.2.7:2222"),
            ("root@[2001:db8::1]:22", "root@[2001:db8::1]:22"),
            ("2001:db8::1", "me@[2001:db8::1]:22"),
        ] {
            let place = Place::parse(text, "me").expect("a place");
            assert_eq!(place.to_string(), read);
            assert_eq!(Place::parse(read, "other"), Some(place));
        }
        for text in [
            "",
            "@",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "h:port",
            "x@-l",
            "$(id)",
        ] {
            assert_eq!(Place::parse(text, "me"), None, "{text}");
        }
    }
}
