//! Bodies of requests: read up to a limit, in a limited time.
//!
//! A body that is not wanted is read all the same, for a while: a server that answers and closes while its client still writes makes
//! the client see a broken connection instead of the answer.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request as HttpRequest;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use futures::StreamExt;

use super::error::ApiError;

/// Longest body that is read: about a million tokens of text.
const BYTES_MAX: usize = 4 << 20;
/// Longest body that is read only to throw it away.
const DISCARD_BYTES_MAX: usize = 32 << 20;
/// Longest time to do so.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a request that says it is JSON.
pub(super) async fn read_json(request: HttpRequest, wait: Duration) -> Result<Bytes, ApiError> {
    if !is_json(request.headers()) {
        discard(request).await;
        return Err(ApiError::not_json(
            "the body must be JSON, and say so: send `Content-Type: application/json`".to_owned(),
        ));
    }
    if declared_length(request.headers()).is_some_and(|length| length > BYTES_MAX as u64) {
        discard(request).await;
        return Err(too_large());
    }
    match tokio::time::timeout(wait, read(request.into_body())).await {
        Ok(body) => body,
        Err(_) => Err(ApiError::slow_body(format!(
            "the body did not arrive within {} ms",
            wait.as_millis()
        ))),
    }
}

async fn read(body: Body) -> Result<Bytes, ApiError> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| {
            ApiError::invalid("body_incomplete", format!("the body cannot be read: {e}"))
        })?;
        if bytes.len() + chunk.len() > BYTES_MAX {
            throw_away(stream).await;
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// Reads what the caller still sends, so that it then reads the answer.
pub(super) async fn discard(request: HttpRequest) {
    // Such a caller sends nothing before it is told to, and a refusal tells it not to.
    if !request.headers().contains_key(EXPECT) {
        throw_away(request.into_body().into_data_stream()).await;
    }
}

async fn throw_away(mut stream: axum::body::BodyDataStream) {
    let all = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(chunk)) = stream.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                break;
            }
        }
    };
    // When it takes too long the connection is closed under the caller; nothing is owed to it.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, all).await;
}

fn too_large() -> ApiError {
    ApiError::too_large(format!("the body is longer than {BYTES_MAX} bytes"))
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// `application/json` or `application/*+json`, whatever its parameters. A web page cannot send these to another origin without
/// asking first, which is refused.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(text) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else {
        return false;
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence
        .strip_prefix("application/")
        .is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}
