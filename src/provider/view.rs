//! What can be seen of an account whose parts do not hang on each other: hosts of one's own, of which one may be away.
//!
//! What cannot be seen is said and is never taken for empty: whoever draws a conclusion from such a view asks first whether what
//! it looks for could be in a part that is missing.

use stageline_core::id::Name;
use stageline_core::resource::Cause;

use super::{Blind, Machine};

/// All that can be seen of an account now.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The machines.
    pub machines: Vec<Machine>,
    /// What is missing in it.
    pub unseen: Vec<Unseen>,
}

/// A part of an account that cannot be seen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// Its name: ids of machines on it begin with that and a slash, quotes of it end with a colon and that.
    pub part: String,
    /// Why.
    pub cause: Cause,
}

impl Unseen {
    /// Whether what has this id, or was made from this quote, would be there.
    pub fn concerns(&self, machine_or_quote: &str) -> bool {
        let on = machine_or_quote.strip_prefix(&self.part);
        let from = machine_or_quote.strip_suffix(&self.part);
        on.is_some_and(|rest| rest.starts_with('/')) || from.is_some_and(|rest| rest.ends_with(':'))
    }
}

impl View {
    /// The machines, where nothing that is looked for could be in a part that is missing.
    ///
    /// # Errors
    /// [`Blind`] by the first part that it could be in.
    pub fn but(
        self,
        provider: &Name,
        concerns: impl Fn(&Unseen) -> bool,
    ) -> Result<Vec<Machine>, Blind> {
        match self.unseen.into_iter().find(concerns) {
            None => Ok(self.machines),
            Some(unseen) => Err(Blind {
                provider: provider.clone(),
                cause: unseen.cause,
                retry_after: None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stageline_core::resource::FailureClass;

    #[test]
    fn a_part_concerns_what_is_on_it_alone() {
        let away = Unseen {
            part: "root@gpu1:22".to_owned(),
            cause: Cause::new(FailureClass::Unknown, "it is away"),
        };
        for there in ["root@gpu1:22/sl-1", "box:root@gpu1:22"] {
            assert!(away.concerns(there), "{there}");
        }
        for elsewhere in [
            "root@gpu1:2222/sl-1",
            "root@gpu2:22/sl-1",
            "box:root@gpu2:22",
            "xroot@gpu1:22",
            "",
        ] {
            assert!(!away.concerns(elsewhere), "{elsewhere}");
        }
    }
}
