//! Looks up TXT records, by the DNS servers that names of upstreams are asked of.

use std::pin::Pin;
use std::sync::Arc;

use hickory_resolver::proto::op::{DnsResponse, Query, ResponseCode};
use hickory_resolver::proto::rr::{RData, RecordType};

use crate::dns::secure::SecureDns;
use crate::dns::server::DnsServer;
use crate::dns::servers::{Configured, configured, name};
use eyelet_config::Dns;

/// Most records of a name, and bytes of one, that are read.
const TEXTS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4096;

/// The TXT records of a name, each with its strings joined; none if no server knows one. Servers
/// are asked in turn, without a cache: the first may see another zone than the internet does. An
/// error says why no server answers, by the first one.
pub fn look_up(
    dns: Dns,
    owner: String,
) -> Pin<Box<dyn Future<Output = Result<Vec<String>, String>>>> {
    Box::pin(async move { ask(&dns, &owner).await })
}

async fn ask(dns: &Dns, owner: &str) -> Result<Vec<String>, String> {
    let secure = SecureDns::new(dns).map_err(|error| error.to_string())?;
    let Configured { endpoints, options, .. } = configured(dns, secure.as_deref())?;
    let mut owner = name(owner)?;
    owner.set_fqdn(true);
    let query = Query::query(owner, RecordType::TXT);
    let (mut fault, mut is_answered) = (None, false);
    for endpoint in endpoints {
        let server = DnsServer::new(endpoint, &options, &Arc::default(), false)?;
        match server.ask_once(&query).await.and_then(|response| read(&response)) {
            Ok(texts) if texts.is_empty() => is_answered = true,
            Ok(texts) => return Ok(texts),
            Err(why) => fault = fault.or(Some(why)),
        }
    }
    if is_answered {
        return Ok(Vec::new());
    }
    Err(fault.unwrap_or_else(|| "no resolver".to_owned()))
}

fn read(response: &DnsResponse) -> Result<Vec<String>, String> {
    match response.response_code {
        ResponseCode::NXDomain => return Ok(Vec::new()),
        ResponseCode::NoError => {}
        code => return Err(format!("error response: {code}")),
    }
    let texts = response.answers.iter().filter_map(|record| match &record.data {
        RData::TXT(txt) => Some(txt.txt_data.concat()),
        _ => None,
    });
    let texts = texts.take(TEXTS_MAX).filter(|text| text.len() <= TEXT_BYTES_MAX);
    Ok(texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect())
}
