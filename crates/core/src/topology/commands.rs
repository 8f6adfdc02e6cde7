//! Providers that are programs of one's own: which programs, and what their offers claim.
//!
//! An offer of such a provider is matched by its own claims and by no other offer's: its requirement has the offer's name in it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::convert;
use super::read::Fields;
use super::{Offer, Provider, ProviderKind};
use crate::id::Name;
use crate::offer::{Facts, Gpu};
use crate::unit::{MicroDollars, Millis};

/// The keys that no other provider has.
pub(super) const KEYS: [&str; 6] = ["acquire", "release", "list", "facts", "price", "timeout"];

/// How long each program may take when the file says nothing.
const TIMEOUT: Millis = Millis::minutes(2);

/// The field by which a machine is told from those of the provider's other offers.
pub const OFFER_FIELD: &str = "offer";

/// Programs that get machines and give them back, each with its arguments. Recorded, so that a machine can be given back
/// when its table is gone; they hold no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Programs {
    /// Gets a machine.
    pub acquire: Vec<String>,
    /// Gives one back.
    pub release: Vec<String>,
    /// Prints every machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<Vec<String>>,
    /// Prints what a machine of an offer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Vec<String>>,
    /// Prints what a machine of an offer costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Vec<String>>,
}

/// What the machines of an offer are said to be, by whoever wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Claims {
    /// What they are; what is not said is empty.
    pub facts: Facts,
    /// What one costs; none leaves it to the program that tells the price.
    pub price_per_hour: Option<MicroDollars>,
}

impl Claims {
    /// Whether a machine is said to cost nothing.
    pub fn are_free(&self) -> bool {
        self.price_per_hour == Some(MicroDollars::ZERO)
    }
}

/// What was read of the programs.
pub(super) struct Read {
    acquire: Option<Vec<String>>,
    release: Option<Vec<String>>,
    list: Option<Vec<String>>,
    facts: Option<Vec<String>>,
    price: Option<Vec<String>>,
    timeout: Option<Millis>,
}

/// Reads the programs, whatever the kind.
pub(super) fn read(fields: &Fields<'_>) -> Read {
    let argv = |key| fields.read(key, convert::argv);
    Read {
        acquire: argv("acquire"),
        release: argv("release"),
        list: argv("list"),
        facts: argv("facts"),
        price: argv("price"),
        timeout: fields.read("timeout", convert::duration),
    }
}

/// The provider; none when a program is missing, which is told.
pub(super) fn kind(fields: &Fields<'_>, read: Read) -> Option<ProviderKind> {
    for key in ["acquire", "release"] {
        if !fields.has(key) {
            let message = format!("{} needs `{key}`: its kind is `command`", fields.title());
            let hint = format!("such as `{key} = [\"./pool.sh\", \"{key}\"]`");
            fields.fault(fields.at, "topology/missing-key", message, hint);
        }
    }
    let timeout = read.timeout.unwrap_or(TIMEOUT);
    if timeout == Millis::NEVER {
        let message = "a program that never ends would hold up everything";
        let hint = "give `timeout` a span, such as \"5m\"";
        fields.fault(
            fields.at_value("timeout"),
            "topology/bad-value",
            message.to_owned(),
            hint,
        );
    }
    Some(ProviderKind::Command {
        programs: Programs {
            acquire: read.acquire?,
            release: read.release?,
            list: read.list,
            facts: read.facts,
            price: read.price,
        },
        timeout,
    })
}

/// What an offer claims.
pub(super) fn claims(fields: &Fields<'_>) -> Claims {
    let text = |key| fields.read(key, convert::text);
    let size = |key| fields.read(key, convert::size).unwrap_or_default();
    let gpu = text("gpu");
    let gpus = fields.read("gpus", convert::integer);
    let vram = size("vram");
    if gpu.is_none() {
        for key in ["gpus", "vram"].into_iter().filter(|key| fields.has(key)) {
            let message = format!("{}: `{key}` says nothing without `gpu`", fields.title());
            let hint = "add `gpu = \"...\"`, the model of its GPUs";
            fields.fault(fields.at_key(key), "topology/missing-key", message, hint);
        }
    }
    let gpus = gpu.map_or_else(Vec::new, |model| {
        vec![Gpu { model, vram }; gpus.unwrap_or(1) as usize]
    });
    Claims {
        facts: Facts {
            os: text("os").unwrap_or_default(),
            arch: text("arch").unwrap_or_default(),
            cpus: fields.read("cpus", convert::integer).unwrap_or_default(),
            memory: size("memory"),
            disk: size("disk"),
            gpus,
            region: text("region"),
            tools: fields.read("tools", convert::texts).unwrap_or_default(),
            ..Facts::default()
        },
        price_per_hour: fields.read("price_per_hour", convert::money),
    }
}

/// Which offers have claims and must, and binds each to its own.
pub(super) fn offers(
    root: &Fields<'_>,
    providers: &BTreeMap<Name, Provider>,
    offers: &mut BTreeMap<Name, Offer>,
) {
    for (name, offer) in offers {
        let Some(provider) = providers.get(&offer.provider) else {
            continue;
        };
        let fault = |key, code, message, hint| {
            root.fault(
                super::rented::place(root, "offer", name, key),
                code,
                message,
                hint,
            )
        };
        if let ProviderKind::Ssh { .. } = &provider.kind {
            let priced = offer
                .claims
                .as_ref()
                .is_some_and(|claims| claims.price_per_hour.is_some());
            if priced {
                let message = format!("`offer.{name}`: what a host costs is said by the host");
                let hint = "move `price_per_hour` from `claims` to the entry in `hosts`";
                fault("claims", "topology/conflict", message, hint);
            }
            bind(name, offer);
            continue;
        }
        let ProviderKind::Command { programs, .. } = &provider.kind else {
            if offer.claims.is_some() {
                let kind = provider.kind.as_str();
                let message = format!(
                    "`offer.{name}`: a provider of kind `{kind}` says itself what its machines are"
                );
                fault("claims", "topology/conflict", message, "remove `claims`");
            }
            continue;
        };
        let price = offer
            .claims
            .as_ref()
            .and_then(|claims| claims.price_per_hour);
        if price.is_none() && programs.price.is_none() {
            let message = format!("`offer.{name}` does not say what its machines cost");
            let hint = "add `price_per_hour` to its `claims`: 0 for machines that cost nothing; or give the provider a program `price`";
            let key = if offer.claims.is_some() {
                "claims"
            } else {
                "provider"
            };
            fault(key, "topology/missing-key", message, hint);
        }
        bind(name, offer);
    }
}

/// Binds an offer to its own claims.
fn bind(name: &Name, offer: &mut Offer) {
    let own = format!("provider.{OFFER_FIELD}={name}");
    let own = own.parse().expect("a name is a value of a field");
    offer.requirement = offer.requirement.and(&own);
    let facts = &mut offer.claims.get_or_insert_default().facts;
    facts.extra.insert(OFFER_FIELD.to_owned(), name.to_string());
}
