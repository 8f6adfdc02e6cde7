//! Opens a bucket: its address and credentials out of the usual environment of its cloud, one crypto provider, and no
//! repetition by the library.
//!
//! Nothing is sent here. Plain HTTP is refused but to this computer: a bearer token would be readable on the way.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider,
};

use super::url::{Bucket, Cloud, Surroundings};
use super::{StoreError, failed};

/// To get a connection; two of these fit into what a command that looks may take.
const CONNECT: Duration = Duration::from_secs(4);
/// The last resort: [`super::patience`] has shorter ones that know how much is sent.
const REQUEST: Duration = Duration::from_secs(330);

/// The part of a bucket that holds one topology.
pub(super) fn open(
    bucket: &Bucket,
    folder: &str,
    around: &Surroundings,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    // Another part of the process may have installed it already: the same one.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let place = format!("{bucket}/{folder}");
    let wrong = |error: object_store::Error| {
        super::cloud_fault::of_settings(&place, &error, &around.secrets())
    };
    let prefix = Path::parse(format!("{}/{folder}", bucket.prefix).trim_start_matches('/'))
        .map_err(|error| failed(&place, "naming its objects", &error))?;
    let plain = endpoint(bucket.cloud, around)
        .map_or(Ok(false), |endpoint| plain(&place, endpoint, around))?;
    let options = ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_timeout(REQUEST)
        .with_allow_http(plain);
    Ok(match bucket.cloud {
        Cloud::S3 => {
            let store = s3(bucket, around, options).map_err(wrong)?;
            Arc::new(PrefixStore::new(store, prefix))
        }
        Cloud::Gcs => {
            let store = gcs(bucket, around, options).map_err(wrong)?;
            Arc::new(PrefixStore::new(store, prefix))
        }
        Cloud::Azure => {
            let store = azure(bucket, around, options).map_err(wrong)?;
            Arc::new(PrefixStore::new(store, prefix))
        }
    })
}

/// Each request goes out once.
fn never() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::from_secs(1),
    }
}

fn s3(
    bucket: &Bucket,
    around: &Surroundings,
    options: ClientOptions,
) -> Result<impl ObjectStore, object_store::Error> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in around.of_cloud("AWS_") {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder
        .with_bucket_name(&bucket.name)
        .with_client_options(options)
        .with_retry(never())
        .build()
}

fn gcs(
    bucket: &Bucket,
    around: &Surroundings,
    options: ClientOptions,
) -> Result<impl ObjectStore, object_store::Error> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in around.of_cloud("GOOGLE_") {
        if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(host) = around.variable("STORAGE_EMULATOR_HOST") {
        let url = if host.contains("://") {
            host.to_owned()
        } else {
            format!("http://{host}")
        };
        builder = builder.with_config(GoogleConfigKey::BaseUrl, url);
    }
    let unsigned = around.variable("GOOGLE_SKIP_SIGNATURE") == Some("true");
    if unsigned || around.variable("STORAGE_EMULATOR_HOST").is_some() {
        // Without this the library asks the metadata server for a token that it then does not send.
        let nobody = GcpCredential {
            bearer: String::new(),
        };
        builder = builder
            .with_config(GoogleConfigKey::SkipSignature, "true")
            .with_credentials(Arc::new(StaticCredentialProvider::new(nobody)));
    }
    builder
        .with_bucket_name(&bucket.name)
        .with_client_options(options)
        .with_retry(never())
        .build()
}

fn azure(
    bucket: &Bucket,
    around: &Surroundings,
    options: ClientOptions,
) -> Result<impl ObjectStore, object_store::Error> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in around.of_cloud("AZURE_") {
        // The names that Azure's own tools use, where the library has others.
        let key = match name {
            "AZURE_STORAGE_ACCOUNT" => Ok(AzureConfigKey::AccountName),
            "AZURE_STORAGE_KEY" => Ok(AzureConfigKey::AccessKey),
            _ => name.to_ascii_lowercase().parse::<AzureConfigKey>(),
        };
        if let Ok(key) = key {
            builder = builder.with_config(key, value);
        }
    }
    let text = around.variable("AZURE_STORAGE_CONNECTION_STRING");
    for part in text.unwrap_or_default().split(';') {
        let Some((name, value)) = part.split_once('=') else {
            continue;
        };
        let key = match name {
            "AccountName" => AzureConfigKey::AccountName,
            "AccountKey" => AzureConfigKey::AccessKey,
            "BlobEndpoint" => AzureConfigKey::Endpoint,
            "SharedAccessSignature" => AzureConfigKey::SasKey,
            _ => continue,
        };
        builder = builder.with_config(key, value);
    }
    builder
        .with_container_name(&bucket.name)
        .with_client_options(options)
        .with_retry(never())
        .build()
}

/// The endpoint that the environment names, if it names one.
fn endpoint(cloud: Cloud, around: &Surroundings) -> Option<&str> {
    let names: &[&str] = match cloud {
        Cloud::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        Cloud::Gcs => &["STORAGE_EMULATOR_HOST", "GOOGLE_BASE_URL"],
        Cloud::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
    };
    let named = names.iter().find_map(|name| around.variable(name));
    match cloud {
        Cloud::Azure => named.or_else(|| {
            let emulated = around.variable("AZURE_STORAGE_USE_EMULATOR") == Some("true");
            let text = around.variable("AZURE_STORAGE_CONNECTION_STRING");
            let blob = text.and_then(|text| {
                let mut parts = text.split(';');
                parts.find_map(|part| part.strip_prefix("BlobEndpoint="))
            });
            blob.or(emulated.then_some("http://127.0.0.1"))
        }),
        Cloud::S3 | Cloud::Gcs => named,
    }
}

/// Whether it is plain HTTP, which it may be on this computer or when the user says so.
fn plain(place: &str, endpoint: &str, around: &Surroundings) -> Result<bool, StoreError> {
    let authority = match endpoint.split_once("://") {
        Some(("https", _)) => return Ok(false),
        Some((_, rest)) => rest,
        None => endpoint,
    };
    let authority = authority.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address = host.parse::<std::net::IpAddr>();
    let here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    let allowed = ["AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP"];
    if here
        || allowed
            .iter()
            .any(|name| around.variable(name) == Some("true"))
    {
        return Ok(true);
    }
    Err(StoreError::Rejected {
        place: place.to_owned(),
        doing: "reading its settings from the environment".to_owned(),
        what: format!(
            "the endpoint on {host} is plain http, over which credentials could be read; give an https one, or set \
             AWS_ALLOW_HTTP (AZURE_, GOOGLE_) to true"
        ),
    })
}
