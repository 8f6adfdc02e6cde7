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

    /// What it calls volumes that can be mounted on its machines.
    pub const fn volumes(self) -> &'static str {
        match self {
            Self::Vastai => "volumes",
            Self::Lambda => "file systems",
            Self::Runpod => "network volumes",
        }
    }

    /// How many of them one machine can have.
    pub const fn mounts_max(self) -> usize {
        match self {
            Self::Vastai | Self::Runpod => 1,
            Self::Lambda => 16,
        }
    }

    /// Below which folders of the root they can be mounted; anywhere when it is empty.
    pub const fn mount_points(self) -> &'static [&'static str] {
        match self {
            Self::Vastai | Self::Runpod => &[],
            Self::Lambda => &["lambda/nfs", "home", "data"],
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
