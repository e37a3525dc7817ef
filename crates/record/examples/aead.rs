//! Measures AEAD libraries and key derivation as this crate uses them; prints README.md's tables.
//! Thread CPU time, the least of many short rounds: other load can only slow a round.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;

use eyelet_record::{Keys, PAYLOAD_BYTES_MAX, Role, SLOT_BYTES, Session, Suite, Version};
use rustix::time::{ClockId, clock_gettime};

const SMALL: usize = 100;
const NONCE: [u8; 12] = [7; 12];
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
const KEY: [u8; 32] = [9; 32];

/// Rounds per figure, and the CPU time of one round: short compared with a time slice.
const ROUNDS: u32 = 400;
const ROUND_NS: u64 = 100_000;

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of one call.
fn measure(mut call: impl FnMut()) -> f64 {
    let mut calls = 1;
    while time(&mut call, calls) < ROUND_NS {
        calls *= 2;
    }
    let least = (0..ROUNDS).map(|_| time(&mut call, calls)).min().unwrap_or(0);
    least as f64 / f64::from(calls)
}

fn time(call: &mut impl FnMut(), calls: u32) -> u64 {
    let start = cpu_ns();
    for _ in 0..calls {
        call();
    }
    cpu_ns() - start
}

struct Row {
    library: &'static str,
    expand: f64,
    seal_small: f64,
    open_small: f64,
    seal_full: f64,
    open_full: f64,
}

impl Row {
    fn print(&self, suite: Suite) {
        let rate = |ns: f64| PAYLOAD_BYTES_MAX as f64 / ns;
        println!(
            "| {suite:?} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
            self.library,
            self.expand,
            self.seal_small,
            self.open_small,
            self.expand + self.seal_small,
            rate(self.seal_full),
            rate(self.open_full),
        );
    }
}

/// ring and aws-lc-rs have the same interface.
macro_rules! ring_like {
    ($library:literal, $aead:path, $suite:expr) => {{
        use $aead as aead;
        let algorithm = match $suite {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let expand = || {
            let key = aead::UnboundKey::new(algorithm, &KEY[..algorithm.key_len()]).unwrap();
            aead::LessSafeKey::new(key)
        };
        let key = expand();
        let nonce = || aead::Nonce::assume_unique_for_key(NONCE);
        let seal = |len: usize| {
            let mut buffer = vec![1; len];
            measure(|| {
                let aad = aead::Aad::from(AAD);
                let tag = key.seal_in_place_separate_tag(nonce(), aad, &mut buffer).unwrap();
                let _ = black_box(tag);
            })
        };
        let open = |len: usize| {
            let mut sealed = vec![1; len];
            let aad = aead::Aad::from(AAD);
            let tag = key.seal_in_place_separate_tag(nonce(), aad, &mut sealed).unwrap();
            sealed.extend_from_slice(tag.as_ref());
            let mut buffer = sealed.clone();
            measure(|| {
                buffer.copy_from_slice(&sealed);
                let aad = aead::Aad::from(AAD);
                let _ = black_box(key.open_in_place(nonce(), aad, &mut buffer).unwrap());
            })
        };
        Row {
            library: $library,
            expand: measure(|| _ = black_box(expand())),
            seal_small: seal(SMALL),
            open_small: open(SMALL),
            seal_full: seal(PAYLOAD_BYTES_MAX),
            open_full: open(PAYLOAD_BYTES_MAX),
        }
    }};
}

macro_rules! graviola_like {
    ($new:expr) => {{
        let expand = $new;
        let key = expand();
        let seal = |len: usize| {
            let mut buffer = vec![1; len];
            let mut tag = [0; 16];
            measure(|| key.encrypt(&NONCE, &AAD, &mut buffer, &mut tag))
        };
        let open = |len: usize| {
            let mut sealed = vec![1; len];
            let mut tag = [0; 16];
            key.encrypt(&NONCE, &AAD, &mut sealed, &mut tag);
            let mut buffer = sealed.clone();
            measure(|| {
                buffer.copy_from_slice(&sealed);
                key.decrypt(&NONCE, &AAD, &mut buffer, &tag).unwrap();
            })
        };
        Row {
            library: "graviola",
            expand: measure(|| _ = black_box(expand())),
            seal_small: seal(SMALL),
            open_small: open(SMALL),
            seal_full: seal(PAYLOAD_BYTES_MAX),
            open_full: open(PAYLOAD_BYTES_MAX),
        }
    }};
}

fn graviola_row(suite: Suite) -> Row {
    use graviola::aead::{AesGcm, ChaCha20Poly1305};
    match suite {
        Suite::Aes128Gcm => graviola_like!(|| AesGcm::new(black_box(&KEY[..16]))),
        Suite::Aes256Gcm => graviola_like!(|| AesGcm::new(black_box(&KEY))),
        Suite::ChaCha20Poly1305 => graviola_like!(|| ChaCha20Poly1305::new(black_box(KEY))),
    }
}

fn session(version: Version, suite: Suite) -> Session {
    let key_len = if suite == Suite::Aes128Gcm { 16 } else { 32 };
    let secret_len = if suite == Suite::Aes256Gcm { 48 } else { 32 };
    let (secret, iv) = ([1; 48], [2; 12]);
    match version {
        Version::Tls13 => {
            let secret = &secret[..secret_len];
            Session::tls13(Role::Server, suite, secret, secret, 0, 0).unwrap()
        }
        Version::Tls12 => {
            let key = &secret[..key_len];
            Session::tls12(Role::Server, suite, key, &iv, key, &iv, 0, 0).unwrap()
        }
    }
}

/// This crate's own cost: a record sealed with keys at hand, and by a session that just woke. A new
/// session in each round keeps the sequence numbers below their limit.
fn session_row(version: Version, suite: Suite) {
    let mut slot = vec![0; SLOT_BYTES];
    let mut seal = |len: usize, parked: bool| {
        let mut session = session(version, suite);
        let mut keys = Keys::new();
        measure(|| {
            if session.control_due() || session.seal(&mut keys, &mut slot, len).is_err() {
                session = self::session(version, suite);
                keys.clear();
            }
            if parked {
                keys.clear();
            }
        })
    };
    let (awake, woken) = (seal(SMALL, false), seal(SMALL, true));
    let full = PAYLOAD_BYTES_MAX as f64 / seal(PAYLOAD_BYTES_MAX, false);
    let cost = woken - awake;
    println!("| {version:?} {suite:?} | {awake:.0} | {woken:.0} | {cost:.0} | {full:.2} |");
}

/// HKDF-Expand-Label of one key and one iv; both share the secret's HMAC key.
macro_rules! derive_like {
    ($hmac:path, $bits:literal) => {{
        use $hmac as hmac;
        let (algorithm, secret_len, key_len) = match $bits {
            256 => (hmac::HMAC_SHA256, 32, 16),
            _ => (hmac::HMAC_SHA384, 48, 32),
        };
        measure(|| {
            let prk = hmac::Key::new(algorithm, black_box(&[1; 48][..secret_len]));
            let key = hmac::sign(&prk, b"\x00\x10\x09tls13 key\x00\x01");
            let iv = hmac::sign(&prk, b"\x00\x0c\x08tls13 iv\x00\x01");
            black_box((&key.as_ref()[..key_len], &iv.as_ref()[..12]));
        })
    }};
}

/// That through ring's HKDF.
macro_rules! hkdf_like {
    ($hkdf:path, $bits:literal) => {{
        use $hkdf as hkdf;
        struct Len(usize);
        impl hkdf::KeyType for Len {
            fn len(&self) -> usize {
                self.0
            }
        }
        let (algorithm, secret_len, key_len) = match $bits {
            256 => (hkdf::HKDF_SHA256, 32, 16),
            _ => (hkdf::HKDF_SHA384, 48, 32),
        };
        measure(|| {
            let prk = hkdf::Prk::new_less_safe(algorithm, black_box(&[1; 48][..secret_len]));
            let mut out = [0; 44];
            let (key, iv) = out[..key_len + 12].split_at_mut(key_len);
            prk.expand(&[b"\x00\x10\x09tls13 key\x00"], Len(key_len)).unwrap().fill(key).unwrap();
            prk.expand(&[b"\x00\x0c\x08tls13 iv\x00"], Len(12)).unwrap().fill(iv).unwrap();
            black_box(out);
        })
    }};
}

fn derivation_rows() {
    println!("| key and iv from a traffic secret | SHA-256, ns | SHA-384, ns |");
    println!("|---|---|---|");
    let row = |name, small: f64, large: f64| println!("| {name} | {small:.0} | {large:.0} |");
    row("ring hmac", derive_like!(ring::hmac, 256), derive_like!(ring::hmac, 384));
    row("ring hkdf", hkdf_like!(ring::hkdf, 256), hkdf_like!(ring::hkdf, 384));
    row("aws-lc-rs hmac", derive_like!(aws_lc_rs::hmac, 256), derive_like!(aws_lc_rs::hmac, 384));
    row("aws-lc-rs hkdf", hkdf_like!(aws_lc_rs::hkdf, 256), hkdf_like!(aws_lc_rs::hkdf, 384));
}

fn main() {
    let suites = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
    println!(
        "| AEAD | library | expand key, ns | seal 100 B, ns | open 100 B, ns \
         | expand + seal 100 B, ns | seal 16 KiB, GB/s | open 16 KiB + copy, GB/s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for suite in suites {
        ring_like!("ring", ring::aead, suite).print(suite);
        ring_like!("aws-lc-rs", aws_lc_rs::aead, suite).print(suite);
        graviola_row(suite).print(suite);
    }
    println!();
    derivation_rows();
    println!();
    println!("| Session::seal | 100 B awake, ns | 100 B woken, ns | waking, ns | 16 KiB, GB/s |");
    println!("|---|---|---|---|---|");
    for version in [Version::Tls13, Version::Tls12] {
        for suite in suites {
            session_row(version, suite);
        }
    }
}
