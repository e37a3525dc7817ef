//! Keys of other programs whose task is not Eyelet's, and who does it.

/// What to say of a key that is known elsewhere, if it is one.
pub(super) fn sentence(key: &str) -> Option<&'static str> {
    TASKS.iter().find(|(keys, _)| keys.contains(&key)).map(|(_, sentence)| *sentence)
}

const TASKS: [(&[&str], &str); 4] = [
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
        &["auth", "auth_request", "basic_auth", "jwt", "login", "oauth", "oidc", "password"],
        "Eyelet does not authenticate users: the application does it, or oauth2-proxy as the \
         upstream; `client_ca` asks for client certificates",
    ),
    (
        &["cache", "proxy_cache", "rate_limit", "limit_req", "waf"],
        "Eyelet does not cache, filter or count requests: nginx, HAProxy or Varnish as the \
         upstream does it",
    ),
];
