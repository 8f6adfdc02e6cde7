//! Where an API is: its URL, checked before a key goes there, and the pace of a simulator behind it.

use std::time::Duration;

use stageline_core::resource::{Cause, FailureClass};

/// The fastest clock that a simulator may have.
const SPEED_MAX: u32 = 100_000;

/// A checked base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Without a slash at its end.
    pub url: String,
    /// The host, for messages.
    pub host: String,
    /// On this computer.
    pub loopback: bool,
    /// How fast its clock runs; 1 but for a simulator.
    pub speed: u32,
}

impl Base {
    /// Reads a URL, with `#speed=N` at its end for a simulator on this computer.
    ///
    /// # Errors
    /// [`Cause`] when a key must not be sent there.
    pub fn parse(text: &str) -> Result<Self, Cause> {
        let config = |message: String| Cause::new(FailureClass::Config, message);
        let shown = crate::machine::fetch::shown(text);
        let parsed = reqwest::Url::parse(text)
            .map_err(|error| config(format!("`{shown}` is not a URL: {error}")))?;
        let host = parsed.host_str().unwrap_or_default().to_owned();
        let loopback = is_loopback(&parsed);
        if parsed.scheme() != "https" && !(parsed.scheme() == "http" && loopback) {
            let message = format!("`{shown}`: the account's key would go there in clear");
            return Err(config(message).hint("use https; http is for simulators on this computer"));
        }
        let speed = match parsed.fragment().filter(|fragment| !fragment.is_empty()) {
            None => 1,
            Some(fragment) => fragment
                .strip_prefix("speed=")
                .and_then(|speed| speed.parse().ok())
                .filter(|speed| loopback && (1..=SPEED_MAX).contains(speed))
                .ok_or_else(|| {
                    config(format!("`#{}` means nothing here", clear(fragment, 40)))
                        .hint("`#speed=N` is for a simulator on this computer, whose clock runs N times as fast")
                })?,
        };
        let mut plain = parsed.clone();
        plain.set_fragment(None);
        plain.set_query(None);
        Ok(Self {
            url: plain.as_str().trim_end_matches('/').to_owned(),
            host,
            loopback,
            speed,
        })
    }

    /// A span of the provider's clock, as it passes here.
    pub fn scaled(&self, span: Duration) -> Duration {
        span / self.speed
    }

    /// The same for a span that a real process needs too, so that it has a floor.
    pub fn scaled_above(&self, span: Duration, floor: Duration) -> Duration {
        self.scaled(span).max(floor.min(span))
    }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A server's words, safe for a terminal and short.
pub fn clear(text: &str, max: usize) -> String {
    let printable = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let text: String = printable.take(max).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A path with an id in it, whatever the id has in it.
pub fn path(parent: &str, id: &str) -> String {
    let mut path = format!("{parent}/");
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}
