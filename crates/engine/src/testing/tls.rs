//! The two TLS ends of a terminated connection: the edge's session, and the client's from the same
//! secrets.

use eyelet_record::{
    CONTROL_BYTES_MAX, Incoming, Keys, Opened, PAYLOAD_BYTES_MAX, Role, Session, Suite, alert,
};
use fastrand::Rng;

/// Most records that a key seals under AES-GCM, and how many records before that the sender updates
/// it. Sequence numbers may begin near there.
const RECORDS_MAX: u64 = 1 << 24;
const REKEY_MARGIN: u64 = 1 << 10;
/// Most records until such an update is due.
const RECORDS_BEFORE: u64 = 8;

/// A message that the client's end has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    CloseNotify,
    Alert(u8),
}

/// The client's end.
pub struct Client {
    session: Session,
    keys: Keys,
    input: Vec<u8>,
    pub said: Option<Said>,
    /// It has sent a fatal alert, and ignores what arrives.
    has_failed: bool,
}

/// Both ends of one session.
pub fn pair(rng: &mut Rng) -> (Session, Client) {
    let suite =
        *rng.choice(&[Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305]).unwrap();
    let mut secret = || (0..48).map(|_| rng.u8(..)).collect::<Vec<u8>>();
    let [up, down] = [secret(), secret()];
    let sequences = [sequence(rng, suite), sequence(rng, suite)];
    let [edge, client] = if rng.bool() {
        let len = if suite == Suite::Aes256Gcm { 48 } else { 32 };
        let new = |state, rx, tx| Session::tls13(state, suite, &up[..len], &down[..len], rx, tx);
        [
            new(Role::Server, sequences[0], sequences[1]),
            new(Role::Client, sequences[1], sequences[0]),
        ]
    } else {
        let len = if suite == Suite::Aes128Gcm { 16 } else { 32 };
        let halves = |secret| <[u8]>::split_at(secret, len);
        let ((up, up_iv), (down, down_iv)) = (halves(&up), halves(&down));
        let (up_iv, down_iv) = (&up_iv[..12], &down_iv[..12]);
        [
            Session::tls12(Role::Server, suite, up, up_iv, down, down_iv, 1, 1),
            Session::tls12(Role::Client, suite, down, down_iv, up, up_iv, 1, 1),
        ]
    };
    let session = client.unwrap();
    (
        edge.unwrap(),
        Client { session, keys: Keys::new(), input: Vec::new(), said: None, has_failed: false },
    )
}

fn sequence(rng: &mut Rng, suite: Suite) -> u64 {
    let before = rng.u64(..RECORDS_BEFORE);
    if suite == Suite::ChaCha20Poly1305 || rng.bool() {
        before
    } else {
        RECORDS_MAX - REKEY_MARGIN - before
    }
}

impl Client {
    /// Appends records with `plain`, after the control record that is due.
    pub fn seal(&mut self, mut plain: &[u8], pieces: usize, out: &mut Vec<u8>) {
        self.control(out);
        while !plain.is_empty() {
            let len = plain.len().min(pieces).min(PAYLOAD_BYTES_MAX);
            let mut slot = vec![0; self.session.record_len(len)];
            slot[self.session.prefix_len()..][..len].copy_from_slice(&plain[..len]);
            let sealed = self.session.seal(&mut self.keys, &mut slot, len).unwrap();
            out.extend_from_slice(&slot[..sealed]);
            plain = &plain[len..];
            self.control(out);
        }
    }

    fn control(&mut self, out: &mut Vec<u8>) {
        while self.session.control_due() {
            let mut record = [0; CONTROL_BYTES_MAX];
            let sealed = self.session.seal_control(&mut self.keys, &mut record).unwrap();
            out.extend_from_slice(&record[..sealed]);
        }
    }

    /// Appends a KeyUpdate that asks the edge for its own.
    pub fn update_keys(&mut self, out: &mut Vec<u8>) {
        self.session.request_key_update();
        self.control(out);
    }

    /// Appends an alert.
    pub fn alert(&mut self, description: u8, out: &mut Vec<u8>) {
        let mut record = [0; CONTROL_BYTES_MAX];
        let sealed = self.session.seal_alert(&mut self.keys, description, &mut record).unwrap();
        out.extend_from_slice(&record[..sealed]);
        self.has_failed |= description != alert::CLOSE_NOTIFY;
    }

    /// Appends close_notify.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.alert(alert::CLOSE_NOTIFY, out);
    }

    /// Opens received bytes. Passes the plaintext to `take`, and appends the control record that is
    /// then due to `out`.
    pub fn open(&mut self, bytes: &[u8], out: &mut Vec<u8>, mut take: impl FnMut(&[u8])) {
        if self.has_failed {
            return;
        }
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while at < self.input.len() {
            let opened = self.session.open(&mut self.keys, &mut self.input[at..]);
            let opened =
                opened.unwrap_or_else(|fault| panic!("the edge has sealed wrongly: {fault}"));
            let Opened::Record { consumed, what } = opened else { break };
            match what {
                Incoming::Data(range) => take(&self.input[at + range.start..at + range.end]),
                Incoming::CloseNotify => self.said = Some(Said::CloseNotify),
                Incoming::PeerAlert(code) => self.said = Some(Said::Alert(code)),
                Incoming::Nothing | Incoming::Reply => {}
            }
            at += consumed;
            if matches!(self.said, Some(Said::Alert(_))) {
                at = self.input.len();
            }
        }
        self.input.drain(..at);
        self.control(out);
    }
}
