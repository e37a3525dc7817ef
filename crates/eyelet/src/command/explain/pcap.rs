//! The UDP datagrams of a capture in the pcap format, as `tcpdump -w` writes it.

/// The datagrams of a capture, in its order. `None`: it is no capture. An inner error is one that
/// cannot be read.
pub(super) fn datagrams(file: &[u8]) -> Option<Result<Vec<Vec<u8>>, String>> {
    let (magic, rest) = file.split_first_chunk()?;
    let number: fn([u8; 4]) -> u32 = match u32::from_le_bytes(*magic) {
        // Times in microseconds, or in nanoseconds.
        0xa1b2_c3d4 | 0xa1b2_3c4d => u32::from_le_bytes,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => u32::from_be_bytes,
        PCAPNG => {
            let advice = "a capture in the pcapng format; `editcap -F pcap IN OUT` makes it pcap";
            return Some(Err(advice.to_owned()));
        }
        _ => return None,
    };
    Some(walk(rest, number).ok_or_else(|| "a capture whose end is missing".to_owned()).and_then(
        |(link, frames)| {
            let link = Link::of(link)
                .ok_or_else(|| format!("a capture of link type {link}, which is not read"))?;
            Ok(frames.into_iter().filter_map(|frame| link.datagram(frame)).collect())
        },
    ))
}

/// The link type, and the captured frames.
fn walk(file: &[u8], number: fn([u8; 4]) -> u32) -> Option<(u32, Vec<&[u8]>)> {
    // Versions, zone, accuracy and length (16), then the link type in the lower 28 bits.
    let link = number(*file.get(16..)?.first_chunk()?) & 0x0fff_ffff;
    let mut left = file.get(20..)?;
    let mut frames = Vec::new();
    while !left.is_empty() {
        // Time (8), captured length, length of the frame.
        let len = number(*left.get(8..)?.first_chunk()?) as usize;
        let (frame, rest) = left.get(16..)?.split_at_checked(len)?;
        frames.push(frame);
        left = rest;
    }
    Some((link, frames))
}

/// The header that comes before an IP packet.
enum Link {
    /// Bytes of it, the last two of which are an EtherType, or four of a VLAN and another one.
    EtherType(usize),
    /// This many bytes, and the packet says its own version.
    Bytes(usize),
}

impl Link {
    /// The link types of `pcap-linktype(7)` that Linux captures have.
    const fn of(number: u32) -> Option<Self> {
        match number {
            0 | 108 => Some(Self::Bytes(4)),
            1 => Some(Self::EtherType(14)),
            12 | 101 | 228 | 229 => Some(Self::Bytes(0)),
            113 => Some(Self::EtherType(16)),
            276 => Some(Self::Bytes(20)),
            _ => None,
        }
    }

    /// The payload of a frame that is a whole UDP datagram.
    fn datagram(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let skipped = match *self {
            Self::Bytes(skipped) => skipped,
            Self::EtherType(skipped) if frame.get(skipped - 2..skipped)? == VLAN => skipped + 4,
            Self::EtherType(skipped) => skipped,
        };
        udp_payload(frame.get(skipped..)?).map(<[u8]>::to_vec)
    }
}

fn udp_payload(packet: &[u8]) -> Option<&[u8]> {
    let udp = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 0x0f) * 4;
            // A later fragment has no UDP header, and the first one has no whole datagram.
            let fragment = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?) & 0x3fff;
            if fragment != 0 || *packet.get(9)? != UDP {
                return None;
            }
            packet.get(header..)?
        }
        6 if *packet.get(6)? == UDP => packet.get(40..)?,
        _ => return None,
    };
    let len = usize::from(u16::from_be_bytes(*udp.get(4..)?.first_chunk()?));
    udp.get(8..len)
}

/// The protocol number of UDP.
const UDP: u8 = 17;
/// The EtherType of a VLAN's tag (802.1Q).
const VLAN: [u8; 2] = [0x81, 0x00];
/// The block type that begins a file in the pcapng format.
const PCAPNG: u32 = 0x0a0d_0d0a;
