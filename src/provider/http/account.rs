//! Whose account a key is of, where the API has no name for it: it is called by the first key that rented on it, and shown by the
//! machines that were made there.
//!
//! What always holds: another key is believed only when a listing shows a machine of the recorded account; an empty listing proves
//! nothing. It refuses to conclude anything from a key that is only new.

use std::sync::OnceLock;

use secrecy::ExposeSecret as _;
use stageline_core::resource::{Cause, FailureClass};

use super::{CloudSettings, Fault, fingerprint};

/// Which account this is, once a listing has shown it.
#[derive(Default)]
pub struct KeyAccount(OnceLock<String>);

impl KeyAccount {
    /// As far as is known now.
    ///
    /// # Errors
    /// [`Fault`] when there is no key.
    pub fn now(&self, settings: &CloudSettings) -> Result<String, Fault> {
        match self.0.get() {
            Some(account) => Ok(account.clone()),
            None => by_key(settings),
        }
    }

    /// Whether only a listing can tell: the key is another one than machines are recorded under.
    pub fn is_open(&self, settings: &CloudSettings) -> bool {
        let known = settings.account.as_ref();
        let other = |known: &String| by_key(settings).is_ok_and(|own| own != *known);
        self.0.get().is_none() && known.is_some_and(other)
    }

    /// The account that a listing is of: the recorded one, when it is the same key, or the listing shows a machine that was made
    /// there, or an earlier one did.
    ///
    /// # Errors
    /// [`Fault`] when it may be another one.
    pub fn whose(
        &self,
        settings: &CloudSettings,
        lists_one_of: impl FnOnce(&str) -> bool,
    ) -> Result<String, Fault> {
        let own = by_key(settings)?;
        let known = match settings.account.as_ref() {
            None => own,
            Some(known) => {
                let proven = self.0.get() == Some(known);
                if own != *known && !proven && !lists_one_of(known) {
                    return Err(another(settings, &own, known));
                }
                known.clone()
            }
        };
        // Set before is the same.
        Ok(self.0.get_or_init(|| known).clone())
    }
}

fn by_key(settings: &CloudSettings) -> Result<String, Fault> {
    let key = settings.key.as_ref();
    let key = key.map_err(|cause| Fault::before(cause.clone()))?;
    Ok(format!("key-{}", fingerprint(key.expose_secret())))
}

fn another(settings: &CloudSettings, own: &str, known: &str) -> Fault {
    let name = &settings.name;
    let message = format!(
        "the key is another one than machines are recorded under: it is {own}, they are on account {known}, and none of them is \
         listed: this may be another account"
    );
    let cause = Cause::new(FailureClass::Auth, message);
    Fault::before(cause.hint(format!(
        "put the key that they were rented with back into [provider.{name}], end them, and change it then; if you are sure \
         that it is the same account and that they are gone, `stageline state rm` takes them out"
    )))
}
