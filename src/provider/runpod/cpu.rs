//! Pods without a GPU: a flavor, how many processors of it, and where, as quotes. Pure.
//!
//! A flavor is priced by the processor and has so much memory for each. The provider takes powers of two of them, so that each flavor is
//! quoted in every size that may fit: what stages need of memory is not known here. They are of the secure cloud only.

use serde_json::{Value, json};
use stageline_core::id::Name;
use stageline_core::offer::{DiskRange, Facts, Hints, INSTANCE_TYPE, Quote, QuoteId};
use stageline_core::unit::{Bytes, MicroDollars};

use super::offer::{disk_per_hour, places, supply};
use crate::provider::http::{money, number, text};

/// More processors than a pod has.
const VCPUS_MAX: u32 = 1024;

/// What the name of such a quote begins with, after the number.
const OF: &str = " vcpus of ";

/// Where the scheduler chooses.
const ANYWHERE: &str = "anywhere";

/// One thing that can be had. Its text is the name of the quote: `4 vcpus of cpu5c/EU-RO-1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) flavor: String,
    pub(super) vcpus: u32,
    pub(super) datacenter: Option<String>,
}

impl Choice {
    fn name(&self) -> Option<String> {
        let place = self.datacenter.as_deref().unwrap_or(ANYWHERE);
        let name = format!("{}{OF}{}/{place}", self.vcpus, self.flavor);
        (Self::parse(&name).as_ref() == Some(self)).then_some(name)
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let (vcpus, rest) = name.split_once(OF)?;
        let (flavor, place) = rest.split_once('/')?;
        let vcpus = vcpus.parse().ok()?;
        let good = (1..=VCPUS_MAX).contains(&vcpus) && !flavor.is_empty() && !place.contains('/');
        good.then(|| Self {
            flavor: flavor.to_owned(),
            vcpus,
            datacenter: (place != ANYWHERE).then(|| place.to_owned()),
        })
    }

    /// What a create says of it.
    pub(super) fn asked(&self) -> Value {
        json!({ "id": self.flavor, "vcpuCount": self.vcpus })
    }
}

/// The fewest processors that a flavor may be had with for what is asked, and the most that there are.
fn sizes(row: &Value, hints: &Hints) -> Vec<u32> {
    let bound = |field: &str| row.get("vcpu").and_then(|vcpu| whole(vcpu, field));
    let (Some(min), Some(max)) = (bound("min"), bound("max")) else {
        return Vec::new();
    };
    let max = max.min(VCPUS_MAX);
    let mut sizes = Vec::new();
    // One that begins beyond what a pod has is not had at all.
    let mut size = min.clamp(1, VCPUS_MAX * 2).next_power_of_two();
    while size <= max {
        let roomy = memory(row, size).is_some_and(|memory| memory >= hints.memory);
        if size >= hints.cpus && roomy {
            sizes.push(size);
        }
        size *= 2;
    }
    sizes
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from float saturates, and the number is not negative"
)]
fn whole(value: &Value, field: &str) -> Option<u32> {
    number(value, field)
        .filter(|number| *number >= 1.0)
        .map(|number| number as u32)
}

/// So much for each processor, which may be a fraction of a GB.
fn memory(row: &Value, vcpus: u32) -> Option<Bytes> {
    let each = number(row, "ramGbPerVcpu").filter(|each| (0.1..=4096.0).contains(each))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive and small"
    )]
    let mebibytes = (each * 1024.0 * f64::from(vcpus)) as u64;
    Some(Bytes::mib(mebibytes))
}

/// The smallest size of a flavor that may fit: what its stock is asked for.
pub(super) fn least(rows: &[Value], hints: &Hints) -> Option<u32> {
    rows.iter()
        .filter_map(|row| sizes(row, hints).first().copied())
        .min()
}

/// What a row of the catalogue offers: each size in each place.
pub(super) fn quotes(provider: &Name, row: &Value, hints: &Hints, disk: u64) -> Vec<Quote> {
    let sizes = sizes(row, hints);
    sizes
        .into_iter()
        .flat_map(|vcpus| of_size(provider, row, vcpus, disk))
        .collect()
}

/// The same of one size.
pub(super) fn of_size(provider: &Name, row: &Value, vcpus: u32, disk: u64) -> Vec<Quote> {
    let (Some(flavor), Some(price), Some(memory)) =
        (text(row, "id"), price(row, vcpus, disk), memory(row, vcpus))
    else {
        return Vec::new();
    };
    let quote = |(datacenter, stock): (Option<String>, String)| {
        let mut facts = Facts {
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            cpus: vcpus,
            memory,
            disk: Bytes::gib(disk),
            region: datacenter.clone(),
            datacenter: datacenter.clone(),
            ..Facts::default()
        };
        let mut extra = |field: &str, text: String| facts.extra.insert(field.to_owned(), text);
        extra(INSTANCE_TYPE, flavor.clone());
        extra("cloud", "secure".to_owned());
        if !stock.is_empty() {
            extra("availability", stock.to_lowercase());
        }
        let choice = Choice {
            flavor: flavor.clone(),
            vcpus,
            datacenter,
        };
        Some(Quote {
            provider: provider.clone(),
            id: QuoteId(choice.name()?),
            facts,
            price_per_hour: price,
            disk: DiskRange::default(),
            supply: supply(&stock),
            bid: None,
        })
    };
    places(row).into_iter().filter_map(quote).collect()
}

/// All in: processors and container disk.
fn price(row: &Value, vcpus: u32, disk: u64) -> Option<MicroDollars> {
    let one = money(number(row.get("price")?, "securePerVcpu")?).filter(|one| one.0 > 0)?;
    let all = one.0.checked_mul(u64::from(vcpus))?;
    Some(MicroDollars(all.checked_add(disk_per_hour(disk).0)?))
}

#[cfg(test)]
mod tests {
    use stageline_core::offer::Requirement;

    use super::*;

    fn row() -> Value {
        json!({
            "id": "cpu5c", "name": "Compute-Optimized", "group": "Gen 5", "vcpu": { "min": 2, "max": 16 },
            "ramGbPerVcpu": 2.5, "price": { "securePerVcpu": 0.035, "serverlessPerVcpu": 0.05 }, "availability": "HIGH",
            "dataCenters": [
                { "id": "EU-RO-1", "name": "EU Romania 1", "availability": "HIGH" },
                { "id": "US-TX-3", "name": "US Texas 3", "availability": "NONE" },
            ],
        })
    }

    fn of(requirement: &str) -> Vec<Quote> {
        let requirement: Requirement = requirement.parse().expect("one");
        quotes(
            &"pods".parse().expect("a name"),
            &row(),
            &requirement.hints(),
            20,
        )
    }

    #[test]
    fn a_flavor_is_quoted_in_every_size_and_place_that_may_fit() {
        let all = of("");
        let names: Vec<&str> = all.iter().map(|quote| quote.id.0.as_str()).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "2 vcpus of cpu5c/EU-RO-1");
        let big = &all[6];
        assert_eq!((big.facts.cpus, big.facts.memory), (16, Bytes::gib(40)));
        // 16 x $0.035, and 20 GB of disk at $0.10 a month.
        assert_eq!(big.price_per_hour, MicroDollars(560_000 + 2778));
        assert!(big.facts.gpus.is_empty());
        assert_eq!(big.facts.extra[INSTANCE_TYPE], "cpu5c");
        assert_eq!(of("memory>=16").len(), 4, "8 and 16 processors");
        assert_eq!(of("cpus>=5").len(), 4);
        assert_eq!(of("memory>=64"), []);
        for quote in &all {
            let choice = Choice::parse(&quote.id.0).expect("it reads its own names");
            assert_eq!(choice.name().as_ref(), Some(&quote.id.0));
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_quote() {
        let broken = [
            ("price", json!({ "securePerVcpu": 0 })),
            ("price", Value::Null),
            ("vcpu", json!({ "min": 2 })),
            (
                "vcpu",
                json!({ "min": 2_200_000_000_u32, "max": 4_000_000_000_u32 }),
            ),
            ("vcpu", json!({ "min": 1025, "max": 4096 })),
            ("ramGbPerVcpu", json!(-1)),
            ("id", json!("a/b")),
        ];
        for (field, value) in broken {
            let mut row = row();
            row[field] = value;
            let name = "pods".parse().expect("a name");
            assert_eq!(quotes(&name, &row, &Hints::default(), 20), [], "{field}");
        }
        for name in [
            "x vcpus of cpu5c/A",
            "0 vcpus of cpu5c/A",
            "2 vcpus of /A",
            "1x L4/SECURE/A",
            "2 vcpus of c/A/B",
        ] {
            assert_eq!(Choice::parse(name), None, "{name}");
        }
    }
}
