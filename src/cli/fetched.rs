//! Looks at the agents that machines are to fetch, before any is rented: whether the file is the one that is meant, whether it runs
//! on what is on the list, by its processor and its C library, and whether it brings the worker that stages there need.
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
use stageline_core::resource::{EngineSpec, Spec, Terms};
use stageline_core::topology::AgentSource;

use super::console::Console;
use super::{Exit, Failure};
use crate::machine::fetch;
use crate::provider::Providers;
use crate::ssh::Needs;

/// Larger than any build of this program.
const SIZE_MAX: usize = 512 << 20;

/// Longest that a look may take.
const LOOK_MAX: Duration = Duration::from_secs(120);

/// The agents of a plan, and the machines on whose list each is.
type Wanted<'a> = BTreeMap<(&'a str, Sha256), Vec<Listed<'a>>>;

/// A machine that may be rented.
pub(super) struct Listed<'a> {
    pub lease: &'a LeaseId,
    pub terms: &'a Terms,
    pub quote: &'a Quote,
}

impl Listed<'_> {
    /// The C library that its image has at least; empty where nobody tells.
    pub fn libc(&self, providers: &Providers) -> &'static str {
        let provider = providers.get(&self.terms.provider, &self.terms.provider_kind);
        provider.map_or("", |provider| provider.libc(self.terms.image.as_deref()))
    }
}

/// Looks at each once.
pub(crate) async fn look(
    plan: &Plan,
    providers: &Providers,
    console: &Console,
) -> Result<(), Failure> {
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
        let Some(program) = program(&bytes) else {
            let message = format!(
                "the agent at {shown} is no program for Linux, and no tar archive with one named `stageline`"
            );
            return Err(refused(message, "`packaging/build` makes both"));
        };
        for machine in &machines {
            fits(&program, &shown, machine, (&natives, providers))?;
        }
    }
    Ok(())
}

/// Whether it runs on a machine, and brings what is needed there.
fn fits(
    program: &Program,
    shown: &str,
    machine: &Listed<'_>,
    (natives, providers): (&BTreeMap<&LeaseId, &Address>, &Providers),
) -> Result<(), Failure> {
    let Listed { lease, quote, .. } = machine;
    if let Some(stage) = natives.get(lease).filter(|_| !program.worker) {
        let message = format!(
            "{stage} needs a native worker on {lease}, and the agent at {shown} brings none"
        );
        let hint = "give the archive that `packaging/build` makes, or bring `bin/stageline-worker` by `setup`";
        return Err(refused(message, hint));
    }
    let (arch, needs) = (program.needs.arch, &program.needs);
    if !quote.facts.arch.is_empty() && quote.facts.arch != arch {
        let message = format!(
            "{lease}: {} has a processor of {}, and the agent at {shown} is for {arch}",
            quote.id, quote.facts.arch
        );
        let hint = format!("add `arch={arch}` to `where`, or give the agent for that processor");
        return Err(refused(message, &hint));
    }
    let libc = machine.libc(providers);
    if needs.runs_with(libc) {
        return Ok(());
    }
    let message = format!(
        "{lease}: the image at {} has {libc}, and the agent at {shown} is for {}",
        quote.id,
        needs.told()
    );
    let hint = "`packaging/build` makes one for glibc 2.17 or later, or name an `image` that has what it needs";
    Err(refused(message, hint))
}

/// What is known of a fetched agent.
struct Program {
    needs: Needs,
    /// Whether a native worker comes with it.
    worker: bool,
}

/// Of a program, or of an archive with one; none of anything else.
fn program(bytes: &[u8]) -> Option<Program> {
    if let Some(needs) = Needs::read(bytes) {
        return Some(Program {
            needs,
            worker: false,
        });
    }
    let (mut needs, mut worker) = (None, false);
    for entry in tar::Archive::new(bytes).entries().ok()? {
        let mut entry = entry.ok()?;
        let path = entry.path().ok()?.into_owned();
        if path.as_os_str() == "stageline" {
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).ok()?;
            needs = Needs::read(&content);
        } else {
            worker |= path.to_str()?.starts_with("stageline-worker");
        }
    }
    needs.map(|needs| Program { needs, worker })
}

/// A native stage that is started on each lease whose setup cannot bring the worker: it has none.
pub(super) fn natives(plan: &Plan) -> BTreeMap<&LeaseId, &Address> {
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

pub(super) fn refused(message: String, hint: &str) -> Failure {
    Failure::new(Exit::User, message).hint(format!("{hint}; nothing was rented"))
}

fn wanted(plan: &Plan) -> Wanted<'_> {
    let mut wanted = Wanted::new();
    for machine in listed(plan) {
        if let Some(AgentSource::Fetch { url, sha256 }) = &machine.terms.agent {
            wanted.entry((url, *sha256)).or_default().push(machine);
        }
    }
    wanted
}

/// The machines on the lists of leases that are made or changed.
pub(super) fn listed(plan: &Plan) -> Vec<Listed<'_>> {
    let mut machines = Vec::new();
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
            machines.extend(terms.map(|terms| Listed {
                lease,
                terms,
                quote: &choice.quote,
            }));
        }
    }
    machines
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
