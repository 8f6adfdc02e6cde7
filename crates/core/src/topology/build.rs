//! A merged and resolved tree to the typed topology, table by table.

use std::collections::{BTreeMap, BTreeSet};

use super::caps;
use super::commands;
use super::convert::{self, Declared};
use super::hosts;
use super::keys::{Kind, ROOT, TableDef};
use super::leases;
use super::read::{Field, Fields, Reader};
use super::value::{At, Entry, Table, Value};
use super::{
    AgentSource, Check, Cloud, Exposure, Limits, Offer, Provider, ProviderKind, Registry, Relay,
    Requote, SecretRef, Serve, Spot, Topology, Via,
};
use crate::diagnostic::{Diagnostic, shown};
use crate::id::Name;
use crate::offer::Requirement;
use crate::unit::{MicroDollars, Millis};

/// The version of the file format.
const VERSION: u64 = 1;

/// What the tables of a file refer to.
pub(super) struct Scope {
    pub(super) declared: Declared,
    /// Machines of each lease table.
    pub(super) counts: BTreeMap<String, u32>,
}

/// Reads the whole tree. None when something required was missing; what that was is in the reader.
pub(super) fn topology<'a>(reader: &'a Reader<'a>, root: &'a Table) -> Option<Topology> {
    let fields = Fields::open(reader, &ROOT, root, String::new(), At::default());
    version(&fields);
    let name = fields.read("name", convert::own_name);
    let scope = scope(root);
    let limits = limits(&fields);
    let state = match fields.get("state") {
        Some(field) => {
            inside(&fields, field, "state").and_then(|state| state.read("url", convert::state_url))
        }
        None => None,
    };
    let relay = match fields.get("relay") {
        Some(field) => inside(&fields, field, "relay").as_ref().and_then(relay),
        None => None,
    };
    let providers = named(&fields, "provider", |table| provider(table));
    let mut offers = named(&fields, "offer", |table| offer(table, &scope));
    super::selection::check(&fields, &providers, &mut offers);
    commands::offers(&fields, &providers, &mut offers);
    super::rented::reached(&fields, &providers);
    let leases = named(&fields, "lease", |table| leases::lease(table, &scope));
    leases::total_count(&fields, &leases);
    let taken = super::taken::all(&providers, &offers, &leases);
    super::rented::check(&fields, &taken);
    super::registry::check(&fields, &taken);
    super::selection::of_leases(&fields, &providers, &offers, &leases);
    super::mounts::check(&fields, &providers, &offers, &leases);
    super::spot::check(&fields, &limits, &providers, &offers, &leases);
    super::rented::ends(&fields, limits.max_spend, &providers, &offers, &leases);
    let pipelines = named(&fields, "pipeline", |table| {
        super::stages::pipeline(table, &scope)
    });
    let exposures = named(&fields, "exposure", |table| exposure(table, &scope));
    same_listener(&fields, &exposures);
    let (moved, removed) = super::moving::read(&fields, &leases);
    Some(Topology {
        name: name?,
        limits,
        state,
        relay,
        providers,
        offers,
        leases,
        pipelines,
        exposures,
        moved,
        removed,
    })
}

fn version(fields: &Fields<'_>) {
    let Some(field) = fields.get("version") else {
        return;
    };
    let Value::Integer(digits) = &field.node.value else {
        return field.wrong("a whole number");
    };
    match digits.parse::<u64>() {
        Ok(VERSION) => {}
        Ok(newer) if newer > VERSION => {
            let message =
                format!("this file has version {newer}; this stageline reads version {VERSION}");
            field.fault(
                "topology/version",
                message,
                Some("use a newer stageline".to_owned()),
            );
        }
        Ok(_) | Err(_) => {
            let message = format!("`version` must be {VERSION}");
            field.fault(
                "topology/version",
                message,
                Some("there is only version 1".to_owned()),
            );
        }
    }
}

/// What is declared, by name, whether or not it reads well: a faulty table is no missing one.
fn scope(root: &Table) -> Scope {
    let tables = |kind: &str| match root.entries.get(kind).map(|entry| &entry.node.value) {
        Some(Value::Table(table)) => Some(table),
        Some(_) | None => None,
    };
    let declared = ["provider", "offer", "lease", "pipeline"]
        .into_iter()
        .map(|kind| {
            let names: BTreeSet<String> = tables(kind)
                .into_iter()
                .flat_map(|table| table.entries.keys().cloned())
                .collect();
            (kind, names)
        })
        .collect();
    let count = |value: &Value| {
        let Value::Table(lease) = value else {
            return u32::MAX;
        };
        match lease.entries.get("count").map(|entry| &entry.node.value) {
            None => 1,
            Some(Value::Integer(text) | Value::Untyped(text)) => text.parse().unwrap_or(u32::MAX),
            // Faulty, and said so elsewhere: every index goes.
            Some(_) => u32::MAX,
        }
    };
    let counts = tables("lease")
        .into_iter()
        .flat_map(|table| &table.entries)
        .map(|(name, entry)| (name.clone(), count(&entry.node.value)))
        .collect();
    Scope { declared, counts }
}

/// Opens the table in a field by the definition of its key.
pub(super) fn inside<'a>(parent: &Fields<'a>, field: Field<'a>, name: &str) -> Option<Fields<'a>> {
    let Kind::Table(def) = field.key.kind else {
        return None;
    };
    Fields::inside(field, def, parent.address(name))
}

/// Reads the tables `[kind.NAME]`.
fn named<'a, T>(
    root: &Fields<'a>,
    kind: &str,
    read: impl Fn(&Fields<'a>) -> Option<T>,
) -> BTreeMap<Name, T> {
    let mut all = BTreeMap::new();
    let Some(field) = root.get(kind) else {
        return all;
    };
    let Kind::Named(def) = field.key.kind else {
        return all;
    };
    let def: &'static TableDef = def;
    let Some(tables) = field.entries() else {
        return all;
    };
    for (name, entry) in &tables.entries {
        let parsed: Option<Name> = name.parse().ok();
        if parsed.is_none() {
            let (message, hint) = convert::bad_name(name);
            let mut diagnostic = Diagnostic::error("topology/bad-name", message);
            diagnostic.hint = hint;
            root.reader.report(entry.key_at, diagnostic);
        }
        let Value::Table(table) = &entry.node.value else {
            let message = format!(
                "`{kind}.{}` must be a table, this is {}",
                shown(name),
                entry.node.value.what()
            );
            root.reader.report(
                entry.node.at,
                Diagnostic::error("topology/wrong-type", message),
            );
            continue;
        };
        let path = format!("{kind}.{}", shown(name));
        let fields = Fields::open(root.reader, def, table, path, entry.key_at);
        let value = read(&fields);
        if let (Some(name), Some(value)) = (parsed, value) {
            all.insert(name, value);
        }
    }
    all
}

fn limits(root: &Fields<'_>) -> Limits {
    let empty = Table::default();
    let given = root.get("limits");
    let Kind::Table(def) = root.key("limits").kind else {
        unreachable!("`limits` is defined as a table")
    };
    let table = given.and_then(Field::entries);
    let at = table.map_or(root.at, |_| root.at_key("limits"));
    let fields = Fields::open(
        root.reader,
        def,
        table.unwrap_or(&empty),
        "limits".to_owned(),
        at,
    );
    Limits {
        max_price_per_hour: fields
            .read("max_price_per_hour", convert::money)
            .filter(|money| *money != MicroDollars::ZERO),
        max_total_per_hour: fields.read("max_total_per_hour", convert::money),
        max_leases: fields.read("max_leases", convert::integer),
        max_spend: fields.read("max_spend", convert::money),
    }
}

fn relay(fields: &Fields<'_>) -> Option<Relay> {
    let url = fields.read("url", convert::url);
    let token = fields.read("token", convert::secret);
    let ca = fields.read("ca", convert::file);
    Some(Relay {
        url: url?,
        token,
        ca,
    })
}

fn provider(fields: &Fields<'_>) -> Option<Provider> {
    #[derive(Clone, Copy)]
    enum Which {
        Local,
        Cloud(Cloud),
        Ssh,
        Command,
    }
    const KINDS: [Which; 6] = [
        Which::Local,
        Which::Cloud(Cloud::Vastai),
        Which::Cloud(Cloud::Lambda),
        Which::Cloud(Cloud::Runpod),
        Which::Ssh,
        Which::Command,
    ];
    let which = fields.read("kind", |field| convert::choice(field, &KINDS));
    let slots = fields.read("slots", convert::integer);
    let price_per_hour = fields
        .read("price_per_hour", convert::money)
        .unwrap_or_default();
    let api_key = fields.read("api_key", convert::secret);
    let url = fields.read("url", convert::url);
    let ssh_key = fields.read("ssh_key", convert::text);
    let programs = commands::read(fields);
    let own_hosts = hosts::read(fields);
    let within = super::selection::read(fields);
    let caps = caps::read(fields);
    let kind = match which? {
        Which::Local => {
            foreign(fields, "local", &["api_key", "url", "ssh_key"]);
            foreign(fields, "local", &commands::KEYS);
            foreign(fields, "local", &hosts::KEYS);
            foreign(fields, "local", &caps::KEYS);
            ProviderKind::Local {
                slots,
                price_per_hour,
            }
        }
        Which::Cloud(cloud) => {
            foreign(fields, cloud.as_str(), &["slots", "price_per_hour"]);
            foreign(fields, cloud.as_str(), &commands::KEYS);
            foreign(fields, cloud.as_str(), &hosts::KEYS);
            if !cloud.wants_ssh_key() {
                foreign(fields, cloud.as_str(), &["ssh_key"]);
            }
            ProviderKind::Cloud {
                cloud,
                api_key: api_key.unwrap_or_else(|| SecretRef::Env(cloud.key_variable().to_owned())),
                url,
                ssh_key,
            }
        }
        Which::Ssh => {
            let others = ["slots", "price_per_hour", "api_key", "url", "ssh_key"];
            foreign(fields, "ssh", &others);
            foreign(fields, "ssh", &commands::KEYS);
            foreign(fields, "ssh", &caps::KEYS);
            hosts::kind(fields, own_hosts)?
        }
        Which::Command => {
            let others = ["slots", "price_per_hour", "api_key", "url", "ssh_key"];
            foreign(fields, "command", &others);
            foreign(fields, "command", &hosts::KEYS);
            caps::need_list(fields, fields.has("list"));
            commands::kind(fields, programs)?
        }
    };
    Some(Provider { kind, within, caps })
}

/// Keys that belong to another kind of provider.
fn foreign(fields: &Fields<'_>, kind: &str, keys: &[&str]) {
    for key in keys.iter().filter(|key| fields.has(key)) {
        let message = format!("`{key}` means nothing to a provider of kind `{kind}`");
        fields.fault(
            fields.at_key(key),
            "topology/conflict",
            message,
            format!("remove `{key}`, or change `kind`"),
        );
    }
}

/// How the agent gets there: a word, or where it is fetched from.
fn agent(fields: &Fields<'_>) -> Option<AgentSource> {
    let field = fields.get("agent")?;
    let Kind::ChoiceOrTable(_, def) = field.key.kind else {
        unreachable!("`agent` is defined as a word or a table")
    };
    if field.node.value.table().is_none() {
        let ways = [None, Some(AgentSource::Image), Some(AgentSource::Ssh)];
        let chosen = convert::choice(field, &[0, 1, 2]);
        return chosen.and_then(|way: usize| ways.into_iter().nth(way).flatten());
    }
    let inner = Fields::inside(field, def, fields.address("agent"))?;
    let url = inner.read("url", convert::url);
    let sha256 = inner.read("sha256", convert::sha256);
    Some(AgentSource::Fetch {
        url: url?,
        sha256: sha256?,
    })
}

fn offer(fields: &Fields<'_>, scope: &Scope) -> Option<Offer> {
    let provider = fields.read("provider", |field| convert::name_of(field, &scope.declared));
    let terms = terms(fields);
    let claims = match fields.get("claims") {
        Some(field) => inside(fields, field, "claims").map(|claims| commands::claims(&claims)),
        None => None,
    };
    Some(Offer {
        claims,
        instance_type: terms.instance_type,
        image: terms.image,
        registry: terms.registry,
        agent: terms.agent,
        requirement: terms.requirement,
        max_price_per_hour: terms.max_price_per_hour,
        idle_timeout: terms.idle_timeout.unwrap_or(IDLE_TIMEOUT),
        max_lifetime: terms.max_lifetime.unwrap_or(MAX_LIFETIME),
        acquire_timeout: terms.acquire_timeout,
        attempts: terms.attempts.unwrap_or(ATTEMPTS),
        requote: terms.requote.unwrap_or_default(),
        spot: terms.spot,
        provider: provider?,
    })
}

/// The keys that offers and leases share.
pub(super) struct Terms {
    pub(super) requirement: Requirement,
    pub(super) max_price_per_hour: Option<MicroDollars>,
    pub(super) idle_timeout: Option<Millis>,
    pub(super) max_lifetime: Option<Millis>,
    pub(super) acquire_timeout: Option<Millis>,
    pub(super) attempts: Option<u32>,
    pub(super) requote: Option<Requote>,
    pub(super) instance_type: Option<String>,
    pub(super) image: Option<String>,
    pub(super) registry: Option<Registry>,
    pub(super) agent: Option<AgentSource>,
    pub(super) spot: Option<Spot>,
}

/// As the definitions of the keys say; for a field that could not be read.
const ATTEMPTS: u32 = 5;
const IDLE_TIMEOUT: Millis = Millis::minutes(20);
const MAX_LIFETIME: Millis = Millis::minutes(12 * 60);

pub(super) fn terms(fields: &Fields<'_>) -> Terms {
    Terms {
        requirement: fields
            .read("where", super::requirement::read)
            .unwrap_or_default(),
        max_price_per_hour: fields.read("max_price_per_hour", convert::money),
        idle_timeout: fields.read("idle_timeout", convert::duration),
        max_lifetime: fields.read("max_lifetime", convert::duration),
        acquire_timeout: fields.read("acquire_timeout", convert::duration),
        attempts: fields.read("attempts", convert::integer),
        requote: fields.read("requote", |field| {
            convert::choice(field, &[Requote::WithinCeiling, Requote::Never])
        }),
        instance_type: fields.read("instance_type", super::selection::name),
        image: fields.read("image", convert::image),
        registry: super::registry::read(fields),
        agent: agent(fields),
        spot: super::spot::read(fields),
    }
}

/// What a pipeline must answer.
pub(super) fn check(fields: Option<&Fields<'_>>) -> Check {
    let Some(fields) = fields else {
        return Check {
            prompt: "Hello".to_owned(),
            max_tokens: 1,
            expect: None,
        };
    };
    Check {
        prompt: fields.read("prompt", convert::text).unwrap_or_default(),
        max_tokens: fields.read("max_tokens", convert::integer).unwrap_or(1),
        expect: fields.read("expect", convert::text),
    }
}

fn exposure(fields: &Fields<'_>, scope: &Scope) -> Option<Exposure> {
    #[derive(Clone, Copy)]
    enum Way {
        Loopback,
    }
    let pipelines = fields.read("pipelines", |field| {
        convert::names_of_tables(field, &scope.declared)
    });
    let serve = fields.read("serve", |field| convert::choice(field, &[Serve::OpenAi]));
    let way = fields.read("via", |field| convert::choice(field, &[Way::Loopback]));
    let listen = fields.read("listen", convert::listen);
    let api_key = fields.read("api_key", convert::secret);
    let via = match way? {
        Way::Loopback => Via::Loopback {
            listen: listen?,
            api_key,
        },
    };
    Some(Exposure {
        pipelines: pipelines?,
        serve: serve?,
        via,
    })
}

/// Two exposures cannot listen on one port.
fn same_listener(root: &Fields<'_>, exposures: &BTreeMap<Name, Exposure>) {
    let mut seen = BTreeMap::new();
    let Some(Value::Table(tables)) = root
        .table
        .entries
        .get("exposure")
        .map(|entry| &entry.node.value)
    else {
        return;
    };
    for (name, exposure) in exposures {
        let Via::Loopback { listen, .. } = &exposure.via;
        if listen.port() == 0 {
            continue;
        }
        if let Some(first) = seen.insert(*listen, name) {
            let listen_of = |entry: &Entry| {
                let listen = entry.node.value.table()?.entries.get("listen");
                listen.map(|listen| listen.node.at)
            };
            let at = tables.entries.get(name.as_str()).and_then(listen_of);
            let at = at.unwrap_or(root.at);
            let message =
                format!("`exposure.{name}` and `exposure.{first}` both listen on {listen}");
            root.fault(
                at,
                "topology/duplicate",
                message,
                "give each a port of its own, or 0 for a free one",
            );
        }
    }
}
