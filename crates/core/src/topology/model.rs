//! Which model a pipeline serves: a file here, one on a server, or one on the Hugging Face hub, which is one on a server.

use super::convert;
use super::read::{Field, Fields};
use super::{Fetch, Model, ModelSource};
use crate::diagnostic::shown;

/// Where files of the hub are. Its `resolve` addresses lead to the file itself.
/// Source: huggingface_hub, "Download files from the Hub", `hf_hub_url`.
const HUB: &str = "https://huggingface.co";

/// What exactly one of must be said.
const SOURCES: [&str; 3] = ["path", "url", "hf"];

/// A model, checked for what its source needs.
pub(super) fn model(fields: &Fields<'_>) -> Option<Model> {
    let path = fields.read("path", convert::file);
    let url = fields.read("url", convert::url);
    let hub = fields.read("hf", hub);
    let sha256 = fields.read("sha256", convert::sha256);
    let token = fields.read("token", convert::secret);
    let fetch = fields.read("fetch", |field| {
        convert::choice(field, &[Fetch::Machine, Fetch::Operator])
    });
    let said: Vec<&str> = SOURCES.into_iter().filter(|key| fields.has(key)).collect();
    match said.as_slice() {
        [] => {
            let message = format!("{} needs `path`, `url` or `hf`", fields.title());
            let hint = "such as `path = \"models/small.gguf\"`";
            fields.fault(fields.at, "topology/missing-key", message, hint);
        }
        ["path"] => fetches_nothing(fields),
        [remote] => has_digest(fields, remote),
        [first, second, ..] => {
            let message = format!("{} has `{first}` and `{second}`", fields.title());
            let at = fields.at_key(second);
            fields.fault(at, "topology/conflict", message, "keep one of the two");
        }
    }
    let source = match (path, url.or(hub)) {
        (Some(path), _) => ModelSource::Path(path),
        (None, Some(url)) => ModelSource::Url(url),
        (None, None) => return None,
    };
    Some(Model {
        source,
        sha256,
        token,
        fetch: fetch.unwrap_or(Fetch::Machine),
    })
}

fn fetches_nothing(fields: &Fields<'_>) {
    for key in ["token", "fetch"] {
        if fields.has(key) {
            let message = format!(
                "{}: `{key}` belongs to a `url` or `hf`, and this model has a `path`",
                fields.title()
            );
            let hint = format!("remove `{key}`");
            fields.fault(fields.at_key(key), "topology/conflict", message, hint);
        }
    }
}

fn has_digest(fields: &Fields<'_>, source: &str) {
    if fields.has("sha256") {
        return;
    }
    let message = format!("{} has `{source}`, which needs `sha256`", fields.title());
    let hint = match source {
        "hf" => {
            "what comes over the network is checked against its digest; the page of the file shows it as SHA256"
        }
        _ => {
            "what comes over the network is checked against its digest; `sha256sum FILE` prints it"
        }
    };
    fields.fault(fields.at_key(source), "topology/missing-key", message, hint);
}

/// A file of the hub by its address there: the form of its file system, without `hf://`.
/// Source: huggingface_hub, "Interact with the Hub through the Filesystem API", `hf://[repo_type/]repo_id[@revision]/path`.
fn hub(field: Field<'_>) -> Option<String> {
    let text = field.text()?;
    let address = address(text);
    if address.is_none() {
        let message = format!(
            "`{}` is no file of the hub: OWNER/REPOSITORY[@REVISION]/FILE",
            shown(text)
        );
        let hint =
            "such as `HuggingFaceTB/SmolLM2-135M-Instruct-GGUF/smollm2-135m-instruct-q8_0.gguf`";
        field.bad(message, Some(hint.to_owned()));
    }
    address
}

fn address(text: &str) -> Option<String> {
    let (owner, rest) = text.strip_prefix("hf://").unwrap_or(text).split_once('/')?;
    let (repository, file) = rest.split_once('/')?;
    let (repository, revision) = repository.split_once('@').unwrap_or((repository, "main"));
    // A revision with a slash in it is written with %2F there.
    let parts = [owner, repository].into_iter().chain(file.split('/'));
    let named = parts.into_iter().all(|part| is_plain(part, b"._-+="));
    (named && is_plain(revision, b"._-+=%"))
        .then(|| format!("{HUB}/{owner}/{repository}/resolve/{revision}/{file}"))
}

/// Whether it stands for itself in an address.
fn is_plain(part: &str, marks: &[u8]) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || marks.contains(&byte);
    !part.is_empty() && !part.bytes().all(|byte| byte == b'.') && part.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_file_of_the_hub_has_an_address() {
        let base = "https://huggingface.co/org/model/resolve";
        for (text, end) in [
            ("org/model/small.gguf", "main/small.gguf"),
            ("hf://org/model/small.gguf", "main/small.gguf"),
            ("org/model@v1.0/q8/small.gguf", "v1.0/q8/small.gguf"),
            ("org/model@refs%2Fpr%2F3/a.gguf", "refs%2Fpr%2F3/a.gguf"),
        ] {
            assert_eq!(address(text), Some(format!("{base}/{end}")), "{text}");
        }
        for text in [
            "org/model",
            "small.gguf",
            "org//small.gguf",
            "org/model@/small.gguf",
            "org/model/../small.gguf",
            "org/model/a b.gguf",
            "org/model/a.gguf?x=1",
            "https://huggingface.co/org/model/small.gguf",
            "org/model/",
        ] {
            assert_eq!(address(text), None, "{text}");
        }
    }
}
