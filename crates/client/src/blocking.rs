//! Requests of threads that have no runtime: one answer, or one without an end.

use std::io::{self, Read};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::{Builder, Runtime};

use crate::{ClientError, Connection, HttpServer, RequestLimits, within};

/// Asks on a connection of its own.
///
/// # Errors
/// If there is no whole answer within the limits.
pub fn ask(
    server: &HttpServer,
    request: Request<Bytes>,
    limits: RequestLimits,
) -> Result<Response<Bytes>, ClientError> {
    runtime()?.block_on(crate::ask(server, request, limits))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// The body of an answer without an end.
pub struct Followed {
    runtime: Runtime,
    body: Incoming,
    _connection: Connection,
    /// The time that each piece may take.
    wait: Duration,
    piece: Bytes,
}

impl Followed {
    /// Asks. The head of the answer, and each piece of its body, may take this time.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn ask(
        server: &HttpServer,
        request: Request<Bytes>,
        wait: Duration,
    ) -> Result<Self, ClientError> {
        let runtime = runtime()?;
        let (body, connection) = runtime.block_on(within(wait, async {
            let mut connection = Connection::open(server, wait).await?;
            Ok::<_, ClientError>((connection.send(request).await?.into_body(), connection))
        }))??;
        Ok(Self { runtime, body, _connection: connection, wait, piece: Bytes::new() })
    }
}

impl Read for Followed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let next = self.runtime.block_on(within(self.wait, self.body.frame()));
            let Some(frame) = next.map_err(io::Error::other)? else { return Ok(0) };
            self.piece = frame.map_err(io::Error::other)?.into_data().unwrap_or_default();
        }
        let length = self.piece.len().min(bytes.len());
        self.piece.copy_to_slice(&mut bytes[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;
    use crate::ServerAddress;

    /// A server that answers so, and keeps the connection open.
    fn server(answer: &'static str) -> (HttpServer, thread::JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            stream.write_all(answer.as_bytes()).unwrap();
            stream
        });
        let address = ServerAddress::Tcp(at.ip().to_string(), at.port());
        (HttpServer { address, tls: None }, answering)
    }

    fn get() -> Request<Bytes> {
        Request::get("/").body(Bytes::new()).unwrap()
    }

    const WAIT: Duration = Duration::from_secs(20);
    const LIMITS: RequestLimits = RequestLimits { connect: WAIT, whole: WAIT, body_bytes_max: 3 };

    #[test]
    fn an_answer_has_limits_of_size_and_time() {
        let (asked, answering) = server("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(ask(&asked, get(), LIMITS).unwrap().into_body(), "abc");
        answering.join().unwrap();
        let (asked, answering) = server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd");
        let error = ask(&asked, get(), LIMITS).unwrap_err();
        assert!(matches!(&error, ClientError::Body(_)), "{error:?}");
        answering.join().unwrap();
        let (asked, answering) = server("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab");
        let brief = RequestLimits { whole: Duration::from_millis(50), ..LIMITS };
        let error = ask(&asked, get(), brief).unwrap_err();
        assert_eq!(error.to_string(), "no answer within 0.05 s");
        answering.join().unwrap();
    }

    #[test]
    fn an_answer_without_an_end_is_read_by_pieces() {
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n";
        let (asked, answering) = server(chunks);
        let mut followed = Followed::ask(&asked, get(), WAIT).unwrap();
        let mut read = [0; 5];
        followed.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"abcde");
        answering.join().unwrap();
        assert!(followed.read(&mut read).is_err());
    }
}
