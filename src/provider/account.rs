//! Whose account an answer is about: a listing of another account says nothing about machines that are not in it.
//!
//! Each machine is recorded with the account that it was made on. Before anything is concluded from a machine's absence,
//! that account is compared with the one that answers. It never concludes anything where an adapter knows no accounts,
//! and it shows keys by reference and fingerprint only.

use stageline_core::id::Name;
use stageline_core::resource::{Account, Cause, FailureClass};
use stageline_core::topology::SecretRef;

/// Whether what an account answers now is about the one that a machine was made on.
///
/// # Errors
/// [`Cause`] when it is another one: then nothing is proven by what it does not list.
pub fn same_account(name: &Name, made_on: &Account, now: Option<&Account>) -> Result<(), Cause> {
    match now {
        Some(now) if now.id != made_on.id => Err(another(name, made_on, now)),
        Some(_) | None => Ok(()),
    }
}

fn another(name: &Name, made_on: &Account, now: &Account) -> Cause {
    let (was, is) = (told(made_on), told(now));
    let message = format!(
        "provider `{name}` answers for {is} now, but the machines were made on {was}: what it does not list may still run and bill there"
    );
    let hint = match (&made_on.api_key, &made_on.url) {
        (Some(_), _) => format!(
            "put the key of account {} back into [provider.{name}], then run the same command again; change the key once its machines are ended",
            made_on.id
        ),
        (None, Some(place)) => format!(
            "run the same command where they were made: {place}; if that is gone for good, `stageline state rm ADDR` gives them up"
        ),
        (None, None) => "run the same command where they were made".to_owned(),
    };
    Cause::new(FailureClass::Auth, message).hint(hint)
}

/// An account in words: its id, where it is, and by which key it is reached.
fn told(account: &Account) -> String {
    let Account {
        id,
        api_key,
        key_fingerprint,
        url,
        programs: _,
        ssh_keys: _,
    } = account;
    let at = url.as_ref().map(|url| format!(" at {url}"));
    let key = api_key.as_ref().map(|reference| {
        let reference = match reference {
            SecretRef::Env(name) => format!("variable {name}"),
            SecretRef::File(path) => format!("file {}", path.display()),
            SecretRef::Command(words) => {
                format!("command {}", words.first().map_or("", String::as_str))
            }
        };
        format!(" (key {key_fingerprint} from {reference})")
    });
    format!(
        "account {id}{}{}",
        at.unwrap_or_default(),
        key.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(id: &str, key: Option<&str>) -> Account {
        Account {
            id: id.to_owned(),
            api_key: key.map(|key| SecretRef::Env(key.to_owned())),
            key_fingerprint: key.map_or_else(String::new, |key| format!("fp-{key}")),
            url: key
                .is_none()
                .then(|| format!("file://computer-{id}/machines")),
            programs: None,
            ssh_keys: Vec::new(),
        }
    }

    #[test]
    fn the_message_names_both_accounts_both_keys_and_what_to_do() {
        let name: Name = "cloud".parse().expect("a name");
        let (ours, theirs) = (
            account("41", Some("OLD_KEY")),
            account("99", Some("NEW_KEY")),
        );
        let cause = same_account(&name, &ours, Some(&theirs)).expect_err("another account");
        let hint = cause.hint.unwrap_or_default();
        for word in [
            "cloud",
            "41",
            "99",
            "OLD_KEY",
            "NEW_KEY",
            "fp-OLD_KEY",
            "fp-NEW_KEY",
        ] {
            assert!(cause.message.contains(word), "{word}: {}", cause.message);
        }
        assert!(hint.contains("key of account 41"), "{hint}");
        assert_eq!(cause.class, FailureClass::Auth);
        assert_eq!(same_account(&name, &ours, Some(&ours)), Ok(()));
        assert_eq!(same_account(&name, &ours, None), Ok(()));
    }

    #[test]
    fn where_there_is_no_key_the_place_is_named() {
        let name: Name = "here".parse().expect("a name");
        let (ours, theirs) = (account("a", None), account("b", None));
        let cause = same_account(&name, &ours, Some(&theirs)).expect_err("another computer");
        assert!(cause.message.contains("computer-a"), "{}", cause.message);
        assert!(cause.message.contains("computer-b"), "{}", cause.message);
        let hint = cause.hint.unwrap_or_default();
        assert!(
            hint.contains("computer-a") && hint.contains("state rm"),
            "{hint}"
        );
    }
}
