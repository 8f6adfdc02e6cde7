//! The identity: made once, owner-only, and never another's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use secrecy::SecretString;
use stageline_core::state::Genesis;

use super::*;

async fn store(folder: &tempfile::TempDir) -> Store {
    let url = folder
        .path()
        .to_str()
        .expect("text")
        .parse()
        .expect("a path");
    Store::open(&url, &name("demo"), None, Mode::Write)
        .await
        .expect("opened")
}

fn genesis(identity: &Identity) -> Genesis {
    Genesis {
        lineage: LINEAGE,
        operator: identity.operator(&LINEAGE),
        topology: name("demo"),
    }
}

#[tokio::test]
async fn it_is_made_once_for_its_owner_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let made = Identity::make(&store, &LINEAGE, None).expect("made");
    let again = Identity::make(&store, &LINEAGE, None).expect("found");
    assert_eq!(made.secret().expose(), again.secret().expose());
    let path = store.folder().expect("local").join("identity.key");
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let found = Identity::of(&store, &genesis(&made), None).expect("ours");
    assert_eq!(found.operator(&LINEAGE), made.operator(&LINEAGE));
    let left: Vec<_> = fs::read_dir(store.folder().expect("local"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["identity.key"]);
}

#[tokio::test]
async fn a_key_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let made = Identity::make(&store, &LINEAGE, None).expect("made");
    let path = store.folder().expect("local").join("identity.key");
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let error = Identity::of(&store, &genesis(&made), None).expect_err("exposed");
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error}");
        assert!(error.hint().contains("chmod 600"), "{}", error.hint());
        assert!(Identity::make(&store, &LINEAGE, None).is_err());
    }
}

#[tokio::test]
async fn a_missing_or_foreign_one_names_the_operator_and_no_new_one_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let made = Identity::make(&store, &LINEAGE, None).expect("made");
    let genesis = genesis(&made);
    let path = store.folder().expect("local").join("identity.key");
    let text = fs::read_to_string(&path).expect("text");
    fs::remove_file(&path).expect("removed");
    let operator = genesis.operator.to_string();
    let missing = Identity::of(&store, &genesis, None).expect_err("missing");
    assert!(missing.to_string().contains(&operator), "{missing}");
    assert!(!path.exists());
    let foreign = SecretString::from("11".repeat(32));
    let different = Identity::of(&store, &genesis, Some(&foreign)).expect_err("different");
    assert!(different.to_string().contains(&operator), "{different}");
    assert!(different.hint().contains("STAGELINE_IDENTITY"));
    let ours = SecretString::from(text);
    Identity::of(&store, &genesis, Some(&ours)).expect("by the variable");
}

#[tokio::test]
async fn nothing_that_is_shown_holds_the_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let made = Identity::make(&store, &LINEAGE, None).expect("made");
    let path = store.folder().expect("local").join("identity.key");
    let text = fs::read_to_string(&path).expect("text");
    let secret = text.trim();
    assert!(!format!("{made:?}").contains(&secret[..8]));
    for broken in [
        &secret[..63],
        &format!("{}g", &secret[..63]),
        &format!("{secret}00"),
    ] {
        let error = Identity::make(
            &store,
            &LINEAGE,
            Some(&SecretString::from(broken.to_owned())),
        )
        .expect_err("no key");
        let shown = format!("{error} {error:?} {}", error.hint());
        assert!(!shown.contains(&secret[..8]), "{shown}");
    }
}

/// A state in a bucket, as far as identities see it.
async fn shared(keys: Option<std::path::PathBuf>, ci: Option<&str>) -> Store {
    let variables = ci.map(|ci| ("CI".to_owned(), ci.to_owned()));
    let mut store = writer_on(&memory()).await;
    store.patience = &super::super::patience::BUCKET;
    store.around = Arc::new(Surroundings::new(variables.into_iter().collect(), keys));
    store
}

#[tokio::test]
async fn a_shared_state_keeps_its_key_on_this_computer_by_its_lineage() {
    let home = tempfile::tempdir().expect("a folder");
    let keys = home.path().join("deep/keys");
    let store = shared(Some(keys.clone()), None).await;
    let made = Identity::make(&store, &LINEAGE, None).expect("made");
    let path = keys.join(format!("{LINEAGE}.key"));
    let mode =
        |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&keys)), (0o600, 0o700));
    let listed = store.objects.list(None).try_collect::<Vec<_>>().await;
    assert_eq!(
        listed.expect("listed"),
        [],
        "nothing of it is in the bucket"
    );

    let genesis = genesis(&made);
    Identity::of(&store, &genesis, None).expect("found");
    // A colleague's computer.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let store = shared(Some(elsewhere.path().join("keys")), None).await;
    let missing = Identity::of(&store, &genesis, None).expect_err("missing");
    let hint = missing.hint();
    assert!(hint.contains(&format!("{LINEAGE}.key")), "{hint}");
    assert!(hint.contains("STAGELINE_IDENTITY"), "{hint}");
    // The state was in a folder once, and its key still is.
    let folder = elsewhere.path().join("state/demo");
    fs::create_dir_all(&folder).expect("made");
    fs::copy(&path, folder.join("identity.key")).expect("copied");
    let around = Surroundings::new(Default::default(), Some(elsewhere.path().join("keys")));
    let mut store = store;
    store.around = Arc::new(around.beside(folder));
    Identity::of(&store, &genesis, None).expect("found beside the topology");
}

#[tokio::test]
async fn a_ci_job_makes_no_identity_that_ends_with_it() {
    let home = tempfile::tempdir().expect("a folder");
    for (keys, ci) in [(Some(home.path().join("keys")), Some("true")), (None, None)] {
        let store = shared(keys, ci).await;
        let error = Identity::make(&store, &LINEAGE, None).expect_err("none is made");
        assert!(
            error.hint().contains("openssl rand -hex 32"),
            "{}",
            error.hint()
        );
        let given = SecretString::from("ab".repeat(32));
        Identity::make(&store, &LINEAGE, Some(&given)).expect("the one that is given");
    }
    assert!(fs::read_dir(home.path()).expect("there").next().is_none());
}
