//! Reading a state in either form.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::super::{
    BadHost, Billed, Charge, Consumed, Dated, Disowned, EndedLease, Genesis, Lapse, LedgerClock,
    OpenAttempt, Pending, Recorded, Run, Spent, State, Tried,
};
use super::usual_account;
use crate::id::{
    Address, Attempt, EndpointKey, Generation, LeaseId, Lineage, MachineId, Name, PlanId,
    RequestKey,
};
use crate::offer::{Facts, Place, QuoteId};
use crate::resource::{
    Account, Contact, DeliveryReceipt, ExposureReceipt, LeaseReady, LeaseReceipt, LeaseSpec,
    PipelineReceipt, Receipt, Spec, StageReceipt,
};
use crate::shared::Shared;
use crate::unit::{MicroDollars, Timestamp};

/// What is read: either form.
#[derive(Deserialize)]
struct Read {
    genesis: Option<Genesis>,
    run: Option<Run>,
    /// There in the stored form, not in the plain one.
    #[serde(default)]
    specs: Option<Vec<Shared<LeaseSpec>>>,
    #[serde(default)]
    facts: Vec<Shared<Facts>>,
    #[serde(default)]
    bought: Vec<ReadBought>,
    resources: ReadPairs<ReadResource>,
    generations: ReadPairs<Option<Generation>>,
    consumed: BTreeMap<PlanId, Consumed>,
    ended: Vec<EndedLease>,
    #[serde(default)]
    spent: BTreeMap<LeaseId, Spent>,
    #[serde(default)]
    charged: BTreeMap<MachineId, Charge>,
    #[serde(default)]
    forgotten: Option<Timestamp>,
    #[serde(default)]
    clock: LedgerClock,
    #[serde(default)]
    disowned: BTreeMap<MachineId, Disowned>,
    #[serde(default)]
    host_keys: BTreeMap<String, String>,
    #[serde(default)]
    closed: Option<String>,
    #[serde(default)]
    bad: Vec<BadHost>,
    #[serde(default)]
    lapsed: BTreeMap<LeaseId, Lapse>,
}

#[derive(Clone, Deserialize)]
struct ReadBought {
    provider: Name,
    provider_kind: String,
    offer: Name,
    #[serde(default)]
    account: Option<Account>,
    quote: QuoteId,
    price_per_hour: MicroDollars,
}

/// What few have is boxed: all are read before the first becomes a record.
#[derive(Deserialize)]
struct ReadResource {
    generation: Generation,
    #[serde(default)]
    spec: Option<Placed<Box<Spec>>>,
    #[serde(default)]
    receipt: Option<ReadReceipt>,
    #[serde(default)]
    pending: Option<Box<Pending>>,
    #[serde(default)]
    attempts: BTreeMap<Attempt, OpenAttempt>,
    #[serde(default)]
    last_attempt: Option<Attempt>,
    #[serde(default)]
    tried_since: Option<Timestamp>,
    #[serde(default)]
    billed: Option<ReadBilled>,
    #[serde(default)]
    made_for: Option<LeaseId>,
    #[serde(default)]
    tried: BTreeMap<Attempt, Tried>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReadReceipt {
    Lease(Box<ReadLease>),
    Delivery(Box<DeliveryReceipt>),
    Stage(Box<StageReceipt>),
    Pipeline(Box<PipelineReceipt>),
    Exposure(Box<ExposureReceipt>),
}

#[derive(Deserialize)]
struct ReadLease {
    #[serde(default)]
    bought: Option<u32>,
    #[serde(default)]
    provider: Option<Name>,
    #[serde(default)]
    provider_kind: Option<String>,
    #[serde(default)]
    offer: Option<Name>,
    #[serde(default)]
    account: Option<Account>,
    #[serde(default)]
    quote: Option<QuoteId>,
    #[serde(default)]
    price_per_hour: Option<MicroDollars>,
    machine: MachineId,
    #[serde(default)]
    attempt: Option<Attempt>,
    #[serde(default)]
    request_key: Option<RequestKey>,
    created_at: Timestamp,
    #[serde(default)]
    place: Place,
    #[serde(default)]
    ready: Option<ReadReady>,
}

#[derive(Deserialize)]
struct ReadBilled {
    #[serde(default)]
    before: Option<Spent>,
    #[serde(default)]
    since: Option<Timestamp>,
    #[serde(default)]
    maybe_since: Option<Timestamp>,
    #[serde(default)]
    seen: Option<Timestamp>,
    #[serde(default)]
    made: Option<Timestamp>,
    #[serde(default)]
    booting: bool,
    #[serde(default)]
    dated: Option<Dated>,
}

impl ReadBilled {
    /// What is left out is as usual.
    fn account(self, usual: Option<Billed>) -> Result<Billed, String> {
        let account = |usual: Billed| Billed {
            before: self.before.unwrap_or(usual.before),
            since: self.since.unwrap_or(usual.since),
            maybe_since: self.maybe_since.unwrap_or(usual.maybe_since),
            seen: self.seen.unwrap_or(usual.seen),
            made: self.made,
            booting: self.booting,
            dated: self.dated,
        };
        let whole = || {
            Some(Billed {
                before: self.before?,
                since: self.since?,
                maybe_since: self.maybe_since?,
                seen: self.seen?,
                made: self.made,
                booting: self.booting,
                dated: self.dated,
            })
        };
        usual
            .map(account)
            .or_else(whole)
            .ok_or_else(|| "an account of no machine is not whole".to_owned())
    }
}

#[derive(Deserialize)]
struct ReadReady {
    facts: Placed<Box<Facts>>,
    endpoint: EndpointKey,
    #[serde(default)]
    contact: Contact,
}

/// A value, or its place in a table.
enum Placed<T> {
    At(u32),
    Whole(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = Placed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or its place in a table")
            }

            fn visit_u64<E: Error>(self, place: u64) -> Result<Placed<T>, E> {
                u32::try_from(place).map(Placed::At).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Placed<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Placed::Whole)
            }
        }
        deserializer.deserialize_any(Either(std::marker::PhantomData))
    }
}

/// A map as its pairs: those that were written in order need no search to become a map.
struct ReadPairs<T>(Vec<(Address, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ReadPairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for All<T> {
            type Value = ReadPairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map by address")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadPairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(ReadPairs(pairs))
            }
        }
        deserializer.deserialize_map(All(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = Read::deserialize(deserializer)?;
        read.state().map_err(D::Error::custom)
    }
}

impl Read {
    fn state(self) -> Result<State, String> {
        let stored = self.specs.is_some();
        let tables = Tables {
            lineage: self.genesis.as_ref().map(|genesis| genesis.lineage),
            specs: self.specs.unwrap_or_default(),
            facts: self.facts,
            bought: self.bought,
        };
        let resources = self.resources.0.into_iter();
        let resources: BTreeMap<Address, Recorded> = resources
            .map(|(address, read)| {
                let recorded = tables.resource(&address, read)?;
                Ok((address, recorded))
            })
            .collect::<Result<_, String>>()?;
        let own = resources.iter().filter(|_| stored);
        let mut generations: BTreeMap<Address, Generation> = own
            .map(|(address, own)| (address.clone(), own.generation))
            .collect();
        for (address, generation) in self.generations.0 {
            match generation {
                Some(generation) => generations.insert(address, generation),
                None => generations.remove(&address),
            };
        }
        Ok(State {
            genesis: self.genesis,
            run: self.run,
            resources,
            generations,
            consumed: self.consumed,
            ended: self.ended,
            spent: self.spent,
            charged: self.charged,
            forgotten: self.forgotten,
            clock: self.clock,
            disowned: self.disowned,
            host_keys: self.host_keys,
            closed: self.closed,
            bad: self.bad,
            lapsed: self.lapsed,
        })
    }
}

/// What places lead to.
struct Tables {
    lineage: Option<Lineage>,
    specs: Vec<Shared<LeaseSpec>>,
    facts: Vec<Shared<Facts>>,
    bought: Vec<ReadBought>,
}

fn at<T>(table: &[T], place: u32) -> Result<&T, String> {
    let value = usize::try_from(place).ok().and_then(|at| table.get(at));
    value.ok_or_else(|| format!("place {place} is not in its table"))
}

impl Tables {
    fn resource(&self, address: &Address, read: ReadResource) -> Result<Recorded, String> {
        let made_by = match &read.receipt {
            Some(ReadReceipt::Lease(lease)) => lease.attempt,
            Some(
                ReadReceipt::Delivery(_)
                | ReadReceipt::Stage(_)
                | ReadReceipt::Pipeline(_)
                | ReadReceipt::Exposure(_),
            )
            | None => None,
        };
        let derive = |(lineage, attempt): (Lineage, Attempt)| {
            RequestKey::derive(&lineage, address, read.generation, attempt)
        };
        let key = self.lineage.zip(made_by).map(derive);
        let spec = match read.spec {
            None => None,
            Some(Placed::At(place)) => Some(Spec::Lease(at(&self.specs, place)?.clone())),
            Some(Placed::Whole(spec)) => Some(*spec),
        };
        let receipt = read.receipt.map(|receipt| self.receipt(receipt, key));
        let receipt = receipt.transpose()?;
        let billed = read.billed.map(|billed| {
            let usual = usual_account(receipt.as_ref(), read.tried_since);
            billed.account(usual)
        });
        Ok(Recorded {
            generation: read.generation,
            spec,
            receipt,
            pending: read.pending,
            attempts: read.attempts,
            last_attempt: read.last_attempt.or(made_by).unwrap_or_default(),
            tried_since: read.tried_since,
            billed: billed.transpose()?,
            made_for: read.made_for,
            tried: read.tried,
        })
    }

    fn receipt(&self, read: ReadReceipt, key: Option<RequestKey>) -> Result<Receipt, String> {
        Ok(match read {
            ReadReceipt::Lease(read) => Receipt::Lease(Box::new(self.lease(*read, key)?)),
            ReadReceipt::Delivery(receipt) => Receipt::Delivery(receipt),
            ReadReceipt::Stage(receipt) => Receipt::Stage(receipt),
            ReadReceipt::Pipeline(receipt) => Receipt::Pipeline(receipt),
            ReadReceipt::Exposure(receipt) => Receipt::Exposure(receipt),
        })
    }

    fn lease(&self, read: ReadLease, key: Option<RequestKey>) -> Result<LeaseReceipt, String> {
        let missing = |what| format!("a lease's receipt has no `{what}`");
        let table = read.bought.map(|place| at(&self.bought, place));
        let bought = match table.transpose()? {
            Some(bought) => bought.clone(),
            None => ReadBought {
                provider: read.provider.ok_or_else(|| missing("provider"))?,
                provider_kind: read.provider_kind.ok_or_else(|| missing("provider_kind"))?,
                offer: read.offer.ok_or_else(|| missing("offer"))?,
                account: read.account,
                quote: read.quote.ok_or_else(|| missing("quote"))?,
                price_per_hour: read
                    .price_per_hour
                    .ok_or_else(|| missing("price_per_hour"))?,
            },
        };
        Ok(LeaseReceipt {
            provider: bought.provider,
            provider_kind: bought.provider_kind,
            offer: bought.offer,
            account: bought.account,
            quote: bought.quote,
            machine: read.machine,
            request_key: read
                .request_key
                .or(key)
                .ok_or_else(|| missing("request_key"))?,
            price_per_hour: bought.price_per_hour,
            created_at: read.created_at,
            place: read.place,
            ready: read.ready.map(|read| self.ready(read)).transpose()?,
        })
    }

    fn ready(&self, read: ReadReady) -> Result<LeaseReady, String> {
        Ok(LeaseReady {
            facts: match read.facts {
                Placed::At(place) => at(&self.facts, place)?.clone(),
                Placed::Whole(facts) => (*facts).into(),
            },
            endpoint: read.endpoint,
            contact: read.contact,
        })
    }
}
