//! What a provider may be asked for, to spare it and us most of what would not fit anyway.
//!
//! A hint never asks for more than the requirement does: sizes are lowered to what a machine of that size may show. What
//! comes back is compared with the requirement itself; a provider's own filter is never trusted.

use std::collections::BTreeMap;

use super::{Field, Op, Requirement, Term, Value};
use crate::offer::{Facts, Gpu};
use crate::unit::Bytes;

/// Lower bounds that every machine that fits has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// GPUs; 1 when a term needs any.
    pub gpus: u32,
    /// Memory of each GPU.
    pub vram: Bytes,
    /// Logical processors.
    pub cpus: u32,
    /// Main memory.
    pub memory: Bytes,
    /// Free disk.
    pub disk: Bytes,
    /// Fields that only the provider has, as numbers that they must reach.
    pub at_least: BTreeMap<String, String>,
    /// Such fields that must be just this number.
    pub exactly: BTreeMap<String, String>,
}

impl Requirement {
    /// Lower bounds of all terms together.
    pub fn hints(&self) -> Hints {
        let mut hints = Hints::default();
        for term in &self.terms {
            hint(term, &mut hints);
        }
        hints
    }

    /// Whether a GPU of this model may be in a machine that fits.
    pub fn takes_gpu(&self, model: &str) -> bool {
        let facts = Facts {
            gpus: vec![Gpu {
                model: model.to_owned(),
                vram: Bytes(0),
            }],
            ..Facts::default()
        };
        self.terms
            .iter()
            .filter(|term| term.field == Field::Gpu)
            .all(|term| super::matching::misfit(term, &facts).is_none())
    }

    /// Whether any term speaks of the model of GPUs.
    pub fn names_gpu(&self) -> bool {
        self.terms
            .iter()
            .any(|term| term.field == Field::Gpu && !term.values.contains(&Value::Any))
    }
}

fn hint(term: &Term, hints: &mut Hints) {
    let wants_some = matches!(term.field, Field::Gpu | Field::Vram) && term.op != Op::Ne;
    if wants_some {
        hints.gpus = hints.gpus.max(1);
    }
    // Of alternatives the smallest counts.
    let bound = match term.op {
        Op::Eq | Op::Ge | Op::Gt => term.values.first(),
        Op::Ne | Op::Le | Op::Lt => None,
    };
    let Some(bound) = bound else { return };
    match (&term.field, bound) {
        (Field::Gpus, Value::Count(count)) => hints.gpus = hints.gpus.max(*count),
        (Field::Cpus, Value::Count(count)) => hints.cpus = hints.cpus.max(*count),
        (Field::Vram, Value::Size(size)) => hints.vram = hints.vram.max(less(*size)),
        (Field::Memory, Value::Size(size)) => hints.memory = hints.memory.max(less(*size)),
        (Field::Disk, Value::Size(size)) => hints.disk = hints.disk.max(*size),
        (Field::Provider(field), Value::Glob(text))
            if term.values.len() == 1 && text.parse::<f64>().is_ok() =>
        {
            hints.at_least.insert(field.clone(), text.clone());
            if term.op == Op::Eq {
                hints.exactly.insert(field.clone(), text.clone());
            }
        }
        (_, _) => {}
    }
}

/// What a machine that is sold with a size may show of it at least.
fn less(size: Bytes) -> Bytes {
    Bytes(size.0 / 100 * 92)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Requirement {
        text.parse().expect("a requirement")
    }

    #[test]
    fn bounds_never_ask_for_more_than_the_requirement() {
        let hints =
            of("gpu=rtx_4090, vram>=24, gpus>=2, memory>=64, reliability>=0.98, cpus<8").hints();
        assert_eq!((hints.gpus, hints.cpus), (2, 0));
        assert!(hints.vram < Bytes::gib(23) && hints.vram > Bytes::gib(21));
        assert!(hints.memory < Bytes::gib(60));
        assert_eq!(
            hints.at_least.get("reliability").map(String::as_str),
            Some("0.98")
        );
        assert!(hints.exactly.is_empty());
        let exactly = of("provider.machine_id=412, provider.host_id>=33").hints();
        assert_eq!(
            exactly.exactly,
            BTreeMap::from([("machine_id".to_owned(), "412".to_owned())])
        );
        assert_eq!(of("gpus=4|2").hints().gpus, 2);
        assert_eq!(of("!gpu").hints().gpus, 0);
    }

    #[test]
    fn models_of_gpus_are_told_by_the_requirements_own_rule() {
        let wanted = of("gpu=rtx_4090|h100*, memory>=4096");
        assert!(wanted.takes_gpu("RTX 4090") && wanted.takes_gpu("H100 SXM"));
        assert!(!wanted.takes_gpu("RTX 3090"));
        assert!(wanted.names_gpu() && !of("gpu=any").names_gpu() && !of("vram>=8").names_gpu());
    }
}
