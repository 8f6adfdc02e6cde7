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
    let made = Identity::make(&store, None).expect("made");
    let again = Identity::make(&store, None).expect("found");
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
    let made = Identity::make(&store, None).expect("made");
    let path = store.folder().expect("local").join("identity.key");
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let error = Identity::of(&store, &genesis(&made), None).expect_err("exposed");
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error}");
        assert!(error.hint().contains("chmod 600"), "{}", error.hint());
        assert!(Identity::make(&store, None).is_err());
    }
}

#[tokio::test]
async fn a_missing_or_foreign_one_names_the_operator_and_no_new_one_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder).await;
    let made = Identity::make(&store, None).expect("made");
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
    let made = Identity::make(&store, None).expect("made");
    let path = store.folder().expect("local").join("identity.key");
    let text = fs::read_to_string(&path).expect("text");
    let secret = text.trim();
    assert!(!format!("{made:?}").contains(&secret[..8]));
    for broken in [
        &secret[..63],
        &format!("{}g", &secret[..63]),
        &format!("{secret}00"),
    ] {
        let error = Identity::make(&store, Some(&SecretString::from(broken.to_owned())))
            .expect_err("no key");
        let shown = format!("{error} {error:?} {}", error.hint());
        assert!(!shown.contains(&secret[..8]), "{shown}");
    }
}
