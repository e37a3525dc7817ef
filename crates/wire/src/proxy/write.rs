//! Writes a version 2 header, with TLVs about the TLS connection.

use super::header::{
    CLIENT_CERT_CONN, CLIENT_CERT_SESS, Command, SUBTYPE_SSL_CN, TLV_HEADER_LEN, TYPE_SSL,
    V2_HEADER_LEN, V2_LOCAL, V2_PROXY, V2_SIGNATURE, V2_TCP4, V2_TCP6, V2_UNSPEC,
};
use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// TLV types (section 2.2 of the specification).
const TYPE_ALPN: u8 = 0x01;
const TYPE_AUTHORITY: u8 = 0x02;
const SUBTYPE_SSL_VERSION: u8 = 0x21;
const SUBTYPE_SSL_CIPHER: u8 = 0x23;

/// A bit of the `client` field of the SSL TLV.
const CLIENT_SSL: u8 = 0x01;

/// Most bytes of each value: an ALPN name has a length byte; a host name, a common name (64
/// characters of up to 4 bytes, RFC 5280 A.1) and a suite's name fit as well.
const VALUE_BYTES_MAX: usize = 256;

/// Longest header that [`write_v2`] writes: IPv6 addresses, five values, the SSL TLV's own five
/// bytes and six TLV headers.
pub const V2_WRITTEN_BYTES_MAX: usize =
    V2_HEADER_LEN + 36 + 5 * VALUE_BYTES_MAX + 5 + 6 * TLV_HEADER_LEN;

/// The facts that an upstream learns besides the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a> {
    /// The application protocol negotiated with the client.
    pub alpn: Option<&'a [u8]>,
    /// The server name that the client sent.
    pub authority: Option<&'a str>,
    /// The TLS connection that was terminated.
    pub ssl: Option<Ssl<'a>>,
}

/// The TLS connection with the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ssl<'a> {
    /// The version as the specification spells it: `TLSv1.2`, `TLSv1.3`.
    pub version: &'a str,
    /// The cipher suite's name.
    pub cipher: &'a str,
    /// The common name of the client's certificate, if it has one.
    pub common_name: Option<&'a str>,
    /// True if the client showed a certificate that was verified in this session.
    pub client_certificate: bool,
    /// True if it did so on this connection, not only on the one that it resumes.
    pub client_certificate_here: bool,
}

/// The header does not fit the buffer, or one of its values is over 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Writes a version 2 header to the start of `out`. Returns its length.
///
/// A buffer of [`V2_WRITTEN_BYTES_MAX`] bytes is always enough. If only one address is IPv4, it is
/// written as an IPv4-mapped IPv6 address.
///
/// # Errors
/// [`NoRoom`] if `out` is too short or a value too long; `out` then holds no header.
pub fn write_v2(out: &mut [u8], command: Command, tlvs: &Tlvs<'_>) -> Result<usize, NoRoom> {
    let mut writer = Writer { out, len: 0 };
    writer.bytes(&V2_SIGNATURE)?;
    match command {
        Command::Local => {
            writer.bytes(&[V2_LOCAL, V2_UNSPEC])?;
            writer.u16_sized(|_| Ok(()))?;
        }
        Command::Proxy { client, destination } => {
            let v4 = client.is_ipv4() && destination.is_ipv4();
            writer.bytes(&[V2_PROXY, if v4 { V2_TCP4 } else { V2_TCP6 }])?;
            writer.u16_sized(|writer| {
                writer.address(client, v4)?;
                writer.address(destination, v4)?;
                writer.bytes(&client.port().to_be_bytes())?;
                writer.bytes(&destination.port().to_be_bytes())?;
                writer.tlvs(tlvs)
            })?;
        }
    }
    Ok(writer.len)
}

struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

type Written = Result<(), NoRoom>;

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Written {
        let room = self.out.get_mut(self.len..self.len + bytes.len()).ok_or(NoRoom)?;
        room.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// The length of what `body` writes, then what it writes.
    fn u16_sized(&mut self, body: impl FnOnce(&mut Self) -> Written) -> Written {
        let at = self.len;
        self.bytes(&[0, 0])?;
        body(self)?;
        let len = u16::try_from(self.len - at - 2).map_err(|_| NoRoom)?;
        let place = self.out.get_mut(at..at + 2).ok_or(NoRoom)?;
        place.copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    fn address(&mut self, address: SocketAddr, v4: bool) -> Written {
        match address.ip() {
            IpAddr::V4(ip) if v4 => self.bytes(&ip.octets()),
            IpAddr::V4(ip) => self.bytes(&ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
    }

    fn tlv(&mut self, tlv_type: u8, value: &[u8]) -> Written {
        if value.len() > VALUE_BYTES_MAX {
            return Err(NoRoom);
        }
        self.bytes(&[tlv_type])?;
        self.u16_sized(|writer| writer.bytes(value))
    }

    fn tlvs(&mut self, tlvs: &Tlvs<'_>) -> Written {
        if let Some(alpn) = tlvs.alpn {
            self.tlv(TYPE_ALPN, alpn)?;
        }
        if let Some(authority) = tlvs.authority {
            self.tlv(TYPE_AUTHORITY, authority.as_bytes())?;
        }
        if let Some(ssl) = &tlvs.ssl {
            self.bytes(&[TYPE_SSL])?;
            self.u16_sized(|writer| writer.ssl(ssl))?;
        }
        Ok(())
    }

    fn ssl(&mut self, ssl: &Ssl<'_>) -> Written {
        let here = ssl.client_certificate && ssl.client_certificate_here;
        let client = CLIENT_SSL
            | if ssl.client_certificate { CLIENT_CERT_SESS } else { 0 }
            | if here { CLIENT_CERT_CONN } else { 0 };
        self.bytes(&[client])?;
        // `verify`: "zero if the client presented a certificate and it was successfully
        // verified, and non-zero otherwise".
        self.bytes(&u32::from(!ssl.client_certificate).to_be_bytes())?;
        self.tlv(SUBTYPE_SSL_VERSION, ssl.version.as_bytes())?;
        if let Some(common_name) = ssl.common_name {
            self.tlv(SUBTYPE_SSL_CN, common_name.as_bytes())?;
        }
        self.tlv(SUBTYPE_SSL_CIPHER, ssl.cipher.as_bytes())
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PROXY header does not fit")
    }
}

impl core::error::Error for NoRoom {}
