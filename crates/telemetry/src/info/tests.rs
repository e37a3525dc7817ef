//! Tests of the facts of a connection: their size, their shared parts, and the parts that an import
//! leaves unknown.
#![allow(clippy::unwrap_used)]
use std::net::Ipv4Addr;

use super::*;

fn info(sni: &str, client: &str) -> ConnectionInfo {
    ConnectionInfo {
        id: 7,
        started_unix_ns: 1,
        client: client.parse().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0))),
        connect: None,
        owes_answer: None,
        is_decided: true,
        decided: Decided { sni: Some(sni.into()), rule: Some(0), ..Decided::default() },
        bytes_to_upstream: 2,
        bytes_to_client: 3,
        is_quic: false,
        datagrams: [0; 2],
    }
}

#[test]
fn a_parked_info_comes_back_whole_and_the_table_empties() {
    let mut shared = SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0)));
    for client in ["192.0.2.1:443", "[2001:db8::1]:9"] {
        let one = info("a.example", client).park(&mut shared);
        let two = info("a.example", client).park(&mut shared);
        assert_eq!((one.origin, one.name), (two.origin, two.name));
        let back = one.wake(&mut shared);
        assert_eq!(format!("{back:?}"), format!("{:?}", info("a.example", client)));
        two.wake(&mut shared);
        assert!(shared.is_empty());
    }
    for upstream in [None, Some("192.0.2.2:443"), Some("192.0.2.3:443"), Some("unix:/a")] {
        let minted = |origin| {
            let mut info = minted(origin);
            info.decided.connect = Some("b.example:443".into());
            info.decided.upstream = upstream.map(UpstreamName::of);
            info
        };
        let origin = Ipv4Addr::new(192, 0, 2, 2).to_bits();
        let parked = [origin, origin + 1].map(|origin| minted(origin).park(&mut shared));
        assert_ne!(parked[0].origin, parked[1].origin);
        for (parked, origin) in parked.into_iter().zip(origin..) {
            let listed = parked.upstream(&shared).map(Cow::into_owned);
            assert_eq!(listed, upstream.map(UpstreamName::of));
            let back = parked.wake(&mut shared);
            assert_eq!(format!("{back:?}"), format!("{:?}", minted(origin)));
        }
        assert!(shared.is_empty());
    }
}

/// One name of the greatest length fits, and as many short ones. Invalid UTF-8 takes no more
/// space.
#[test]
fn a_list_of_protocols_is_kept_in_few_bytes() {
    let names = |alpn: &Alpn| alpn.names().map(Cow::into_owned).collect::<Vec<_>>();
    assert_eq!(Alpn::new(std::iter::empty::<&[u8]>()), None);
    let usual = Alpn::new([b"h2".as_slice(), b"http/1.1"].into_iter()).unwrap();
    assert_eq!(names(&usual), ["h2", "http/1.1"]);
    let hostile = Alpn::new([[0xff_u8; 255]; 16].into_iter()).unwrap();
    assert_eq!((hostile.0.len(), names(&hostile)), (256, vec!["\u{fffd}".repeat(255)]));
    let decided = Decided { alpn: Some(hostile), ..Decided::default() };
    assert_eq!(decided.heap_bytes(), 256);
}

/// Returns the info of a connection to this origin for which a certificate was minted.
fn minted(origin: u32) -> ConnectionInfo {
    let to = SocketAddr::from((Ipv4Addr::from(origin), 443));
    let mut info = info(&format!("{origin}.example"), "192.0.2.1:443");
    info.decided = Decided {
        destination: Some(to),
        alpn: Alpn::new([b"h2".as_slice(), b"http/1.1"].into_iter()),
        ja4: Ja4::parse("t13d1516h2_8daaf6152771_b186095e22b6"),
        upstream: Some(UpstreamName::Address(to)),
        evidence: Some(Evidence::default()),
        ..info.decided
    };
    info
}

/// Bytes that the first connection to a further origin adds to its slot: 108 bytes for the origin,
/// 60 for its name, and 20 in tables. No block of the heap, but for evidence, which the cache
/// shares.
#[test]
fn a_further_origin_adds_few_bytes() {
    let budget = Arc::new(Budget::new(64 << 20, 0));
    let mut shared = SharedInfo::new(&budget);
    let mut parked = Vec::new();
    let mut used_with = |origins| {
        let begin = u32::try_from(parked.len()).unwrap();
        parked.extend((begin..origins).map(|n| minted(n).park(&mut shared)));
        budget.used()
    };
    let (before, after) = (used_with(1 << 10), used_with(1 << 11));
    assert_eq!((after - before) >> 10, 188);
    assert_eq!(parked[0].decided(&shared).map(Heap::heap_bytes), Some(0));
}

/// A value that many share costs each of them nothing, but one that has it alone pays for it.
#[test]
fn shared_values_are_paid_for_by_those_that_have_them() {
    let mut shared = SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0)));
    let long = |nth: u32| {
        let mut info = info(&format!("{nth:0>250}.example"), "192.0.2.1:443");
        info.decided.client_certificate = Some(Arc::new(vec![0; 4 << 10].into()));
        info
    };
    let parked: Vec<Parked> = (0..100).map(|_| long(7).park(&mut shared)).collect();
    let bytes = [0, 1, 99].map(|nth| parked[nth].shared_bytes());
    assert!((4 << 10..6 << 10).contains(&bytes[0]), "{bytes:?}");
    assert!(bytes[1] >= bytes[0] / 2 && bytes[2] == 0, "{bytes:?}");
    // The certificate is shared, and the name is not.
    let name = long(8).park(&mut shared).shared_bytes();
    assert_eq!(name, SHARED_STEP_BYTES);
    let mut huge = long(9);
    huge.decided.client_certificate = Some(Arc::new(vec![0; 1 << 20].into()));
    assert_eq!(huge.park(&mut shared).shared_bytes(), 255 * SHARED_STEP_BYTES);
}

/// 8 id + 8 start + 16 + 2 client + 1 marks + 1 shared + 4 rule + 2 x 4 shared + 2 x 8 counters.
#[test]
fn a_parked_info_is_small() {
    assert_eq!(size_of::<Parked>(), 64);
}

/// Another process does not say who named a destination: a PROXY header, where the listener
/// takes them.
#[test]
fn an_imported_destination_may_be_of_a_proxy_header() {
    use DestinationSource::{Imported, Kernel, ProxyHeader};
    let connect = || Some(Name::from(Box::<str>::from("a.example:443")));
    for (destination_source, connect, accepts_proxy_headers, wanted) in [
        (Kernel, None, true, false),
        (Imported, None, false, false),
        (Imported, None, true, true),
        (ProxyHeader, None, false, true),
        (Kernel, connect(), false, true),
    ] {
        let decided = Decided { destination_source, connect, ..Decided::default() };
        assert_eq!(decided.may_be_chosen(accepts_proxy_headers), wanted, "{destination_source:?}");
    }
}
