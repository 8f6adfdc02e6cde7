//! `offers`: what can be rented now, over every declared provider at once, cheapest first.

use serde::Serialize;
use stageline_core::id::Name;
use stageline_core::offer::{Facts, Misfit, Quote, Requirement, Selection, Supply};
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::state::State;
use stageline_core::unit::{Bytes, MicroDollars};

use super::console::Console;
use super::project::Project;
use super::sellers::Sellers;
use super::{Exit, Failure, Global, session, stock};
use crate::observe::{self, Asked};

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

/// One offer that fits.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    quote: Quote,
    /// All in.
    price: String,
    /// The place of its region among those of its provider's table.
    #[serde(skip)]
    region: usize,
}

/// One that does not.
#[derive(Serialize)]
struct Miss {
    #[serde(flatten)]
    line: Line,
    why: Vec<Misfit>,
}

/// A provider that cannot be seen.
#[derive(Serialize)]
struct Unseen {
    provider: Name,
    cause: Cause,
}

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    document: &'static str,
    version: u32,
    offers: Vec<Line>,
    near_misses: Vec<Miss>,
    unseen: Vec<Unseen>,
}

impl Offers {
    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let project = Project::load(global)?;
        let report = session::runtime()?.block_on(self.look(&project))?;
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

    async fn look(&self, project: &Project) -> Result<Report, Failure> {
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
        let bids: Vec<_> = match (said, self.spot) {
            (Some(true), _) | (None, true) => requirements.iter(),
            (Some(false), _) | (None, false) => [].iter(),
        }
        .map(|requirement| (requirement.clone(), None))
        .collect();
        if said == Some(true) && !self.explain {
            requirements.clear();
        }
        let mut asked = Vec::new();
        for (name, declared) in &project.topology.providers {
            if let Ok(provider) = providers.get(name, declared.kind.as_str()) {
                asked.push(Asked {
                    name: name.clone(),
                    provider: provider.clone(),
                    requirements: requirements.clone(),
                    bids: bids.clone(),
                    disk: self.disk,
                });
            }
        }
        let mut report = Report {
            document: "stageline-offers",
            version: 1,
            offers: Vec::new(),
            near_misses: Vec::new(),
            unseen: Vec::new(),
        };
        for (provider, quotes) in observe::quotes(&asked).await {
            match quotes {
                Ok(quotes) => {
                    let within = &project.topology.providers[&provider].within;
                    self.sort_out(&wanted, within, quotes, &mut report);
                }
                Err(blind) => report.unseen.push(Unseen {
                    provider,
                    cause: blind.cause,
                }),
            }
        }
        report.offers.sort_by(|a, b| rank(a).cmp(&rank(b)));
        report.near_misses.sort_by(|a, b| {
            let rank = |miss: &Miss| (miss.why.len(), miss.line.quote.price_per_hour);
            rank(a).cmp(&rank(b))
        });
        report.near_misses.truncate(self.limit.min(10));
        Ok(report)
    }

    /// Each answer is compared with the requirement again: a provider's own filter is not trusted.
    fn sort_out(
        &self,
        wanted: &Requirement,
        within: &Selection,
        quotes: Vec<Quote>,
        report: &mut Report,
    ) {
        let mut ranks = within.ranks();
        for quote in quotes {
            let facts = &quote.facts;
            let rank = ranks.rank(facts);
            let mut why = match rank.is_some() && within.has_type(facts) {
                true => Vec::new(),
                false => within.left_out(facts),
            };
            why.extend(wanted.misfits(facts));
            let line = Line {
                price: quote.price_per_hour.to_string(),
                region: rank.unwrap_or(usize::MAX),
                quote,
            };
            if why.is_empty() {
                report.offers.push(line);
            } else if self.explain {
                report.near_misses.push(Miss { line, why });
            }
        }
    }

    fn draw(&self, report: &Report, console: &Console) -> Result<(), Failure> {
        for unseen in &report.unseen {
            let message = &unseen.cause.message;
            console.line(&format!(
                "provider `{}` cannot be seen: {message}",
                unseen.provider
            ));
            if let Some(hint) = &unseen.cause.hint {
                console.line(&format!("hint: {hint}"));
            }
        }
        let shown = report.offers.iter().take(self.limit);
        let rows: Vec<[String; 7]> = shown.map(|line| row(&line.quote)).collect();
        if rows.is_empty() {
            console.say(match self.explain {
                true => "nothing fits now",
                false => "nothing fits now; `--explain` shows what comes nearest",
            });
        } else {
            console.data(&table(&rows))?;
        }
        if report.offers.len() > self.limit {
            let more = report.offers.len() - self.limit;
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
            let quote = &miss.line.quote;
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

/// The cheapest first, and what is sold out after all that can be had.
fn rank(line: &Line) -> (bool, MicroDollars, &Name, usize, &str) {
    let Line { quote, region, .. } = line;
    let sold_out = quote.supply == Supply::Many(0);
    (
        sold_out,
        quote.price_per_hour,
        &quote.provider,
        *region,
        &quote.id.0,
    )
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
