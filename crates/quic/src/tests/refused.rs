//! The refusal as a client of rustls reads it, with its code.

use eyelet_wire::alert::AlertDescription;
use eyelet_wire::quic::{
    InitialFrame, InitialFrames, LongKind, QuicHeader, QuicId, QuicVersion, packets,
};
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;

use crate::open::open;
use crate::{crypto_error, refusal};

#[test]
fn a_client_reads_why() {
    let quic = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
    let ids = [&b""[..], b"id", &[7; 20]];
    for (version, theirs) in [(QuicVersion::V1, Version::V1), (QuicVersion::V2, Version::V2)] {
        for (dcid, scid) in ids.iter().flat_map(|dcid| ids.map(|scid| (*dcid, scid))) {
            let [client_dcid, client_scid] = [dcid, scid].map(|id| QuicId::new(id).unwrap());
            let code = crypto_error(AlertDescription::UnrecognizedName);
            assert_eq!(code, 0x0170);
            let datagram = refusal(version, &client_dcid, &client_scid, code).unwrap();
            assert!(datagram.len() <= 90, "{}", datagram.len());
            let again = refusal(version, &client_dcid, &client_scid, code);
            assert_eq!(again.as_ref(), Some(&datagram), "one nonce, one message");

            let packet = packets(&datagram).next().unwrap().unwrap();
            assert_eq!(packet.bytes, datagram);
            let QuicHeader::Long(header) = packet.header else { panic!("a short header") };
            assert_eq!(header.kind, LongKind::Initial { token: &[] });
            assert_eq!((header.version, header.dcid, header.scid), (version.number(), scid, dcid));
            let keys = quic.keys(dcid, Side::Client, theirs);
            let mut scratch = Vec::new();
            let opened = open(&packet, &keys.remote, None, &mut scratch).unwrap();
            assert_eq!(opened.number, 0);
            let frames: Vec<_> = InitialFrames::new(opened.payload).unwrap().collect();
            assert_eq!(frames, [Ok(InitialFrame::Close { code })]);
        }
    }
}
