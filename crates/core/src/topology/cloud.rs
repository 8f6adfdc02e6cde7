//! The clouds that there are adapters for, and how they differ as far as a topology file is concerned.

use serde::Serialize;

/// The clouds that there are adapters for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Cloud {
    /// The marketplace vast.ai.
    Vastai,
    /// Lambda Cloud.
    Lambda,
    /// Pods of RunPod.
    Runpod,
}

impl Cloud {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Vastai, Self::Lambda, Self::Runpod];

    /// The word of `kind` in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vastai => "vastai",
            Self::Lambda => "lambda",
            Self::Runpod => "runpod",
        }
    }

    /// The environment variable that has the key when the file names none: the provider's own.
    pub const fn key_variable(self) -> &'static str {
        match self {
            Self::Vastai => "VAST_API_KEY",
            Self::Lambda => "LAMBDA_API_KEY",
            Self::Runpod => "RUNPOD_API_KEY",
        }
    }

    /// Whether each of its machines is made with an SSH key of the account.
    pub const fn wants_ssh_key(self) -> bool {
        match self {
            Self::Vastai | Self::Runpod => false,
            Self::Lambda => true,
        }
    }

    /// Whether its machines run images of one's own, so that the agent may be in one.
    pub const fn takes_images(self) -> bool {
        match self {
            Self::Vastai | Self::Runpod => true,
            Self::Lambda => false,
        }
    }

    /// Whether its machines can be reached by a relay only: it maps no UDP port.
    pub const fn needs_relay(self) -> bool {
        match self {
            Self::Vastai | Self::Lambda => false,
            Self::Runpod => true,
        }
    }
}
