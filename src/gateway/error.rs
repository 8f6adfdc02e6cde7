//! Refusals and failures in the shape that OpenAI's clients read.
//!
//! Each failure of a pipeline has one status and one code here, and nowhere else. A message never holds a key.

use axum::Json;
use axum::http::header::{HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::pipeline::infer::{InferCode, InferError};

/// What OpenAI's clients read before they try again on their own.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A request that failed, as its caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// OpenAI's `type`.
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    /// The key of the body that is at fault.
    pub(super) param: Option<String>,
    pub(super) message: String,
    retry: Retry,
}

/// Whether trying again can help, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Retry {
    /// The client's own judgement, by status.
    Unsaid,
    /// It can, after this many seconds.
    After(u8),
    /// It would cost the same again and most likely fail the same way.
    No,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl ApiError {
    fn new(
        status: StatusCode,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
            retry: Retry::Unsaid,
        }
    }

    /// A key of the body has a value that cannot be served.
    pub(super) fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::invalid("invalid_value", message)
        }
    }

    /// A key of the body asks for what this gateway does not do.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::invalid("unsupported_parameter", message)
        }
    }

    /// The request as a whole makes no sense.
    pub(super) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, Some(code), message)
    }

    /// No key, or a wrong one.
    pub(super) fn unauthorized(message: &str) -> Self {
        let code = Some("invalid_api_key");
        Self::new(StatusCode::UNAUTHORIZED, INVALID, code, message)
    }

    /// Known, and not allowed.
    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, INVALID, Some(code), message)
    }

    /// No pipeline of that name.
    pub(super) fn model_not_found(message: String) -> Self {
        let code = Some("model_not_found");
        Self {
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, INVALID, code, message)
        }
    }

    /// No such path.
    pub(super) fn unknown_path(message: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, Some("unknown_url"), message)
    }

    /// The path is there, the method is not.
    pub(super) fn wrong_method(message: String) -> Self {
        let code = Some("method_not_allowed");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, code, message)
    }

    /// The body did not come in time.
    pub(super) fn slow_body(message: String) -> Self {
        let code = Some("body_timeout");
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, code, message)
    }

    /// The body is longer than we read.
    pub(super) fn too_large(message: String) -> Self {
        let code = Some("body_too_large");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, code, message)
    }

    /// The body is not JSON by its own account.
    pub(super) fn not_json(message: String) -> Self {
        let code = Some("unsupported_media_type");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, code, message)
    }

    /// The value that stands for this in a body and in a stream.
    pub(super) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }
}

impl From<InferError> for ApiError {
    fn from(error: InferError) -> Self {
        let text = error.message;
        match error.code {
            InferCode::ContextOverflow => Self::invalid("context_length_exceeded", text),
            InferCode::BadRequest => Self::invalid("bad_request", text),
            InferCode::Forbidden => Self::forbidden("forbidden", text),
            InferCode::Busy => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "rate_limit_error", Some("busy"), text).retry(Retry::After(1))
            }
            InferCode::Cancelled => {
                let status =
                    StatusCode::from_u16(499).expect("499 is within the range of statuses");
                Self::new(status, SERVER, Some("cancelled"), text).retry(Retry::No)
            }
            InferCode::Internal => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, SERVER, Some("internal_error"), text)
            }
            InferCode::StageDown => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, SERVER, Some("stage_down"), text).retry(Retry::After(5))
            }
            InferCode::Draining => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Self::new(status, SERVER, Some("draining"), text).retry(Retry::After(5))
            }
            InferCode::DeadlineExceeded => {
                let status = StatusCode::GATEWAY_TIMEOUT;
                Self::new(status, SERVER, Some("deadline_exceeded"), text).retry(Retry::No)
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        match self.retry {
            Retry::Unsaid => {}
            Retry::After(seconds) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(seconds)));
            }
            Retry::No => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
        response
    }
}
