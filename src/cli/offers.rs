//! `offers`: what can be rented now, over every declared provider at once, cheapest first.

use serde::Serialize;
use stageline_core::id::Name;
use stageline_core::offer::{
    Facts, Misfit, Quote, Requirement, Selection, Supply, distance, ranked,
};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::state::State;
use stageline_core::unit::{Bytes, MicroDollars};

use super::console::Console;
use super::project::Project;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, session, stock};
use crate::observe::{self, Asked, Search};

/// What can be rented now, cheapest first, over all providers.
#[derive(Debug, clap::Args)]
pub(crate) struct Offers {
    /// Only machines that meet this, such as "gpu=h100, vram>=80"
    #[arg(long = "where", value_name = "TERMS")]
    requirement: Option<Requirement>,
    /// Show what can be had for a bid too, at the least bid that is taken: a machine that may be taken away again. Without it only
    /// machines on demand are shown, unless --where says `spot`
    #[arg(long)]
    spot: bool,
    /// Disk that prices include, in GiB
    #[arg(long, value_name = "SIZE", default_value = "20")]
    disk: Bytes,
    /// Show the nearest that do not fit too, and why
    #[arg(long)]
    explain: bool,
    /// Show at most so many
    #[arg(long, value_name = "N", default_value_t = 30)]
    limit: usize,
}

/// One offer.
#[derive(Serialize)]
struct Line<'q> {
    #[serde(flatten)]
    quote: &'q Quote,
    /// All in.
    price: String,
}

/// One that does not fit.
#[derive(Serialize)]
struct Miss<'q> {
    #[serde(flatten)]
    line: Line<'q>,
    why: Vec<Misfit>,
}

/// A provider that cannot be seen.
#[derive(Serialize)]
struct Unseen {
    provider: Name,
    cause: Cause,
}

/// What providers answered.
#[derive(Default)]
struct Answers {
    /// What each sells, and what its table leaves of that.
    sold: Vec<(Selection, Vec<Quote>)>,
    unseen: Vec<Unseen>,
}

/// Everything that is shown.
#[derive(Serialize)]
struct Report<'q> {
    document: &'static str,
    version: u32,
    offers: Vec<Line<'q>>,
    near_misses: Vec<Miss<'q>>,
    unseen: &'q [Unseen],
    /// How many more fit than are shown.
    #[serde(skip)]
    more: usize,
}

impl<'q> Line<'q> {
    fn of(quote: &'q Quote) -> Self {
        let price = quote.price_per_hour.to_string();
        Self { quote, price }
    }
}

impl Offers {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let project = Project::load(global)?;
        let answers = session::runtime()?.block_on(self.ask(&project))?;
        // A document has all that fit.
        let limit = if console.json { usize::MAX } else { self.limit };
        let report = self.report(&answers, limit);
        if console.json {
            console.document(&report)?;
        } else {
            self.draw(&report, console)?;
        }
        let mends = |unseen: &Unseen| {
            matches!(
                unseen.cause.class,
                FailureClass::Auth | FailureClass::Config
            )
        };
        Ok(match report.unseen.iter().any(mends) {
            true => Exit::User,
            false if report.unseen.is_empty() => Exit::Done,
            false => Exit::Doubt,
        })
    }

    async fn ask(&self, project: &Project) -> Result<Answers, Failure> {
        let clock = session::clock();
        let state = State::default();
        let sellers = Sellers {
            topology: Some(&project.topology),
            state: &state,
            place: &project.place,
            folder: &project.folder,
            clock: &clock,
        };
        let providers = sellers.providers()?;
        let types = stock::types(&project.topology, &providers, |_| true).await;
        types.map_err(|unknown| Failure::diagnostics(unknown, project.files.clone()))?;
        let wanted = self.requirement.clone().unwrap_or_default();
        let mut requirements = vec![wanted.clone()];
        if self.explain && !wanted.is_any() {
            requirements.push(Requirement::default());
        }
        let said = wanted.says_spot();
        let on_demand = said != Some(true) || self.explain;
        let bids = said.unwrap_or(self.spot);
        let search = |bid: Option<Option<MicroDollars>>| {
            let requirements = requirements.iter().cloned();
            requirements.map(move |requirement| Search {
                requirement,
                bid,
                disk: self.disk,
            })
        };
        let searches = on_demand.then(|| search(None)).into_iter().flatten();
        let searches: Vec<Search> = searches
            .chain(bids.then(|| search(Some(None))).into_iter().flatten())
            .collect();
        let mut asked = Vec::new();
        for (name, declared) in &project.topology.providers {
            if let Ok(provider) = providers.get(name, declared.kind.as_str()) {
                asked.push(Asked {
                    name: name.clone(),
                    provider: provider.clone(),
                    searches: searches.clone(),
                });
            }
        }
        let mut answers = Answers::default();
        for (provider, quotes) in observe::quotes(&asked).await {
            match quotes {
                Ok(quotes) => {
                    let within = project.topology.providers[&provider].within.clone();
                    answers.sold.push((within, quotes));
                }
                Err(blind) => answers.unseen.push(Unseen {
                    provider,
                    cause: blind.cause,
                }),
            }
        }
        Ok(answers)
    }

    /// Each answer is compared with the requirement again: a provider's own filter is not trusted.
    fn report<'q>(&self, answers: &'q Answers, limit: usize) -> Report<'q> {
        let wanted = self.requirement.clone().unwrap_or_default();
        let sold = answers.sold.iter();
        let fitting = ranked(&wanted, sold.map(|(within, quotes)| (within, &quotes[..])));
        let mut report = Report {
            document: "stageline-offers",
            version: 1,
            offers: fitting.iter().take(limit).copied().map(Line::of).collect(),
            near_misses: Vec::new(),
            unseen: &answers.unseen,
            more: fitting.len().saturating_sub(limit),
        };
        if self.explain {
            report.near_misses = near_misses(&wanted, &answers.sold);
            report.near_misses.truncate(self.limit.min(10));
        }
        report
    }

    fn draw(&self, report: &Report<'_>, console: &Console) -> Result<(), Failure> {
        for unseen in report.unseen {
            let message = &unseen.cause.message;
            console.line(&format!(
                "provider `{}` cannot be seen: {message}",
                unseen.provider
            ));
            if let Some(hint) = &unseen.cause.hint {
                console.line(&format!("hint: {hint}"));
            }
        }
        let shown = report.offers.iter();
        let rows: Vec<[String; 7]> = shown.map(|line| row(line.quote)).collect();
        if rows.is_empty() {
            console.say(match self.explain {
                true => "nothing fits now",
                false => "nothing fits now; `--explain` shows what comes nearest",
            });
        } else {
            console.data(&table(&rows))?;
        }
        if report.more > 0 {
            let more = report.more;
            console.say(&format!("{more} more; --limit shows them"));
        }
        if !report.near_misses.is_empty() {
            console.data("\nNearest that do not fit:\n")?;
        }
        for miss in &report.near_misses {
            let why: Vec<String> = miss
                .why
                .iter()
                .map(|misfit| format!("{} (it has {})", misfit.term, misfit.found))
                .collect();
            let quote = miss.line.quote;
            let text = format!(
                "{}/h  {} {}: misses {}\n",
                quote.price_per_hour,
                quote.provider,
                quote.id,
                why.join(", ")
            );
            console.data(&text)?;
        }
        Ok(())
    }
}

/// What does not fit, the nearest first, and why.
fn near_misses<'q>(wanted: &Requirement, sold: &'q [(Selection, Vec<Quote>)]) -> Vec<Miss<'q>> {
    let mut misses: Vec<Miss<'q>> = Vec::new();
    for (within, quotes) in sold {
        for quote in quotes {
            let mut why = within.left_out(&quote.facts);
            why.extend(wanted.misfits(&quote.facts));
            if !why.is_empty() {
                let line = Line::of(quote);
                misses.push(Miss { line, why });
            }
        }
    }
    misses.sort_by_key(|miss| {
        let terms = miss.why.iter().map(|misfit| misfit.term.as_str());
        (distance(terms), miss.line.quote.price_per_hour)
    });
    misses
}

fn row(quote: &Quote) -> [String; 7] {
    let facts = &quote.facts;
    let gpus = match facts.gpus.first() {
        None => "no GPU".to_owned(),
        Some(gpu) => format!("{} x {} {}", facts.gpus.len(), gpu.model, gpu.vram),
    };
    let extra = |field: &str| facts.extra.get(field).cloned();
    let mut rest: Vec<String> = Vec::new();
    rest.extend(extra("reliability").map(|reliability| format!("reliability {reliability}")));
    let left = quote.host_is_let_for();
    rest.extend(left.map(|left| format!("host let for {left} more")));
    rest.extend(bandwidth(facts));
    match quote.bid {
        Some(bid) => rest.push(format!("spot, bid {}/h", bid.per_hour)),
        None if facts.spot => rest.push("spot".to_owned()),
        None => {}
    }
    if quote.supply == Supply::Many(0) {
        rest.push(quote.note().unwrap_or("sold out").to_owned());
    }
    [
        format!("{}/h", quote.price_per_hour),
        format!("{} {}", quote.provider, quote.id),
        gpus,
        format!("{} cpus", facts.cpus),
        format!("{} + {} disk", facts.memory, facts.disk),
        facts.region.clone().unwrap_or_default(),
        rest.join(", "),
    ]
}

/// How fast its line is, and what it costs by the GB, as far as the provider tells.
fn bandwidth(facts: &Facts) -> Option<String> {
    let number = |field: &str| facts.extra.get(field)?.parse::<f64>().ok();
    let way = |name: &str, speed: &str, cost: &str| {
        let speed = number(speed).map(|speed| format!(" {speed:.0} Mbit/s"));
        let cost = number(cost).map(|cost| format!(" ${cost}/GB"));
        (speed.is_some() || cost.is_some()).then(|| {
            let (speed, cost) = (speed.unwrap_or_default(), cost.unwrap_or_default());
            format!("{name}{speed}{cost}")
        })
    };
    let ways = [
        way("down", "inet_down", "inet_down_cost"),
        way("up", "inet_up", "inet_up_cost"),
    ];
    let ways: Vec<String> = ways.into_iter().flatten().collect();
    (!ways.is_empty()).then(|| ways.join(", "))
}

fn table(rows: &[[String; 7]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
