//! What a new machine is made with besides its price: what it runs first, what it has of what stays.

use crate::plan::{Change, LeaseTerms, Verdict};
use crate::resource::{DISK, LeaseSpec, Spec};

/// Sentences on a machine that is new; none on one that is kept.
pub(super) fn made_with(change: &Change, terms: &LeaseTerms) -> Vec<String> {
    let is_new = matches!(change.verdict, Verdict::Create | Verdict::Replace);
    let Some(Spec::Lease(spec)) = change.spec.as_ref().filter(|_| is_new) else {
        return Vec::new();
    };
    let mut texts: Vec<String> = disk(spec).into_iter().collect();
    texts.extend(setup(spec));
    texts.extend(mounts(spec, terms));
    texts.extend(host_ends(spec, terms));
    texts
}

/// More disk than usual, since its models need it.
fn disk(spec: &LeaseSpec) -> Option<String> {
    let files = spec.files.filter(|_| spec.disk > DISK)?;
    Some(format!(
        "has {} of disk: its models take {files}",
        spec.disk
    ))
}

/// A host whose owner lets it for less time than the machine may live.
fn host_ends(spec: &LeaseSpec, terms: &LeaseTerms) -> Option<String> {
    let left = terms.shortlist.first()?.quote.host_is_let_for()?;
    (left < spec.max_lifetime).then(|| {
        format!(
            "its host is let for {left} more, and max_lifetime is {}: the machine ends with its host's contract at the latest",
            spec.max_lifetime
        )
    })
}

/// What stays when the machine is gone, and costs money on.
fn mounts(spec: &LeaseSpec, terms: &LeaseTerms) -> Vec<String> {
    let provider = terms.shortlist.first().map_or_else(
        || "its provider".to_owned(),
        |choice| format!("provider {}", choice.quote.provider),
    );
    let sentence = |mount: &crate::topology::Mount| {
        format!(
            "has volume {} at {}; the volume stays when the machine ends, and {provider} bills it until you delete it",
            mount.volume, mount.at
        )
    };
    spec.mounts.iter().map(sentence).collect()
}

/// What it runs before it is ready.
fn setup(spec: &LeaseSpec) -> Option<String> {
    let script = &spec.setup.as_ref()?.script;
    let lines = match script
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count()
    {
        1 => "1 line".to_owned(),
        n => format!("{n} lines"),
    };
    let digest = spec.setup.as_ref()?.fingerprint().to_string();
    Some(format!(
        "runs its setup once before it is ready: {lines}, digest {}",
        digest.get(..8)?
    ))
}
