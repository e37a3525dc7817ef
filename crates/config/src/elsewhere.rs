//! Keys of other programs whose task is not Eyelet's, and who does it.

/// What to say of a key that is known elsewhere, if it is one.
pub(super) fn sentence(key: &str) -> Option<&'static str> {
    TASKS.iter().find(|(keys, _)| keys.contains(&key)).map(|(_, sentence)| *sentence)
}

const TASKS: [(&[&str], &str); 9] = [
    (
        &["path", "paths", "path_prefix", "location", "route", "routes", "rewrite", "uri"],
        "Eyelet does not route or rewrite by path: all requests of a rule go to its upstreams; the \
         application does it, or nginx, Caddy or HAProxy as the upstream",
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
