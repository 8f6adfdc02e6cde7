//! Looks at the agents that machines are to fetch, before any is rented: whether the file is the one that is meant, and whether it runs
//! on what is on the list.
//!
//! What cannot be fetched from here is not held against it, since machines may stand where it can be; that is said. It keeps nothing
//! of what it reads.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use sha2::Digest as _;
use stageline_core::id::{LeaseId, Sha256};
use stageline_core::offer::Quote;
use stageline_core::plan::{Plan, Verdict};
use stageline_core::resource::Spec;
use stageline_core::topology::AgentSource;

use super::console::Console;
use super::{Exit, Failure};
use crate::machine::fetch;
use crate::ssh::processor_of;

/// Larger than any build of this program.
const SIZE_MAX: usize = 512 << 20;

/// Longest that a look may take.
const LOOK_MAX: Duration = Duration::from_secs(120);

/// The agents of a plan, and the machines on whose list each is.
type Wanted<'a> = BTreeMap<(&'a str, Sha256), Vec<(&'a LeaseId, &'a Quote)>>;

/// Looks at each once.
pub(crate) async fn look(plan: &Plan, console: &Console) -> Result<(), Failure> {
    for ((url, sha256), machines) in wanted(plan) {
        let shown = fetch::shown(url);
        let read = tokio::time::timeout(LOOK_MAX, read(url)).await;
        let bytes = match read.unwrap_or_else(|_| Err("it takes too long".to_owned())) {
            Ok(bytes) => bytes,
            Err(why) => {
                console.line(&format!(
                    "the agent at {shown} was not looked at: {why}; machines fetch it themselves"
                ));
                continue;
            }
        };
        let found = Sha256(sha2::Sha256::digest(&bytes).into());
        if found != sha256 {
            let message = format!(
                "the agent at {shown} is another file: its sha256 is {found}, declared is {sha256}"
            );
            return Err(refused(
                message,
                "put the right file there, or correct `sha256` of the offer's `agent`",
            ));
        }
        let Some(arch) = processor_of(&bytes) else {
            let message = format!("the agent at {shown} is no program for Linux");
            return Err(refused(message, "`packaging/build` makes one"));
        };
        let other = |quote: &Quote| !quote.facts.arch.is_empty() && quote.facts.arch != arch;
        if let Some((lease, quote)) = machines.into_iter().find(|(_, quote)| other(quote)) {
            let message = format!(
                "{lease}: {} has a processor of {}, and the agent at {shown} is for {arch}",
                quote.id, quote.facts.arch
            );
            let hint =
                format!("add `arch={arch}` to `where`, or give the agent for that processor");
            return Err(refused(message, &hint));
        }
    }
    Ok(())
}

fn refused(message: String, hint: &str) -> Failure {
    Failure::new(Exit::User, message).hint(format!("{hint}; nothing was rented"))
}

fn wanted(plan: &Plan) -> Wanted<'_> {
    let mut wanted = Wanted::new();
    for change in &plan.changes {
        let made = matches!(
            change.verdict,
            Verdict::Create | Verdict::Replace | Verdict::Update
        );
        let (Some(lease), Some(Spec::Lease(spec)), true) =
            (change.address.lease(), change.spec.as_ref(), made)
        else {
            continue;
        };
        let Some((lease, listed)) = plan.leases.get_key_value(lease) else {
            continue;
        };
        for choice in listed.shortlist.iter() {
            let terms = spec.terms.iter().find(|terms| terms.offer == choice.offer);
            if let Some(AgentSource::Fetch { url, sha256 }) =
                terms.and_then(|terms| terms.agent.as_ref())
            {
                let machines = wanted.entry((url, *sha256)).or_default();
                machines.push((lease, &*choice.quote));
            }
        }
    }
    wanted
}

/// The whole file.
async fn read(url: &str) -> Result<Vec<u8>, String> {
    let response = fetch::open(url, None).await;
    let mut body = response.map_err(|refusal| refusal.message)?.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|_| "the transfer broke".to_owned())?;
        if bytes.len() + piece.len() > SIZE_MAX {
            return Err(format!("it is longer than {} MiB", SIZE_MAX >> 20));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
