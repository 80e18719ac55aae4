//! ID tokens: a signature by a key of the provider, and claims that are for this sign-in. The
//! signature is checked by ring, as in TLS.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result as JwtResult};
use jsonwebtoken::jwk::{JwkSet, PublicKeyUse};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};

/// The algorithms of signatures by public keys. A secret that both know (`HS256`) or none at all is
/// no signature of the provider's.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Seconds by which the clock of the provider may differ.
const CLOCK_SECONDS_MAX: u64 = 60;

/// Maximum number of keys that are tried for a token that names none.
const TRIED_MAX: usize = 8;

/// Why an ID token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key is not known: it may be new.
    UnknownKey,
    /// The token is bad, whichever keys the provider has.
    Bad(String),
}

/// The claims that an ID token has to have.
#[derive(Debug, Clone, Copy)]
pub struct Expectation<'e> {
    /// The provider.
    pub issuer: &'e str,
    /// This control plane, as the provider names it.
    pub client_id: &'e str,
    /// The nonce of the sign-in.
    pub nonce: &'e str,
}

/// Has jsonwebtoken use ring. Once for a process; later calls change nothing.
pub fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
        verifier_factory,
        key_utils: KeyUtils::new_unimplemented(),
    };
    let _ = PROVIDER.install_default();
}

/// Checks an ID token: its signature, and that it is of this provider, for this client and sign-in,
/// and valid now. Returns its claims.
///
/// # Errors
/// Why it is not accepted.
pub fn check(
    token: &str,
    keys: &JwkSet,
    expected: Expectation<'_>,
) -> Result<Map<String, Value>, Refusal> {
    let bad = |why: String| Refusal::Bad(why);
    let header = decode_header(token).map_err(|error| bad(format!("the ID token: {error}")))?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(bad(format!(
            "the ID token is signed by {:?}, which is not accepted",
            header.alg
        )));
    }
    let usable = keys.keys.iter().filter(|key| {
        let is_named = header.kid.is_none() || key.common.key_id == header.kid;
        is_named && key.common.public_key_use != Some(PublicKeyUse::Encryption)
    });
    let candidates = usable.filter_map(|key| DecodingKey::from_jwk(key).ok());
    let candidates = candidates.filter(|key| key.family() == header.alg.family()).take(TRIED_MAX);
    let mut last = Refusal::UnknownKey;
    for key in candidates {
        match decode::<Map<String, Value>>(token, &key, &validation(header.alg, expected)) {
            Ok(data) => return check_claims(data.claims, expected),
            Err(error) if header.kid.is_none() && *error.kind() == ErrorKind::InvalidSignature => {}
            Err(error) => last = bad(format!("the ID token: {error}")),
        }
    }
    Err(last)
}

fn validation(algorithm: Algorithm, expected: Expectation<'_>) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.leeway = CLOCK_SECONDS_MAX;
    validation.validate_nbf = true;
    validation.set_audience(&[expected.client_id]);
    validation.set_issuer(&[expected.issuer]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation
}

/// Checks what jsonwebtoken leaves: the nonce, and for whom a token of several audiences is.
fn check_claims(
    claims: Map<String, Value>,
    expected: Expectation<'_>,
) -> Result<Map<String, Value>, Refusal> {
    let bad = |why: &str| Err(Refusal::Bad(format!("the ID token {why}")));
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("nonce") != Some(expected.nonce) {
        return bad("is for another sign-in");
    }
    let audiences = claims.get("aud").and_then(Value::as_array).map_or(1, Vec::len);
    let party = claims.get("azp");
    if (audiences > 1 || party.is_some()) && text("azp") != Some(expected.client_id) {
        return bad("is for another client");
    }
    let is_name =
        |it: &str| (1..=255).contains(&it.len()) && it.bytes().all(|it| (0x20..0x7f).contains(&it));
    match text("sub") {
        Some(subject) if is_name(subject) => Ok(claims),
        _ => bad("has no subject of 1 to 255 characters of ASCII"),
    }
}

/// A signature of one algorithm, checked with one key.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> JwtResult<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() || !ALGORITHMS.contains(algorithm) {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

// === impl RingVerifier ===

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        let point = || self.key.try_get_as_bytes().map_err(|_| SignatureError::new());
        let checked = match self.algorithm {
            Algorithm::ES256 => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point()?)
                    .verify(message, signature)
            }
            Algorithm::ES384 => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point()?)
                    .verify(message, signature)
            }
            Algorithm::EdDSA => {
                UnparsedPublicKey::new(&signature::ED25519, point()?).verify(message, signature)
            }
            algorithm => {
                let DecodingKeyKind::RsaModulusExponent { n, e } = self.key.kind() else {
                    return Err(SignatureError::new());
                };
                let parameters = rsa(algorithm).ok_or_else(SignatureError::new)?;
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
        };
        checked.map_err(|_| SignatureError::new())
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jiff::Timestamp;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const EXPECTED: Expectation<'static> =
        Expectation { issuer: "https://idp.example", client_id: "limits", nonce: "n1" };

    /// A key of a provider, and how its page of keys shows it.
    struct Key(EcdsaKeyPair);

    impl Key {
        fn new() -> Self {
            let (kind, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
            Self(EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref(), &random).unwrap())
        }

        fn jwk(&self, id: &str) -> Value {
            let point = self.0.public_key().as_ref();
            let (x, y) =
                (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
            json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y})
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let part = |it: &Value| URL_SAFE_NO_PAD.encode(it.to_string());
            let message = format!("{}.{}", part(header), part(claims));
            let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    fn set(keys: Vec<Value>) -> JwkSet {
        serde_json::from_value(json!({"keys": keys})).unwrap()
    }

    fn claims() -> Value {
        let now = Timestamp::now().as_second();
        json!({"iss": "https://idp.example", "aud": "limits", "sub": "ada", "nonce": "n1",
            "iat": now, "exp": now + 300})
    }

    fn header() -> Value {
        json!({"alg": "ES256", "kid": "a"})
    }

    #[test]
    fn a_good_token_is_accepted_with_and_without_a_key_id() {
        install();
        let (key, other) = (Key::new(), Key::new());
        let keys = set(vec![other.jwk("b"), key.jwk("a")]);
        for header in [header(), json!({"alg": "ES256"})] {
            let found = check(&key.sign(&header, &claims()), &keys, EXPECTED).unwrap();
            assert_eq!(found["sub"], "ada");
        }
    }

    #[test]
    fn each_claim_that_is_not_for_this_sign_in_is_refused() {
        install();
        let key = Key::new();
        let keys = set(vec![key.jwk("a")]);
        let now = Timestamp::now().as_second();
        for (change, why) in [
            (json!({"nonce": "n2"}), "another sign-in"),
            (json!({"nonce": null}), "another sign-in"),
            (json!({"aud": "others"}), "InvalidAudience"),
            (json!({"aud": ["limits", "others"]}), "another client"),
            (json!({"azp": "others"}), "another client"),
            (json!({"aud": null}), "aud"),
            (json!({"iss": "https://idp.example/"}), "InvalidIssuer"),
            (json!({"iss": null}), "iss"),
            (json!({"exp": now - 3600}), "ExpiredSignature"),
            (json!({"exp": null}), "exp"),
            (json!({"nbf": now + 3600}), "ImmatureSignature"),
            (json!({"sub": ""}), "subject"),
            (json!({"sub": "a\nb"}), "subject"),
            (json!({"sub": 7}), "sub"),
        ] {
            let mut claims = claims();
            for (name, value) in change.as_object().unwrap() {
                claims[name] = value.clone();
            }
            let refused = check(&key.sign(&header(), &claims), &keys, EXPECTED).unwrap_err();
            let Refusal::Bad(text) = &refused else { panic!("{change}: {refused:?}") };
            assert!(text.contains(why), "{change}: {text}");
        }
        let two = json!({"aud": ["limits", "others"], "azp": "limits"});
        let mut good = claims();
        good.as_object_mut().unwrap().extend(two.as_object().unwrap().clone());
        assert!(check(&key.sign(&header(), &good), &keys, EXPECTED).is_ok());
    }

    #[test]
    fn a_signature_that_no_key_of_the_provider_made_is_refused() {
        install();
        let (key, forger) = (Key::new(), Key::new());
        let keys = set(vec![key.jwk("a")]);
        let refused = |token: &str| check(token, &keys, EXPECTED).unwrap_err();
        let forged = refused(&forger.sign(&header(), &claims()));
        assert!(
            matches!(&forged, Refusal::Bad(why) if why.contains("InvalidSignature")),
            "{forged:?}"
        );
        let other = json!({"alg": "ES256", "kid": "b"});
        assert_eq!(refused(&key.sign(&other, &claims())), Refusal::UnknownKey);
        assert_eq!(refused(&forger.sign(&json!({"alg": "ES256"}), &claims())), Refusal::UnknownKey);
        for alg in ["none", "HS256", "RS256", "ES384"] {
            let token = key.sign(&json!({"alg": alg, "kid": "a"}), &claims());
            check(&token, &keys, EXPECTED).unwrap_err();
        }
        let good = key.sign(&header(), &claims());
        let parts: Vec<_> = good.split('.').collect();
        let more = URL_SAFE_NO_PAD.encode(json!({"sub": "root"}).to_string());
        for token in [
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{more}.{}", parts[0], parts[2]),
            parts[..2].join("."),
            String::new(),
        ] {
            check(&token, &keys, EXPECTED).unwrap_err();
        }
    }

    #[test]
    fn keys_for_encryption_and_shared_secrets_sign_nothing() {
        install();
        let key = Key::new();
        let mut encrypts = key.jwk("a");
        encrypts["use"] = "enc".into();
        let secret = json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"});
        let keys = set(vec![encrypts, secret]);
        let refused = check(&key.sign(&header(), &claims()), &keys, EXPECTED).unwrap_err();
        assert_eq!(refused, Refusal::UnknownKey);
    }
}
