//! Private images: which image is one, and who may pull it.
//!
//! It speaks to no registry: an image with `private` in its path is private, and is pulled by the user [`USER`] with a password
//! that begins with [`PASSWORD_HEAD`].

/// Who may pull.
pub const USER: &str = "rehearsal";

/// What the password begins with.
pub const PASSWORD_HEAD: &str = "pull-";

/// Whether a host may pull an image, with this user and password.
pub(super) fn may_pull(image: &str, login: Option<(&str, &str)>) -> bool {
    let private = image.split(['/', ':']).any(|part| part == "private");
    let lets_in =
        |(user, password): (&str, &str)| user == USER && password.starts_with(PASSWORD_HEAD);
    !private || login.is_some_and(lets_in)
}

/// The same for a login as words of a command line, which also name the registry.
pub(super) fn may_pull_by(image: &str, line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let login = match words.as_slice() {
        ["-u", user, "-p", password, server]
            if image.starts_with(&format!("{server}/")) || *server == "docker.io" =>
        {
            Some((*user, *password))
        }
        _ => None,
    };
    may_pull(image, login)
}

/// What the daemon of a host says of one that may not be pulled.
pub(super) fn denied(image: &str) -> String {
    let name = image.rsplit_once(':').map_or(image, |(name, _)| name);
    format!(
        "Error response from daemon: pull access denied for {name}, repository does not exist or may require 'docker login': \
         denied: requested access to the resource is denied"
    )
}

/// The word for it among those of boots that fail.
pub(super) const DENIED: &str = "denied";
