//! `eyelet run --share`: other machines of the network reach the application. A page in the clear
//! gives them the certificate of the local authority, and a QR code has the address.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use eyelet_pki::pem::Pem;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::certificate::Certificate;

/// The port of the page, if it is free. Otherwise it has one that no application expects.
const PAGE: u16 = 80;
/// Clients of the page at a time. More wait in the socket's queue.
const CLIENTS_MAX: usize = 16;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The time that a client may take for all of it.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which accepting pauses after an error, such as no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Colours of a terminal, so that the code is dark on light whatever the terminal has.
const DARK_ON_LIGHT: &str = "\x1b[30;107m";
const USUAL: &str = "\x1b[0m";

/// The page, until it is dropped.
pub(super) struct SharePage(JoinHandle<()>);

impl Drop for SharePage {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The contents of the page.
struct Content {
    page: String,
    pem: String,
}

/// Serves the page. Returns the lines that say where the application and the page are, too. `kept`
/// are ports of the application.
pub(super) async fn begin(
    (ip, port): (IpAddr, u16),
    kept: &[u16],
    certificate: &Certificate,
) -> Result<(SharePage, Vec<String>), Box<dyn Error>> {
    let file = certificate.authority.as_deref().ok_or("no local authority signs")?;
    let pem = fs::read_to_string(file)?;
    let fingerprint = fingerprint(&pem)?;
    let url = url("https", SocketAddr::new(ip, port), 443);
    let mut lines = Vec::new();
    let mut say = |text: &str| lines.push(format!("eyelet: {text}"));
    let failed = |error| format!("cannot listen on {ip}: {error}");
    let listener = bound(ip, kept).await.map_err(failed)?;
    let page = self::url("http", listener.local_addr()?, PAGE);
    say(&format!("shared with this network: {url}"));
    let code = QrCode::new(&url)?.render::<Dense1x2>().build();
    let is_terminal = io::stderr().is_terminal();
    lines.extend(code.lines().map(|line| match is_terminal {
        true => format!("{DARK_ON_LIGHT}{line}{USUAL}"),
        false => line.to_owned(),
    }));
    lines.push(format!("eyelet: a phone that is to trust it gets ca.pem from {page}"));
    lines.push(format!("eyelet: the SHA-256 fingerprint of that: {fingerprint}"));
    lines.push("eyelet: everybody in this network reaches the application until it ends".into());
    let content = Content { page: html(&url, &fingerprint), pem };
    Ok((SharePage(tokio::spawn(serve(listener, content.into()))), lines))
}

async fn bound(ip: IpAddr, kept: &[u16]) -> io::Result<TcpListener> {
    if !kept.contains(&PAGE)
        && let Ok(listener) = TcpListener::bind((ip, PAGE)).await
    {
        return Ok(listener);
    }
    // A port that is held until the end is not given again: one of so many is no kept one.
    let mut tried = Vec::new();
    for _ in 0..kept.len() {
        let listener = TcpListener::bind((ip, 0)).await?;
        if !kept.contains(&listener.local_addr()?.port()) {
            return Ok(listener);
        }
        tried.push(listener);
    }
    TcpListener::bind((ip, 0)).await
}

/// The default port of the scheme is not written.
fn url(scheme: &str, address: SocketAddr, usual: u16) -> String {
    match address {
        address if address.port() != usual => format!("{scheme}://{address}/"),
        SocketAddr::V4(four) => format!("{scheme}://{}/", four.ip()),
        SocketAddr::V6(six) => format!("{scheme}://[{}]/", six.ip()),
    }
}

/// Returns the fingerprint as openssl and the settings of phones show it.
fn fingerprint(pem: &str) -> Result<String, String> {
    let certificate = Pem::new(pem.as_bytes()).certificate().map_err(|why| why.to_string())?;
    let mut text = String::new();
    for byte in digest(&SHA256, &certificate).as_ref() {
        let colon = if text.is_empty() { "" } else { ":" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{colon}{byte:02X}");
    }
    Ok(text)
}

/// The parts come from this program and the command line's address: none needs an escape.
fn html(url: &str, fingerprint: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width\"><title>Eyelet</title>\
         <style>body{{font:1.1em sans-serif;margin:1em auto;max-width:36em;padding:0 1em}}\
         code{{overflow-wrap:anywhere}}</style>\
         <h1>Trust this developer's machine</h1>\
         <p>The application is at <a href=\"{url}\">{url}</a>.\
         <p>Its certificate is signed by the machine's own authority. \
         <a href=\"/ca.pem\">Download ca.pem</a>, and compare its SHA-256 fingerprint with the one \
         in the terminal: this page comes without TLS.<p><code>{fingerprint}</code>\
         <ul><li>iPhone, iPad: allow the profile, install it in Settings, General, VPN &amp; \
         Device Management, then switch it on in General, About, Certificate Trust Settings.\
         <li>Android: Settings, Security, Encryption &amp; credentials, Install a certificate, CA \
         certificate. Chrome takes it; other applications may not.\
         <li>Others: <code>curl --cacert ca.pem {url}</code></ul>\
         <p>It may sign names and addresses of private networks only. Remove it there when you \
         need it no more.\n"
    )
}

async fn serve(listener: TcpListener, content: Arc<Content>) {
    let room = Arc::new(Semaphore::new(CLIENTS_MAX));
    // It ends when the page is dropped. No semaphore is closed.
    while let Ok(place) = room.clone().acquire_owned().await {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let content = content.clone();
        tokio::spawn(async move {
            // A client that fails is gone.
            let _ = timeout(CLIENT_TIMEOUT, answer(client, &content)).await;
            drop(place);
        });
    }
}

async fn answer(mut client: TcpStream, content: &Content) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let length = client.read(&mut piece).await?;
        head.extend(piece.iter().take(length));
        if length == 0 || head.len() > HEAD_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
    }
    client.write_all(response(&head, content).as_bytes()).await?;
    client.shutdown().await?;
    // What is unread at the close would reset the connection.
    while client.read(&mut piece).await? != 0 {}
    Ok(())
}

fn response(head: &[u8], Content { page, pem }: &Content) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    const PLAIN: &str = "text/plain";
    let (status, kind, body) = match &*words {
        [b"GET" | b"HEAD", path, version] if version.starts_with(b"HTTP/1.") => match *path {
            b"/" => ("200 OK", "text/html; charset=utf-8", &**page),
            b"/ca.pem" => ("200 OK", "application/x-x509-ca-cert", &**pem),
            _ => ("404 Not Found", PLAIN, "There are / and /ca.pem.\n"),
        },
        [_, _, version] if version.starts_with(b"HTTP/1.") => {
            ("405 Method Not Allowed\r\nAllow: GET, HEAD", PLAIN, "GET it.\n")
        }
        _ => ("400 Bad Request", PLAIN, "This is no request of HTTP/1.1.\n"),
    };
    let length = body.len();
    let body = if words.first() == Some(&&b"HEAD"[..]) { "" } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n\
         {body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_page_and_the_certificate_are_served() {
        let content = Content { page: "page".into(), pem: "pem".into() };
        for (head, status, body) in [
            ("GET / HTTP/1.1\r\n\r\n", "200", "page"),
            ("GET /ca.pem HTTP/1.0\r\n\r\n", "200", "pem"),
            ("HEAD /ca.pem HTTP/1.1\r\n\r\n", "200", ""),
            ("GET /ca.key HTTP/1.1\r\n\r\n", "404", "There are / and /ca.pem.\n"),
            ("GET /../ca.pem HTTP/1.1\r\n\r\n", "404", "There are / and /ca.pem.\n"),
            ("POST / HTTP/1.1\r\n\r\n", "405", "GET it.\n"),
            ("GET /\r\n\r\n", "400", "This is no request of HTTP/1.1.\n"),
            ("\x16\x03\x01\r\n\r\n", "400", "This is no request of HTTP/1.1.\n"),
        ] {
            let said = response(head.as_bytes(), &content);
            let (answer, rest) = said.split_once("\r\n\r\n").expect(head);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {said}");
            assert_eq!(rest, body, "{head}");
        }
    }

    #[tokio::test]
    async fn the_page_leaves_the_applications_ports() -> io::Result<()> {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let port = bound(ip, &[PAGE]).await?.local_addr()?.port();
        assert!(![PAGE, 8080].contains(&port), "{port}");
        Ok(())
    }

    #[test]
    fn urls_of_the_network() {
        for (scheme, address, usual, expected) in [
            ("https", "192.168.1.5:443", 443, "https://192.168.1.5/"),
            ("https", "192.168.1.5:8443", 443, "https://192.168.1.5:8443/"),
            ("http", "[fd00::5]:80", 80, "http://[fd00::5]/"),
            ("http", "[fd00::5]:8080", 80, "http://[fd00::5]:8080/"),
        ] {
            assert_eq!(url(scheme, address.parse().expect(address), usual), expected);
        }
    }
}
