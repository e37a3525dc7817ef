//! A resolver without data: every name has the same IPv4 addresses, for an hour.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::UdpSocket;

use super::listen;

/// Answers over UDP until it is killed. It also listens on TCP, so that the caller sees that it is
/// up.
pub async fn serve(address: SocketAddr, addresses: &[Ipv4Addr]) -> io::Result<()> {
    let socket = UdpSocket::bind(address).await?;
    let _listener = listen::listen(address)?;
    let mut question = [0; 512];
    loop {
        let (got, from) = socket.recv_from(&mut question).await?;
        if let Some(answer) = answer(&question[..got], addresses) {
            socket.send_to(&answer, from).await?;
        }
    }
}

/// The answer to one question (RFC 1035 section 4.1); None if there is none.
fn answer(question: &[u8], addresses: &[Ipv4Addr]) -> Option<Vec<u8>> {
    let name = question.get(HEADER..)?.iter().position(|byte| *byte == 0)? + 1;
    let asked = question.get(HEADER..HEADER + name + 4)?;
    // Every other type gets an answer without addresses.
    let is_a = asked[name..] == [0, 1, 0, 1];
    let count = if is_a { u8::try_from(addresses.len()).ok()? } else { 0 };
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend_from_slice(asked);
    for address in &addresses[..usize::from(count)] {
        // A pointer to the name in the question, A, IN, an hour, four bytes.
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

const HEADER: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_addresses_and_no_others() {
        let addresses = [Ipv4Addr::new(127, 1, 0, 1), Ipv4Addr::new(127, 1, 0, 2)];
        let question = |kind| {
            let head = [0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
            [&head[..], b"\x01a\x04test\0", &[0, kind, 0, 1], &[0, 0, 41]].concat()
        };
        let a = answer(&question(1), &addresses).unwrap();
        assert_eq!((&a[..2], a[7], a.len()), (&[0xab, 0xcd][..], 2, 12 + 12 + 2 * 16));
        assert_eq!(a[a.len() - 4..], [127, 1, 0, 2]);
        let aaaa = answer(&question(28), &addresses).unwrap();
        assert_eq!((aaaa[7], aaaa.len()), (0, 12 + 12));
        assert_eq!(answer(b"short", &addresses), None);
    }
}
