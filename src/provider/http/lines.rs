//! Connections to an API: kept ones, and fresh ones for whatever must not meet a dead one.
//!
//! A connection that was kept may be dead, forgotten by the server or by a front in between, and only its next request shows it. So what is
//! sent once never goes over a kept one, and neither does a second attempt: where one is dead the others may be too, and there can be more
//! of them than attempts.

use std::sync::OnceLock;
use std::time::Duration;

use stageline_core::resource::{Cause, FailureClass};

use super::client::reason;
use super::place::Base;

/// From the dial to a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A client, or why there is none.
pub(super) type Line = Result<reqwest::Client, Cause>;

/// The two clients of an account, made when they are needed.
#[derive(Default)]
pub(super) struct Lines {
    keeping: OnceLock<Line>,
    fresh: OnceLock<Line>,
}

impl Lines {
    /// Keeps its connections: for the first attempt of what may be sent again.
    pub(super) fn keeping(&self, base: &Result<Base, Cause>) -> &Line {
        self.keeping.get_or_init(|| line(base, usize::MAX))
    }

    /// Has a connection of its own for each request.
    pub(super) fn fresh(&self, base: &Result<Base, Cause>) -> &Line {
        self.fresh.get_or_init(|| line(base, 0))
    }
}

/// A client that keeps so many connections for what comes next.
fn line(base: &Result<Base, Cause>, idle_max: usize) -> Line {
    let base = base.as_ref().map_err(Clone::clone)?;
    // Another part of the process may have installed it already: the same one.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        // A server closes what was idle for some time.
        .pool_idle_timeout(Duration::from_secs(10))
        .pool_max_idle_per_host(idle_max)
        .user_agent(concat!("stageline/", env!("CARGO_PKG_VERSION")));
    if base.loopback {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        Cause::new(
            FailureClass::Config,
            format!("no HTTPS client can be made: {}", reason(&error)),
        )
    })
}
