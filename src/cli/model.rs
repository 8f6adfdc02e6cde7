//! Looks at the model files of a topology: digest, length, header.
//!
//! A plan binds to the content of a model, so a local file is read whole for its digest, each file once. Of a model on
//! a server only the header is read: its digest is declared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use sha2::Digest as _;
use stageline_core::diagnostic::Diagnostic;
use stageline_core::id::{Name, Sha256};
use stageline_core::model::{HEADER_MAX, Index, ModelError, Parsed};
use stageline_core::plan::{ModelFacts, ModelShape};
use stageline_core::resource::ModelOrigin;
use stageline_core::topology::{Engine, Fetch, Model, ModelSource, Topology};
use stageline_core::unit::Bytes;

use super::keys::References;
use crate::apply::Secrets as _;
use crate::machine::fetch;

/// What is read of a file at once.
const PIECE: usize = 1 << 20;

/// The facts of the model of each pipeline that declares one; every fault at once.
pub(crate) async fn look(
    topology: &Topology,
    folder: &Path,
) -> Result<BTreeMap<Name, ModelFacts>, Vec<Diagnostic>> {
    let mut files: BTreeMap<PathBuf, Result<(Sha256, Bytes), String>> = BTreeMap::new();
    let mut models = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, pipeline) in &topology.pipelines {
        let Some(model) = &pipeline.model else {
            continue;
        };
        let native = matches!(pipeline.engine, Engine::Native);
        let facts = match &model.source {
            ModelSource::Path(path) => {
                let path = folder.join(path);
                let digest = files.entry(path.clone()).or_insert_with(|| digest(&path));
                local(name, model, &path, digest, native)
            }
            ModelSource::Url(url) => remote(name, model, url, native, folder).await,
        };
        match facts {
            Ok(facts) => {
                models.insert(name.clone(), facts);
            }
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        Ok(models)
    } else {
        Err(faults)
    }
}

fn local(
    name: &Name,
    model: &Model,
    path: &Path,
    digest: &Result<(Sha256, Bytes), String>,
    native: bool,
) -> Result<ModelFacts, Diagnostic> {
    let shown = path.display();
    let (sha256, size) = digest.clone().map_err(|why| {
        Diagnostic::error(
            "model/missing",
            format!("pipeline.{name}: cannot read the model {shown}: {why}"),
        )
        .hint(format!(
            "correct `path` of [pipeline.{name}].model, or fetch the file"
        ))
    })?;
    if let Some(declared) = model.sha256.filter(|declared| *declared != sha256) {
        let message = format!(
            "pipeline.{name}: {shown} is another file: its sha256 is {sha256}, declared is {declared}"
        );
        return Err(Diagnostic::error("model/digest", message)
            .hint("fetch the right file, or correct `sha256` if this one is meant"));
    }
    let index = if native {
        Some(header(name, path, size)?)
    } else {
        None
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(ModelFacts {
        sha256,
        size,
        origin: ModelOrigin::Operator(absolute),
        token: None,
        shape: index.as_ref().map(ModelShape::from),
    })
}

/// Digest and length of a file.
fn digest(path: &Path) -> Result<(Sha256, Bytes), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut file = File::open(path).map_err(text)?;
    if !file.metadata().map_err(text)?.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut sha256 = sha2::Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0_u64;
    loop {
        match file.read(&mut piece).map_err(text)? {
            0 => break,
            n => {
                sha256.update(&piece[..n]);
                size += u64::try_from(n).expect("a piece is small");
            }
        }
    }
    Ok((Sha256(sha256.finalize().into()), Bytes(size)))
}

fn header(name: &Name, path: &Path, size: Bytes) -> Result<Index, Diagnostic> {
    let shown = path.display().to_string();
    let failed = |error: std::io::Error| {
        Diagnostic::error(
            "model/missing",
            format!("pipeline.{name}: cannot read {shown}: {error}"),
        )
    };
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut wanted = u64::try_from(PIECE).expect("a piece is small");
    loop {
        let missing = wanted.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let read = file
            .by_ref()
            .take(missing)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        match Index::parse(&bytes).map_err(|error| fault(name, &shown, error))? {
            Parsed::Whole(index) => {
                index
                    .check_size(size)
                    .map_err(|error| fault(name, &shown, error))?;
                return Ok(*index);
            }
            Parsed::NeedMore(_) if read == 0 => return Err(cut(name, &shown, size)),
            Parsed::NeedMore(more) => wanted = more.max(wanted * 2).min(HEADER_MAX),
        }
    }
}

async fn remote(
    name: &Name,
    model: &Model,
    url: &str,
    native: bool,
    folder: &Path,
) -> Result<ModelFacts, Diagnostic> {
    let shown = fetch::shown(url);
    let failed = |why: String| {
        Diagnostic::error("model/missing", format!("pipeline.{name}: {why}")).hint(format!(
            "correct `url` of [pipeline.{name}].model, or try again"
        ))
    };
    let sha256 = model
        .sha256
        .ok_or_else(|| failed(format!("{shown} has no `sha256`")))?;
    let secrets = References {
        folder: folder.to_owned(),
    };
    let token = model.token.as_ref().map(|token| secrets.read(token));
    let token = token
        .transpose()
        .map_err(|cause| failed(format!("the token for {shown}: {}", cause.message)))?;
    let response = fetch::open(url, token.as_ref())
        .await
        .map_err(|refusal| failed(refusal.message))?;
    let size = response.content_length().map(Bytes).ok_or_else(|| {
        failed(format!(
            "{shown}: the server does not say how long the file is"
        ))
    })?;
    let origin = match model.fetch {
        Fetch::Machine => ModelOrigin::MachineUrl(url.to_owned()),
        Fetch::Operator => ModelOrigin::OperatorUrl(url.to_owned()),
    };
    if !native {
        return Ok(ModelFacts {
            sha256,
            size,
            origin,
            token: model.token.clone(),
            shape: None,
        });
    }
    let mut bytes = Vec::new();
    let mut wanted = 0;
    let mut body = response.bytes_stream();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| failed(format!("{shown}: {error}")))?;
        bytes.extend_from_slice(&piece);
        let have = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if have < wanted {
            continue;
        }
        match Index::parse(&bytes).map_err(|error| fault(name, &shown, error))? {
            Parsed::Whole(index) => {
                index
                    .check_size(size)
                    .map_err(|error| fault(name, &shown, error))?;
                return Ok(ModelFacts {
                    sha256,
                    size,
                    origin,
                    token: model.token.clone(),
                    shape: Some(ModelShape::from(&*index)),
                });
            }
            // Beginning anew for each piece would cost the square of the header.
            Parsed::NeedMore(more) => wanted = more.max(have + have / 2),
        }
    }
    Err(cut(name, &shown, size))
}

fn fault(name: &Name, shown: &str, error: ModelError) -> Diagnostic {
    let mut fault = Diagnostic::error(
        error.code,
        format!("pipeline.{name}: {shown} {}", error.message),
    );
    fault.hint = error.hint;
    fault
}

fn cut(name: &Name, shown: &str, size: Bytes) -> Diagnostic {
    Diagnostic::error(
        "model/cut",
        format!(
            "pipeline.{name}: {shown} ends within its header, after {} bytes",
            size.0
        ),
    )
    .hint("fetch the file again")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a local file whose digest was found to be this.
    fn code(declared: Option<Sha256>, found: Result<(Sha256, Bytes), String>) -> &'static str {
        let name: Name = "chat".parse().expect("a name");
        let path = PathBuf::from("m.gguf");
        let model = Model {
            source: ModelSource::Path(path.clone()),
            sha256: declared,
            token: None,
            fetch: Fetch::Operator,
        };
        match local(&name, &model, &path, &found, false) {
            Ok(_) => "fine",
            Err(fault) => fault.code,
        }
    }

    #[test]
    fn a_file_that_is_not_the_declared_one_is_refused() {
        let one = Sha256([1; 32]);
        let other = Sha256([2; 32]);
        assert_eq!(code(None, Ok((one, Bytes(7)))), "fine");
        assert_eq!(code(Some(one), Ok((one, Bytes(7)))), "fine");
        assert_eq!(code(Some(other), Ok((one, Bytes(7)))), "model/digest");
        assert_eq!(code(None, Err("no such file".to_owned())), "model/missing");
    }
}
