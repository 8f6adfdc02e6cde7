//! `logs`: output of a machine's agent or of a stage's worker.

use futures::StreamExt as _;
use stageline_core::id::Address;
use stageline_core::resource::Spec;
use stageline_core::state::State;

use super::console::Console;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, project, relay, session};
use crate::machine::{LogSource, MachineError, Machines as _, Target};
use crate::observe;
use crate::store::Mode;

/// Output of a machine's agent or of a stage's worker.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Such as lease.gpu[0] (the agent) or stage.llama[0] (the worker)
    address: Address,
    /// Go on as more comes
    #[arg(long)]
    follow: bool,
    /// How much of the end, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    tail: usize,
}

impl Logs {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let clock = session::clock();
        session::runtime()?.block_on(async {
            let store = place.open(Mode::Read).await?;
            let state = store.read().await?.state;
            let (target, source) = self.source(&state)?;
            let genesis = state
                .genesis
                .as_ref()
                .ok_or_else(|| Failure::user("nothing runs"))?;
            let keys = session::keys_of(&store, genesis, None)?;
            let relays = relay::relays(None, &state, &project::folder(global))?;
            let hands = session::hands(&keys, relays, &place);
            let sellers = Sellers::recorded(&state, &place, &clock);
            let tail = self.tail << 10;
            let mut stream = hands.logs(&target, source.clone(), tail, self.follow).await;
            if let Err(MachineError::Unreachable { .. }) = stream
                && let Some(target) = sellers.elsewhere(&target).await
            {
                stream = hands.logs(&target, source, tail, self.follow).await;
            }
            let result = match stream {
                Ok(mut pieces) => loop {
                    let piece = tokio::select! {
                        piece = pieces.next() => piece,
                        _ = tokio::signal::ctrl_c() => break Ok(Exit::Done),
                    };
                    match piece {
                        None => break Ok(Exit::Done),
                        Some(Ok(bytes)) => console.data(&String::from_utf8_lossy(&bytes))?,
                        Some(Err(error)) => break Err(Failure::from(error)),
                    }
                },
                // A dead agent says nothing more, but its machine may have kept what it printed.
                Err(error @ MachineError::Unreachable { .. }) => {
                    let providers = sellers.providers()?;
                    kept(&state, &target, &providers, tail, console)
                        .await
                        .ok_or_else(|| Failure::from(error))
                }
                Err(error) => Err(error.into()),
            };
            hands.close().await;
            result
        })
    }

    fn source(&self, state: &State) -> Result<(Target, LogSource), Failure> {
        let missing = || {
            Failure::user(format!("{} does not run", self.address))
                .hint("`stageline status` shows what runs")
        };
        let (lease, source) = match &self.address {
            Address::Lease(lease) | Address::Delivery(lease) => (lease.clone(), LogSource::Agent),
            Address::Stage(stage) => {
                let recorded = state.resources.get(&self.address).ok_or_else(missing)?;
                match &recorded.spec {
                    Some(Spec::Stage(spec)) => (spec.on.clone(), LogSource::Stage(stage.clone())),
                    Some(_) => return Err(missing()),
                    // It was started and never finished: every agent may be the one; the delivery tells.
                    None => (
                        lease_of_stage(state, stage).ok_or_else(missing)?,
                        LogSource::Stage(stage.clone()),
                    ),
                }
            }
            Address::Bundle(_) | Address::Pipeline(_) | Address::Exposure(_) => {
                let kind = self.address.kind();
                let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) {
                    "an"
                } else {
                    "a"
                };
                return Err(Failure::user(format!(
                    "{}: {article} {kind} has no output of its own",
                    self.address
                ))
                .hint("ask for a lease's or a stage's, such as `stageline logs stage.NAME[0]`"));
            }
        };
        let target = observe::target(state, &lease).ok_or_else(missing)?;
        Ok((target, source))
    }
}

/// The machine of a stage by its roster.
fn lease_of_stage(
    state: &State,
    stage: &stageline_core::id::StageId,
) -> Option<stageline_core::id::LeaseId> {
    state
        .existing()
        .find_map(|(_, recorded)| match &recorded.spec {
            Some(Spec::Delivery(delivery)) => {
                let roster = &delivery.pipelines.get(&stage.pipeline)?.roster;
                roster
                    .get(stage.index as usize)
                    .map(|line| line.lease.clone())
            }
            Some(Spec::Lease(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_))
            | None => None,
        })
}

async fn kept(
    state: &State,
    target: &Target,
    providers: &crate::apply::Providers,
    tail: usize,
    console: &Console,
) -> Option<Exit> {
    let held = state.lease(&target.lease)?;
    let provider = providers.get(&held.provider, &held.provider_kind).ok()?;
    let bytes = provider.logs(&held.machine, tail).await.ok()?;
    console.say(&format!(
        "{}: its agent does not answer; this is what its machine kept",
        target.lease
    ));
    console.data(&String::from_utf8_lossy(&bytes)).ok()?;
    Some(Exit::Done)
}
