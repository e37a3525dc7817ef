//! The request that gives an account another key (RFC 8555 section 7.3.5). The library has one, but
//! makes the key itself and tells the server first: after a crash nobody would have that key.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, Response};
use instant_acme::{AccountCredentials, BodyWrapper, Error, HttpClient};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::client::Client;
use crate::error::AcmeError;

/// Requests with another nonce, which the server may refuse (RFC 8555 section 6.5).
const ATTEMPTS_MAX: u32 = 3;

/// The signer of a request: the key, or the account by its URL.
enum Signer<'a> {
    Account(&'a str),
    Key(Value),
}

/// Tells the server the account's new key. Returns the credentials that are to be stored.
pub async fn tell(
    client: &Client,
    directory: &str,
    known: &AccountCredentials,
    stored: &[u8],
    next: &[u8],
) -> Result<Zeroizing<Vec<u8>>, AcmeError> {
    let (old, new) = (key(known.private_key().secret_pkcs8_der())?, key(next)?);
    let mut credentials: Value = serde_json::from_slice(stored).map_err(library)?;
    let account = credentials.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let directory = request(client, Method::GET, directory, None).await?;
    let directory: Value = serde_json::from_slice(directory.body()).map_err(library)?;
    let url = |name| directory.get(name).and_then(Value::as_str);
    let url_of_change = url("keyChange").ok_or(AcmeError::NoKeyChange)?;
    let url_of_nonce = url("newNonce").ok_or(AcmeError::NoKeyChange)?;

    let payload = json!({ "account": account, "oldKey": public(&old) });
    let inner = signed(&new, Signer::Key(public(&new)), None, url_of_change, &payload)?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let answer = request(client, Method::HEAD, url_of_nonce, None).await?;
        let nonce = answer.headers().get("replay-nonce").and_then(|nonce| nonce.to_str().ok());
        let by = Signer::Account(&account);
        let outer = signed(&old, by, nonce, url_of_change, &inner)?;
        let body = serde_json::to_vec(&outer).map_err(library)?;
        match request(client, Method::POST, url_of_change, Some(body)).await {
            Ok(_) => break,
            Err(error) if error.problem() == "badNonce" && attempts < ATTEMPTS_MAX => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(key) = credentials.get_mut("key_pkcs8") {
        *key = BASE64_URL_SAFE_NO_PAD.encode(next).into();
    }
    serde_json::to_vec(&credentials).map(Zeroizing::new).map_err(library)
}

/// A JWS in its flattened form (RFC 7515 section 7.2.2).
fn signed(
    key: &EcdsaKeyPair,
    by: Signer<'_>,
    nonce: Option<&str>,
    url: &str,
    payload: &Value,
) -> Result<Value, AcmeError> {
    let mut protected = json!({ "alg": "ES256", "url": url });
    match by {
        Signer::Account(url) => protected["kid"] = url.into(),
        Signer::Key(public) => protected["jwk"] = public,
    }
    if let Some(nonce) = nonce {
        protected["nonce"] = nonce.into();
    }
    let protected = BASE64_URL_SAFE_NO_PAD.encode(protected.to_string());
    let payload = BASE64_URL_SAFE_NO_PAD.encode(payload.to_string());
    let signature = key.sign(&SystemRandom::new(), format!("{protected}.{payload}").as_bytes());
    let signature = signature.map_err(library)?;
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signature);
    Ok(json!({ "protected": protected, "payload": payload, "signature": signature }))
}

/// The public key as a JWK (RFC 7518 section 6.2.1).
fn public(key: &EcdsaKeyPair) -> Value {
    /// Bytes of a coordinate of P-256. A byte before both says that neither is compressed.
    const COORDINATE_BYTES: usize = 32;
    let point = key.public_key().as_ref().get(1..).unwrap_or_default();
    let (x, y) = point.split_at(point.len().min(COORDINATE_BYTES));
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    json!({ "crv": "P-256", "kty": "EC", "x": text(x), "y": text(y) })
}

fn key(pkcs8: &[u8]) -> Result<EcdsaKeyPair, AcmeError> {
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8).map_err(library)
}

/// Asks the server. An answer that is no success is [`AcmeError::Refused`].
pub async fn request(
    client: &Client,
    method: Method,
    url: &str,
    body: Option<Vec<u8>>,
) -> Result<Response<Bytes>, AcmeError> {
    // RFC 8555 section 6.1.
    let agent = concat!("eyelet/", env!("CARGO_PKG_VERSION"));
    let mut request = Request::builder().method(method).uri(url).header(USER_AGENT, agent);
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/jose+json");
    }
    let body = body.map_or_else(BodyWrapper::default, BodyWrapper::from);
    let answer = client.request(request.body(body).map_err(library)?).await?;
    let mut body = answer.body;
    let body = body.into_bytes().await.map_err(library)?;
    if !answer.parts.status.is_success() {
        return Err(Error::Api(serde_json::from_slice(&body).map_err(library)?).into());
    }
    Ok(Response::from_parts(answer.parts, body))
}

fn library(error: impl std::fmt::Display) -> AcmeError {
    AcmeError::Library(error.to_string())
}
