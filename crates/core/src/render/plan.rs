//! A plan for the person who pays: what changes, why, what it costs, what stays.
//!
//! Every line can be understood without colour. Equal instances of one table are one block. A person reads the reason
//! first and the fields after it; the sums come last, where the eye is when the text has scrolled by.

use super::accounts::accounts;
use super::ends::{edited, ends_by, lapsed, may_be_taken, nothing_but_ended};
use super::made::made_with;
use super::page::{Ink, Level, Page, View};
use crate::id::{Address, LeaseId, Name};
use crate::journal::Verb;
use crate::plan::{
    Change, Choice, EndsBy, FieldChange, LeaseTerms, Mode, Plan, Step, Verdict, fields,
};
use crate::resource::{EngineSpec, Spec, ViaSpec};
use crate::unit::MicroDollars;

/// Most fields of one resource that are shown unless everything is asked for.
const FIELDS_MAX: usize = 12;

/// The plan as text.
pub fn plan(plan: &Plan, view: &View) -> String {
    let mut page = Page::new(view);
    if view.level > Level::Summary {
        head(&mut page, plan, view.level);
        drift(&mut page, plan);
        edits(&mut page, plan);
        lapsed(&mut page, plan);
        changes(&mut page, plan, view.level);
        if view.level == Level::Full {
            steps(&mut page, plan);
        }
        notes(&mut page, plan);
        page.blank();
    }
    summary(&mut page, plan, view.level);
    page.finish()
}

fn head(page: &mut Page, plan: &Plan, level: Level) {
    if level == Level::Full {
        page.para(
            0,
            &format!("Plan {} of topology {}", plan.id, plan.topology),
        );
        let observed = match plan.observed_at {
            Some(at) => format!("looked at the world at {at}"),
            None => "did not look at the world".to_owned(),
        };
        page.para(0, &format!("drafted at {}, {observed}", plan.drafted_at));
    } else if plan.observed_at.is_none() && !plan.is_empty() {
        page.para(
            0,
            "What is recorded is taken to be true: nobody looked at the world for this plan.",
        );
    }
}

fn drift(page: &mut Page, plan: &Plan) {
    if plan.drift.is_empty() {
        return;
    }
    page.heading("The world differs from what is recorded:");
    for drift in &plan.drift {
        page.item(
            2,
            Ink::Changed,
            &format!("! {}:", drift.address),
            &drift.what,
        );
    }
}

fn edits(page: &mut Page, plan: &Plan) {
    if plan.edits.is_empty() {
        return;
    }
    page.heading("What would be changed in the state alone:");
    for edit in &plan.edits {
        let (ink, what) = edited(plan, edit);
        page.item(2, ink, &format!("> {edit}:"), what);
    }
}

fn changes(page: &mut Page, plan: &Plan, level: Level) {
    let shown = |change: &&Change| level == Level::Full || change.verdict != Verdict::Keep;
    let changes: Vec<&Change> = plan.changes.iter().filter(shown).collect();
    if changes.is_empty() {
        return;
    }
    page.heading(match plan.mode {
        Mode::Apply => "What would be done:",
        Mode::Destroy => "What would be ended:",
    });
    let mut rest = changes.as_slice();
    while let Some(first) = rest.first() {
        let count = 1 + rest[1..]
            .iter()
            .zip(rest)
            .take_while(|(next, before)| {
                follows(&before.address, &next.address) && alike(plan, first, next)
            })
            .count();
        block(page, plan, first, rest[count - 1], level);
        rest = &rest[count..];
    }
}

/// The next instance of the same table.
fn follows(before: &Address, next: &Address) -> bool {
    match (before, next) {
        (Address::Lease(a), Address::Lease(b)) | (Address::Delivery(a), Address::Delivery(b)) => {
            a.name == b.name && a.index + 1 == b.index
        }
        (Address::Stage(a), Address::Stage(b)) => {
            a.pipeline == b.pipeline && a.index + 1 == b.index
        }
        (_, _) => false,
    }
}

/// Nothing that would be printed differs.
fn alike(plan: &Plan, a: &Change, b: &Change) -> bool {
    let same = a.verdict == b.verdict
        && a.generation == b.generation
        && a.reason == b.reason
        && a.fields == b.fields;
    if !same {
        return false;
    }
    match (&a.address, &b.address) {
        (Address::Lease(a), Address::Lease(b)) => plan.leases.get(a) == plan.leases.get(b),
        (_, _) => brief(a) == brief(b),
    }
}

/// What is made, in one line; nothing for a lease, which has lines of its own, and for what is not made.
fn brief(change: &Change) -> Option<String> {
    let makes = match change.verdict {
        Verdict::Create | Verdict::Replace => true,
        Verdict::Update | Verdict::Delete | Verdict::Keep => false,
    };
    match change.spec.as_ref().filter(|_| makes)? {
        Spec::Lease(_) => None,
        Spec::Delivery(spec) => {
            let shares = spec
                .pipelines
                .iter()
                .map(|(name, share)| match &share.shard {
                    Some(shard) => {
                        let digest = shard.model.sha256.to_string();
                        let layers: Vec<String> =
                            shard.layers.iter().map(ToString::to_string).collect();
                        format!(
                            "{} of model {}, layers {}, for pipeline.{name}",
                            shard.bytes,
                            &digest[..8],
                            layers.join(" and ")
                        )
                    }
                    None => format!("configuration for pipeline.{name}"),
                });
            Some(shares.collect::<Vec<_>>().join("; "))
        }
        Spec::Stage(spec) => {
            let engine = match &spec.engine {
                EngineSpec::Native => "native worker",
                EngineSpec::Command(argv) => argv.first().map_or("command", String::as_str),
                EngineSpec::Stub => "stub worker",
            };
            let layers = match spec.layers {
                Some(layers) => format!(", layers {layers}"),
                None => String::new(),
            };
            Some(format!("{engine}{layers}, on {}", spec.on))
        }
        Spec::Pipeline(spec) => Some(format!(
            "{} stages; ready when it answers its check within {}",
            spec.stages.len(),
            spec.request_timeout
        )),
        Spec::Exposure(spec) => {
            let ViaSpec::Loopback { listen, .. } = &spec.via;
            let pipelines: Vec<&str> = spec.pipelines.keys().map(Name::as_str).collect();
            Some(format!(
                "http on {listen} of {}, for {}",
                spec.at,
                pipelines.join(", ")
            ))
        }
    }
}

fn span(first: &Address, last: &Address) -> String {
    let indexes = |a: u32, b: u32| format!("[{a}..{}]", b + 1);
    match (first, last) {
        (Address::Lease(a), Address::Lease(b)) if a != b => {
            format!("lease.{}{}", a.name, indexes(a.index, b.index))
        }
        (Address::Delivery(a), Address::Delivery(b)) if a != b => {
            format!("delivery.{}{}", a.name, indexes(a.index, b.index))
        }
        (Address::Stage(a), Address::Stage(b)) if a != b => {
            format!("stage.{}{}", a.pipeline, indexes(a.index, b.index))
        }
        (_, _) => first.to_string(),
    }
}

/// How a verdict is marked: by a sign and a colour, and named by a word.
pub(super) const fn mark(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Create => ("+", "create"),
        Verdict::Update => ("~", "update"),
        Verdict::Replace => ("-/+", "replace"),
        Verdict::Delete => ("-", "delete"),
        Verdict::Keep => ("=", "keep"),
    }
}

const fn ink(verdict: Verdict) -> Ink {
    match verdict {
        Verdict::Create => Ink::Made,
        Verdict::Update => Ink::Changed,
        Verdict::Replace => Ink::Replaced,
        Verdict::Delete => Ink::Ended,
        Verdict::Keep => Ink::Dim,
    }
}

fn block(page: &mut Page, plan: &Plan, first: &Change, last: &Change, level: Level) {
    let (sign, word) = mark(first.verdict);
    let lead = format!("{sign:>3} {}", span(&first.address, &last.address));
    let generation = match first.generation.0 {
        1 => String::new(),
        n if level == Level::Full => format!(", generation {n}"),
        _ => String::new(),
    };
    let text = format!("{word}{generation}: {}", first.reason);
    page.item(0, ink(first.verdict), &lead, &text);
    if let (Address::Lease(id), Some(terms)) = (&first.address, lease_terms(plan, first)) {
        lease(page, id, terms, first, level);
    }
    if let Some(brief) = brief(first) {
        page.para(8, &brief);
    }
    let most = if level == Level::Full {
        usize::MAX
    } else {
        FIELDS_MAX
    };
    for change in first.fields.iter().take(most) {
        field(page, change);
    }
    if first.fields.len() > most {
        page.para(8, &format!("and {} more fields", first.fields.len() - most));
    }
    if level == Level::Full
        && first.verdict == Verdict::Create
        && let Some(spec) = &first.spec
    {
        for (path, value) in fields::all(spec) {
            page.item(8, Ink::Plain, &path, &value);
        }
    }
}

fn lease_terms<'p>(plan: &'p Plan, change: &Change) -> Option<&'p LeaseTerms> {
    let Address::Lease(id) = &change.address else {
        return None;
    };
    plan.leases.get(id)
}

fn field(page: &mut Page, change: &FieldChange) {
    let text = match (&change.before, &change.after) {
        (Some(before), Some(after)) => format!("{before} -> {after}"),
        (None, Some(after)) => format!("{after} (new)"),
        (Some(before), None) => format!("{before} (no longer)"),
        (None, None) => String::new(),
    };
    page.item(8, Ink::Plain, &change.path, &text);
}

fn lease(page: &mut Page, id: &LeaseId, terms: &LeaseTerms, change: &Change, level: Level) {
    let price = match (terms.ends, terms.ceiling) {
        (EndsBy::Free, _) => costs(terms),
        (EndsBy::Box | EndsBy::Watcher | EndsBy::Nobody, Some(ceiling)) => {
            format!("{}, at most {ceiling}/h", costs(terms))
        }
        (EndsBy::Box | EndsBy::Watcher | EndsBy::Nobody, None) => {
            format!("{}, without a price cap", costs(terms))
        }
    };
    if let Some(choice) = terms.shortlist.first() {
        let agent = terms.agent.map(|way| format!("; {way}"));
        let agent = agent.unwrap_or_default();
        page.para(8, &format!("{}{agent}", first_choice(choice)));
        page.para(8, &format!("{price}; {}", alternatives(terms)));
        if let Some(taken) = may_be_taken(choice, change) {
            page.para(8, &taken);
        }
    } else if let (Some(span), false) = (terms.waits, terms.unresolved) {
        page.para(
            8,
            &format!(
                "nothing that fits can be had now: apply waits for it, {span} at most; {price}"
            ),
        );
    } else if level == Level::Full || change.verdict != Verdict::Keep {
        page.para(8, &price);
    }
    if level == Level::Full && terms.attempts > 0 {
        page.para(8, &failover(terms));
    }
    if terms.unresolved {
        let free = terms.ends == EndsBy::Free;
        let bills = if free { "" } else { " and bill" };
        page.para(8, &format!("a machine of {id} may be there{bills} already"));
    }
    for text in made_with(change, terms) {
        page.para(8, &text);
    }
    if let Some(ends) = ends_by(terms.ends, change) {
        page.para(8, &ends);
    }
    if level == Level::Full {
        for (place, choice) in terms.shortlist.iter().enumerate().skip(1) {
            let quote = &choice.quote;
            let text = format!(
                "alternative {place}: {} from provider {}, offer {}, {}",
                quote.id,
                quote.provider,
                choice.offer,
                per_hour(quote.price_per_hour)
            );
            page.para(8, &text);
        }
    }
}

fn first_choice(choice: &Choice) -> String {
    let quote = &choice.quote;
    let facts = &quote.facts;
    let gpus = match facts.gpus.first() {
        Some(gpu) => format!(", {} x {}", facts.gpus.len(), gpu.model),
        None => String::new(),
    };
    // What is not claimed is not said.
    let machine = [facts.os.as_str(), facts.arch.as_str()].map(str::trim);
    let machine: Vec<&str> = machine.into_iter().filter(|it| !it.is_empty()).collect();
    let machine = match machine.is_empty() {
        true => String::new(),
        false => format!("{}, ", machine.join(" ")),
    };
    format!(
        "{} from provider {}, offer {}: {machine}{} cpus, {}{gpus}",
        quote.id, quote.provider, choice.offer, facts.cpus, facts.memory
    )
}

fn alternatives(terms: &LeaseTerms) -> String {
    let prices = terms.shortlist.iter().skip(1);
    let dearest = prices.map(|choice| choice.quote.price_per_hour).max();
    let listed = match (terms.shortlist.len() - 1, dearest.unwrap_or_default()) {
        (0, _) => "no alternative is quoted".to_owned(),
        (1, price) => format!("1 alternative at {price}/h"),
        (n, price) => format!("{n} alternatives up to {price}/h"),
    };
    match terms.requote {
        true if terms.attempts > 1 => {
            format!("{listed}; after that fresh quotes on the same terms")
        }
        true | false => listed,
    }
}

/// What happens when the first choice fails.
fn failover(terms: &LeaseTerms) -> String {
    let tries = match terms.attempts {
        1 => "1 offer is tried".to_owned(),
        n => format!("at most {n} offers are tried"),
    };
    let fresh = if terms.requote {
        "when the list is used up, what is quoted then may be taken within the ceiling"
    } else {
        "when the list is used up, the step fails"
    };
    let waits = match terms.waits {
        Some(span) => format!("; with nothing to be had, apply waits {span} at most"),
        None => String::new(),
    };
    format!("{tries}; {fresh}{waits}")
}

/// What it costs, and what of that is bid.
fn costs(terms: &LeaseTerms) -> String {
    let price = per_hour(terms.price_per_hour);
    match terms.shortlist.first().and_then(|choice| choice.quote.bid) {
        Some(bid) => format!("{price} (spot, bid {}/h)", bid.per_hour),
        None => price,
    }
}

fn per_hour(price: MicroDollars) -> String {
    if price == MicroDollars::ZERO {
        "costs nothing".to_owned()
    } else {
        format!("{price}/h")
    }
}

/// The word for a step.
pub(super) const fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Acquire => "rent",
        Verb::Await => "wait for",
        Verb::Record => "record",
        Verb::Deliver => "deliver",
        Verb::Start => "start",
        Verb::Stop => "stop",
        Verb::Check => "check",
        Verb::Expose => "expose",
        Verb::Unexpose => "take down",
        Verb::Forget => "forget",
        Verb::Release => "release",
    }
}

fn steps(page: &mut Page, plan: &Plan) {
    if plan.steps.is_empty() {
        return;
    }
    page.heading("Steps, each after those it names:");
    for (n, step) in plan.steps.iter().enumerate() {
        let Step {
            address,
            generation,
            after,
            ..
        } = step;
        let after: Vec<String> = after.iter().map(|id| id.0.to_string()).collect();
        let after = match after.len() {
            0 => String::new(),
            _ => format!(", after {}", after.join(", ")),
        };
        let text = format!(
            "{} {address} (generation {generation}){after}",
            verb(step.verb)
        );
        page.item(0, Ink::Plain, &format!("{n:>5}"), &text);
    }
}

fn notes(page: &mut Page, plan: &Plan) {
    if plan.notes.is_empty() {
        return;
    }
    page.heading("Worth knowing:");
    for note in &plan.notes {
        page.item(2, Ink::Plain, "*", note);
    }
}

fn summary(page: &mut Page, plan: &Plan, level: Level) {
    let count = |verdict| plan.count(verdict);
    let kept = count(Verdict::Keep);
    let text = if plan.is_empty() {
        match (plan.mode, kept) {
            (Mode::Apply, _) if !plan.lapsed.is_empty() => nothing_but_ended(plan, kept),
            (Mode::Destroy, 0) => {
                "Nothing to do: nothing is recorded that could be ended.".to_owned()
            }
            (Mode::Destroy, _) => {
                "Nothing to do: what is recorded is protected or left out.".to_owned()
            }
            (Mode::Apply, 0) => {
                "Nothing to do: nothing is declared and nothing is recorded.".to_owned()
            }
            (Mode::Apply, 1) => "Nothing to do: the one resource is as declared.".to_owned(),
            (Mode::Apply, n) => format!("Nothing to do: all {n} resources are as declared."),
        }
    } else {
        let parts = [
            Verdict::Create,
            Verdict::Update,
            Verdict::Replace,
            Verdict::Delete,
        ];
        let counts: Vec<String> = parts
            .into_iter()
            .filter(|verdict| count(*verdict) > 0)
            .map(|verdict| format!("{} to {}", count(verdict), mark(verdict).1))
            .collect();
        let kept = match kept {
            0 => String::new(),
            1 => "; 1 stays as it is".to_owned(),
            n => format!("; {n} stay as they are"),
        };
        let edits = match plan.edits.len() {
            0 => None,
            n => Some(format!("{n} to change in the state alone")),
        };
        let counts: Vec<String> = counts.into_iter().chain(edits).collect();
        format!("Plan: {}{kept}.", counts.join(", "))
    };
    page.item(0, Ink::Strong, "", &text);
    let acts = plan.steps.len();
    if acts > 0 && level > Level::Summary {
        page.para(0, &format!("Steps: {}.", tally(plan)));
    }
    page.para(0, &money(plan));
    accounts(page, plan);
    if let Some(spent) = spent(plan) {
        page.para(0, &spent);
    }
}

/// What was spent so far, and what is left of the cap.
fn spent(plan: &Plan) -> Option<String> {
    let money = &plan.money;
    let since = match money.spent.since {
        Some(since) if !money.spent.is_zero() => format!(" since {since:.0}"),
        Some(_) | None => String::new(),
    };
    let spent = format!("Spent so far: {}{since}", money.spent);
    match (money.left, plan.lasts()) {
        (None, _) if money.spent.is_zero() => None,
        (None, _) => Some(format!("{spent}.")),
        (Some(left), None) => Some(format!("{spent}; {left} left of limits.max_spend.")),
        (Some(left), Some(lasts)) => Some(format!(
            "{spent}; {left} left of limits.max_spend, enough for {lasts} at the rate afterwards."
        )),
    }
}

/// How often each verb comes, in the order of the list.
fn tally(plan: &Plan) -> String {
    let mut counts: Vec<(Verb, usize)> = Vec::new();
    for step in &plan.steps {
        match counts.iter_mut().find(|(verb, _)| *verb == step.verb) {
            Some((_, count)) => *count += 1,
            None => counts.push((step.verb, 1)),
        }
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(v, n)| format!("{n} x {}", verb(v)))
        .collect();
    parts.join(", ")
}

fn money(plan: &Plan) -> String {
    let money = &plan.money;
    let machines = match money.leases_after {
        0 => "no machine".to_owned(),
        1 => "1 machine".to_owned(),
        n => format!("{n} machines"),
    };
    if money.at_most_per_hour == MicroDollars::ZERO {
        return format!("Money: nothing, before, during or after; {machines} afterwards.");
    }
    if plan.is_empty() {
        return format!("Money: {}/h; {machines}.", money.after_per_hour);
    }
    let overlap = if money.overlap_per_hour == MicroDollars::ZERO {
        String::new()
    } else {
        format!(
            " (of that, {}/h only while a machine that failed is released beside its successor)",
            money.overlap_per_hour
        )
    };
    format!(
        "Money: {}/h now, {}/h afterwards, never more than {}/h at once{overlap}; {machines} afterwards.",
        money.now_per_hour, money.after_per_hour, money.at_most_per_hour
    )
}
