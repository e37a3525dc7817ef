//! Keys of other programs whose task is not Eyelet's, and who does it.

/// Returns a sentence about a key that is known elsewhere, if it is one.
pub fn sentence(key: &str) -> Option<&'static str> {
    TASKS.iter().find(|(keys, _)| keys.contains(&key)).map(|(_, sentence)| *sentence)
}

const TASKS: [(&[&str], &str); 16] = [
    (
        &[
            "path",
            "paths",
            "path_prefix",
            "location",
            "route",
            "routes",
            "rewrite",
            "strip_prefix",
            "uri",
        ],
        "Eyelet does not route or rewrite by path: all requests of a rule go to its upstreams; the \
         application does it, or nginx, Caddy or HAProxy as the upstream",
    ),
    (
        &["directory"],
        "Eyelet does not serve files: the application does it, or nginx or Caddy as the upstream; \
         an ACME server's directory stands in [acme]",
    ),
    (
        &["root", "file_server", "files", "static", "index", "try_files"],
        "Eyelet does not serve files: the application does it, or nginx or Caddy as the upstream",
    ),
    (
        &[
            "auth",
            "auth_basic",
            "auth_request",
            "basic_auth",
            "forward_auth",
            "htpasswd",
            "jwt",
            "login",
            "oauth",
            "oidc",
            "password",
            "users",
        ],
        "Eyelet does not authenticate users: the application does it, or oauth2-proxy as the \
         upstream; `client_ca` asks for client certificates",
    ),
    (
        &["cache", "proxy_cache", "rate_limit", "limit_req", "waf"],
        "Eyelet does not cache, filter or count requests: nginx, HAProxy or Varnish as the \
         upstream does it",
    ),
    (
        &["backup", "balance", "lb_policy", "max_fails", "sticky", "weight", "weights"],
        "Eyelet chooses among upstreams by load and health, or by `upstream_hash`: HAProxy as the \
         upstream has weights, backups and other ways",
    ),
    (
        &["stick_table"],
        "`upstream_hash = \"client\"` keeps a client at one of several upstreams: HAProxy as the \
         upstream counts in tables",
    ),
    (
        &["backend", "proxy_pass", "reverse_proxy"],
        "`upstream` says where a rule sends its connections, as in \
         `upstream = \"http://127.0.0.1:3000\"`",
    ),
    (
        &["allow", "deny"],
        "`client = \"10.0.0.0/8\"` gives a rule these addresses, and `action = \"refuse\"` refuses \
         them; the first rule that matches decides, and what none takes is refused",
    ),
    (
        &["brotli", "encode", "gzip", "zstd"],
        "responses are compressed without a key, by what the client accepts: a rule's `compress` \
         changes that",
    ),
    (
        &["timeout", "timeouts"],
        "[limits] and [http] have the timeouts, each by its name and for all rules, such as \
         `idle_timeout` and `upstream_timeout`",
    ),
    (
        &["error_page", "error_pages", "errorfile"],
        "Eyelet shows no pages of yours: the application makes them, or nginx, Caddy or HAProxy as \
         the upstream; `message` adds a line to what a proxy's refused clients get",
    ),
    (
        &["redirect", "redirects", "return", "force_https", "https_redirect"],
        "a listener with `kind = \"http_redirect\"` sends clients from http:// to https://; the \
         application makes other redirects",
    ),
    (&["http3", "quic", "alt_svc"], "Eyelet does not speak HTTP/3: browsers use HTTP/2 instead"),
    (
        &["cipher_suites", "ciphers", "curves", "dhparam", "ssl_ciphers", "ssl_protocols"],
        "the cipher suites and groups are fixed; `tls_version_min` chooses between TLS 1.2 and 1.3",
    ),
    (&["websocket", "websockets", "ws"], "WebSockets need no key"),
];
