//! TLS hellos built byte by byte (RFC 8446 section 4.1.2), the odd ones too, cut at will. The
//! project's own reader is not used: a test that shares code shares its faults.

/// A ClientHello to be: what the tests vary, over a plain TLS 1.3 offer.
#[derive(Clone)]
pub struct Hello {
    names: Vec<Vec<u8>>,
    extra: Vec<u8>,
    versions: Vec<u8>,
    without: Vec<u16>,
}

impl Hello {
    /// Without a name.
    pub fn nameless() -> Self {
        let (names, extra, without) = (Vec::new(), Vec::new(), Vec::new());
        Self { names, extra, versions: vec![4, 3, 4, 3, 3], without }
    }

    pub fn named(name: impl AsRef<[u8]>) -> Self {
        let mut hello = Self::nameless();
        hello.names.push(sni(name.as_ref()));
        hello
    }

    /// One more SNI extension, which RFC 8446 section 4.2 forbids.
    pub fn and_named(mut self, name: &str) -> Self {
        self.names.push(sni(name.as_bytes()));
        self
    }

    /// An extension of any kind, last in the hello.
    pub fn extension(mut self, kind: u16, body: &[u8]) -> Self {
        self.extra.extend(extension(kind, body));
        self
    }

    /// Without an extension that the plain offer has.
    pub fn without(mut self, kind: u16) -> Self {
        self.without.push(kind);
        self
    }

    /// Offers TLS 1.2 and no later version.
    pub fn tls12(mut self) -> Self {
        self.versions = vec![2, 3, 3];
        self
    }

    /// Offers TLS 1.0 and 1.1 and no later version.
    pub fn tls11(mut self) -> Self {
        self.versions = vec![4, 3, 2, 3, 1];
        self
    }

    /// Padding (RFC 7685) up to a handshake message of `bytes` with its 4-byte header.
    pub fn padded_to(self, bytes: usize) -> Self {
        let now = self.message().len();
        self.extension(21, &vec![0; bytes - now - 4])
    }

    /// The handshake message with its 4-byte header.
    pub fn message(&self) -> Vec<u8> {
        let share = [&[0, 0x24, 0, 0x1d, 0, 0x20][..], &[0x4b; 32]].concat();
        let plain: [(u16, &[u8]); 8] = [
            (23, &[]),
            (0xff01, &[0]),
            (10, &[0, 6, 0, 0x1d, 0, 0x17, 0, 0x18]),
            (11, &[1, 0]),
            (13, &[0, 8, 4, 3, 8, 4, 4, 1, 5, 1]),
            (43, &self.versions),
            (51, &share),
            (45, &[1, 1]),
        ];
        let mut extensions = self.names.concat();
        for (kind, body) in plain {
            if !self.without.contains(&kind) {
                extensions.extend(extension(kind, body));
            }
        }
        extensions.extend(&self.extra);

        let ciphers: [u16; 7] = [0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc030, 0xcca9];
        let ciphers = ciphers.map(u16::to_be_bytes).concat();
        let mut body = vec![3, 3];
        body.extend([0x52; 32]);
        body.extend([&[32][..], &[0x55; 32]].concat());
        body.extend(length16(ciphers.len()));
        body.extend(ciphers);
        body.extend([1, 0]);
        body.extend(length16(extensions.len()));
        body.extend(extensions);

        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[1], &length[1..], &body].concat()
    }

    /// In as few records as it takes.
    pub fn bytes(&self) -> Vec<u8> {
        records(&self.message(), &[])
    }
}

/// The message in TLS records, cut at these offsets too, and wherever a record is full.
pub fn records(message: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    for end in cuts.iter().copied().chain([message.len()]) {
        while at < end {
            let length = (end - at).min(1 << 14);
            out.extend([0x16, 3, 1]);
            out.extend(length16(length));
            out.extend(&message[at..at + length]);
            at += length;
        }
    }
    out
}

/// A server's first flight as an observer sees it: a ServerHello, then opaque records.
pub fn server_flight() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0x72; 32]);
    body.extend([&[32][..], &[0x55; 32], &[0x13, 1, 0, 0, 0x2e]].concat());
    body.extend(extension(43, &[3, 4]));
    body.extend(extension(51, &[&[0, 0x1d, 0, 0x20][..], &[0x6b; 32]].concat()));
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let message = [&[2], &length[1..], &body].concat();
    let mut out = vec![0x16, 3, 3];
    out.extend(length16(message.len()));
    out.extend(message);
    out.extend([0x14, 3, 3, 0, 1, 1]);
    out.extend([&[0x17, 3, 3, 0, 0x40][..], &[0x78; 64]].concat());
    out
}

fn sni(name: &[u8]) -> Vec<u8> {
    let entry = [&[0], &length16(name.len())[..], name].concat();
    extension(0, &[&length16(entry.len())[..], &entry].concat())
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes(), &length16(body.len())[..], body].concat()
}

fn length16(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap().to_be_bytes()
}
