//! Which states are at a place: the folders of one folder, or the parts of one bucket.
//!
//! A look: nothing is opened, nothing is made. What holds no journal and no snapshot is no state.

use std::io;

use super::{JOURNAL, SNAPSHOT, StateUrl, StoreError, Surroundings};

/// How long a bucket may take to tell what is in it: a plan goes on without.
#[cfg(feature = "cloud-state")]
const LOOK: std::time::Duration = std::time::Duration::from_secs(5);

/// Most states of one place that are told.
const STATES_MAX: usize = 64;

/// The names of the folders of all states at a place, sorted: `NAME` or `NAME.WORKSPACE`.
///
/// # Errors
/// [`StoreError`] when that cannot be told.
pub async fn states_at(url: &StateUrl, around: &Surroundings) -> Result<Vec<String>, StoreError> {
    let mut names = match url {
        StateUrl::Folder(root) => {
            let root = root.clone();
            let place = root.display().to_string();
            let read = tokio::task::spawn_blocking(move || in_folder(&root)).await;
            let read = read.map_err(|error| super::failed(&place, "looking for states", &error))?;
            read.map_err(|error| StoreError::of_io(&place, "looking for states", &error))?
        }
        StateUrl::Bucket(bucket) => in_bucket(bucket, around).await?,
    };
    names.sort();
    names.truncate(STATES_MAX);
    Ok(names)
}

fn in_folder(root: &std::path::Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let states = entries.flatten().filter(|entry| {
        let path = entry.path();
        path.join(JOURNAL).is_dir() || path.join(SNAPSHOT).is_dir()
    });
    let names = states.filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}

/// What has no journal is found out by whoever opens it.
#[cfg(feature = "cloud-state")]
async fn in_bucket(
    bucket: &super::Bucket,
    around: &Surroundings,
) -> Result<Vec<String>, StoreError> {
    let objects = super::cloud::open(bucket, "", around)?;
    let place = bucket.to_string();
    let doing = "looking for states";
    let listed = objects.list_with_delimiter(None);
    let limit = LOOK;
    let listed = tokio::time::timeout(limit, listed).await;
    let listed = listed.map_err(|_| StoreError::Unreachable {
        place: place.clone(),
        doing: doing.to_owned(),
        what: format!("no answer within {} s", limit.as_secs()),
    })?;
    let listed = listed
        .map_err(|error| super::cloud_fault::of_object(&place, doing, &error, &around.secrets()))?;
    let folders = listed.common_prefixes.iter();
    let names = folders.filter_map(|folder| Some(folder.filename()?.to_owned()));
    Ok(names.collect())
}

#[cfg(not(feature = "cloud-state"))]
async fn in_bucket(bucket: &super::Bucket, _: &Surroundings) -> Result<Vec<String>, StoreError> {
    Err(StoreError::LeftOut {
        scheme: bucket.cloud.scheme().to_owned(),
    })
}
