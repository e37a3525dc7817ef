//! Reads [trace]: which requests are traced, and the OpenTelemetry collector that takes the spans.

use std::path::{Path, PathBuf};

use http::header::{HeaderName, HeaderValue};
use toml::de::DeValue;
use zeroize::Zeroizing;

use crate::model::listen_address::is_loopback_host;
use crate::model::values;
use crate::model::{Host, HostPort};
use eyelet_document::reader::Section;
use eyelet_files::Files;

/// `[trace]`.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// The collector to which spans are sent. `None`: ids are made and logged only.
    pub endpoint: Option<TraceEndpoint>,
    /// The part of the traces begun here that is recorded: 0 to 1.
    pub sample: f64,
    /// `service.name` of the spans.
    pub service_name: Box<str>,
    /// The CA certificates of an https:// endpoint. `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The file with the fields that each request to the endpoint has.
    pub headers_file: Option<PathBuf>,
}

/// The URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEndpoint {
    /// True if it is https://.
    pub tls: bool,
    pub address: HostPort,
    /// The authority as it is written, for `Host`.
    pub authority: Box<str>,
    /// The path, with a query if there is one.
    pub path: Box<str>,
}

/// Fields of a request whose values are secrets.
pub type SecretFields = Vec<(HeaderName, Zeroizing<Vec<u8>>)>;

pub(crate) fn read(document: &Section<'_>, files: &mut Files) -> Option<TraceSettings> {
    let section = document.known("trace", "[trace]", &TRACE_KEYS)?;
    let text = section.text("endpoint");
    let endpoint = text.and_then(|text| text.parse(endpoint));
    let headers_file = section.text("headers_file").map(|text| {
        if endpoint.as_ref().is_some_and(|to| !to.tls && !to.is_loopback()) {
            let message = "the fields of this file go to the endpoint in the clear; use https://";
            text.at.warning(message);
        }
        files.check_secret(text, trace_fields)
    });
    let ca = section.text("ca").map(|text| {
        if endpoint.as_ref().is_some_and(|endpoint| !endpoint.tls) {
            text.at.error("`ca` is for an endpoint with https:// only");
        }
        files.check_authorities(text)
    });
    let service_name = section.text("service_name").and_then(|text| {
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.text.len());
        if !is_name {
            let message = format!("expected a name of 1 to {NAME_BYTES_MAX} bytes");
            text.at.error(message);
        }
        is_name.then_some(text.text)
    });
    Some(TraceSettings {
        endpoint,
        sample: sample(&section).unwrap_or(SAMPLE),
        service_name: service_name.unwrap_or(SERVICE_NAME).into(),
        ca,
        headers_file,
    })
}

impl TraceEndpoint {
    fn is_loopback(&self) -> bool {
        match &self.address.host {
            Host::Name(name) => is_loopback_host(name),
            Host::Ip(ip) => ip.is_loopback(),
        }
    }
}

fn endpoint(text: &str) -> Result<TraceEndpoint, String> {
    let expected = "expected a URL such as \"http://127.0.0.1:4318/v1/traces\"";
    let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(format!("\"{text}\" is not http:// or https://; {expected}")),
    };
    if rest.contains('@') {
        // It is not repeated: it may hold a password.
        return Err(format!("a URL has no login here: use `headers_file`; {expected}"));
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let is_path = path.parse::<http::uri::PathAndQuery>().is_ok() && !path.contains('#');
    if path.len() <= 1 || !is_path {
        return Err(format!(
            "\"{text}\" has no path; a collector takes traces at /v1/traces; {expected}"
        ));
    }
    let address = values::host_with_port(authority, if tls { 443 } else { 80 })?;
    Ok(TraceEndpoint { tls, address, authority: authority.into(), path: path.into() })
}

fn sample(section: &Section<'_>) -> Option<f64> {
    let value = section.value("sample")?;
    let read = match value.get_ref() {
        DeValue::Float(number) => number.as_str().parse::<f64>().ok(),
        DeValue::Integer(number) => number.as_str().parse::<f64>().ok(),
        _ => None,
    };
    let within = read.filter(|part| (0.0..=1.0).contains(part));
    if within.is_none() {
        let message = "`sample` is the part of the traces that is recorded; expected a number \
            from 0 to 1, such as 0.01";
        section.place(value).error(message);
    }
    within
}

/// The fields in a file: a `name: value` in each line.
///
/// # Errors
/// If the file cannot be read, or a line is no field. The error shows no value.
pub fn trace_fields(file: &Path) -> Result<SecretFields, String> {
    let shown = file.display();
    let text = Zeroizing::new(eyelet_files::text(file, FIELDS_FILE_BYTES_MAX)?);
    let mut fields = SecretFields::new();
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let fault = || format!("line {number} of {shown} is no field; expected \"name: value\"");
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(fault)?;
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name).map_err(|_| fault())?;
        let value = Zeroizing::new(value.get(1..).unwrap_or_default().trim_ascii().to_vec());
        if value.is_empty() || HeaderValue::from_bytes(&value).is_err() {
            return Err(fault());
        }
        if OURS.contains(&name.as_str()) {
            return Err(format!("line {number} of {shown}: Eyelet writes \"{name}\" itself"));
        }
        if fields.len() == FIELDS_MAX {
            return Err(format!("{shown} has more than {FIELDS_MAX} fields"));
        }
        fields.push((name, value));
    }
    if fields.is_empty() {
        return Err(format!("{shown} has no field; expected \"name: value\" in a line"));
    }
    Ok(fields)
}

const TRACE_KEYS: [&str; 5] = ["ca", "endpoint", "headers_file", "sample", "service_name"];

/// One trace in a hundred: an edge has more requests than any service behind it.
const SAMPLE: f64 = 0.01;

const SERVICE_NAME: &str = "eyelet";

/// Bytes of `service_name`. It is in each batch.
const NAME_BYTES_MAX: usize = 255;

/// Fields of a file: a token, and what names a tenant.
const FIELDS_MAX: usize = 16;

/// Bytes: ample room for tokens.
const FIELDS_FILE_BYTES_MAX: u64 = 16 << 10;

/// Fields that the message has already.
const OURS: [&str; 5] =
    ["connection", "content-length", "content-type", "host", "transfer-encoding"];
