//! A machine that ends itself: where its provider hands it a key that can do only that.
//!
//! What always holds: the limits are those that the machine was made with, until its operator says others, which are on disk
//! before that is answered; nobody has to be there for them to hold; idle
//! time and age are by the boot-time clock, age from the first start of an agent in this folder; requests end before the
//! machine does; its end is asked for again until it comes. The key is read from the environment once, reaches no worker,
//! and is sent to the place that the configuration names and to no other. What it refuses: to end anything else.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use stageline_core::resource::LeaseLimits;
use stageline_core::unit::{Millis, Timestamp};

use super::folder::{Config, Folder, FolderError};
use super::{Inner, folder};
use crate::ambient::{self, Clock};
use crate::machine::control::{Refusal, Reply};
use crate::machine::fetch;
use crate::pipeline::Drain;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long requests may take to end before their machine does.
const DRAIN_MAX: Duration = Duration::from_secs(120);

/// One request for the machine's end.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Between two of them.
const AGAIN: Duration = Duration::from_secs(10);

/// How a machine ends itself, as its configuration says it. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnEnd {
    /// The limits that it keeps.
    pub limits: LeaseLimits,
    /// What is asked for with DELETE; `{id}` stands for the machine's own id.
    pub url: String,
    /// The environment variable with that id.
    pub id: String,
    /// The environment variable with the key.
    pub key: String,
}

/// The means to do so.
pub(super) struct Means {
    url: String,
    key: SecretString,
}

/// When an agent first started in a folder.
#[derive(Serialize, Deserialize)]
struct Born {
    /// Of which boot of the computer.
    boot: Option<String>,
    /// Since that boot.
    up: Millis,
    /// By the wall clock, for a computer that was started again since.
    at: Timestamp,
}

impl Means {
    /// Out of configuration and environment; none where the machine is not to end itself, or was handed no key.
    pub(super) fn find(config: &Config) -> Option<Self> {
        let own = config.own_end.as_ref()?;
        let variable = |name: &str| ambient::variable(name).filter(|value| !value.is_empty());
        let (Some(id), Some(key)) = (variable(&own.id), variable(&own.key)) else {
            tracing::error!(
                id = own.id,
                key = own.key,
                "this machine should end itself by its limits, and these variables are not set: it cannot"
            );
            return None;
        };
        let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !plain || !is_private(&own.url) {
            tracing::error!(
                "this machine's id or the place of its end makes no sense: it cannot end itself"
            );
            return None;
        }
        Some(Self {
            url: own.url.replace("{id}", &id),
            key: key.into(),
        })
    }
}

/// For ever.
const NO_LIMITS: LeaseLimits = LeaseLimits {
    idle_timeout: Millis::NEVER,
    max_lifetime: Millis::NEVER,
};

/// A key is not sent in the clear beyond this computer.
fn is_private(url: &str) -> bool {
    reqwest::Url::parse(url)
        .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && fetch::is_private(&url))
}

impl Born {
    fn now(clock: &dyn Clock) -> Self {
        let up = u64::try_from(clock.boottime().as_millis()).unwrap_or(u64::MAX);
        Self {
            boot: clock.boot(),
            up: Millis(up),
            at: clock.now(),
        }
    }

    /// Of this folder; noted when it is the first.
    fn of(folder: &Folder, clock: &dyn Clock) -> Result<Self, FolderError> {
        let path = folder.root().join("born.json");
        if let Some(born) = folder::read_json(&path)? {
            return Ok(born);
        }
        let born = Self::now(clock);
        folder::write_json(&path, &born)?;
        Ok(born)
    }

    fn age(&self, clock: &dyn Clock) -> Millis {
        let now = Self::now(clock);
        if self.boot.is_some() && self.boot == now.boot {
            return Millis(now.up.0.saturating_sub(self.up.0));
        }
        let age = now.at.duration_since(self.at);
        Millis(u64::try_from(age.as_millis()).unwrap_or(0))
    }
}

impl Inner {
    /// Those that hold now.
    fn limits(&self) -> LeaseLimits {
        let limits = self.limits.lock().expect("no holder panics");
        limits.unwrap_or(NO_LIMITS)
    }

    /// It cannot end itself, so that it says of no limits that it keeps them.
    pub(super) fn has_no_means(&self) {
        *self.limits.lock().expect("no holder panics") = None;
    }

    /// Keeps these limits from now on, and after a restart.
    pub(super) fn keep_within(&self, limits: LeaseLimits) -> Result<Reply, Refusal> {
        let Some(own) = &self.config.own_end else {
            return Ok(Reply::Done);
        };
        let own = OwnEnd {
            limits,
            ..own.clone()
        };
        let config = Config {
            own_end: Some(own),
            ..self.config.clone()
        };
        folder::write_json(&self.folder.config(), &config).map_err(super::blobs::refusal)?;
        // On disk they are also for a restart that has a key.
        match self.limits.lock().expect("no holder panics").as_mut() {
            Some(kept) => *kept = limits,
            None if limits == NO_LIMITS => {}
            None => {
                let message =
                    "this machine was handed no key to end itself, and cannot keep limits";
                return Err(Refusal::new("no-own-end", message).hint(
                    "rent another one (`stageline apply --replace ADDRESS`), or leave both limits `never`",
                ));
            }
        }
        tracing::info!(idle_timeout = %limits.idle_timeout, max_lifetime = %limits.max_lifetime, "other limits from now on");
        Ok(Reply::Done)
    }
}

/// Keeps the machine within its limits, and ends it.
pub(super) async fn keep(agent: Arc<Inner>, means: Means, clock: Arc<dyn Clock>) {
    let born = match Born::of(&agent.folder, clock.as_ref()) {
        Ok(born) => born,
        Err(error) => {
            tracing::warn!(%error, "when this machine began is not noted; it counts from now");
            Born::now(clock.as_ref())
        }
    };
    let why = loop {
        let LeaseLimits {
            idle_timeout,
            max_lifetime,
        } = agent.limits();
        let (age, idle) = (born.age(clock.as_ref()), agent.idle());
        tracing::debug!(%age, %idle, "within its limits");
        if age.0 >= max_lifetime.0 {
            break format!("it is {age} old, and may be {max_lifetime}");
        }
        if idle.0 >= idle_timeout.0 {
            break format!("it did no work for {idle}, and {idle_timeout} is the limit");
        }
        clock.sleep(LOOK_EVERY).await;
    };
    tracing::warn!(why, "this machine is beyond its limit: it ends itself");
    agent.fabric.drain(Drain::All, DRAIN_MAX).await;
    loop {
        match ask(&means).await {
            Ok(status) => tracing::warn!(status, "its end was asked for"),
            Err(error) => tracing::error!(error, "its end could not be asked for; again soon"),
        }
        clock.sleep(AGAIN).await;
    }
}

/// One request. What it answers proves nothing: the machine's end does.
async fn ask(means: &Means) -> Result<u16, String> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let client = reqwest::Client::builder()
        .timeout(REQUEST_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .build();
    // Without the URL: it is known, and an error's text may be shown.
    let client = client.map_err(|error| error.without_url().to_string())?;
    let sent = client
        .delete(&means.url)
        .bearer_auth(means.key.expose_secret())
        .send()
        .await;
    match sent {
        Ok(answer) => Ok(answer.status().as_u16()),
        Err(error) => Err(error.without_url().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_in_the_clear_to_this_computer_only() {
        for url in [
            "https://console.vast.ai/api/v0/instances/{id}/",
            "http://127.0.0.1:9/api",
            "http://[::1]:9/api",
            "http://localhost:9/",
        ] {
            assert!(is_private(url), "{url}");
        }
        for url in ["http://console.vast.ai/", "ftp://127.0.0.1/", "nonsense"] {
            assert!(!is_private(url), "{url}");
        }
    }

    #[test]
    fn age_goes_on_over_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().expect("a folder");
        let clock = crate::ambient::FakeClock::manual(Timestamp::UNIX_EPOCH);
        let folder = Folder::new(dir.path());
        Born::of(&folder, &clock).expect("noted");
        clock.advance(Duration::from_secs(60));
        let again = Born::of(&folder, &clock).expect("noted");
        assert_eq!(again.age(&clock), Millis::seconds(60));
    }
}
