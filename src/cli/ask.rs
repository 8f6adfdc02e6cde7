//! `ask`: one prompt through a pipeline, streamed.

use std::io::{IsTerminal as _, Read as _};

use futures::StreamExt as _;
use stageline_core::id::{Address, Name};
use stageline_core::resource::Spec;
use stageline_core::state::State;

use super::console::Console;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, project, relay, session};
use crate::machine::Target;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::pipeline::infer::{
    Event, Infer as _, InferCode, InferError, Input, Message, Request, Sampling,
};
use crate::store::Mode;

/// Send one prompt through a pipeline.
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    /// The prompt; `-` or nothing reads it from stdin
    prompt: Option<String>,
    /// Which pipeline, where there are several
    #[arg(long, value_name = "NAME")]
    pipeline: Option<Name>,
    /// Most tokens to draw
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: u32,
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Smallest set of tokens with at least this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Repeatable draws
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Send the text as it stands, without the model's chat template
    #[arg(long)]
    raw: bool,
}

impl Ask {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let place = project::place(global)?;
        let clock = session::clock();
        let prompt = self.prompt()?;
        session::runtime()?.block_on(async {
            let store = place.open(Mode::Read).await?;
            let state = store.read().await?.state;
            let (pipeline, entry) = self.entry(&state)?;
            let genesis = state.genesis.as_ref().ok_or_else(nothing)?;
            let keys = session::keys_of(&store, genesis, None)?;
            let relays = relay::relays(None, &state, &project::folder(global))?;
            let hands = session::hands(&keys, relays, &place);
            let input = if self.raw {
                Input::Prompt(prompt)
            } else {
                Input::Messages(vec![Message {
                    role: "user".to_owned(),
                    content: prompt,
                }])
            };
            let request = Request {
                input,
                sampling: Sampling {
                    max_tokens: self.max_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    seed: self.seed,
                    stop: Vec::new(),
                },
                deadline_ms: None,
            };
            let asked = async {
                let error = match answer(&hands, &entry, &pipeline, &request, console).await {
                    Err(Unanswered::Silent(error)) => error,
                    Err(Unanswered::Failed(failure)) => return Err(failure),
                    Ok(()) => return Ok(()),
                };
                let sellers = Sellers::recorded(&state, &place, &clock);
                let Some(entry) = sellers.elsewhere(&entry).await else {
                    return Err(failed(&pipeline, &error));
                };
                let again = answer(&hands, &entry, &pipeline, &request, console).await;
                again.map_err(|unanswered| unanswered.failure(&pipeline))
            };
            let result = tokio::select! {
                result = asked => result,
                _ = tokio::signal::ctrl_c() => {
                    Err(Failure::new(Exit::Interrupted, "interrupted; the request is cancelled"))
                }
            };
            hands.close().await;
            result.map(|()| Exit::Done)
        })
    }

    fn prompt(&self) -> Result<String, Failure> {
        match self.prompt.as_deref() {
            Some("-") => {}
            Some(text) => return Ok(text.to_owned()),
            None if std::io::stdin().is_terminal() => {
                return Err(Failure::new(Exit::Usage, "there is no prompt")
                    .hint("type `stageline ask \"PROMPT\"`, or pipe one in"));
            }
            None => {}
        }
        let mut text = String::new();
        std::io::stdin()
            .lock()
            .take(4 << 20)
            .read_to_string(&mut text)?;
        Ok(text)
    }

    /// The pipeline that is asked, and the agent of its entry stage.
    fn entry(&self, state: &State) -> Result<(Name, Target), Failure> {
        let mut pipelines =
            state
                .existing()
                .filter_map(|(address, recorded)| match (address, &recorded.spec) {
                    (Address::Pipeline(name), Some(Spec::Pipeline(spec))) => Some((name, spec)),
                    (_, _) => None,
                });
        let (name, spec) = match &self.pipeline {
            Some(wanted) => pipelines.find(|(name, _)| *name == wanted).ok_or_else(|| {
                Failure::user(format!("pipeline `{wanted}` does not run"))
                    .hint("`stageline status` shows what runs")
            })?,
            None => {
                let first = pipelines.next().ok_or_else(nothing)?;
                let others: Vec<&str> = pipelines.map(|(name, _)| name.as_str()).collect();
                if !others.is_empty() {
                    return Err(Failure::user("several pipelines run").hint(format!(
                        "say which: --pipeline {} or --pipeline {}",
                        first.0,
                        others.join(" or --pipeline ")
                    )));
                }
                first
            }
        };
        let entry = spec.stages.first().ok_or_else(nothing)?;
        let target = observe::target(state, entry).ok_or_else(|| {
            Failure::user(format!(
                "{entry}, the entry of pipeline `{name}`, is not up"
            ))
            .hint("`stageline plan` shows what is missing")
        })?;
        Ok((name.clone(), target))
    }
}

/// Why a prompt has no answer.
enum Unanswered {
    /// Nothing came, perhaps since the entry is elsewhere.
    Silent(InferError),
    Failed(Failure),
}

impl Unanswered {
    fn failure(self, pipeline: &Name) -> Failure {
        match self {
            Self::Silent(error) => failed(pipeline, &error),
            Self::Failed(failure) => failure,
        }
    }
}

/// Asks, and draws the answer as it comes.
async fn answer(
    hands: &AgentClient,
    entry: &Target,
    pipeline: &Name,
    request: &Request,
    console: &Console,
) -> Result<(), Unanswered> {
    let way = hands.infer(entry, pipeline).await;
    let way = way.map_err(|error| Unanswered::Failed(error.into()))?;
    let mut began = false;
    let lost = |began: bool, error: InferError| match error.code {
        InferCode::StageDown if !began => Unanswered::Silent(error),
        InferCode::StageDown
        | InferCode::ContextOverflow
        | InferCode::BadRequest
        | InferCode::Forbidden
        | InferCode::Busy
        | InferCode::DeadlineExceeded
        | InferCode::Cancelled
        | InferCode::Draining
        | InferCode::Internal => Unanswered::Failed(failed(pipeline, &error)),
    };
    let mut events = way
        .infer(request.clone())
        .await
        .map_err(|error| lost(began, error))?;
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| lost(began, error))?;
        began = true;
        draw(&event, console).map_err(Unanswered::Failed)?;
    }
    Ok(())
}

fn draw(event: &Event, console: &Console) -> Result<(), Failure> {
    if console.json {
        let line = serde_json::to_string(event).expect("events are plain data");
        return console.data(&format!("{line}\n"));
    }
    match event {
        Event::Started { .. } => Ok(()),
        Event::Text { text, .. } => console.data(text),
        Event::Done { .. } => console.data("\n"),
    }
}

fn nothing() -> Failure {
    Failure::user("no pipeline runs").hint("`stageline apply` starts what the topology declares")
}

fn failed(pipeline: &Name, error: &InferError) -> Failure {
    let exit = match error.code {
        InferCode::ContextOverflow | InferCode::BadRequest | InferCode::Forbidden => Exit::User,
        InferCode::Busy
        | InferCode::DeadlineExceeded
        | InferCode::StageDown
        | InferCode::Cancelled
        | InferCode::Draining => Exit::Stopped,
        InferCode::Internal => Exit::Bug,
    };
    let failure = Failure::new(exit, format!("pipeline.{pipeline}: {error}"));
    match error.code {
        InferCode::StageDown => {
            failure.hint("`stageline status` shows which stage is down, `stageline apply` mends it")
        }
        InferCode::ContextOverflow => failure.hint(format!(
            "shorten the prompt, ask for fewer tokens, or raise `context` of [pipeline.{pipeline}] if the model has more"
        )),
        InferCode::Busy => failure.hint(format!(
            "try again, or raise `max_in_flight` of [pipeline.{pipeline}]"
        )),
        InferCode::BadRequest
        | InferCode::Forbidden
        | InferCode::DeadlineExceeded
        | InferCode::Cancelled
        | InferCode::Draining
        | InferCode::Internal => failure,
    }
}
