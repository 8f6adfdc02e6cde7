//! Looks at the agents that machines are to fetch, before any is rented: whether the file is the one that is meant, whether it runs
//! on what is on the list, and whether it brings the worker that stages there need.
//!
//! What cannot be fetched from here is not held against it, since machines may stand where it can be; that is said. It keeps nothing
//! of what it reads.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use sha2::Digest as _;
use stageline_core::id::{Address, LeaseId, Sha256};
use stageline_core::offer::Quote;
use stageline_core::plan::{Plan, Verdict};
use stageline_core::resource::{EngineSpec, Spec};
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
    let natives = natives(plan);
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
        let Some(Program { arch, worker }) = program(&bytes) else {
            let message = format!(
                "the agent at {shown} is no program for Linux, and no tar archive with one named `stageline`"
            );
            return Err(refused(message, "`packaging/build` makes both"));
        };
        if let Some((lease, stage)) = machines
            .iter()
            .find_map(|(lease, _)| Some((lease, natives.get(lease)?)))
            .filter(|_| !worker)
        {
            let message = format!(
                "{stage} needs a native worker on {lease}, and the agent at {shown} brings none"
            );
            let hint = "give the archive that `packaging/build` makes, or bring `bin/stageline-worker` by `setup`";
            return Err(refused(message, hint));
        }
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

/// What is known of a fetched agent.
struct Program {
    arch: &'static str,
    /// Whether a native worker comes with it.
    worker: bool,
}

/// Of a program, or of an archive with one; none of anything else.
fn program(bytes: &[u8]) -> Option<Program> {
    if let Some(arch) = processor_of(bytes) {
        return Some(Program {
            arch,
            worker: false,
        });
    }
    let (mut arch, mut worker) = (None, false);
    for entry in tar::Archive::new(bytes).entries().ok()? {
        let mut entry = entry.ok()?;
        let path = entry.path().ok()?.into_owned();
        if path.as_os_str() == "stageline" {
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).ok()?;
            arch = processor_of(&content);
        } else {
            worker |= path.to_str()?.starts_with("stageline-worker");
        }
    }
    arch.map(|arch| Program { arch, worker })
}

/// A native stage that is started on each lease whose setup cannot bring the worker: it has none.
fn natives(plan: &Plan) -> BTreeMap<&LeaseId, &Address> {
    let sets_up = |lease: &LeaseId| {
        let mut changes = plan.changes.iter();
        changes.any(|change| match &change.spec {
            Some(Spec::Lease(spec)) => {
                change.address.lease() == Some(lease) && spec.setup.is_some()
            }
            _ => false,
        })
    };
    let stages = plan.changes.iter().filter_map(|change| match &change.spec {
        Some(Spec::Stage(spec)) if spec.engine == EngineSpec::Native => {
            Some((&spec.on, &change.address))
        }
        _ => None,
    });
    stages.filter(|(lease, _)| !sets_up(lease)).collect()
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
