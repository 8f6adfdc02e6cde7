//! Whether a fact meets a term.
//!
//! Sizes are compared as they are sold: people ask for the 24 GB on the box, and drivers show less. Disk is asked for in the
//! size that is needed, and compared as it is.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::region;
use super::{Field, Misfit, Op, Term, Value};
use crate::offer::{Facts, Gpu};
use crate::unit::Bytes;

/// The ways to write the GPU models that were seen so far, and what the names of places say: there are many machines, few models
/// and few places.
#[derive(Clone, Debug, Default)]
pub struct Models {
    names: BTreeMap<String, [String; 3]>,
    places: BTreeMap<String, region::Found>,
}

impl Models {
    fn names(&mut self, model: &str) -> &[String; 3] {
        if !self.names.contains_key(model) {
            self.names.insert(model.to_owned(), model_names(model));
        }
        &self.names[model]
    }

    fn place(&mut self, text: &str) -> &region::Found {
        if !self.places.contains_key(text) {
            self.places.insert(text.to_owned(), region::Found::of(text));
        }
        &self.places[text]
    }
}

/// The term with what was found instead, or none when it holds.
pub(super) fn misfit(term: &Term, facts: &Facts) -> Option<Misfit> {
    if holds(term, facts, &mut Models::default()) {
        return None;
    }
    let known = |fact: Option<&String>| {
        let fact = fact.filter(|fact| !fact.is_empty());
        fact.map_or(UNKNOWN.to_owned(), Clone::clone)
    };
    let found = match &term.field {
        Field::Gpu => gpus_text(&facts.gpus),
        Field::Gpus => facts.gpus.len().to_string(),
        Field::Vram => worst_vram(term, &facts.gpus),
        Field::Cpus => facts.cpus.to_string(),
        Field::Memory => facts.memory.to_string(),
        Field::Disk => facts.disk.to_string(),
        Field::Arch => known(Some(&facts.arch)),
        Field::Os => known(Some(&facts.os)),
        Field::Region => known(facts.region.as_ref()),
        Field::Cuda => known_version(facts.cuda.as_deref()),
        Field::Driver => known_version(facts.driver.as_deref()),
        Field::Tools => missing_tools(term, &facts.tools),
        Field::Spot => facts.spot.to_string(),
        Field::Provider(field) => known(facts.extra.get(field)),
    };
    Some(Misfit {
        term: term.to_string(),
        found,
    })
}

/// Whether a term holds.
pub(super) fn holds(term: &Term, facts: &Facts, models: &mut Models) -> bool {
    match &term.field {
        Field::Gpu => gpu(term, &facts.gpus, models),
        Field::Gpus => counted(term, u32::try_from(facts.gpus.len()).unwrap_or(u32::MAX)),
        Field::Vram => vram(term, &facts.gpus),
        Field::Cpus => counted(term, facts.cpus),
        Field::Memory => sized(term, facts.memory),
        Field::Disk => sized(term, facts.disk),
        Field::Arch => named(term, Some(&facts.arch)),
        Field::Os => named(term, Some(&facts.os)),
        Field::Region => placed(term, facts.region.as_deref(), models),
        Field::Cuda => versioned(term, facts.cuda.as_deref()),
        Field::Driver => versioned(term, facts.driver.as_deref()),
        Field::Tools => tooled(term, &facts.tools),
        Field::Spot => term.values.contains(&Value::Flag(facts.spot)),
        Field::Provider(field) => named(term, facts.extra.get(field)),
    }
}

/// `=`: any value holds; `!=`: none does; the others have one value.
fn any_of(term: &Term, equal: impl Fn(&Value) -> bool) -> bool {
    term.values.iter().any(equal) == (term.op != Op::Ne)
}

fn counted(term: &Term, fact: u32) -> bool {
    by_order(term, |value| {
        let Value::Count(asked) = value else {
            return None;
        };
        Some(fact.cmp(asked))
    })
}

fn by_order(term: &Term, compare: impl Fn(&Value) -> Option<Ordering>) -> bool {
    match term.op {
        Op::Eq | Op::Ne => any_of(term, |value| compare(value) == Some(Ordering::Equal)),
        Op::Ge | Op::Le | Op::Gt | Op::Lt => term
            .values
            .iter()
            .all(|value| compare(value).is_some_and(|order| term.op.holds(order))),
    }
}

fn sized(term: &Term, fact: Bytes) -> bool {
    let sold = if term.field == Field::Vram {
        vram_as_sold(fact)
    } else if term.field == Field::Memory {
        memory_as_sold(fact)
    } else {
        fact
    };
    by_order(term, |value| {
        let Value::Size(asked) = value else {
            return None;
        };
        Some(if fact == *asked {
            Ordering::Equal
        } else {
            sold.cmp(asked)
        })
    })
}

/// GiB that GPUs are sold with.
const VRAM_SOLD: [u64; 24] = [
    2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288,
];

/// The size that a GPU is sold with. Drivers and ECC keep back up to 6.3 % of it: an L4 of 24 GB shows 22.5 GiB, an L40S of
/// 48 GB shows 45.0, an RTX 4090 of 24 GB shows 23.99.
fn vram_as_sold(fact: Bytes) -> Bytes {
    let sold = VRAM_SOLD
        .into_iter()
        .map(Bytes::gib)
        .find(|sold| *sold >= fact);
    sold.filter(|sold| close(fact, *sold, 7)).unwrap_or(fact)
}

/// The size that a machine is sold with: the next eighth of a power of two. Kernels keep back up to 5 %.
fn memory_as_sold(fact: Bytes) -> Bytes {
    let step = (fact.0.checked_ilog2().map_or(1, |log| 1 << log) / 8).max(1);
    let sold = fact.0.div_ceil(step).checked_mul(step).map_or(fact, Bytes);
    if close(fact, sold, 6) { sold } else { fact }
}

/// Whether a size is less than so many hundredths below another.
fn close(fact: Bytes, sold: Bytes, hundredths: u64) -> bool {
    fact.0 >= sold.0 - sold.0 / 100 * hundredths
}

/// Every GPU must hold, and there must be one.
fn vram(term: &Term, gpus: &[Gpu]) -> bool {
    !gpus.is_empty() && gpus.iter().all(|gpu| sized(term, gpu.vram))
}

fn worst_vram(term: &Term, gpus: &[Gpu]) -> String {
    let worst = gpus.iter().find(|gpu| !sized(term, gpu.vram));
    worst.map_or_else(|| "no GPU".to_owned(), |gpu| gpu.vram.to_string())
}

/// `=`: there is a GPU and each is one of these; `!=`: none is.
fn gpu(term: &Term, gpus: &[Gpu], models: &mut Models) -> bool {
    let is_one = |gpu: &Gpu| {
        let names = models.names(&gpu.model);
        term.values.iter().any(|value| {
            let fits = |pattern| names.iter().any(|name| glob(pattern, name));
            *value == Value::Any || matches!(value, Value::Glob(pattern) if fits(pattern))
        })
    };
    let mut gpus = gpus.iter();
    if term.op == Op::Ne {
        !gpus.any(is_one)
    } else {
        gpus.len() > 0 && gpus.all(is_one)
    }
}

fn gpus_text(gpus: &[Gpu]) -> String {
    let Some(first) = gpus.first() else {
        return "no GPU".to_owned();
    };
    if gpus.iter().all(|gpu| gpu.model == first.model) {
        return format!("{} × {}", gpus.len(), first.model);
    }
    let models: Vec<&str> = gpus.iter().map(|gpu| gpu.model.as_str()).collect();
    models.join(", ")
}

/// A text without separators, in lower case.
pub(super) fn squeeze(text: &str) -> String {
    text.chars()
        .filter(|c| !matches!(c, ' ' | '_' | '-' | '/' | '.'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Whether two texts name one model of GPU.
pub(in crate::offer) fn same_model(one: &str, other: &str) -> bool {
    let others = model_names(other);
    model_names(one).iter().any(|name| others.contains(name))
}

/// The ways to write a model: with and without memory size and form factor, never with the vendor.
fn model_names(model: &str) -> [String; 3] {
    const VENDOR: [&str; 9] = [
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "amd",
        "radeon",
        "instinct",
        "intel",
        "generation",
    ];
    let lower = model.to_lowercase();
    let words: Vec<&str> = lower
        .split([' ', '_', '-', '/'])
        .filter(|word| !word.is_empty() && !VENDOR.contains(word))
        .collect();
    let is_size = |word: &str| {
        word.starts_with("hbm")
            || word
                .trim_end_matches('b')
                .strip_suffix('g')
                .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let is_form = |word: &str| {
        matches!(word, "pcie" | "nvl" | "oam" | "gpu" | "graphics" | "mxm")
            || word.starts_with("sxm")
    };
    let full = words.concat();
    // The driver names the SXM form of these by its memory: "NVIDIA H100 80GB HBM3".
    let sized: String = words
        .iter()
        .filter(|word| !is_size(word))
        .map(|word| if word.starts_with("sxm") { "sxm" } else { word })
        .chain(
            words
                .iter()
                .any(|word| word.starts_with("hbm3"))
                .then_some("sxm"),
        )
        .collect();
    let bare = words
        .iter()
        .filter(|word| !is_size(word) && !is_form(word))
        .copied()
        .collect();
    [full, sized, bare]
}

/// `*` any text, `?` any one character.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    if pattern.is_ascii() && text.is_ascii() {
        return matches(pattern.as_bytes(), text.as_bytes(), b'*', b'?');
    }
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    matches(&pattern, &text, '*', '?')
}

fn matches<C: Copy + PartialEq>(pattern: &[C], text: &[C], any: C, one: C) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(c) if *c == any => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == one || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, from)) = star else {
                    return false;
                };
                star = Some((at, from + 1));
                p = at + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == any)
}

const UNKNOWN: &str = "unknown";

/// Text facts, and numbers of providers.
fn named(term: &Term, fact: Option<&String>) -> bool {
    let Some(fact) = fact.filter(|fact| !fact.is_empty()) else {
        return false;
    };
    let lower = lower(fact);
    by_order(term, |value| {
        let Value::Glob(asked) = value else {
            return None;
        };
        match numeric(&lower, asked) {
            Some(order) => Some(order),
            None => glob(asked, &lower).then_some(Ordering::Equal),
        }
    })
}

fn lower(text: &str) -> Cow<'_, str> {
    if text
        .bytes()
        .all(|b| b.is_ascii() && !b.is_ascii_uppercase())
    {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.to_lowercase())
    }
}

/// The order of two numbers, or of two versions; none when one is neither.
fn numeric(fact: &str, asked: &str) -> Option<Ordering> {
    let plain = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    };
    if !plain(fact) || !plain(asked) {
        return None;
    }
    match (fact.parse::<f64>(), asked.parse::<f64>()) {
        (Ok(fact), Ok(asked)) => fact.partial_cmp(&asked),
        _ => Some(versions(&leading_numbers(fact), &leading_numbers(asked))),
    }
}

fn placed(term: &Term, fact: Option<&str>, models: &mut Models) -> bool {
    let Some(fact) = fact.filter(|fact| !fact.is_empty()) else {
        return false;
    };
    let place = models.place(fact);
    any_of(
        term,
        |value| matches!(value, Value::Place(asked) if place.is_in(asked)),
    )
}

fn known_version(fact: Option<&str>) -> String {
    let known = fact.filter(|fact| !leading_numbers(fact).is_empty());
    known.unwrap_or(UNKNOWN).to_owned()
}

fn versioned(term: &Term, fact: Option<&str>) -> bool {
    let Some(numbers) = fact.map(leading_numbers).filter(|all| !all.is_empty()) else {
        return false;
    };
    let equality = matches!(term.op, Op::Eq | Op::Ne);
    by_order(term, |value| {
        let Value::Version(asked) = value else {
            return None;
        };
        // `cuda=12` is any 12.x.
        let shown = if equality {
            numbers.get(..asked.len()).unwrap_or(&numbers)
        } else {
            &numbers
        };
        Some(versions(shown, asked))
    })
}

/// The numbers that a version begins with: `550.54.14-server` is 550, 54, 14.
fn leading_numbers(text: &str) -> Vec<u32> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text[..end]
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

/// Number by number; a missing one is 0.
fn versions(a: &[u32], b: &[u32]) -> Ordering {
    let at = |numbers: &[u32], index: usize| numbers.get(index).copied().unwrap_or(0);
    (0..a.len().max(b.len()))
        .map(|index| at(a, index).cmp(&at(b, index)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

fn tooled(term: &Term, present: &[String]) -> bool {
    any_of(term, |value| {
        let Value::Tools(tools) = value else {
            return false;
        };
        // `!=`: none of them may be there.
        if term.op == Op::Ne {
            tools.iter().any(|tool| present.contains(tool))
        } else {
            tools.iter().all(|tool| present.contains(tool))
        }
    })
}

fn missing_tools(term: &Term, present: &[String]) -> String {
    let missing: Vec<&str> = term
        .values
        .iter()
        .filter_map(|value| {
            if let Value::Tools(tools) = value {
                Some(tools)
            } else {
                None
            }
        })
        .flatten()
        .filter(|tool| !present.contains(tool))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        present.join("+")
    } else {
        format!("no {}", missing.join(", "))
    }
}
