//! Exit codes, and the one function that maps errors to them.

use std::process::ExitCode;

use stageline_core::diagnostic::Diagnostic;
use stageline_core::plan::Refusal;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::SourceFile;

use crate::machine::{MachineError, control};
use crate::store::{AppendError, BeginError, IdentityError, LockInfo, StoreError};

/// How the program ends. The numbers are a contract: scripts branch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, or nothing to do.
    Done = 0,
    /// The user can mend it: topology, credentials, files.
    User = 1,
    /// `plan --detailed-exitcode` found changes.
    Changes = 2,
    /// Apply stopped; the same command goes on.
    Stopped = 4,
    /// Something is in doubt or survives, and needs a person.
    Doubt = 5,
    /// Another run is at work, or this one was fenced.
    Locked = 6,
    /// A guard refused: price, budget, stale or consumed plan.
    Guard = 7,
    /// Destroy is finished, and protected items or ones that are not ours to end remain.
    Remains = 8,
    /// The arguments make no sense.
    Usage = 64,
    /// A bug in us.
    Bug = 70,
    /// Interrupted.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed, for people and for the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// One sentence; empty when there are diagnostics.
    pub message: String,
    /// What to do now.
    pub hint: Option<String>,
    /// Findings with their places.
    pub diagnostics: Vec<Diagnostic>,
    /// The files that the places are in.
    pub files: Vec<SourceFile>,
}

impl Failure {
    /// A failure without a hint yet.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
            diagnostics: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Something that the user can mend.
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(Exit::User, message)
    }

    /// Adds what to do now.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Findings of the reader or the planner.
    pub fn diagnostics(diagnostics: Vec<Diagnostic>, files: Vec<SourceFile>) -> Self {
        let guards = ["plan/over-limit", "plan/protected", "plan/unguarded"];
        let guard = diagnostics.iter().all(|one| guards.contains(&one.code));
        let blind = diagnostics.iter().any(|one| one.code == "plan/blind");
        let exit = match (guard, blind) {
            (true, _) => Exit::Guard,
            (false, true) => Exit::Doubt,
            (false, false) => Exit::User,
        };
        Self {
            diagnostics,
            files,
            ..Self::new(exit, "")
        }
    }
}

/// What a reader or writer of the outside world said.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::user(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::user(error.to_string()).hint(error.hint())
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Self::user(error.to_string()).hint(error.hint())
    }
}

impl From<AppendError> for Failure {
    fn from(error: AppendError) -> Self {
        let exit = match &error {
            AppendError::Fenced { .. } => Exit::Locked,
            // What refuses every write refused this one too: the run goes on when that is mended.
            AppendError::InDoubt { cause, .. } => match &**cause {
                StoreError::Full { .. }
                | StoreError::ReadOnly { .. }
                | StoreError::Credentials { .. }
                | StoreError::Denied { .. } => Exit::Stopped,
                StoreError::Scheme { .. }
                | StoreError::LeftOut { .. }
                | StoreError::Unreachable { .. }
                | StoreError::NoBucket { .. }
                | StoreError::Rejected { .. }
                | StoreError::Url { .. }
                | StoreError::NotAFolder { .. }
                | StoreError::Unfit { .. }
                | StoreError::Corrupt { .. }
                | StoreError::Newer { .. }
                | StoreError::Moved { .. }
                | StoreError::Occupied { .. }
                | StoreError::Restless { .. }
                | StoreError::OpenedToRead { .. }
                | StoreError::Failed { .. } => Exit::Doubt,
            },
            AppendError::Impossible(_) | AppendError::Closed => Exit::Bug,
        };
        Self::new(exit, error.to_string()).hint(error.hint())
    }
}

impl From<BeginError> for Failure {
    fn from(error: BeginError) -> Self {
        let exit = match &error {
            BeginError::Store(_) => Exit::User,
            BeginError::Stale | BeginError::Consumed { .. } | BeginError::NotResumable { .. } => {
                Exit::Guard
            }
            BeginError::RunOpen { .. } => Exit::Locked,
            BeginError::Append(error) => return error.clone().into(),
        };
        Self::new(exit, error.to_string()).hint(error.hint())
    }
}

/// What keeps this computer from reaching any machine.
impl From<control::Refusal> for Failure {
    fn from(refusal: control::Refusal) -> Self {
        let failure = Self::user(refusal.message);
        match refusal.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<LockInfo> for Failure {
    fn from(held: LockInfo) -> Self {
        Self::new(Exit::Locked, held.to_string()).hint(held.hint())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(Exit::Guard, refusal.to_string()).hint(refusal.hint())
    }
}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        let message = error.to_string();
        match error {
            MachineError::Unreachable { lease, .. } => Self::new(Exit::Stopped, message).hint(
                format!("`stageline plan` shows whether {lease} is still there"),
            ),
            MachineError::Refused { hint, .. } => Self {
                hint,
                ..Self::user(message)
            },
        }
    }
}

/// The exit code of a step that was refused.
pub(crate) fn of_cause(cause: &Cause) -> Exit {
    match cause.class {
        FailureClass::Auth | FailureClass::Config | FailureClass::Quota => Exit::User,
        FailureClass::Money => Exit::Guard,
        FailureClass::Capacity
        | FailureClass::OfferGone
        | FailureClass::Rate
        | FailureClass::Unknown => Exit::Stopped,
    }
}

/// Help and version are no errors; everything else on the command line is.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    match (error.use_stderr(), printed) {
        (false, _) => Exit::Done.into(),
        (true, _) => Exit::Usage.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(codes: &[&'static str]) -> Exit {
        let faults = codes.iter().map(|code| Diagnostic::error(code, "so"));
        Failure::diagnostics(faults.collect(), vec![]).exit
    }

    #[test]
    fn a_plan_that_cannot_be_says_who_must_act() {
        assert_eq!(exit(&["plan/over-limit"]), Exit::Guard);
        assert_eq!(exit(&["plan/unguarded", "plan/over-limit"]), Exit::Guard);
        assert_eq!(exit(&["plan/no-offer", "plan/over-limit"]), Exit::User);
        assert_eq!(exit(&["plan/no-offer", "plan/blind"]), Exit::Doubt);
    }

    #[test]
    fn what_only_a_bug_can_cause_is_called_one() {
        assert_eq!(Failure::from(AppendError::Closed).exit, Exit::Bug);
    }
}
