//! The configuration of each program for each role, as its manual suggests: one worker, no access
//! log, long timeouts, no tuning.

use std::net::SocketAddr;
use std::path::Path;

use super::row::{Row, ServerKind, ServerMode};
use crate::accounts::Accounts;
use crate::lab::{BOTH, CERTIFICATE, KEY, NAMES, WILDCARD, host_name};
use crate::own::listen::BACKLOG;

/// The parts of a configuration.
pub struct ConfigurationPlan<'a> {
    pub row: &'a Row,
    pub address: SocketAddr,
    /// One backend, or the addresses of the origin. If connections carry their destination, it is
    /// the resolver for their names.
    pub upstreams: &'a [SocketAddr],
    /// The folder of the certificate and the key.
    pub folder: &'a Path,
    /// Other processes share the address.
    pub shared: bool,
    /// The address at which an edge is asked for its memory.
    pub accounts: Option<Accounts>,
}

impl ConfigurationPlan<'_> {
    /// The text of the file; None for programs that only take arguments.
    pub fn text(&self) -> Option<String> {
        match self.row.kind {
            ServerKind::Eyelet => {
                let admin = self.accounts.as_ref().map(Accounts::configuration);
                Some(self.eyelet() + &admin.unwrap_or_default())
            }
            ServerKind::Nginx => Some(self.nginx()),
            ServerKind::Haproxy => Some(self.haproxy()),
            ServerKind::Caddy => Some(self.caddy()),
            ServerKind::Envoy => Some(self.envoy()),
            ServerKind::Hitch => Some(self.hitch()),
            ServerKind::Stunnel => Some(self.stunnel()),
            ServerKind::RustTls
            | ServerKind::RustProxy
            | ServerKind::RustSplice
            | ServerKind::FloorSplice => None,
        }
    }

    fn eyelet(&self) -> String {
        let access = if self.row.access_log { "/dev/null" } else { "off" };
        let (address, shared) = (self.address, self.shared);
        let mut text = format!(
            "[[listener]]\naddress = \"{address}\"\nreuse_port = {shared}\n\n\
             [log]\naccess = \"{access}\"\n\n[limits]\nidle_timeout = \"1h\"\n"
        );
        // As long as the others wait: the clients of all connections share a core.
        text += "hello_timeout = \"1m\"\nhandshake_timeout = \"1m\"\n";
        if let Some(rate) = self.row.handshakes {
            text += &format!("handshakes_per_second = {rate}\n");
        }
        if self.row.front.has_destination() {
            return self.eyelet_towards(access);
        }
        for (k, upstream) in self.upstreams.iter().enumerate() {
            let body = match self.row.front {
                ServerMode::Http => self.eyelet_terminate("http", *upstream),
                ServerMode::Tcp => self.eyelet_terminate("tcp", *upstream),
                ServerMode::Peek => {
                    let names: Vec<String> = self.names_of(k).map(|n| format!("\"{n}\"")).collect();
                    let names = names.join(", ");
                    format!("sni = [{names}]\naction = \"splice\"\nupstream = \"{upstream}\"\n")
                }
                // By client address, which is known before any byte is read.
                _ => {
                    let client = crate::client::source_network(k);
                    format!(
                        "client = \"{client}\"\naction = \"splice\"\nupstream = \"{upstream}\"\n"
                    )
                }
            };
            text += &format!("\n[[rule]]\n{body}");
        }
        text
    }

    fn eyelet_towards(&self, access: &str) -> String {
        let (address, dns) = (self.address, self.upstreams[0]);
        let names: Vec<String> = (0..NAMES).map(|i| format!("\"{}\"", host_name(i))).collect();
        let evidence = match self.row.front {
            ServerMode::ByDns => Some("dns"),
            ServerMode::ByCertificate => Some("certificate"),
            _ => None,
        };
        let matchers = evidence.map_or(String::new(), |evidence| {
            let names = names.join(", ");
            format!("sni = [{names}]\nsni_verified = true\nevidence = \"{evidence}\"\n")
        });
        format!(
            "[[listener]]\naddress = \"{address}\"\nproxy_protocol_from = \"127.0.0.0/8\"\n\n\
             [log]\naccess = \"{access}\"\n\n[limits]\nidle_timeout = \"1h\"\n\n\
             [evidence]\nca = \"{CERTIFICATE}\"\n\n[dns]\nservers = \"{dns}\"\n\n\
             [[rule]]\n{matchers}action = \"splice\"\nupstream = \"destination\"\n"
        )
    }

    fn eyelet_terminate(&self, scheme: &str, upstream: SocketAddr) -> String {
        format!(
            "sni = \"{WILDCARD}\"\naction = \"terminate\"\ncertificate = \"{CERTIFICATE}\"\n\
             key = \"{KEY}\"\nupstream = \"{scheme}://{upstream}\"\n"
        )
    }

    fn nginx(&self) -> String {
        let user = if rustix::process::geteuid().is_root() { "user root root;\n" } else { "" };
        let module = Path::new(NGINX_STREAM_MODULE);
        let stream = self.row.front != ServerMode::Http;
        let load = match stream && module.exists() {
            true => format!("load_module {NGINX_STREAM_MODULE};\n"),
            false => String::new(),
        };
        let port = self.address.port();
        let body = if stream { self.nginx_stream() } else { self.nginx_http() };
        format!(
            "{load}{user}daemon off;\nworker_processes 1;\nworker_rlimit_nofile 20000;\n\
             pid nginx-{port}.pid;\nerror_log stderr crit;\n\
             events {{ worker_connections 19900; }}\n{body}"
        )
    }

    fn nginx_tls(&self) -> String {
        let folder = self.folder.display();
        format!(
            "ssl_certificate {folder}/{CERTIFICATE};\nssl_certificate_key {folder}/{KEY};\n\
             ssl_protocols TLSv1.2 TLSv1.3;\nssl_session_cache shared:tls:10m;\n"
        )
    }

    fn nginx_http(&self) -> String {
        let (tls, address, upstream) = (self.nginx_tls(), self.address, self.upstreams[0]);
        let shared = if self.shared { " reuseport" } else { "" };
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let places = places.map(|place| format!("{place}_temp_path nginx-temporary;\n")).concat();
        format!(
            "http {{\naccess_log off;\n{places}{tls}keepalive_timeout 1h;\n\
             keepalive_requests 100000000;\nclient_header_timeout 1h;\n\
             map $http_upgrade $switch {{ default upgrade; \"\" \"\"; }}\n\
             upstream backend {{ server {upstream}; keepalive 64; \
             keepalive_requests 100000000; keepalive_timeout 1h; }}\n\
             server {{\nlisten {address} ssl http2 backlog={BACKLOG}{shared};\n\
             client_max_body_size 0;\n\
             location / {{ proxy_pass http://backend; proxy_http_version 1.1; \
             proxy_set_header Upgrade $http_upgrade; \
             proxy_set_header Connection $switch; proxy_read_timeout 1h; \
             proxy_max_temp_file_size 0; \
             proxy_request_buffering off; }}\n}}\n}}\n"
        )
    }

    fn nginx_stream(&self) -> String {
        let address = self.address;
        let servers: String = self.upstreams.iter().map(|at| format!("server {at}; ")).collect();
        let listen = format!("backlog={BACKLOG}; proxy_timeout 1h");
        let body = match self.row.front {
            ServerMode::Peek => {
                let pairs = self.pairs().map(|(name, at)| format!("{name} {at};\n"));
                let pairs: String = pairs.collect();
                format!(
                    "map_hash_max_size 4096;\nmap_hash_bucket_size 128;\n\
                     map $ssl_preread_server_name $origin {{\n{pairs}}}\n\
                     server {{ listen {address} {listen}; ssl_preread on; proxy_pass $origin; }}\n"
                )
            }
            ServerMode::Tcp => format!(
                "{}server {{ listen {address} ssl {listen}; proxy_pass {}; }}\n",
                self.nginx_tls(),
                self.upstreams[0]
            ),
            _ => format!(
                "upstream origins {{ {servers}}}\n\
                 server {{ listen {address} {listen}; proxy_pass origins; }}\n"
            ),
        };
        format!("stream {{\n{body}}}\n")
    }

    fn haproxy(&self) -> String {
        let mode = if self.row.front == ServerMode::Http { "http" } else { "tcp" };
        let tls = match self.row.front {
            ServerMode::Http => {
                format!("ssl crt {}/{BOTH} alpn h2,http/1.1", self.folder.display())
            }
            ServerMode::Tcp => format!("ssl crt {}/{BOTH}", self.folder.display()),
            _ => String::new(),
        };
        let choice = match self.row.front {
            ServerMode::Peek => format!(
                "    tcp-request inspect-delay 5s\n    \
                 tcp-request content accept if {{ req.ssl_hello_type 1 }}\n    \
                 tcp-request content reject\n    \
                 use_backend %[req.ssl_sni,lower,map({})]\n",
                self.haproxy_map().display()
            ),
            _ => "    default_backend all\n".to_owned(),
        };
        let each = self.upstreams.iter().enumerate();
        let apart: String =
            each.clone().map(|(k, at)| format!("backend b{k}\n    server s {at}\n")).collect();
        let together: String = each.map(|(k, at)| format!("    server s{k} {at}\n")).collect();
        let reuse = if mode == "http" { "    http-reuse always\n" } else { "" };
        let address = self.address;
        format!(
            "global\n    nbthread 1\n    maxconn 9800\ndefaults\n    mode {mode}\n    \
             timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n    \
             timeout http-request 1h\n    timeout http-keep-alive 1h\n\
             frontend bench\n    bind {address} {tls} backlog {BACKLOG}\n{choice}\
             {apart}backend all\n{reuse}{together}"
        )
    }

    /// HAProxy reads names from a file. This writes it beside the configuration.
    fn haproxy_map(&self) -> std::path::PathBuf {
        let file = self.folder.join("haproxy.map");
        let line = |k: usize| move |name: String| format!("{name} b{k}\n");
        let lines = (0..self.upstreams.len()).flat_map(|k| self.names_of(k).map(line(k)));
        std::fs::write(&file, lines.collect::<String>()).expect("the folder is ours");
        file
    }

    fn caddy(&self) -> String {
        let (address, upstream) = (self.address, self.upstreams[0]);
        let (host, port, folder) = (address.ip(), address.port(), self.folder.display());
        format!(
            "{{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\
             \tservers {{\n\t\tprotocols h1 h2\n\t\ttimeouts {{\n\t\t\tidle 1h\n\t\t}}\n\t}}\n}}\n\
             https://:{port} {{\n\tbind {host}\n\ttls {folder}/{CERTIFICATE} {folder}/{KEY}\n\
             \treverse_proxy http://{upstream}\n}}\n"
        )
    }

    fn envoy(&self) -> String {
        let at = |address: SocketAddr| {
            let (host, port) = (address.ip(), address.port());
            format!("{{socket_address: {{address: {host}, port_value: {port}}}}}")
        };
        let (own, upstream, folder) =
            (at(self.address), at(self.upstreams[0]), self.folder.display());
        let package = "type.googleapis.com/envoy.extensions";
        format!(
            "static_resources:
  listeners:
  - address: {own}
    tcp_backlog_size: {BACKLOG}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          \"@type\": {package}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates:
            - certificate_chain: {{filename: {folder}/{CERTIFICATE}}}
              private_key: {{filename: {folder}/{KEY}}}
      filters:
      - name: http
        typed_config:
          \"@type\": {package}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          stream_idle_timeout: 0s
          common_http_protocol_options: {{idle_timeout: 3600s}}
          http2_protocol_options: {{allow_connect: true}}
          upgrade_configs: [{{upgrade_type: websocket}}]
          http_filters:
          - name: router
            typed_config:
              \"@type\": {package}.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes:
              - match: {{prefix: /}}
                route: {{cluster: backend, timeout: 0s}}
              - match: {{connect_matcher: {{}}}}
                route: {{cluster: backend, timeout: 0s}}
  clusters:
  - name: backend
    type: STATIC
    circuit_breakers:
      thresholds:
      - {{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}
    load_assignment:
      cluster_name: backend
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {upstream}
"
        )
    }

    fn hitch(&self) -> String {
        let user = if rustix::process::geteuid().is_root() { "user = \"nobody\"\n" } else { "" };
        let (host, port, upstream) = (self.address.ip(), self.address.port(), self.upstreams[0]);
        format!(
            "frontend = {{ host = \"{host}\" port = \"{port}\" }}\n\
             backend = \"[{}]:{}\"\npem-file = \"{}/{BOTH}\"\n\
             tls-protos = TLSv1.2 TLSv1.3\nworkers = 1\nbacklog = {BACKLOG}\ndaemon = off\n\
             {user}log-level = 0\nocsp-dir = \"\"\n",
            upstream.ip(),
            upstream.port(),
            self.folder.display()
        )
    }

    fn stunnel(&self) -> String {
        let (address, upstream, folder) = (self.address, self.upstreams[0], self.folder.display());
        format!(
            "foreground = yes\npid =\ndebug = 2\nsyslog = no\n[bench]\naccept = {address}\n\
             connect = {upstream}\ncert = {folder}/{BOTH}\nsslVersionMin = TLSv1.2\n\
             TIMEOUTidle = 43200\n"
        )
    }

    /// The names for the k-th upstream.
    fn names_of(&self, k: usize) -> impl Iterator<Item = String> {
        (k..NAMES).step_by(self.upstreams.len()).map(host_name)
    }

    fn pairs(&self) -> impl Iterator<Item = (String, SocketAddr)> {
        let each = self.upstreams.iter().enumerate();
        each.flat_map(|(k, at)| self.names_of(k).map(move |name| (name, *at)))
    }
}

const NGINX_STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
