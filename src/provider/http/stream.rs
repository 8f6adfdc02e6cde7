//! Answers that have no end: what has come until it is quiet is taken, and the line is dropped.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use super::client::reason;
use super::{Api, Call, Fault};

impl Api {
    /// What a stream sends until nothing more has come for `quiet`, its time is over, or it is longer than the call allows:
    /// then its last bytes.
    ///
    /// # Errors
    /// [`Fault`] when it is refused, or breaks before anything came.
    pub async fn stream(&self, call: Call, quiet: Duration) -> Result<Vec<u8>, Fault> {
        let gate = self.gate(&call.endpoint);
        tokio::time::sleep(gate.reserve()).await;
        let request = self
            .request_by(self.fresh(), &call)
            .map_err(Fault::before)?;
        let deadline = Instant::now() + call.timeout;
        let late = || self.lost(&call, "it took too long");
        let response = match timeout_at(deadline, request.send()).await {
            Ok(response) => response.map_err(|error| self.unsent(&call, &error))?,
            Err(_) => return Err(late()),
        };
        if !response.status().is_success() {
            let answer = timeout_at(deadline, self.answer(response, &call, &gate)).await;
            let answer = answer.map_err(|_| late())??;
            let status = answer.status;
            let judged = self.judged(&call, &gate, answer);
            judged?;
            return Err(self.lost(&call, &format!("status {status} and no stream")));
        }
        let mut text = Vec::new();
        let mut pieces = response.bytes_stream();
        loop {
            let until = deadline.min(Instant::now() + quiet);
            match timeout_at(until, pieces.next()).await {
                Ok(Some(Ok(piece))) => {
                    text.extend_from_slice(&piece);
                    let above = text.len().saturating_sub(call.bytes_max);
                    text.drain(..above);
                }
                Ok(Some(Err(error))) if text.is_empty() => {
                    return Err(self.lost(&call, &reason(&error)));
                }
                // It has an end after all, broke, or is quiet.
                Ok(Some(Err(_)) | None) | Err(_) => return Ok(text),
            }
        }
    }
}
