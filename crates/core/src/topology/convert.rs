//! One function for each kind of value: from a field to a type with its unit, or a diagnostic.

mod boolean;
mod environment;

pub(super) use boolean::boolean;
pub(super) use environment::{env, secret, secret_env};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::Layers;
use super::keys::{Key, Kind};
use super::read::{Field, names_of};
use super::value::Value;
use crate::diagnostic::{shown, suggestion};
use crate::id::{Name, Sha256};
use crate::unit::{Bytes, MicroDollars, Millis};

/// Dearest hour that a file may speak of: beyond any machine, and sums of it stay exact.
const MONEY_MAX: MicroDollars = MicroDollars(1_000_000_000_000);

/// Largest disk of a machine: more than any has.
const SIZE_MAX: Bytes = Bytes(1 << 50);

/// Longest span: ten years.
const DURATION_MAX: Millis = Millis(3650 * 86_400_000);

/// Most items of a list and entries of a user's table.
const ITEMS_MAX: usize = 4096;

fn parsed<T>(field: Field<'_>) -> Option<T>
where
    T: FromStr,
    T::Err: Display,
{
    match field.text()?.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            let hint = such_as(field);
            field.bad(shown_error(&error), Some(hint));
            None
        }
    }
}

fn such_as(field: Field<'_>) -> String {
    format!("such as `{} = {}`", field.key.name, field.key.example)
}

fn shown_error(error: &impl Display) -> String {
    error
        .to_string()
        .chars()
        .take(300)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

pub(super) fn text(field: Field<'_>) -> Option<String> {
    field.text().map(str::to_owned)
}

pub(super) fn integer(field: Field<'_>) -> Option<u32> {
    let Kind::Integer { min, max } = field.key.kind else {
        unreachable_kind(field.key)
    };
    let (Value::Integer(digits) | Value::Untyped(digits)) = &field.node.value else {
        field.wrong("a whole number");
        return None;
    };
    if digits.parse::<i128>().is_err() && matches!(field.node.value, Value::Untyped(_)) {
        field.wrong("a whole number");
        return None;
    }
    let number = digits.parse().ok().filter(|n| (min..=max).contains(n));
    if number.is_none() {
        let hint = match field.key.name {
            "count" if digits == "0" => Some("to want no machine, remove the table".to_owned()),
            "max_leases" if digits == "0" => Some("for no cap, leave the key out".to_owned()),
            _ => None,
        };
        let message = format!(
            "`{}` must be {min} to {max}, not {}",
            field.label,
            shown(digits)
        );
        field.bad(message, hint);
    }
    number
}

/// A size: GiB, or a text with its unit.
pub(super) fn size(field: Field<'_>) -> Option<Bytes> {
    let Kind::Size { min_gib } = field.key.kind else {
        unreachable_kind(field.key)
    };
    let (Value::Integer(digits)
    | Value::Float(digits)
    | Value::Text(digits)
    | Value::Untyped(digits)) = &field.node.value
    else {
        field.wrong("a size");
        return None;
    };
    let Ok(size) = digits.parse::<Bytes>() else {
        let message = format!("`{}` is not a size such as 60 (GiB)", shown(digits));
        field.bad(message, Some(such_as(field)));
        return None;
    };
    let range = Bytes::gib(min_gib)..=SIZE_MAX;
    if !range.contains(&size) {
        let message = format!(
            "`{}` must be {min_gib} GiB to {SIZE_MAX}, not {size}",
            field.label
        );
        field.bad(message, Some(such_as(field)));
        return None;
    }
    Some(size)
}

/// An image reference: no blanks, nothing that a provider could take for an option.
pub(super) fn image(field: Field<'_>) -> Option<String> {
    let image = field.text()?;
    let plain =
        !image.is_empty() && image.len() <= 255 && image.bytes().all(|b| b.is_ascii_graphic());
    if !plain || image.starts_with('-') {
        let message = format!("`{}` is not an image reference", shown(image));
        field.bad(message, Some(such_as(field)));
        return None;
    }
    Some(image.to_owned())
}

pub(super) fn money(field: Field<'_>) -> Option<MicroDollars> {
    let Kind::Money { zero } = field.key.kind else {
        unreachable_kind(field.key)
    };
    let (Value::Integer(digits)
    | Value::Float(digits)
    | Value::Text(digits)
    | Value::Untyped(digits)) = &field.node.value
    else {
        field.wrong("an amount of US dollars");
        return None;
    };
    let name = field.label;
    let money: MicroDollars = match digits.parse() {
        Ok(money) => money,
        Err(error) => {
            let hint = format!(
                "whole micro-dollars are kept: at most six decimals, no sign, no exponent, such as `{name} = {}`",
                field.key.example
            );
            field.bad(format!("`{name}`: {}", shown_error(&error)), Some(hint));
            return None;
        }
    };
    if money == MicroDollars::ZERO && !zero {
        let hint = match name {
            "bid" => "for the least that is taken, leave the key out",
            _ => "for no cap, leave the key out",
        };
        field.bad(format!("`{name}` must be above 0"), Some(hint.to_owned()));
        return None;
    }
    if money > MONEY_MAX {
        field.bad(format!("`{name}` is at most {MONEY_MAX}"), None);
        return None;
    }
    Some(money)
}

pub(super) fn duration(field: Field<'_>) -> Option<Millis> {
    if let Value::Integer(digits) = &field.node.value {
        let hint = format!("with a unit: `{} = \"{}s\"`", field.label, shown(digits));
        field.fault(
            "topology/wrong-type",
            format!("`{}` must be a duration with its unit", field.label),
            Some(hint),
        );
        return None;
    }
    let name = field.label;
    let Ok(span) = field.text()?.parse::<Millis>() else {
        let message =
            format!("`{name}` is no duration: a whole number and a unit of ms, s, m, h or d");
        field.bad(message, Some(such_as(field)));
        return None;
    };
    if span == Millis::NEVER && matches!(field.key.kind, Kind::Limit) {
        return Some(span);
    }
    if span == Millis::NEVER {
        let hint = format!("the longest is \"{DURATION_MAX}\"");
        field.bad(
            format!("`{name}` cannot be \"never\": everything here has a limit"),
            Some(hint),
        );
        return None;
    }
    if !(Millis::seconds(1)..=DURATION_MAX).contains(&span) {
        field.bad(
            format!("`{name}` must be \"1s\" to \"{DURATION_MAX}\", not \"{span}\""),
            None,
        );
        return None;
    }
    Some(span)
}

/// One of a fixed set; `all` gives each name its value, in the order of the definition.
pub(super) fn choice<T: Copy>(field: Field<'_>, all: &[T]) -> Option<T> {
    let (Kind::Choice(choices) | Kind::ChoiceOrTable(choices, _)) = field.key.kind else {
        unreachable_kind(field.key)
    };
    let given = field.text()?;
    let index = choices.iter().position(|(name, _)| *name == given);
    match index.and_then(|index| all.get(index)) {
        Some(value) => Some(*value),
        None => {
            let message = format!("there is no {} `{}`", noun(field.key), shown(given));
            let hint = suggestion(given, &names_of(choices));
            field.fault("topology/unknown-value", message, Some(hint));
            None
        }
    }
}

fn noun(key: &Key) -> &'static str {
    match key.name {
        "kind" => "provider kind",
        "via" => "way",
        "serve" => "protocol",
        "fetch" => "place to fetch from",
        name => name,
    }
}

/// A name of one's own, never interpolated.
pub(super) fn own_name(field: Field<'_>) -> Option<Name> {
    let Kind::OwnName { min } = field.key.kind else {
        unreachable_kind(field.key)
    };
    let given = field.text()?;
    let name = name_at(field, given)?;
    if given.len() < min {
        field.fault(
            "topology/bad-name",
            format!("`{}` must have at least {min} characters", field.label),
            None,
        );
        return None;
    }
    Some(name)
}

fn name_at(field: Field<'_>, given: &str) -> Option<Name> {
    match given.parse() {
        Ok(name) => Some(name),
        Err(_) => {
            let (message, hint) = bad_name(given);
            field.fault("topology/bad-name", message, hint);
            None
        }
    }
}

/// Why a text is no name, and the nearest text that is one.
pub(super) fn bad_name(given: &str) -> (String, Option<String>) {
    let message = format!(
        "`{}` is not a name: a lower-case letter, then at most 23 of a-z, 0-9 and `-`",
        shown(given)
    );
    let near: String = given
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .skip_while(|c| !c.is_ascii_lowercase())
        .take(Name::MAX)
        .collect();
    let near = near.trim_end_matches('-');
    let hint = near
        .parse::<Name>()
        .is_ok()
        .then(|| format!("such as `{near}`"));
    (message, hint)
}

/// The names that a file declares under a table, for references.
pub(super) type Declared = BTreeMap<&'static str, BTreeSet<String>>;

/// A reference to a declared table.
pub(super) fn name_of(field: Field<'_>, declared: &Declared) -> Option<Name> {
    let (Kind::NameOf(table) | Kind::NamesOf(table)) = field.key.kind else {
        unreachable_kind(field.key)
    };
    let given = field.text()?;
    reference(field, given, table, declared)
}

/// A reference by a text that stands in a field.
pub(super) fn reference(
    field: Field<'_>,
    given: &str,
    table: &'static str,
    declared: &Declared,
) -> Option<Name> {
    let known = declared.get(table);
    if known.is_some_and(|known| known.contains(given)) {
        // A declared name that is no name was reported where it is declared.
        return given.parse().ok();
    }
    let bare = given
        .strip_prefix(table)
        .and_then(|rest| rest.strip_prefix('.'));
    let all: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
    let hint = match bare {
        Some(bare) if all.contains(&bare) => format!("the name alone: `{bare}`"),
        _ if all.is_empty() => format!("no `[{table}.NAME]` is declared"),
        _ => suggestion(given, &all),
    };
    let code = match table {
        "provider" => "topology/unknown-provider",
        "offer" => "topology/unknown-offer",
        "lease" => "topology/unknown-lease",
        _ => "topology/unknown-pipeline",
    };
    field.fault(
        code,
        format!("{table} `{}` is not declared", shown(given)),
        Some(hint),
    );
    None
}

/// Several references, at least one, none twice.
pub(super) fn names_of_tables(field: Field<'_>, declared: &Declared) -> Option<Vec<Name>> {
    let mut names: Vec<Name> = Vec::new();
    for item in items(field)? {
        let Some(name) = name_of(item, declared) else {
            continue;
        };
        if names.contains(&name) {
            item.fault(
                "topology/duplicate",
                format!("`{name}` stands twice in `{}`", field.label),
                None,
            );
        } else {
            names.push(name);
        }
    }
    Some(names)
}

/// The items of a list that must have some.
pub(super) fn items<'a>(field: Field<'a>) -> Option<Vec<Field<'a>>> {
    let items = field.list()?;
    if items.is_empty() {
        let hint = such_as(field);
        field.fault(
            "topology/empty",
            format!("`{}` is empty", field.label),
            Some(hint),
        );
        return None;
    }
    bounded(field, items.len()).then_some(items)
}

fn bounded(field: Field<'_>, len: usize) -> bool {
    if len > ITEMS_MAX {
        field.bad(
            format!(
                "`{}` has {len} entries; at most {ITEMS_MAX} are allowed",
                field.label
            ),
            None,
        );
    }
    len <= ITEMS_MAX
}

pub(super) fn texts(field: Field<'_>) -> Option<Vec<String>> {
    let items = field.list()?;
    if !bounded(field, items.len()) {
        return None;
    }
    items.into_iter().map(text).collect()
}

/// A program and its arguments.
pub(super) fn argv(field: Field<'_>) -> Option<Vec<String>> {
    if let Value::Text(line) = &field.node.value {
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| format!("{word:?}"))
            .collect();
        let hint = format!(
            "no shell is involved; write `{} = [{}]`",
            field.label,
            shown(&words.join(", "))
        );
        field.fault(
            "topology/wrong-type",
            format!(
                "`{}` must be a list: a program and its arguments",
                field.label
            ),
            Some(hint),
        );
        return None;
    }
    items(field)?;
    let argv = texts(field)?;
    if argv
        .first()
        .is_some_and(|program| program.trim().is_empty())
    {
        field.bad(format!("the program of `{}` is empty", field.label), None);
        return None;
    }
    Some(argv)
}

pub(super) fn file(field: Field<'_>) -> Option<PathBuf> {
    let path = field.text()?;
    if path.is_empty() {
        field.bad(format!("`{}` is an empty path", field.label), None);
        return None;
    }
    if path.starts_with("~/") {
        let message = format!(
            "`{}`: `~` is a shell's and stands for no folder here",
            field.label
        );
        let hint = "write the whole path, or one relative to the topology file";
        field.bad(message, Some(hint.to_owned()));
        return None;
    }
    Some(PathBuf::from(path))
}

pub(super) fn url(field: Field<'_>) -> Option<String> {
    let url = field.text()?;
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_some_and(|authority| authority.contains('@')) {
        // The value is not repeated: it holds a secret.
        let message = format!(
            "`{}` carries a user or password, which would be recorded",
            field.label
        );
        field.fault(
            "topology/plain-secret",
            message,
            Some("give it by `token`, as a secret by reference".to_owned()),
        );
        return None;
    }
    let plain = url.bytes().all(|b| b.is_ascii_graphic());
    if !plain
        || authority.is_none_or(|authority| authority.is_empty() || authority.starts_with(':'))
    {
        let message = format!(
            "`{}` is not a URL that begins with https:// or http://",
            shown(url)
        );
        field.bad(message, Some(such_as(field)));
        return None;
    }
    Some(url.to_owned())
}

/// A folder, or a bucket with a prefix. Whether a build can open it is not known here.
pub(super) fn state_url(field: Field<'_>) -> Option<String> {
    let url = field.text()?;
    let good = match url.split_once("://") {
        None => !url.is_empty() && !url.contains('\0'),
        Some(("file", path)) => !path.is_empty() && !path.contains('\0'),
        Some(("s3" | "gs" | "az", rest)) => {
            let bucket = rest.split('/').next().unwrap_or_default();
            if bucket.contains('@') || rest.contains('?') {
                // The value is not repeated: it may hold a secret.
                let message = format!("`{}` carries a credential, which is shown", field.label);
                let hint = "give it by that cloud's environment; see state/README.md".to_owned();
                field.fault("topology/plain-secret", message, Some(hint));
                return None;
            }
            !bucket.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
        }
        Some(_) => false,
    };
    if !good {
        let message = format!("`{}` is not a place for state", shown(url));
        field.bad(message, Some(such_as(field)));
        return None;
    }
    Some(url.to_owned())
}

pub(super) fn sha256(field: Field<'_>) -> Option<Sha256> {
    parsed(field)
}

pub(super) fn layers(field: Field<'_>) -> Option<Layers> {
    let given = field.text()?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|n| digits && *n <= 100_000)
    };
    let bounds = given
        .split_once("..")
        .and_then(|(start, end)| Some((number(start.trim())?, number(end.trim())?)));
    let Some((start, end)) = bounds else {
        let message = format!("`{}` is not a range of layers", shown(given));
        let hint = "such as \"0..8\": the layers from 0 up to but without 8";
        field.fault("topology/layers", message, Some(hint.to_owned()));
        return None;
    };
    if start >= end {
        let (message, hint) = if start == end {
            (
                format!("the layers {start}..{end} are none"),
                format!(
                    "the end is not included: one layer is \"{start}..{}\"",
                    start + 1
                ),
            )
        } else {
            (
                format!("the layers {start}..{end} run backwards"),
                format!("did you mean \"{end}..{start}\"?"),
            )
        };
        field.fault("topology/layers", message, Some(hint));
        return None;
    }
    Some(Layers { start, end })
}

pub(super) fn listen(field: Field<'_>) -> Option<SocketAddr> {
    let given = field.text()?;
    let local = given
        .strip_prefix("localhost:")
        .and_then(|port| port.parse().ok());
    let address = match local {
        Some(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => given.parse().ok(),
    };
    let Some(address) = address else {
        let hint = format!(
            "such as `listen = {}`; port 0 takes a free one",
            field.key.example
        );
        field.bad(
            format!("`{}` is not an address with a port", shown(given)),
            Some(hint),
        );
        return None;
    };
    if !address.ip().is_loopback() {
        let message = format!(
            "`{address}` is not on the loopback: with `via = \"loopback\"` nobody else may reach it"
        );
        let hint = format!("`listen = \"127.0.0.1:{}\"`", address.port());
        field.fault("topology/not-loopback", message, Some(hint));
        return None;
    }
    Some(address)
}

fn unreachable_kind(key: &Key) -> ! {
    unreachable!(
        "`{}` is read as another kind than its definition says",
        key.name
    )
}
