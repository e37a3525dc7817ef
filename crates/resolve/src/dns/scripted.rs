//! A DNS server for tests, over UDP: a closure gives the responses to each query.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::UdpSocket;

/// Bytes of a header (RFC 1035 section 4.1.1).
const HEADER: usize = 12;

/// A query, and who sent it.
pub struct ScriptedQuery {
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// A datagram to a client.
pub struct ScriptedResponse {
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl ScriptedQuery {
    /// The name without the dot at its end, in lower case.
    pub fn name(&self) -> String {
        let labels = self.bytes[HEADER..self.question_end() - 5].chunk_by(|_, next| *next > b' ');
        let labels = labels.map(|label| String::from_utf8_lossy(&label[1..]).to_lowercase());
        labels.collect::<Vec<_>>().join(".")
    }

    /// True if there is an OPT record: no other record is additional in a query.
    pub fn has_edns(&self) -> bool {
        self.bytes[10..HEADER] != [0, 0]
    }

    /// An authoritative response with this code, and these addresses if the query is for IPv4.
    pub fn response(&self, code: u8, addresses: &[[u8; 4]]) -> ScriptedResponse {
        let question = &self.bytes[HEADER..self.question_end()];
        let is_v4 = question.ends_with(&[0, 1, 0, 1]);
        let addresses = if is_v4 { addresses } else { &[] };
        let mut bytes = [&self.bytes[..2], &[0x85, 0x80 | code, 0, 1, 0]].concat();
        bytes.push(u8::try_from(addresses.len()).unwrap());
        bytes.extend([0; 4]);
        bytes.extend(question);
        for address in addresses {
            bytes.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            bytes.extend(address);
        }
        ScriptedResponse { to: self.from, bytes }
    }

    fn question_end(&self) -> usize {
        let mut at = HEADER;
        while let length @ 1.. = usize::from(self.bytes[at]) {
            at += 1 + length;
        }
        at + 5
    }
}

/// Serves as long as the runtime lives. `respond` gives the datagrams that follow a query.
pub async fn serve(
    mut respond: impl FnMut(ScriptedQuery) -> Vec<ScriptedResponse> + Send + 'static,
) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
            for response in respond(ScriptedQuery { from, bytes: bytes[..length].to_vec() }) {
                socket.send_to(&response.bytes, response.to).await.unwrap();
            }
        }
    });
    address
}
