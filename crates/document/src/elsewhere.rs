//! Words of other programs that people write as keys, and the sentence that each of them gets: the
//! key that does the task here, or who does it instead.

/// Returns the sentence for an unknown key of the table with this title, if there is one.
pub fn sentence(title: &str, key: &str) -> Option<&'static str> {
    let found = HINTS.iter().find(|hint| hint.keys.contains(&key) && hint.tables.contains(&title));
    found.map(|hint| hint.sentence)
}

struct Hint {
    /// The tables in which people write these keys. In others such a key is a mistake of another
    /// kind.
    tables: &'static [&'static str],
    keys: &'static [&'static str],
    sentence: &'static str,
}

const fn of_tasks(keys: &'static [&'static str], sentence: &'static str) -> Hint {
    Hint { tables: &["[[listener]]", "[[rule]]", "[http]", "the file"], keys, sentence }
}

const fn of_orders(keys: &'static [&'static str], sentence: &'static str) -> Hint {
    Hint { tables: &["[acme]", "[[listener]]", "[[rule]]", "the file"], keys, sentence }
}

const HINTS: [Hint; 26] = [
    of_tasks(
        &[
            "domain",
            "domains",
            "fqdn",
            "host",
            "hostname",
            "hostnames",
            "server_name",
            "server_names",
        ],
        "`sni` has the names of a rule, as in `sni = \"app.example\"`",
    ),
    of_tasks(
        &["bind", "port", "ports", "http_port", "https_port"],
        "`address` of a [[listener]] says where Eyelet listens, as in `address = \"0.0.0.0:443\"`",
    ),
    of_tasks(
        &["handle", "location", "path", "path_prefix", "paths", "route", "routes"],
        "`path = \"/api/*\"` in a [[rule]] takes these requests, and the rule below it with the \
         same `sni` the others; the path stays as it is: the application changes it, or nginx, \
         Caddy or HAProxy as the upstream",
    ),
    of_tasks(
        &["handle_path", "rewrite", "strip_prefix", "uri"],
        "Eyelet does not rewrite paths: the application does it, or nginx, Caddy or HAProxy as \
         the upstream; `path = \"/api/*\"` in a [[rule]] takes these requests",
    ),
    of_tasks(
        &["directory"],
        "an ACME server's directory stands in [acme], once for all rules; Eyelet does not serve \
         files: the application does it, or nginx or Caddy as the upstream",
    ),
    of_tasks(
        &["file_server", "files", "index", "root", "static", "try_files"],
        "Eyelet does not serve files: the application does it, or nginx or Caddy as the upstream",
    ),
    of_orders(
        &["email", "emails", "mail"],
        "`contact = \"mailto:ops@app.example\"` in [acme] says whom the ACME server may write to",
    ),
    of_orders(
        &["on_demand", "on_demand_tls"],
        "`acme_on_demand = true` in a rule orders a certificate when a client first asks for the \
         name",
    ),
    of_tasks(
        &["auto_https", "https", "ssl", "tls"],
        "`action = \"terminate\"` ends TLS, with `certificate = \"acme\"` (ordered), \"local\" \
         (signed here), or \"app.pem\" with `key = \"app.key\"`",
    ),
    of_tasks(
        &["ssl_certificate", "tls_cert", "tls_certificate", "cert", "cert_file"],
        "`certificate = \"app.pem\"` and `key = \"app.key\"` name the files of a rule",
    ),
    of_tasks(
        &["header_up", "proxy_set_header", "request_headers"],
        "fields of requests cannot be set; `headers` is for responses",
    ),
    of_tasks(
        &["add_header", "header_down", "response_headers"],
        "`headers = { X-Name = \"value\" }` sets fields of responses",
    ),
    of_tasks(
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
    of_tasks(
        &["cache", "proxy_cache", "rate_limit", "limit_req", "waf"],
        "Eyelet does not cache, filter or count requests: nginx, HAProxy or Varnish as the \
         upstream does it",
    ),
    of_tasks(
        &["backup", "balance", "lb_policy", "max_fails", "sticky", "weight", "weights"],
        "Eyelet chooses among upstreams by load and health, or by `upstream_hash`: HAProxy as the \
         upstream has weights, backups and other ways",
    ),
    of_tasks(
        &["stick_table"],
        "`upstream_hash = \"client\"` keeps a client at one of several upstreams: HAProxy as the \
         upstream counts in tables",
    ),
    of_tasks(
        &["backend", "proxy_pass", "reverse_proxy"],
        "`upstream` says where a rule sends its connections, as in \
         `upstream = \"http://127.0.0.1:3000\"`",
    ),
    of_tasks(
        &["allow", "client_ip", "deny", "remote_ip"],
        "`client = \"10.0.0.0/8\"` gives a rule these addresses, and `action = \"refuse\"` refuses \
         them; the first rule that matches decides, and what none takes is refused",
    ),
    of_tasks(
        &["brotli", "encode", "gzip", "zstd"],
        "responses are compressed without a key, by what the client accepts: a rule's `compress` \
         changes that",
    ),
    of_tasks(
        &["timeout", "timeouts"],
        "[limits] and [http] have the timeouts, each by its name and for all rules, such as \
         `idle_timeout` and `upstream_timeout`",
    ),
    of_tasks(
        &["error_page", "error_pages", "errorfile", "respond"],
        "Eyelet shows no pages of yours: the application makes them, or nginx, Caddy or HAProxy as \
         the upstream; `message` adds a line to what a proxy's refused clients get",
    ),
    of_tasks(
        &["force_https", "https_redirect", "redir", "redirect", "redirects", "return"],
        "a listener with `kind = \"http_redirect\"` sends clients from http:// to https://; the \
         application makes other redirects",
    ),
    of_tasks(
        &["h2", "http2", "protocols"],
        "clients get HTTP/2 or HTTP/1.1 without a key; `tls_version_min` chooses between TLS 1.2 \
         and 1.3",
    ),
    of_tasks(
        &["alt_svc", "h3", "http3", "quic"],
        "Eyelet does not speak HTTP/3: browsers use HTTP/2 instead",
    ),
    of_tasks(
        &["cipher_suites", "ciphers", "curves", "dhparam", "ssl_ciphers", "ssl_protocols"],
        "the cipher suites and groups are fixed; `tls_version_min` chooses between TLS 1.2 and 1.3",
    ),
    of_tasks(&["websocket", "websockets", "ws"], "WebSockets need no key"),
];
