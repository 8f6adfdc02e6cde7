//! Every folder of `plans/`: what happened is told in `story.txt`, the plan that follows must be drawn as in `plan.txt`.
//!
//! A story begins with what happens and what must hold. Its lines are carried out in order, `topology.toml` is planned at
//! the end. `UPDATE_GOLDEN=1` writes the golden files again. For every case also: the plan passes `check`; carried out, it
//! leaves nothing to do; the empty topology ends everything.
//!
//! ```text
//! market NAME free|paid|itself|rehearsed QUOTE PRICE one|N [FACT=VALUE ...]    one more quote of a provider
//! market NAME blind MESSAGE                                   its account cannot be seen
//! apply FILE [dies N [acting]]      plan and carry out; die after N steps, or while step N acts
//! refuse ADDRESS MESSAGE            the step that acts is refused
//! doubt ADDRESS MESSAGE             the step that acts is in doubt
//! see LEASE gone | dead WHY | price DOLLARS | unknown WHY | there
//! agent LEASE has | gone | unknown WHY
//! agent LEASE without ADDRESS | failed STAGE WHY | other ADDRESS
//! unsee                             forget what was seen
//! room NAME MOST|- DOLLARS|- blind WHY | [PRICE|? ...]      caps of an account, and what others have there
//! lapse LEASE idle|lifetime|spend ends|stays WHY    it is beyond a limit; its machine is released, or not yet
//! unwatched                         there is no watcher
//! renew [LEASE]                     leases that lapsed are rented again
//! target|exclude|replace ADDRESS    options of the plan
//! destroy | view full|summary | width N
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Address, Attempt, Fingerprint, LeaseId, Name, Sha256};
use stageline_core::journal::Record;
use stageline_core::offer::{Bid, Gpu, Quote, Supply};
use stageline_core::plan::{
    Beside, Desired, Draft, Marked, Market, Markets, Mode, ModelFacts, Options, Plan, Renew, Room,
    check, draft, expand_within, interruptions, memory_known,
};
use stageline_core::render::{self, Level, View};
use stageline_core::resource::{Cause, FailureClass, Spec};
use stageline_core::state::{
    Edit, Limit, Observed, ObservedAgent, ObservedLease, ObservedStage, Seen,
};
use stageline_core::topology::{self, AgentWay, Caps, SourceFile, VarSources};
use stageline_core::unit::{Bytes, MicroDollars};

use crate::basics::{model, options};
use crate::world::{World, address, name, now, quote};

struct Story<'c> {
    case: &'c Path,
    world: World,
    markets: Markets,
    observed: Observed,
    options: Options,
    view: View,
    last: Option<Plan>,
}

fn cause(words: &[&str]) -> Cause {
    Cause::new(FailureClass::Unknown, words.join(" "))
}

fn lease(text: &str) -> LeaseId {
    text.parse().expect(text)
}

fn desired(
    case: &Path,
    file: &str,
    world: &World,
    markets: &Markets,
) -> Result<(Desired, topology::Limits), Vec<Diagnostic>> {
    let bytes = fs::read(case.join(file)).expect(file);
    let source = SourceFile::from_bytes(file, bytes).expect("text");
    let (topology, _) = topology::read(&[source], &VarSources::default())?;
    let models: BTreeMap<Name, ModelFacts> = topology
        .pipelines
        .iter()
        .filter_map(|(name, pipeline)| {
            let source = &pipeline.model.as_ref()?.source;
            let digest = Fingerprint::of(format!("{source:?}").as_bytes());
            let facts = ModelFacts {
                sha256: Sha256(digest.0),
                ..model()
            };
            Some((name.clone(), facts))
        })
        .collect();
    let known = memory_known(&topology, &world.state, markets);
    Ok((expand_within(&topology, &models, &known)?, topology.limits))
}

impl Story<'_> {
    fn draft(&self, desired: &Desired, options: &Options) -> Result<Plan, Vec<Diagnostic>> {
        draft(&Draft {
            desired,
            recorded: &self.world.state,
            observed: &self.observed,
            markets: &self.markets,
            options,
        })
    }

    fn tell(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["market", provider, "blind", why @ ..] => {
                let market = Market {
                    kind: "local".to_owned(),
                    free: false,
                    unbilled: false,
                    self_destroy: false,
                    restarts_empty: false,
                    agent: None,
                    quotes: Err(cause(why)),
                };
                self.markets.insert(name(provider), market);
            }
            ["market", provider, kind, id, price, supply, facts @ ..] => {
                let quote = quoted(provider, id, price, supply, facts);
                self.world
                    .measured
                    .insert(quote.id.clone(), quote.facts.clone());
                let market = self
                    .markets
                    .entry(name(provider))
                    .or_insert_with(|| Market {
                        kind: "local".to_owned(),
                        free: *kind == "free",
                        unbilled: *kind == "rehearsed",
                        self_destroy: *kind == "itself",
                        restarts_empty: *kind == "emptied",
                        agent: (*kind == "emptied").then_some(AgentWay::Ssh),
                        quotes: Ok(Vec::new()),
                    });
                let quotes = market.quotes.as_mut().expect("it can be seen");
                quotes.retain(|other| other.id != quote.id);
                quotes.push(quote);
            }
            ["room", provider, most, total, beside @ ..] => {
                let room = room((most, total), beside);
                self.options.rooms.insert(name(provider), room);
            }
            ["apply", file, rest @ ..] => self.apply(file, rest),
            [how @ ("refuse" | "doubt"), at, why @ ..] => self.fail(how, &address(at), why),
            ["see", at, what @ ..] => self.see(lease(at), what),
            ["agent", at, what @ ..] => self.agent(lease(at), what),
            ["target", at] => self.options.targets.push(address(at)),
            ["exclude", at] => self.options.excludes.push(address(at)),
            ["replace", at] => self.options.replace.push(address(at)),
            ["lapse", at, limit, how, why @ ..] => self.lapse(&lease(at), limit, how, why),
            ["unwatched"] => self.options.watched = false,
            ["renew"] => self.options.renew = Renew::All,
            ["renew", at] => self.options.renew = Renew::These(vec![address(at)]),
            ["unsee"] => self.observed = Observed::default(),
            ["destroy"] => self.options.mode = Mode::Destroy,
            ["view", "full"] => self.view.level = Level::Full,
            ["view", "summary"] => self.view.level = Level::Summary,
            ["width", columns] => self.view.width = columns.parse().expect("columns"),
            _ => panic!("{}: what is `{line}`?", self.case.display()),
        }
    }

    fn apply(&mut self, file: &str, how: &[&str]) {
        let (mut desired, limits) =
            desired(self.case, file, &self.world, &self.markets).expect("it can be expanded");
        desired.fall_back(&self.world.state, &[]);
        let plain = Options {
            limits,
            ..options(Mode::Apply)
        };
        let plan = self.draft(&desired, &plain).expect("it can be planned");
        check(&plan).expect("every plan keeps this");
        match how {
            [] => self.world.carry_out(&plan),
            ["dies", count, acting @ ..] => {
                let count: usize = count.parse().expect("a number");
                self.world.carry_out_first(&plan, count);
                if acting == ["acting"] {
                    self.world.start(&plan, &plan.steps[count]);
                }
            }
            _ => panic!("{}: how is it applied?", self.case.display()),
        }
        self.last = Some(plan);
    }

    /// As a watcher does it: what needs the lease is ended with it.
    fn lapse(&mut self, lease: &LeaseId, limit: &str, how: &str, why: &[&str]) {
        let edit = Edit::Lapse {
            lease: lease.clone(),
            limit: match limit {
                "idle" => Limit::Idle,
                "lifetime" => Limit::Lifetime,
                "spend" => Limit::Spend,
                "interrupt" => Limit::Interrupt,
                _ => panic!("{}: what limit is that?", self.case.display()),
            },
            why: why.join(" "),
        };
        let records = self.world.state.edited(&[edit], now());
        self.world.begin(None);
        self.world.write(records.expect("it is held"));
        if how == "ends" {
            let nothing = Desired::nothing(name("test"));
            let release = Options {
                targets: vec![Address::Lease(lease.clone())],
                ..options(Mode::Destroy)
            };
            let plan = self.draft(&nothing, &release).expect("it can be planned");
            self.world.carry_out(&plan);
        }
    }

    fn fail(&mut self, how: &str, at: &Address, why: &[&str]) {
        let recorded = &self.world.state.resources[at];
        let generation = recorded.generation;
        let verb = recorded.pending.as_ref().expect("it acts").verb;
        let attempt: Option<Attempt> = recorded.attempts.keys().next_back().copied();
        let (address, cause, at) = (at.clone(), cause(why), now());
        let record = if how == "refuse" {
            Record::Refused {
                address,
                generation,
                verb,
                attempt,
                cause,
                at,
            }
        } else {
            Record::InDoubt {
                address,
                generation,
                verb,
                attempt,
                cause,
                at,
            }
        };
        self.world.write(vec![record]);
    }

    fn see(&mut self, at: LeaseId, what: &[&str]) {
        self.observed.at = Some(now());
        let held = self
            .world
            .state
            .lease(&at)
            .map(|receipt| receipt.price_per_hour);
        let there = |dead: Option<String>, price| {
            Seen::There(ObservedLease {
                dead,
                price_per_hour: price,
                ..ObservedLease::default()
            })
        };
        let seen = match what {
            ["gone"] => Seen::Gone,
            ["there"] => there(None, held.expect("a machine")),
            ["dead", why @ ..] => there(Some(why.join(" ")), held.expect("a machine")),
            ["taken", price, why @ ..] => Seen::There(ObservedLease {
                dead: Some(why.join(" ")),
                interrupted: true,
                price_per_hour: price.parse().expect("money"),
                ..ObservedLease::default()
            }),
            ["price", price] => there(None, price.parse().expect("money")),
            ["unknown", why @ ..] => Seen::Unknown(cause(why)),
            _ => panic!("{}: what is seen of {at}?", self.case.display()),
        };
        self.observed.leases.insert(at, seen);
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a story that says it of anything else is wrong"
    )]
    fn agent(&mut self, at: LeaseId, what: &[&str]) {
        self.observed.at = Some(now());
        let has = self.as_recorded(&at);
        let entry = self.observed.agents.entry(at).or_insert(Seen::There(has));
        match (what, &mut *entry) {
            (["gone"], entry) => *entry = Seen::Gone,
            (["unknown", why @ ..], entry) => *entry = Seen::Unknown(cause(why)),
            (["has"], _) => {}
            (["without", what], Seen::There(agent)) => match address(what) {
                Address::Delivery(_) => agent.delivery = None,
                Address::Stage(id) => drop(agent.stages.remove(&id)),
                Address::Exposure(name) => drop(agent.exposures.remove(&name)),
                other => panic!("an agent has no {other}"),
            },
            (["failed", what, why @ ..], Seen::There(agent)) => {
                let Address::Stage(id) = address(what) else {
                    panic!("{what} cannot fail")
                };
                agent.stages.get_mut(&id).expect("it is there").failed = Some(why.join(" "));
            }
            (["other", what], Seen::There(agent)) => match address(what) {
                Address::Delivery(_) => agent.delivery = Some(Fingerprint([0; 32])),
                Address::Stage(id) => {
                    let spec = Fingerprint([0; 32]);
                    agent
                        .stages
                        .insert(id, ObservedStage { spec, failed: None });
                }
                other => panic!("an agent has no {other}"),
            },
            _ => panic!("{}: what has the agent?", self.case.display()),
        }
    }

    /// What an agent says when all is as recorded.
    fn as_recorded(&self, at: &LeaseId) -> ObservedAgent {
        let ready = self
            .world
            .state
            .lease(at)
            .and_then(|held| held.ready.as_ref());
        let mut agent = ObservedAgent {
            gpus: ready
                .map(|ready| ready.facts.gpus.clone())
                .unwrap_or_default(),
            delivery: None,
            stages: BTreeMap::new(),
            exposures: BTreeMap::new(),
        };
        for (address, recorded) in self.world.state.existing() {
            let Some(spec) = &recorded.spec else { continue };
            let digest = spec.fingerprint();
            match (address, spec) {
                (Address::Delivery(lease), _) if lease == at => agent.delivery = Some(digest),
                (Address::Stage(id), Spec::Stage(stage)) if stage.on == *at => {
                    let seen = ObservedStage {
                        spec: digest,
                        failed: None,
                    };
                    agent.stages.insert(id.clone(), seen);
                }
                (Address::Exposure(name), Spec::Exposure(spec)) if spec.at == *at => {
                    agent.exposures.insert(name.clone(), digest);
                }
                _ => {}
            }
        }
        agent
    }
}

/// What others have on an account, and how much may be there.
fn room((most, total): (&str, &str), beside: &[&str]) -> Room {
    let marked = beside.iter().zip(1..).map(|(price, n)| Marked {
        machine: format!("other-{n}").parse().expect("an id"),
        key: None,
        price_per_hour: price.parse().ok(),
    });
    Room {
        caps: Caps {
            max_leases: most.parse().ok(),
            max_total_per_hour: total.parse().ok(),
        },
        beside: match beside {
            ["blind", why @ ..] => Err(cause(why)),
            _ => Ok(Beside {
                machines: marked.collect(),
            }),
        },
    }
}

fn quoted(provider: &str, id: &str, price: &str, supply: &str, facts: &[&str]) -> Quote {
    let price: MicroDollars = price.parse().expect("money");
    let supply = match supply {
        "one" => Supply::One,
        many => Supply::Many(many.parse().expect("a number")),
    };
    let mut quote = quote(provider, id, price.0, supply);
    for fact in facts {
        let (key, value) = fact.split_once('=').expect("FACT=VALUE");
        match key {
            "memory" => quote.facts.memory = value.parse().expect("a size"),
            "cpus" => quote.facts.cpus = value.parse().expect("a number"),
            "region" => quote.facts.region = Some(value.to_owned()),
            "least" => {
                let least: MicroDollars = value.parse().expect("money");
                let bid = quote.id.bid().expect("a bid");
                quote.facts.spot = true;
                quote.bid = Some(Bid {
                    per_hour: bid.unwrap_or(least),
                    least,
                });
            }
            "gpu" => quote.facts.gpus.push(Gpu {
                model: value.to_owned(),
                vram: Bytes::gib(24),
            }),
            _ => panic!("no such fact: {key}"),
        }
    }
    quote
}

/// What a case prints; and its plan must keep what every plan keeps.
fn outcome(case: &Path) -> String {
    let text = fs::read_to_string(case.join("story.txt")).expect("a story");
    let mut story = Story {
        case,
        world: World::new(),
        markets: Markets::new(),
        observed: Observed::default(),
        options: options(Mode::Apply),
        view: View {
            level: Level::Changes,
            width: 100,
            color: false,
        },
        last: None,
    };
    assert!(
        text.starts_with("# "),
        "{}: say what happens",
        case.display()
    );
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        story.tell(line);
    }
    if story.options.mode == Mode::Apply {
        let edits = interruptions(&story.world.state, &story.observed);
        let records = story
            .world
            .state
            .edited(&edits, now())
            .expect("they are held");
        story.world.begin(None);
        story.world.write(records);
    }
    let wanted = if story.options.mode == Mode::Destroy {
        Ok((Desired::nothing(name("test")), story.options.limits.clone()))
    } else {
        desired(case, "topology.toml", &story.world, &story.markets)
    };
    let planned = wanted.and_then(|(mut desired, limits)| {
        desired.fall_back(&story.world.state, &story.options.replace);
        story.options.limits = limits;
        story
            .draft(&desired, &story.options)
            .map(|plan| (desired, plan))
    });
    let printed = match &planned {
        // The id changes with everything, so a golden file would change with everything.
        Ok((_, plan)) => {
            render::plan::plan(plan, &story.view).replace(&plan.id.to_string(), "PLAN-ID")
        }
        Err(faults) => render::diagnostics(faults, &[], false, 100),
    };
    if let Ok((desired, plan)) = planned {
        check(&plan).unwrap_or_else(|why| panic!("{}: {why}", case.display()));
        story.world.carry_out(&plan);
        story.settled(&desired);
    }
    story.ends();
    printed
}

impl Story<'_> {
    /// Planning again from the result is empty; nobody needs to look.
    fn settled(&mut self, desired: &Desired) {
        self.observed = Observed::default();
        let partial = !self.options.targets.is_empty() || !self.options.excludes.is_empty();
        self.options.replace.clear();
        if partial {
            return;
        }
        let again = self.draft(desired, &self.options);
        let again = again.unwrap_or_else(|faults| panic!("{}: {faults:#?}", self.case.display()));
        assert!(
            again.is_empty(),
            "{}: a second plan is not empty:\n{}",
            self.case.display(),
            render::plan::plan(&again, &self.view)
        );
    }

    /// The empty topology ends everything, without markets and without looking.
    fn ends(&mut self) {
        self.markets.clear();
        self.observed = Observed::default();
        let nothing = Desired::nothing(name("test"));
        let plan = self
            .draft(&nothing, &options(Mode::Destroy))
            .expect("a destroy needs nothing");
        check(&plan).unwrap_or_else(|why| panic!("{}: destroy: {why}", self.case.display()));
        self.world.carry_out(&plan);
        let state = &self.world.state;
        let spared = |(address, recorded): (&Address, &stageline_core::state::Recorded)| {
            let on = recorded.machines_of(address);
            on.iter()
                .any(|lease| stageline_core::plan::is_protected(state, lease))
        };
        assert!(
            state.existing().all(spared),
            "{}: something is left that is not protected",
            self.case.display()
        );
    }
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let entries = fs::read_dir(root).expect("the cases");
    let mut all: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .collect();
    all.sort();
    all
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whoever runs the test says by it that golden files shall be written"
)]
fn plans_are_drawn_as_they_were() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for case in cases() {
        let printed = outcome(&case);
        let golden = case.join("plan.txt");
        if update {
            fs::write(&golden, &printed).expect("a golden file");
        } else if fs::read_to_string(&golden).unwrap_or_default() != printed {
            wrong.push(format!("{}:\n{printed}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases().len() >= 25, "cases are missing");
}
