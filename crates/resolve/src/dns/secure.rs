//! Resolvers that are asked over TLS: the authorities that vouch for them, kept connections, and
//! DNS over TLS (RFC 7858). `https.rs` has DNS over HTTPS.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::proto::ProtoError;
use hickory_resolver::proto::op::{DnsResponse, Edns, Message, MessageType, OpCode, Query};
use hickory_resolver::proto::rr::rdata::opt::EdnsOption;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cache;
use crate::dns::https::{Http2, HttpFault};
use eyelet_config::{Dns, DnsTransport, NameServer};
use eyelet_tls::client;
use eyelet_tls::provider::PROVIDER;
use eyelet_tls::roots::{EvidenceRoots, RootsError};

/// Connections to a server at once: for each worker, once for names that are dialled and once for
/// evidence. More questions wait for one of them.
const CONNECTIONS_MAX: usize = 8;
/// Time for which a connection without a question is kept: "a few seconds" (RFC 7766 section
/// 6.2.3). unbound ends its side after 30.
const IDLE: Duration = Duration::from_secs(10);
/// Queries have a multiple of so many bytes (RFC 8467 section 4.1), so that their length says
/// little about the name.
const PADDED_TO: usize = 128;
/// The EDNS option of padding (RFC 7830), and bytes of an option's head.
const PADDING: (u16, usize) = (12, 4);
/// The least and usual size for UDP. Over TLS it has no effect.
const UDP_PAYLOAD: u16 = 1232;
/// The protocol of DNS over HTTPS, by ALPN.
const HTTP2: &[u8] = b"h2";

/// TLS with resolvers, under one configuration.
pub struct SecureDns {
    roots: Arc<RootCertStore>,
    /// For DNS over TLS. Its ALPN is none: many servers know none.
    tls: Arc<ClientConfig>,
    https: Arc<ClientConfig>,
}

impl SecureDns {
    /// Reads the roots, if a resolver is asked over TLS.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn new(dns: &Dns) -> Result<Option<Arc<Self>>, RootsError> {
        if !dns.is_any_secure() {
            return Ok(None);
        }
        let roots = EvidenceRoots::new(dns.ca.as_deref())?.store();
        let tls = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| RootsError::Rustls(error.to_string()))?
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let mut https = tls.clone();
        https.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Some(Arc::new(Self { roots, tls: Arc::new(tls), https: Arc::new(https) })))
    }

    /// True if both trust the same authorities.
    pub fn trusts_as(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots
    }

    /// The server. `None`: it is asked in clear.
    ///
    /// # Errors
    /// If rustls takes the name of its certificate for none.
    pub fn server(&self, server: &NameServer) -> Result<Option<SecureServer>, String> {
        let (config, name, path) = match &server.transport {
            DnsTransport::Clear => return Ok(None),
            DnsTransport::Tls(name) => (&self.tls, name, None),
            DnsTransport::Https { name, path } => (&self.https, name, Some(path)),
        };
        let verified = ServerName::try_from(name.clone()).map_err(|error| error.to_string())?;
        let url = path.map(|path| HttpsUrl {
            authority: authority(name, server.address.port()),
            path: path.clone(),
        });
        Ok(Some(SecureServer {
            address: server.address,
            name: verified,
            config: config.clone(),
            url,
            shown: server.to_string(),
            connections: Semaphore::new(CONNECTIONS_MAX),
            kept: Rc::default(),
        }))
    }
}

/// The `:authority` of a URL.
fn authority(name: &str, port: u16) -> String {
    let host = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
    if port == 443 { host } else { format!("{host}:{port}") }
}

/// The URL of DNS over HTTPS.
struct HttpsUrl {
    authority: String,
    path: String,
}

/// A resolver that one worker asks over TLS.
pub struct SecureServer {
    pub address: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    /// The URL of DNS over HTTPS.
    url: Option<HttpsUrl>,
    /// For the log.
    shown: String,
    connections: Semaphore,
    kept: Rc<RefCell<Kept>>,
}

/// Connections without a question.
#[derive(Default)]
struct Kept {
    idle: Vec<(Connection, Instant)>,
    /// A task ends those that nobody uses.
    is_swept: bool,
}

struct Connection {
    stream: TlsStream<TcpStream>,
    http: Option<Http2>,
}

/// The fault of a resolver that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum SecureFault {
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("TLS: {}", client::describe_stream(.0))]
    Tls(io::Error),
    #[error("it does not speak HTTP/2")]
    NoHttp2,
    #[error("{0}")]
    Http(#[from] HttpFault),
    #[error("the connection ended: {}", client::describe_stream(.0))]
    Ended(#[from] io::Error),
    #[error("malformed: {0}")]
    Malformed(#[from] ProtoError),
    #[error("it answered another question")]
    Unasked,
    #[error("shut down")]
    ShutDown,
    #[error("too many questions wait for it")]
    Busy,
}

impl SecureFault {
    /// True if another connection may do better.
    fn is_of_connection(&self) -> bool {
        match self {
            Self::Ended(_) => true,
            Self::Http(fault) => {
                matches!(fault, HttpFault::Ended(_) | HttpFault::Refused | HttpFault::Connection(_))
            }
            _ => false,
        }
    }
}

impl SecureServer {
    /// Waits until one more question may be asked at once, for this time at most. That says nothing
    /// about the server.
    ///
    /// # Errors
    /// The reason, with the server's name.
    pub async fn place(&self, wait: Duration) -> Result<SemaphorePermit<'_>, String> {
        let place = match timeout(wait, self.connections.acquire()).await {
            Ok(place) => place.map_err(|_| SecureFault::ShutDown),
            Err(_) => Err(SecureFault::Busy),
        };
        place.map_err(|fault| self.said(&fault))
    }

    /// Asks, on a kept connection if there is one. The caller has a place, and sets a timeout.
    ///
    /// # Errors
    /// The reason, with the server's name.
    pub async fn ask(&self, query: &Query) -> Result<DnsResponse, String> {
        self.exchange(query).await.map_err(|fault| self.said(&fault))
    }

    fn said(&self, fault: &SecureFault) -> String {
        format!("{}: {fault}", self.shown)
    }

    async fn exchange(&self, query: &Query) -> Result<DnsResponse, SecureFault> {
        let message = message(query)?;
        // A server may end a kept connection at any time, and a query may be sent twice.
        if let Some(connection) = self.take() {
            match self.on(connection, &message, query).await {
                Err(fault) if fault.is_of_connection() => {}
                answered => return answered,
            }
        }
        let connection = self.connect().await?;
        self.on(connection, &message, query).await
    }

    async fn connect(&self) -> Result<Connection, SecureFault> {
        let stream = TcpStream::connect(self.address).await.map_err(SecureFault::Connect)?;
        stream.set_nodelay(true).map_err(SecureFault::Connect)?;
        let connector = TlsConnector::from(self.config.clone());
        let stream = connector.connect(self.name.clone(), stream).await;
        let stream = stream.map_err(SecureFault::Tls)?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        match &self.url {
            None => Ok(Connection { stream, http: None }),
            Some(_) if is_http2 => Ok(Connection { stream, http: Some(Http2::begin()) }),
            Some(_) => Err(SecureFault::NoHttp2),
        }
    }

    /// Asks on this connection. It is kept after an answer to this query only.
    async fn on(
        &self,
        mut on: Connection,
        message: &[u8],
        query: &Query,
    ) -> Result<DnsResponse, SecureFault> {
        let answer = match (&mut on.http, &self.url) {
            (Some(http), Some(url)) => {
                http.get(&mut on.stream, &url.authority, &url.path, message).await?
            }
            _ => over_tls(&mut on.stream, message).await?,
        };
        let response = of(answer, query)?;
        self.keep(on);
        Ok(response)
    }

    fn take(&self) -> Option<Connection> {
        let mut kept = self.kept.borrow_mut();
        while let Some((connection, since)) = kept.idle.pop() {
            if since.elapsed() < IDLE {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, connection: Connection) {
        if connection.http.as_ref().is_some_and(|http| !http.can_ask()) {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        kept.idle.push((connection, Instant::now()));
        if !kept.is_swept {
            kept.is_swept = true;
            cache::spawn(sweep(Rc::downgrade(&self.kept)));
        }
    }
}

/// Ends connections that have been idle for long, until there is none.
async fn sweep(kept: Weak<RefCell<Kept>>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut kept = kept.borrow_mut();
        kept.idle.retain(|(_, since)| since.elapsed() < IDLE);
        if kept.idle.is_empty() {
            kept.is_swept = false;
            return;
        }
    }
}

/// One question and its answer, each after its length (RFC 1035 section 4.2.2).
async fn over_tls(stream: &mut TlsStream<TcpStream>, message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
    stream.flush().await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// A padded query. Its id is 0, as a connection has one question at a time, and an HTTP cache knows
/// it again (RFC 8484 section 4.1).
fn message(query: &Query) -> Result<Vec<u8>, ProtoError> {
    let mut message = Message::new(0, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    message.set_edns(edns.clone());
    let (option, head_bytes) = PADDING;
    let bytes = message.to_vec()?.len() + head_bytes;
    let padding = vec![0; bytes.next_multiple_of(PADDED_TO) - bytes];
    edns.options_mut().insert(EdnsOption::Unknown(option, padding));
    message.set_edns(edns);
    message.to_vec()
}

/// The response, if it is one to this query.
fn of(answer: Vec<u8>, query: &Query) -> Result<DnsResponse, SecureFault> {
    let response = DnsResponse::from_buffer(answer)?;
    let is_asked = response
        .queries
        .iter()
        .any(|asked| asked.name() == query.name() && asked.query_type() == query.query_type());
    // A server that could not read a query may leave it out.
    let is_empty = response.queries.is_empty() && response.answers.is_empty();
    match response.id == 0 && (is_asked || is_empty) {
        true => Ok(response),
        false => Err(SecureFault::Unasked),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hickory_resolver::proto::rr::{Name, RecordType};

    use super::*;

    fn query(name: &str) -> Query {
        Query::query(Name::from_ascii(name).unwrap(), RecordType::AAAA)
    }

    #[test]
    fn queries_of_names_have_one_length() {
        let long = format!("{}.example.", "a".repeat(60));
        for name in ["a.example.", "www.bank.example.", &long] {
            let bytes = message(&query(name)).unwrap();
            assert_eq!((bytes.len(), &bytes[..2]), (PADDED_TO, &[0, 0][..]), "{name}");
            assert_eq!(Message::from_vec(&bytes).unwrap().queries, [query(name)]);
        }
    }

    #[test]
    fn an_answer_counts_for_its_question_only() {
        let mut response = Message::response(0, OpCode::Query);
        response.add_query(query("a.example."));
        let bytes = response.to_vec().unwrap();
        assert!(of(bytes.clone(), &query("A.example.")).is_ok());
        let other = of(bytes, &query("b.example."));
        assert!(matches!(other, Err(SecureFault::Unasked)), "{other:?}");
        let asked = of(message(&query("a.example.")).unwrap(), &query("a.example."));
        assert!(matches!(asked, Err(SecureFault::Malformed(_))), "{asked:?}");
        let cut = of(vec![0; 5], &query("a.example."));
        assert!(matches!(cut, Err(SecureFault::Malformed(_))), "{cut:?}");
    }

    #[test]
    fn an_authority_has_its_port() {
        assert_eq!(authority("dns.example", 443), "dns.example");
        assert_eq!(authority("dns.example", 8443), "dns.example:8443");
        assert_eq!(authority("2001:db8::1", 443), "[2001:db8::1]");
    }
}
