//! A row of a table: a program in a role, and its variants.

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// The program of this repository.
    Eyelet,
    /// nginx, with its stream module for splicing and TCP.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Caddy.
    Caddy,
    /// Envoy.
    Envoy,
    /// hitch, which terminates TLS only.
    Hitch,
    /// stunnel, which terminates TLS only.
    Stunnel,
    /// A tokio-rustls server without an upstream, of this program.
    RustTls,
    /// tokio-rustls and copy_bidirectional, of this program.
    RustProxy,
    /// copy_bidirectional alone, of this program.
    RustSplice,
    /// An epoll loop and splice(2), of this program.
    FloorSplice,
}

/// A server's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMode {
    /// Terminate TLS in front of an HTTP backend.
    Http,
    /// Terminate TLS, and hold a TCP connection to the backend for each client.
    Tcp,
    /// Read the ClientHello, choose the origin by its name among 1,000, and splice.
    Peek,
    /// Splice without a look at the bytes.
    Blind,
    /// Blind splicing to the destination in a PROXY header.
    BlindTowards,
    /// Splicing to it if DNS says that the name, one of 1,000, has this address.
    ByDns,
    /// Splicing to it if the destination has shown a certificate for the name.
    ByCertificate,
}

impl ServerMode {
    /// True if its connections begin with a PROXY header.
    pub const fn has_destination(self) -> bool {
        matches!(self, Self::BlindTowards | Self::ByDns | Self::ByCertificate)
    }
}

/// A row of a table: a program in a role.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name in the table and for `--against`.
    pub label: &'static str,
    /// The program.
    pub kind: ServerKind,
    /// The role.
    pub front: ServerMode,
    /// Writes its access log, to /dev/null.
    pub access_log: bool,
    /// The origin speaks TLS 1.2, not 1.3.
    pub tls12: bool,
    /// Measured unless `--against` names other programs or rows.
    pub usual: bool,
    /// Uses Eyelet's older build.
    pub before: bool,
    /// Handshakes a second that it admits. `None`: as many as there are.
    pub handshakes: Option<u32>,
}

impl Row {
    /// A row that is measured unless `--against` excludes it.
    pub const fn usual(label: &'static str, kind: ServerKind, front: ServerMode) -> Self {
        Self {
            label,
            kind,
            front,
            access_log: false,
            tls12: false,
            usual: true,
            before: false,
            handshakes: None,
        }
    }

    /// A row that is measured only when `--against` names it.
    pub const fn asked(label: &'static str, kind: ServerKind, front: ServerMode) -> Self {
        Self { usual: false, ..Self::usual(label, kind, front) }
    }

    /// The row in front of an origin that speaks TLS 1.2.
    pub const fn tls12(self) -> Self {
        Self { tls12: true, ..self }
    }

    /// The row with Eyelet's older build.
    pub fn before(self) -> Self {
        // Leaks a few dozen bytes a row: all other labels are static texts.
        Self { label: format!("{}-before", self.label).leak(), before: true, ..self }
    }

    /// The row with a limit of handshakes a second.
    pub const fn limited(self, handshakes: u32) -> Self {
        Self { handshakes: Some(handshakes), ..self }
    }

    /// The row with the access log on.
    pub const fn logging(self) -> Self {
        Self { access_log: true, ..self }
    }
}

impl ServerKind {
    /// The program's name, for `--against` and PATH.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eyelet => "eyelet",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Caddy => "caddy",
            Self::Envoy => "envoy",
            Self::Hitch => "hitch",
            Self::Stunnel => "stunnel",
            Self::RustTls => "rust-tls",
            Self::RustProxy => "rust-proxy",
            Self::RustSplice => "rust-splice",
            Self::FloorSplice => "floor-splice",
        }
    }
}
