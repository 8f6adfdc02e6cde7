//! The local folder: durable, checked, swept, and untouched by readers.

use std::fs;
use std::io;
use std::time::Duration;

use super::*;

fn url(folder: &tempfile::TempDir) -> StateUrl {
    let path = folder.path().join("a/b/state");
    path.to_str().expect("text").parse().expect("a path")
}

async fn open(folder: &tempfile::TempDir, mode: Mode) -> Result<Store, StoreError> {
    Store::open(&url(folder), &name("demo"), None, mode).await
}

/// Every path under a folder.
fn everything(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(everything(&path));
        }
        found.push(path.display().to_string());
    }
    found.sort();
    found
}

#[test]
fn urls_name_folders_and_other_schemes_are_told() {
    for text in ["state", "./state", "file://./state", "file:///var/state"] {
        text.parse::<StateUrl>().expect(text);
    }
    for (text, shown) in [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://b", "gs://b"),
        ("az://c/d", "az://c/d"),
    ] {
        let url = text.parse::<StateUrl>().expect(text);
        assert!(url.is_shared() && url.root().is_none());
        assert_eq!(url.to_string(), shown);
    }
    let error = "ftp://host/x".parse::<StateUrl>().expect_err("unknown");
    assert!(error.to_string().contains("`ftp`"), "{error}");
    for text in [
        "file://",
        "",
        "s3://",
        "s3:///x",
        "s3://b/a//b",
        "s3://b/../c",
        "s3://b/a b",
    ] {
        text.parse::<StateUrl>().expect_err(text);
    }
    assert_eq!(folder_name(&name("demo"), None), "demo");
    assert_eq!(folder_name(&name("demo"), Some(&name("test"))), "demo.test");
}

#[test]
fn a_secret_in_a_url_is_refused_and_not_repeated() {
    for text in ["s3://user:hunter22@bucket/x", "az://c/x?sig=hunter22"] {
        let error = text.parse::<StateUrl>().expect_err(text);
        let shown = format!("{error} {error:?} {}", error.hint());
        assert!(!shown.contains("hunter22"), "{shown}");
        assert!(shown.contains("environment"), "{shown}");
    }
}

#[test]
fn puts_are_synced() {
    let folder = tempfile::tempdir().expect("a folder");
    let objects = super::super::local::synced(folder.path()).expect("opened");
    // `object_store` gives no other way to ask.
    assert!(
        format!("{objects:?}").contains("fsync: true"),
        "{objects:?}"
    );
}

#[tokio::test]
async fn a_run_on_a_folder_is_read_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder, Mode::Write).await.expect("opened");
    let journal = begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    for index in 0..5 {
        journal.append(vec![started(index)]).await.expect("durable");
    }
    journal.snapshot_now().await;
    journal.append(vec![started(5)]).await.expect("durable");
    journal.finish(true).await.expect("ended");
    let reader = open(&folder, Mode::Read).await.expect("opened");
    let loaded = reader.read().await.expect("whole");
    assert_eq!(loaded.snapshot, JournalNumber(6));
    assert_eq!(leases(&loaded.state), (0..6).collect::<Vec<_>>());
    let left = everything(store.folder().expect("local"));
    assert!(
        left.iter()
            .all(|path| !path.contains("probe") && !path.contains('#')),
        "{left:?}"
    );
    let error = reader.put_plan(plan(1), Vec::new()).await;
    assert!(
        matches!(error, Err(StoreError::OpenedToRead { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_reader_makes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder, Mode::Read).await.expect("opened");
    assert!(store.read().await.expect("empty").state.is_empty());
    assert_eq!(everything(folder.path()), Vec::<String>::new());
    open(&folder, Mode::Write).await.expect("opened");
    let before = everything(folder.path());
    let store = open(&folder, Mode::Read).await.expect("opened");
    store.read().await.expect("empty");
    assert_eq!(everything(folder.path()), before);
}

#[tokio::test]
async fn a_file_where_a_folder_belongs_is_not_an_empty_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder, Mode::Write).await.expect("opened");
    let root = store.folder().expect("local").to_owned();
    begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    for part in [JOURNAL, SNAPSHOT, PLANS] {
        let path = root.join(part);
        let aside = root.join("aside");
        let moved = fs::rename(&path, &aside).is_ok();
        fs::write(&path, "").expect("a file");
        for mode in [Mode::Read, Mode::Write] {
            let error = open(&folder, mode).await.expect_err("a file");
            assert!(matches!(error, StoreError::NotAFolder { .. }), "{error}");
        }
        let error = store.read().await.expect_err("a file");
        assert!(matches!(error, StoreError::NotAFolder { .. }), "{error}");
        fs::remove_file(&path).expect("removed");
        if moved {
            fs::rename(&aside, &path).expect("back");
        }
    }
    store.read().await.expect("whole again");
    fs::rename(&root, root.with_extension("aside")).expect("moved");
    let error = store.read().await.expect_err("gone");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    fs::write(&root, "").expect("a file");
    for mode in [Mode::Read, Mode::Write] {
        let error = open(&folder, mode).await.expect_err("a file");
        assert!(matches!(error, StoreError::NotAFolder { .. }), "{error}");
    }
}

#[tokio::test]
async fn leftovers_of_killed_writers_are_swept_when_they_are_old() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder, Mode::Write).await.expect("opened");
    begin(&store, process(1), run("apply"))
        .await
        .expect("begun");
    let root = store.folder().expect("local");
    let now = fs::metadata(root).and_then(|meta| meta.modified());
    let old = now.expect("a time") - Duration::from_secs(3600);
    let leftovers = ["journal/000000000002.json#1", "state.json#12", "probe-00ff"];
    for (path, is_old) in leftovers
        .iter()
        .map(|path| (*path, true))
        .chain([("journal/000000000003.json#1", false), ("notes#a", true)])
    {
        let file = fs::File::create(root.join(path)).expect("a file");
        if is_old {
            file.set_modified(old).expect("a time");
        }
    }
    // A reader neither minds nor sweeps.
    let reader = open(&folder, Mode::Read).await.expect("opened");
    reader.read().await.expect("whole");
    assert!(root.join(leftovers[0]).exists());
    let store = open(&folder, Mode::Write).await.expect("opened");
    for path in leftovers {
        assert!(!root.join(path).exists(), "{path}");
    }
    assert!(
        root.join("journal/000000000003.json#1").exists(),
        "its writer may live"
    );
    assert!(root.join("notes#a").exists(), "not ours");
    store.read().await.expect("whole");
}

#[test]
fn errors_of_the_file_system_ask_for_different_deeds() {
    let of = |kind: io::ErrorKind| {
        // As `object_store` wraps them.
        let error = object_store::Error::Generic {
            store: "LocalFileSystem",
            source: Box::new(io::Error::other(io::Error::from(kind))),
        };
        StoreError::of_object("state/demo", "writing x", &error)
    };
    let text = |kind| of(kind).to_string();
    assert!(text(io::ErrorKind::ReadOnlyFilesystem).contains("read-only"));
    assert!(text(io::ErrorKind::PermissionDenied).contains("permission"));
    assert!(text(io::ErrorKind::StorageFull).contains("no space"));
    assert!(text(io::ErrorKind::QuotaExceeded).contains("no space"));
    assert!(text(io::ErrorKind::NotADirectory).contains("not a folder"));
    assert!(of(io::ErrorKind::TimedOut).may_pass());
    assert!(!of(io::ErrorKind::StorageFull).may_pass());
}
