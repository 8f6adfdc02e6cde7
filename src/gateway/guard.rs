//! Who may speak to the gateway at all.
//!
//! With a key: whoever presents it. Without one the gateway stands on loopback, where "whoever can connect" means this
//! computer, but also *every web page open in a browser on this computer*: a page may post to 127.0.0.1 directly, or let its own
//! name resolve to 127.0.0.1 (DNS rebinding) and then even read the answers. A browser cannot hide its page's origin or the name
//! it dialled, so a `Host` or an `Origin` that is not loopback is refused. With a key that check would add nothing (a page does not
//! know the key) and would refuse tunnels with names of their own, so it is not made. No CORS header is ever sent.

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};
use secrecy::{ExposeSecret, SecretString};

use super::error::ApiError;

/// The rule, fixed when the gateway starts.
pub(super) enum Guard {
    /// The digest of the key: comparing digests takes the same time wherever keys differ, and however long they are.
    Key(blake3::Hash),
    /// No key: this computer only.
    Loopback,
}

impl Guard {
    pub(super) fn new(api_key: Option<&SecretString>) -> Self {
        match api_key {
            Some(key) => Self::Key(blake3::hash(key.expose_secret().as_bytes())),
            None => Self::Loopback,
        }
    }

    /// Whether a request with this head may go on.
    pub(super) fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        match self {
            Self::Key(digest) => check_key(digest, headers),
            Self::Loopback => check_loopback(uri, headers),
        }
    }

    /// Whether a health probe may go on: probes have no key, and learn no more than "ok".
    pub(super) fn admit_probe(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        match self {
            Self::Key(_) => Ok(()),
            Self::Loopback => check_loopback(uri, headers),
        }
    }
}

fn check_key(digest: &blake3::Hash, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map(|(_, key)| key.trim_ascii());
    match given {
        // `blake3::Hash` compares in constant time.
        Some(key) if !key.is_empty() && blake3::hash(key) == *digest => Ok(()),
        Some(_) => Err(ApiError::unauthorized(
            "the key in the Authorization header is not this gateway's: send the `api_key` of its exposure",
        )),
        None => Err(ApiError::unauthorized(
            "no key was sent: send `Authorization: Bearer KEY` with the `api_key` of this gateway's exposure",
        )),
    }
}

fn check_loopback(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let named = headers.get_all(HOST).iter().map(host_of_header);
    let asked = uri.authority().map(|a| is_loopback(a.host()));
    if !asked.into_iter().chain(named).all(|loopback| loopback) {
        return Err(ApiError::forbidden(
            "host_not_loopback",
            "this gateway has no key, so it answers only to loopback names: use http://127.0.0.1:PORT or http://localhost:PORT, or give its exposure an `api_key`",
        ));
    }
    if !headers.get_all(ORIGIN).iter().all(host_of_origin) {
        return Err(ApiError::forbidden(
            "origin_not_loopback",
            "this gateway has no key, so it takes no requests from web pages of other computers: give its exposure an `api_key`",
        ));
    }
    Ok(())
}

fn host_of_header(value: &HeaderValue) -> bool {
    value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok())
        .is_some_and(|authority| is_loopback(authority.host()))
}

/// An origin is `scheme://host[:port]`, or `null` where a browser hides it.
fn host_of_origin(value: &HeaderValue) -> bool {
    value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Uri>().ok())
        .filter(|uri| uri.scheme().is_some())
        .and_then(|uri| uri.host().map(is_loopback))
        .unwrap_or(false)
}

fn is_loopback(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = bare.parse::<std::net::IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    // Names below `localhost` never leave the computer (RFC 6761, section 6.3).
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_computer_and_others() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "api.localhost:1",
            "127.0.0.1",
            "127.9.9.9:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]",
        ] {
            let value = HeaderValue::from_static(host);
            assert!(host_of_header(&value), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "notlocalhost",
            "127.0.0.1.example.com",
            "0.0.0.0",
            "10.0.0.1:80",
            "[::2]",
            "127.1",
            "",
            "a b",
            "user@",
        ] {
            let value = HeaderValue::from_static(host);
            assert!(!host_of_header(&value), "{host}");
        }
    }

    /// A key that was left empty in the settings lets nobody in, also not who sends an empty one.
    #[test]
    fn an_empty_key_fits_nobody() {
        let guard = Guard::new(Some(&SecretString::from("")));
        for given in ["Bearer ", "Bearer", ""] {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(given))]);
            let refused = guard.admit(&Uri::from_static("/v1/models"), &headers);
            assert!(refused.is_err(), "`{given}` was let in");
        }
    }

    #[test]
    fn origins_of_this_computer_and_others() {
        for (origin, fits) in [
            ("http://localhost:3000", true),
            ("https://127.0.0.1", true),
            ("http://[::1]:5", true),
            ("null", false),
            ("localhost", false),
            ("http://evil.example", false),
            ("http://localhost@evil.example", false),
            ("chrome-extension://abcdef", false),
        ] {
            let value = HeaderValue::from_static(origin);
            assert_eq!(host_of_origin(&value), fits, "{origin}");
        }
    }
}
