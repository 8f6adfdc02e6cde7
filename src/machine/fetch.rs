//! Fetches a model file from a server into a file of ours, and believes nothing before its digest fits.
//!
//! What always holds: no more is taken than the model is long; a transfer that stands still ends; what is in the file on
//! success is what the digest says, and is synced; a token is sent to the server that is named and to no other one it
//! sends us on to, and never in the clear beyond this computer. It refuses other schemes than http and https, and names
//! the server in messages without the query of its URL, where people put tokens.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use futures::StreamExt as _;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Digest as _;
use stageline_core::id::Sha256;
use stageline_core::unit::Bytes;

use super::control::Refusal;

/// More hops than any mirror network needs.
const REDIRECTS_MAX: usize = 8;

/// A server that sends nothing for so long has gone.
const STALL_MAX: Duration = Duration::from_secs(60);

/// From the dial to the first answer.
const CONNECT_MAX: Duration = Duration::from_secs(20);

/// The slowest transfer that is waited for, in bytes per second.
const SLOWEST: u64 = 64 << 10;

/// Fetches `url` into `file`; calls `progress` with the bytes so far.
///
/// # Errors
/// [`Refusal`] with codes `url`, `fetch`, `digest`, `disk` or `disk-full`.
pub async fn fetch(
    url: &str,
    token: Option<&SecretString>,
    sha256: &Sha256,
    size: Bytes,
    mut file: File,
    progress: impl Fn(u64),
) -> Result<(), Refusal> {
    let whole = Duration::from_secs(120 + size.0 / SLOWEST);
    let transfer = transfer((url, token), sha256, size, &mut file, progress);
    match tokio::time::timeout(whole, transfer).await {
        Ok(done) => done,
        Err(_) => Err(failed(
            url,
            format!("it took longer than {} s", whole.as_secs()),
        )),
    }
}

async fn transfer(
    (url, token): (&str, Option<&SecretString>),
    sha256: &Sha256,
    size: Bytes,
    file: &mut File,
    progress: impl Fn(u64),
) -> Result<(), Refusal> {
    let response = open(url, token).await?;
    if let Some(length) = response.content_length()
        && length != size.0
    {
        return Err(failed(
            url,
            format!("the file has {length} bytes, the model has {}", size.0),
        ));
    }
    let mut digest = sha2::Sha256::new();
    let mut done = 0_u64;
    let mut body = response.bytes_stream();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| failed(url, cause(&error)))?;
        done = done.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if done > size.0 {
            return Err(failed(
                url,
                format!("the file is longer than the model's {} bytes", size.0),
            ));
        }
        digest.update(&piece);
        // A page cache takes these at once; the sync at the end is on a thread of its own.
        file.write_all(&piece).map_err(disk)?;
        progress(done);
    }
    if done < size.0 {
        return Err(failed(
            url,
            format!("the file ended after {done} of {} bytes", size.0),
        ));
    }
    let found = Sha256(digest.finalize().into());
    if found != *sha256 {
        let message = format!(
            "{} is another file: its sha256 is {found}, the model's is {sha256}",
            shown(url)
        );
        return Err(Refusal::new("digest", message)
            .hint("correct `sha256` or the `url` of the model in the topology"));
    }
    let file = file.try_clone().map_err(disk)?;
    tokio::task::spawn_blocking(move || file.sync_all())
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(disk)
}

/// Opens a model for reading.
///
/// # Errors
/// [`Refusal`] with codes `url` or `fetch`.
pub async fn open(url: &str, token: Option<&SecretString>) -> Result<reqwest::Response, Refusal> {
    // Another part of the process may have installed it already: the same one.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let parsed = reqwest::Url::parse(url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"))
        .ok_or_else(|| {
            let message = format!("{} is not a URL that begins with http or https", shown(url));
            Refusal::new("url", message).hint("correct the `url` of the model in the topology")
        })?;
    if token.is_some() && !is_private(&parsed) {
        let message = format!("the token for {} would go out in the clear", shown(url));
        return Err(Refusal::new("url", message).hint("give the `url` of the model with https"));
    }
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::limited(REDIRECTS_MAX))
        .connect_timeout(CONNECT_MAX)
        .read_timeout(STALL_MAX)
        .user_agent(concat!("stageline/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| failed(url, cause(&error)))?;
    let mut request = client.get(parsed);
    if let Some(token) = token {
        // Marked as sensitive by reqwest, which leaves it away when another host, port or scheme is next.
        request = request.bearer_auth(token.expose_secret());
    }
    let response = request
        .send()
        .await
        .map_err(|error| failed(url, cause(&error)))?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(failed(
            url,
            format!("the server answered {}", response.status()),
        ));
    }
    Ok(response)
}

/// Whether nobody on the way can read what is sent.
pub fn is_private(url: &reqwest::Url) -> bool {
    let here = url.host_str().is_some_and(|host| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    });
    url.scheme() == "https" || here
}

/// A URL without what may be secret in it.
pub fn shown(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    let plain = match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let host = host.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}/{path}")
        }
        None => plain.to_owned(),
    };
    super::plain::message(&plain, 300)
}

/// An error with everything that it was caused by, and without the URL.
fn cause(error: &reqwest::Error) -> String {
    use std::error::Error as _;
    let mut text = if error.is_timeout() {
        "it timed out".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else if error.is_redirect() {
        "too many redirects".to_owned()
    } else {
        "the transfer broke".to_owned()
    };
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        // These carry the URL with its query.
        if !more.contains("://") && !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}

fn failed(url: &str, why: impl std::fmt::Display) -> Refusal {
    let message = format!("cannot fetch {}: {why}", shown(url));
    Refusal::new("fetch", message).hint(
        "check the `url` of the model, or fetch on the operator's side with `fetch = \"operator\"`",
    )
}

fn disk(error: std::io::Error) -> Refusal {
    let message = format!("cannot write the model: {error}");
    if error.kind() == std::io::ErrorKind::StorageFull {
        Refusal::new("disk-full", message).hint("free some disk there")
    } else {
        Refusal::new("disk", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use axum::response::{IntoResponse as _, Redirect};
    use axum::routing::get;

    const BODY: &[u8] = b"a model, so to speak";

    fn sha() -> Sha256 {
        Sha256(sha2::Sha256::digest(BODY).into())
    }

    async fn serve() -> String {
        let app = axum::Router::new()
            .route("/model", get(|| async { BODY }))
            .route("/longer", get(|| async { [BODY, b"!"].concat() }))
            .route("/other", get(|| async { vec![b'x'; BODY.len()] }))
            .route("/moved", get(|| async { Redirect::temporary("/model") }))
            .route("/circle", get(|| async { Redirect::temporary("/circle") }))
            .route(
                "/cut",
                get(|| async {
                    let pieces =
                        futures::stream::iter([Ok(&BODY[..4]), Err(std::io::Error::other("cut"))]);
                    axum::body::Body::from_stream(pieces).into_response()
                }),
            );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}")
    }

    async fn check(url: &str) -> Result<Vec<u8>, Refusal> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("model");
        let file = File::create(&path).expect("made");
        let size = Bytes(u64::try_from(BODY.len()).expect("small"));
        fetch(url, None, &sha(), size, file, |_| {}).await?;
        Ok(std::fs::read(&path).expect("there"))
    }

    #[tokio::test]
    async fn a_file_is_taken_when_its_digest_fits() {
        let base = serve().await;
        for path in ["model", "moved"] {
            assert_eq!(check(&format!("{base}/{path}")).await.expect(path), BODY);
        }
    }

    #[tokio::test]
    async fn everything_else_is_named_without_the_query() {
        let base = serve().await;
        for (path, code, part) in [
            ("other", "digest", "is another file"),
            ("longer", "fetch", "the file has 21 bytes, the model has 20"),
            ("none", "fetch", "the server answered 404"),
            ("circle", "fetch", "redirect"),
            ("cut", "fetch", "broke"),
        ] {
            let refusal = check(&format!("{base}/{path}?token=canary"))
                .await
                .expect_err(path);
            assert_eq!(refusal.code, code, "{path}: {}", refusal.message);
            assert!(refusal.message.contains(part), "{}", refusal.message);
            assert!(!refusal.message.contains("canary"), "{}", refusal.message);
        }
        let refusal = check("file:///etc/passwd").await.expect_err("a scheme");
        assert_eq!(refusal.code, "url");
    }

    #[tokio::test]
    async fn a_token_goes_to_the_named_server_alone() {
        use axum::http::{HeaderMap, StatusCode};
        let other = axum::Router::new().route(
            "/model",
            get(|headers: HeaderMap| async move {
                // A token that comes along would be a leak.
                match headers.get("authorization") {
                    None => (StatusCode::OK, BODY.to_vec()),
                    Some(_) => (StatusCode::IM_A_TEAPOT, Vec::new()),
                }
            }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let there = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, other).await });
        let asks = move |headers: &HeaderMap| {
            let sent = headers.get("authorization");
            sent.is_some_and(|sent| sent.as_bytes() == b"Bearer canary")
        };
        let app = axum::Router::new()
            .route(
                "/model",
                get(move |headers: HeaderMap| async move {
                    match asks(&headers) {
                        true => (StatusCode::OK, BODY.to_vec()),
                        false => (StatusCode::UNAUTHORIZED, Vec::new()),
                    }
                }),
            )
            .route("/near", get(|| async { Redirect::temporary("/model") }))
            .route(
                "/far",
                get(move || async move { Redirect::temporary(&format!("http://{there}/model")) }),
            );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let here = listener.local_addr().expect("bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        let token = SecretString::from("canary".to_owned());
        for path in ["model", "near", "far"] {
            let answer = open(&format!("http://{here}/{path}"), Some(&token)).await;
            let answer = answer.unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
            assert_eq!(answer.bytes().await.expect("read"), BODY);
        }
        let without = open(&format!("http://{here}/model"), None).await;
        assert!(without.expect_err("it asks").message.contains("401"));
        let clear = open("http://models.example/m", Some(&token)).await;
        let refusal = clear.expect_err("in the clear");
        assert_eq!(refusal.code, "url");
        assert!(refusal.message.contains("in the clear") && !refusal.message.contains("canary"));
    }

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        assert_eq!(
            shown("https://me:canary@host:1/a/b?token=canary#x"),
            "https://host:1/a/b"
        );
    }
}
