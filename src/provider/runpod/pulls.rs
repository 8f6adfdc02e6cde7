//! Whether an image may be pulled: a pod is said to run for as long as its image is refused, and only the host's part of its log tells.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use stageline_core::id::MachineId;
use tokio::time::Instant;

use super::{LOG_QUIET, REQUESTS, Runpod, wire};
use crate::provider::http::Call;
use crate::provider::{Machine, MachineStatus, NOT_PULLED};

/// Between two looks at the log of one pod.
const EVERY: Duration = Duration::from_secs(20);

/// When the log of each pod was read, and what it said of its image.
#[derive(Default)]
pub(super) struct Pulls(Mutex<BTreeMap<MachineId, (Instant, Option<String>)>>);

impl Runpod {
    /// A pod whose image is refused never comes up: it is dead, and not only on its way.
    pub(super) async fn with_its_pull(&self, mut pod: Machine) -> Machine {
        if !matches!(&pod.status, MachineStatus::Pending(phase) if phase.name == wire::NOT_UP) {
            return pod;
        }
        if let Some(line) = self.refused_pull(&pod.id).await {
            pod.status = MachineStatus::Dead(format!("{NOT_PULLED}: {line}"));
        }
        pod
    }

    async fn refused_pull(&self, id: &MachineId) -> Option<String> {
        {
            let mut all = self.pulls.0.lock().expect("no holder panics");
            let every = self.api.scaled(EVERY).max(Duration::from_secs(1));
            match all.get(id) {
                Some((_, Some(line))) => return Some(line.clone()),
                Some((at, None)) if at.elapsed() < every => return None,
                Some(_) | None => {
                    all.insert(id.clone(), (Instant::now(), None));
                }
            }
        }
        let path = format!("{}/logs", wire::path("/v2/pods", id.as_str()));
        let mut call = Call::get(path, REQUESTS);
        call.query = vec![("source", "system".to_owned()), ("tail", "20".to_owned())];
        // What cannot be read tells nothing: the phase has a deadline.
        let stream = self.api.stream(call, LOG_QUIET).await.ok()?;
        let log = wire::log(&stream);
        let line = refusal(&String::from_utf8_lossy(&log))?;
        let mut all = self.pulls.0.lock().expect("no holder panics");
        all.insert(id.clone(), (Instant::now(), Some(line.clone())));
        Some(line)
    }
}

/// The last line that refuses an image, where nothing after it says that the pull goes on.
fn refusal(log: &str) -> Option<String> {
    const REFUSED: [&str; 4] = [
        "pull access denied",
        "unauthorized",
        "denied: requested access",
        "authentication required",
    ];
    let last = log.lines().rev().find(|line| !line.trim().is_empty())?;
    let plain: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
    let low = plain.to_lowercase();
    REFUSED
        .iter()
        .any(|words| low.contains(words))
        .then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_word_of_the_host_counts() {
        let denied = "Error response from daemon: pull access denied for a/b";
        assert_eq!(
            refusal(&format!("pull image a/b\n{denied}\n\n")).as_deref(),
            Some(denied)
        );
        assert_eq!(refusal(&format!("{denied}\nstart container")), None);
        assert_eq!(refusal("pull image a/b"), None);
        assert_eq!(refusal(""), None);
    }
}
