//! Why there is no machine for a lease, and how near the nearest one came.

use super::avoid::Avoid;
use super::class::Class;
use super::market::{Markets, untaken};
use super::placement::{self, Spot};
use crate::diagnostic::Diagnostic;
use crate::id::LeaseId;
use crate::offer::distance;
use crate::unit::MicroDollars;

/// There is no machine for some leases of a class: why.
pub(super) fn nothing(
    class: &Class<'_, '_>,
    missing: &[&LeaseId],
    markets: &Markets,
    avoid: &Avoid<'_>,
) -> Diagnostic {
    let first = missing[0];
    let who = match missing.len() {
        1 => first.to_string(),
        n => format!("{first} and {} more like it", n - 1),
    };
    if let Some((provider, cause)) = class.blind.first() {
        let message = format!(
            "{who}: a machine is needed, but provider `{provider}` cannot be seen: {}",
            cause.message
        );
        let hint = cause.hint.clone().unwrap_or_else(|| {
            "nothing is rented and nothing is declared gone until it answers; run plan again then".to_owned()
        });
        return Diagnostic::error("plan/blind", message).hint(hint);
    }
    if !class.candidates.is_empty() {
        let had = class.needs.len() - missing.len();
        if let Some(asked) = placement::asked(class.spec) {
            let message = format!(
                "{who}: no machine is left that fits beside the others ({asked}); of the {} that are needed, {had} can be had so",
                class.needs.len()
            );
            return Diagnostic::error("plan/no-offer", message)
                .hint("lower `count`, add an offer, or ask less of where its machines are");
        }
        let message = format!(
            "{who}: no machine is left; of the {} that are needed, {had} can be had now",
            class.needs.len()
        );
        let hint = "lower `count`, add an offer, or raise what the provider lets you have at once (`slots` of a local provider)";
        let notes = notes(class, markets, avoid);
        let hint = if notes.is_empty() {
            hint.to_owned()
        } else {
            format!("{}; wait, lower `count`, or add an offer", notes.join("; "))
        };
        return Diagnostic::error("plan/no-offer", message).hint(hint);
    }
    let message = format!("{who}: no machine that can be had now fits");
    Diagnostic::error("plan/no-offer", message).hint(near_misses(class, markets, avoid))
}

/// Why offers that fit cannot be had now, as their providers say, or because a machine failed there.
fn notes(class: &Class<'_, '_>, markets: &Markets, avoid: &Avoid<'_>) -> Vec<String> {
    let spec = class.spec;
    let mut notes: Vec<String> = Vec::new();
    for terms in spec.rented_under() {
        let market = markets.get(&terms.provider);
        let quotes = market.and_then(|market| market.quotes.as_ref().ok());
        let quotes = quotes.into_iter().flatten();
        let quotes = quotes.filter(|quote| terms.are_for(quote) && quote.disk.holds(class.disk));
        let told = quotes.filter_map(|quote| {
            let fits = untaken(terms, spec.memory, quote).is_empty();
            let note = quote.note().map(str::to_owned);
            let note = note.or_else(|| avoid.why(quote)).filter(|_| fits);
            note.map(|note| format!("{}: {note}", quote.id))
        });
        notes.extend(told);
    }
    notes.sort();
    notes.dedup();
    notes.truncate(3);
    notes
}

/// The quotes that come nearest, each with the terms that stand in the way.
fn near_misses(class: &Class<'_, '_>, markets: &Markets, avoid: &Avoid<'_>) -> String {
    let spec = class.spec;
    let mut misses: Vec<(usize, MicroDollars, String)> = Vec::new();
    for terms in spec.rented_under() {
        let market = markets.get(&terms.provider);
        let quotes = market.and_then(|market| market.quotes.as_ref().ok());
        let quotes = quotes.into_iter().flatten();
        let quotes = quotes.filter(|quote| terms.are_for(quote) && quote.disk.holds(class.disk));
        for quote in quotes {
            let why = untaken(terms, spec.memory, quote);
            let far = distance(why.iter().map(String::as_str));
            let text = if why.is_empty() {
                let noted = avoid.why(quote).or_else(|| quote.note().map(str::to_owned));
                let noted = noted.or_else(|| class.beside.why_not(&Spot::of(quote)));
                let noted = noted.unwrap_or_else(|| "none of it is left".to_owned());
                format!("{} fits, but {noted}", quote.id)
            } else {
                let why = why.join(", ");
                format!("{} under offer `{}` misses {why}", quote.id, terms.offer)
            };
            misses.push((far, quote.price_per_hour, text));
        }
    }
    misses.sort();
    if misses.is_empty() {
        let names: Vec<String> = spec
            .rented_under()
            .map(|t| format!("`{}`", t.provider))
            .collect();
        return format!(
            "provider {} quotes nothing at all now; try again later",
            names.join(", ")
        );
    }
    let nearest: Vec<String> = misses
        .into_iter()
        .take(3)
        .map(|(_, _, text)| text)
        .collect();
    format!("nearest: {}", nearest.join("; "))
}
