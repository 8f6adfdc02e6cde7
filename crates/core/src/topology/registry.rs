//! Who may pull a private image: the key `registry` of an offer or a lease.
//!
//! It is for the registry that the image is on and no other, and only where a provider pulls images for its machines.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::read::Fields;
use super::taken::Taken;
use super::{ProviderKind, SecretRef, build, convert};

/// Where images are that name no place.
const USUAL: &str = "docker.io";

/// Other names of that place.
const ALSO_USUAL: [&str; 3] = ["index.docker.io", "registry-1.docker.io", "hub.docker.com"];

/// A login at a registry of images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Registry {
    /// The registry, such as `ghcr.io`.
    pub server: String,
    /// Who pulls.
    pub username: String,
    /// By reference.
    pub password: SecretRef,
}

/// Reads the key `registry` of an offer or a lease.
pub(super) fn read(fields: &Fields<'_>) -> Option<Registry> {
    let field = fields.get("registry")?;
    let inner = build::inside(fields, field, "registry")?;
    let server = inner.read("server", convert::image);
    let username = inner.read("username", convert::image);
    let password = inner.read("password", convert::secret);
    Some(Registry {
        server: server?,
        username: username?,
        password: password?,
    })
}

/// The registry that an image is on, by its reference.
fn server_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        Some(_) | None => USUAL,
    }
}

/// One name for a place that has several.
fn place_of(server: &str) -> &str {
    let bare = server.trim_start_matches("https://").trim_end_matches('/');
    match bare.split('/').next() {
        Some(host) if ALSO_USUAL.contains(&host) => USUAL,
        Some(host) => host,
        None => bare,
    }
}

/// Whether each login is one that its provider can use, for the image of its offer.
pub(super) fn check(root: &Fields<'_>, taken: &[Taken<'_>]) {
    for taken in taken {
        let Some(registry) = &taken.offer.registry else {
            continue;
        };
        let fault = |code, message: String, hint: String| {
            root.fault(taken.place(root, "registry"), code, message, hint);
        };
        let kind = taken.provider.map(|it| &it.kind);
        let pulls = match kind {
            Some(ProviderKind::Cloud { cloud, .. }) => cloud.takes_images(),
            Some(
                ProviderKind::Local { .. }
                | ProviderKind::Ssh { .. }
                | ProviderKind::Command { .. },
            ) => false,
            // Said elsewhere.
            None => continue,
        };
        if !pulls {
            let kind = kind.map_or("", ProviderKind::as_str);
            let message = format!(
                "{taken}: no image is pulled for machines of `{kind}`, so that there is nothing to log in for"
            );
            fault("topology/conflict", message, "remove `registry`".to_owned());
            continue;
        }
        let Some(image) = &taken.offer.image else {
            let message = format!("{taken} has a `registry` and no `image` to pull from it");
            let hint = format!(
                "add `image = \"{}/...\"`, or remove `registry`",
                registry.server
            );
            fault("topology/missing-key", message, hint);
            continue;
        };
        let (on, of) = (server_of(image), place_of(&registry.server));
        if on != of {
            let message =
                format!("{taken}: its image is on `{on}`, and its `registry` is for `{of}`");
            let hint = format!(
                "write `server = \"{on}\"`, or the whole reference of the image, with its registry"
            );
            fault("topology/conflict", message, hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_an_image_is_before_its_first_slash_when_that_is_a_host() {
        for (image, server) in [
            ("ghcr.io/example/agent:1", "ghcr.io"),
            ("localhost/agent", "localhost"),
            ("registry:5000/agent", "registry:5000"),
            ("example/agent:1", "docker.io"),
            ("agent", "docker.io"),
        ] {
            assert_eq!(server_of(image), server, "{image}");
        }
        for (server, place) in [
            ("ghcr.io", "ghcr.io"),
            ("index.docker.io/v1/", "docker.io"),
            ("docker.io", "docker.io"),
        ] {
            assert_eq!(place_of(server), place, "{server}");
        }
    }
}
