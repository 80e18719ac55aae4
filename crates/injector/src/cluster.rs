//! What the injector asks of the API server: the version of the cluster, the Secret with its
//! certificate, and the authority in the configuration of its webhook.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_rustls::rustls::pki_types::UnixTime;
use tracing::info;

use crate::certificate::{Papers, Wanted};

/// Maximum number of times that a Secret is read again because another injector wrote it.
const ATTEMPTS_MAX: usize = 5;
/// The status of a write that another one came before.
const CONFLICT: u16 = 409;

/// Where the certificate is kept.
#[derive(Clone)]
pub(crate) struct Keeper {
    secrets: Api<Secret>,
    webhooks: Api<MutatingWebhookConfiguration>,
    /// The name of the Secret.
    secret: String,
    /// The name of the configuration.
    webhook: String,
}

/// Why the API server could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("the API server: {0}")]
    Kube(#[from] kube::Error),
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the Secret {0} was written by others {ATTEMPTS_MAX} times in a row")]
    Contended(String),
}

/// The version of the cluster, such as `1.31`.
pub(crate) async fn version(client: &Client) -> Result<String, ClusterError> {
    let version = client.apiserver_version().await?;
    Ok(format!("{}.{}", version.major, version.minor))
}

// === impl Keeper ===

impl Keeper {
    pub(crate) fn new(client: &Client, namespace: &str, secret: &str, webhook: &str) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            webhooks: Api::all(client.clone()),
            secret: secret.to_owned(),
            webhook: webhook.to_owned(),
        }
    }

    /// The certificate in the Secret; a new one if there is none that can be served with.
    pub(crate) async fn papers(
        &self,
        wanted: &Wanted,
        now: UnixTime,
    ) -> Result<Papers, ClusterError> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.secrets.get_opt(&self.secret).await?;
            let held = found.as_ref().map(read);
            let why = match held.as_ref().map(|held| (held, held.load(wanted, now))) {
                Some((held, Ok(_))) => return Ok(held.clone()),
                Some((_, Err(why))) => why,
                None => "is absent".to_owned(),
            };
            let made = Papers::make(wanted, now, held.as_ref())?;
            match self.write(found, &made).await {
                Ok(_) => {
                    info!(secret = self.secret, "a new certificate was made: the former {why}");
                    return Ok(made);
                }
                // Another injector was first: its certificate serves as well.
                Err(kube::Error::Api(status)) if status.code == CONFLICT => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClusterError::Contended(self.secret.clone()))
    }

    /// Writes a Secret, unless another injector wrote it since it was `found`.
    async fn write(&self, found: Option<Secret>, papers: &Papers) -> Result<Secret, kube::Error> {
        let data = |bytes: &[u8]| ByteString(bytes.to_vec());
        let data = BTreeMap::from([
            ("tls.crt".to_owned(), data(&papers.certificate)),
            ("tls.key".to_owned(), data(&papers.key)),
            ("ca.crt".to_owned(), data(&papers.roots)),
        ]);
        let params = PostParams::default();
        match found {
            // With its version, by which the API server knows whether it is still the same.
            Some(mut secret) => {
                secret.data = Some(data);
                self.secrets.replace(&self.secret, &params, &secret).await
            }
            None => {
                let name = Some(self.secret.clone());
                let secret = Secret {
                    metadata: ObjectMeta { name, ..ObjectMeta::default() },
                    type_: Some("kubernetes.io/tls".to_owned()),
                    data: Some(data),
                    ..Secret::default()
                };
                self.secrets.create(&params, &secret).await
            }
        }
    }

    /// Has the API server trust these authorities. Returns whether it did not before.
    pub(crate) async fn trust(&self, roots: &[u8]) -> Result<bool, ClusterError> {
        let found = self.webhooks.get(&self.webhook).await?;
        let bundle = ByteString(roots.to_vec());
        let stale: Vec<_> = found
            .webhooks
            .into_iter()
            .flatten()
            .filter(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(&bundle))
            .map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        if stale.is_empty() {
            return Ok(false);
        }
        // Merges by the names of the webhooks, and leaves all other fields to those who own them.
        let patch = Patch::Strategic(json!({"webhooks": stale}));
        self.webhooks.patch(&self.webhook, &PatchParams::default(), &patch).await?;
        info!(webhook = self.webhook, "the API server trusts the certificate");
        Ok(true)
    }
}

fn read(secret: &Secret) -> Papers {
    let field = |name: &str| {
        let data = secret.data.as_ref().and_then(|data| data.get(name));
        data.map(|bytes| bytes.0.clone()).unwrap_or_default()
    };
    Papers { certificate: field("tls.crt"), key: field("tls.key"), roots: field("ca.crt") }
}
