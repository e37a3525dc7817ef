//! The hello in datagrams of QUIC, from a file: hex digits, or a capture.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use eyelet_config::Config;
use eyelet_edge::path::fingerprint;
use eyelet_quic::{InitialRead, InitialReader};
use eyelet_wire::hello::{Hello, Sni, Transport};
use eyelet_wire::quic::{QuicAnswer, QuicFault};

use super::args::ExplainArgs;
use super::pcap;

/// Longest file that is read. A hello takes a few datagrams; a capture may have a page's worth.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Takes the facts of the hello in `--quic FILE`, if it is given. The inner error is a file without
/// a hello.
pub(super) fn take(
    args: &mut ExplainArgs,
    config: &Config,
    out: &mut impl Write,
) -> io::Result<Result<(), String>> {
    let Some(path) = &args.quic else { return Ok(Ok(())) };
    let read = datagrams(path)
        .and_then(|datagrams| first_hello(&datagrams, config.limits.hello_bytes_max));
    let (hello, used) = match read {
        Ok(found) => found,
        Err(why) => return Ok(Err(format!("{}: {why}", path.display()))),
    };
    let ja4 = fingerprint::ja4(&hello).to_string();
    writeln!(out, "hello:   from {used} datagram{}, ja4 {ja4}", if used == 1 { "" } else { "s" })?;
    args.transport = Transport::Quic;
    match hello.sni() {
        Sni::Absent => args.no_sni = true,
        Sni::Name(name) => args.sni = Some(name.to_string()),
        Sni::Malformed(_) => args.sni_malformed = true,
    }
    args.alpn = hello.alpn().map(|name| name.to_string()).collect();
    args.tls_version_max = hello.version_max();
    args.ech = hello.has_ech();
    args.tls_compression = hello.offers_compression();
    args.ja4 = Some(ja4);
    Ok(Ok(()))
}

/// The first hello in these datagrams, and how many they were that carried it. Datagrams of a
/// server and of other connections may lie between.
fn first_hello(
    datagrams: &[Vec<u8>],
    hello_bytes_max: usize,
) -> Result<(Hello<'static>, usize), String> {
    let mut reader: Option<InitialReader> = None;
    let (mut used, mut last) = (0, None);
    for datagram in datagrams {
        let begun = match &mut reader {
            Some(begun) => begun,
            none => match InitialReader::new(datagram, hello_bytes_max) {
                Ok(begun) => none.insert(begun),
                Err(fault) => {
                    last = last.or(Some(fault));
                    continue;
                }
            },
        };
        match begun.feed(datagram) {
            InitialRead::Hello(hello) => return Ok((hello, used + 1)),
            InitialRead::NeedMore | InitialRead::Known => used += 1,
            InitialRead::Fault(fault) if used == 0 => (reader, last) = (None, Some(fault)),
            InitialRead::Fault(fault) => match fault.answer() {
                QuicAnswer::Drop => {}
                QuicAnswer::Close(code) => return Err(format!("{fault} (refused by {code:#x})")),
            },
        }
    }
    Err(match (used, last) {
        (0, Some(fault)) => format!("no hello: {fault}{}", advice(fault)),
        (0, None) => "no datagram".to_owned(),
        (used, _) => format!("the hello is not complete after {used} datagrams"),
    })
}

fn advice(fault: QuicFault) -> &'static str {
    match fault {
        QuicFault::OtherVersion(_) => "; an edge decides it by rules that ask for no hello",
        _ => "",
    }
}

fn datagrams(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("more than {} MiB", FILE_BYTES_MAX >> 20));
    }
    match pcap::datagrams(&bytes) {
        Some(captured) => captured,
        None => from_hex(&bytes),
    }
}

/// Datagrams in hex. An empty line divides them, and one that begins with `#` and is for people.
fn from_hex(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let text = str::from_utf8(text).map_err(|_| NEITHER.to_owned())?;
    let mut datagrams = vec![String::new()];
    for line in text.lines() {
        let digits: String = line.split_whitespace().collect();
        match datagrams.last_mut() {
            Some(last) if !digits.is_empty() && !line.starts_with('#') => last.push_str(&digits),
            _ => datagrams.push(String::new()),
        }
    }
    datagrams.retain(|digits| !digits.is_empty());
    datagrams.iter().map(|digits| bytes_of(digits).ok_or_else(|| NEITHER.to_owned())).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

const NEITHER: &str = "neither a capture (pcap) nor datagrams in hex, with an empty line between";
