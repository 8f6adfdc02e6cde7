//! What an error of a bucket means, in a sentence: who must act is in its kind.
//!
//! The library's text holds the request's URL and the server's whole answer. Of these only the host, the server's code
//! and its message are kept, on one line, and values that we know for secret are taken out.

use std::error::Error as _;

use object_store::client::{HttpError, HttpErrorKind};
use secrecy::{ExposeSecret as _, SecretString};

use super::StoreError;

/// Most of a message.
const SHOWN_MAX: usize = 300;

/// An error of a bucket.
pub(super) fn of_object(
    place: &str,
    doing: &str,
    error: &object_store::Error,
    secrets: &[SecretString],
) -> StoreError {
    let text = full(error);
    let what = clean(&short(error, &text), secrets);
    let (place, doing) = (place.to_owned(), doing.to_owned());
    let metadata = [
        "169.254.169.254",
        "metadata.google.internal",
        "169.254.170.",
    ];
    if metadata.iter().any(|host| text.contains(host)) {
        let what = "no credentials are in the environment, and this computer has none of its own"
            .to_owned();
        return StoreError::Credentials { place, doing, what };
    }
    match (error, status(&text)) {
        (
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. },
            _,
        )
        | (_, Some(401 | 403)) => StoreError::Credentials { place, doing, what },
        (_, Some(400)) if is_about_credentials(&text) => {
            StoreError::Credentials { place, doing, what }
        }
        (
            object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. },
            _,
        )
        | (_, Some(501)) => StoreError::Unfit {
            place,
            what: format!("{doing}: {what}"),
        },
        (object_store::Error::NotFound { .. }, _) | (_, Some(404)) => {
            StoreError::NoBucket { place, what }
        }
        (_, Some(status)) if status >= 500 || status == 429 || status == 408 || status == 409 => {
            StoreError::Unreachable { place, doing, what }
        }
        (_, Some(_)) => StoreError::Rejected { place, doing, what },
        // S3 sends whoever asks the wrong region elsewhere.
        (_, None) if text.contains("Received redirect") => {
            StoreError::Rejected { place, doing, what }
        }
        (_, None) if text.contains("missing from response") => StoreError::Unfit {
            place,
            what: format!("the server does not answer as such a store does: {what}"),
        },
        (_, None) => StoreError::Unreachable { place, doing, what },
    }
}

/// What the library misses before anything was sent.
pub(super) fn of_settings(
    place: &str,
    error: &object_store::Error,
    secrets: &[SecretString],
) -> StoreError {
    StoreError::Credentials {
        place: place.to_owned(),
        doing: "reading its settings from the environment".to_owned(),
        what: clean(&full(error), secrets),
    }
}

/// Whether "not found" is said of the bucket, and not of an object in it.
pub(super) fn is_no_bucket(error: &object_store::Error) -> bool {
    let text = full(error);
    let codes = [
        "NoSuchBucket",
        "ContainerNotFound",
        "specified bucket does not exist",
    ];
    codes.iter().any(|code| text.contains(code))
}

/// The error and all that it stands for.
fn full(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}

fn is_about_credentials(text: &str) -> bool {
    let codes = [
        "ExpiredToken",
        "InvalidToken",
        "InvalidAccessKeyId",
        "AuthorizationHeaderMalformed",
        "invalid_grant",
        "InvalidAuthenticationInfo",
    ];
    codes.iter().any(|code| text.contains(code))
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("non-2xx status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The host that was asked, and what came of it.
fn short(error: &object_store::Error, text: &str) -> String {
    let host = text.split("http").nth(1).and_then(|rest| {
        let (scheme, rest) = rest.split_once("://")?;
        let host = rest.split(['/', '?', ' ', ')', '"']).next()?;
        Some(format!("http{scheme}://{host}"))
    });
    let outcome = match (status(text), tag(text, "Code")) {
        (Some(status), Some(code)) => {
            let message = tag(text, "Message").unwrap_or_default();
            let message = message.lines().next().unwrap_or_default();
            format!("answered {status} {code}: {message}")
        }
        (Some(status), None) => format!("answered {status}"),
        (None, _) => return transport(error, host.as_deref()),
    };
    match host {
        Some(host) => format!("{host} {outcome}"),
        None => format!("the server {outcome}"),
    }
}

/// The last cause says it best: "Connection refused", "no answer within 8 s".
fn transport(error: &object_store::Error, host: Option<&str>) -> String {
    let mut last = error.to_string();
    let mut kind = None;
    let mut source = error.source();
    while let Some(inner) = source {
        last = inner.to_string();
        kind = inner
            .downcast_ref::<HttpError>()
            .map(HttpError::kind)
            .or(kind);
        source = inner.source();
    }
    let what = match kind {
        Some(HttpErrorKind::Connect) => "no connection",
        Some(HttpErrorKind::Timeout) => "no answer in time",
        Some(HttpErrorKind::Interrupted | HttpErrorKind::Request | HttpErrorKind::Decode) => {
            "the answer was cut off"
        }
        Some(_) | None => "",
    };
    let at = host.map(|host| format!("{host}: ")).unwrap_or_default();
    match what {
        "" => format!("{at}{last}"),
        what => format!("{at}{what} ({last})"),
    }
}

fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0)
}

/// One line, of bounded length, without queries and without what we know for secret.
fn clean(text: &str, secrets: &[SecretString]) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for secret in secrets {
        text = text.replace(secret.expose_secret(), "***");
    }
    let words = text.split(' ').map(|word| match word.split_once('?') {
        Some((before, _)) if before.contains("://") => before,
        Some(_) | None => word,
    });
    let mut text = words.collect::<Vec<_>>().join(" ");
    if text.len() > SHOWN_MAX {
        let end = (0..=SHOWN_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push_str("...");
    }
    text
}
