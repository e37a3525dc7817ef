//! Reads [limits], [http], [log], [dns], [evidence] and the keys outside of any table.

pub(crate) mod compression;
pub(crate) mod listeners;
pub(crate) mod local;

use std::fs::FileType;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use toml::de::DeValue;

use crate::model::dns::{Dns, name_server};
use crate::model::limits::{HELLO_BYTES_MAX, HttpLimits, Limits};
use crate::model::{Access, EvidenceSettings, LogFormat, LogSettings, Tickets};
use crate::model::{headers, values};
use eyelet_document::reader::{Place, Section};
use eyelet_files::Files;

pub(crate) fn limits(document: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(section) = document.known("limits", "[limits]", &LIMIT_KEYS) else { return limits };
    for (key, limit, range) in [
        ("hello_timeout", &mut limits.hello_timeout, SHORT),
        ("handshake_timeout", &mut limits.handshake_timeout, SHORT),
        ("connect_timeout", &mut limits.connect_timeout, SHORT),
        ("idle_timeout", &mut limits.idle_timeout, IDLE),
        ("quic_idle_timeout", &mut limits.quic_idle_timeout, IDLE),
        ("drain_timeout", &mut limits.drain_timeout, DRAIN),
    ] {
        *limit = duration(&section, key, &range).unwrap_or(*limit);
    }
    for (key, limit, range) in [
        ("hello_bytes_max", &mut limits.hello_bytes_max, HELLO_BYTES),
        ("memory_max", &mut limits.memory_max, MEMORY_BYTES),
    ] {
        *limit = bytes(&section, key, &range).unwrap_or(*limit);
    }
    limits.shed_idle = section.flag("shed_idle").unwrap_or(limits.shed_idle);
    limits.connections_max = section.number("connections_max", CONNECTIONS);
    let rate = |key| {
        let number = section.number(key, HANDSHAKES)?;
        u32::try_from(number).ok().and_then(NonZeroU32::new)
    };
    limits.handshakes_per_second = rate("handshakes_per_second");
    limits.source_handshakes_per_second = rate("source_handshakes_per_second");
    if let (Some(all), Some(of_source)) =
        (limits.handshakes_per_second, limits.source_handshakes_per_second)
        && of_source > all
    {
        section.value_at("source_handshakes_per_second").error(format!(
            "one source may make more handshakes than all together: `handshakes_per_second` is \
             {all}"
        ));
    }
    limits
}

pub(crate) fn http(document: &Section<'_>, idle_timeout: Duration) -> HttpLimits {
    let mut http = HttpLimits { http2_idle_timeout: idle_timeout, ..HttpLimits::default() };
    let Some(section) = document.known("http", "[http]", &HTTP_KEYS) else { return http };
    for (key, limit) in [
        ("head_timeout", &mut http.head_timeout),
        ("body_timeout", &mut http.body_timeout),
        ("upstream_timeout", &mut http.upstream_timeout),
        ("http2_idle_timeout", &mut http.http2_idle_timeout),
    ] {
        *limit = duration(&section, key, &HTTP).unwrap_or(*limit);
    }
    let head_bytes_max = bytes(&section, "head_bytes_max", &HEAD_BYTES);
    http.head_bytes_max = head_bytes_max.unwrap_or(http.head_bytes_max);
    http.headers = headers::read(&section);
    http.trusted_proxies = section.each_parsed("trusted_proxies", values::net);
    http
}

pub(crate) fn log(document: &Section<'_>, folder: &Path) -> LogSettings {
    let mut log = LogSettings::default();
    let Some(section) = document.known("log", "[log]", &LOG_KEYS) else { return log };
    if let Some(access) = section.text("access") {
        log.access = match access.text {
            "stdout" => Access::Stdout,
            "off" => Access::Off,
            "" | "-" | "stderr" => {
                let message = "expected \"stdout\", \"off\" or the path of a file; stderr has \
                    all other messages";
                access.at.error(message);
                Access::Off
            }
            path => {
                let path = folder.join(path);
                check_access_log(access.at, &path);
                Access::File(path)
            }
        };
    }
    log.ja4 = section.flag("ja4").unwrap_or(log.ja4);
    log.decided = section.flag("decided").unwrap_or(log.decided);
    let formats = [("json", LogFormat::Json), ("text", LogFormat::Text)];
    log.format = section.word("format", " is no format;", &formats).unwrap_or(log.format);
    log
}

/// Checks the access log's path without opening it: opening it would end a FIFO's reader.
fn check_access_log(at: Place<'_>, path: &Path) {
    let inside = path.parent().filter(|inside| *inside != Path::new(""));
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
    let is_usable = |kind: FileType| kind.is_file() || kind.is_fifo() || kind.is_char_device();
    if !inside.unwrap_or(Path::new(".")).is_dir() || kind.as_ref().is_ok_and(|k| !is_usable(*k)) {
        let message = "expected a file, new or not, in a folder that exists, or a FIFO";
        at.error(message);
    } else if kind.is_ok_and(|kind| kind.is_fifo()) {
        let message = "this is a FIFO: while nobody reads it, lines wait in memory and are then \
            lost";
        at.warning(message);
    }
}

pub(crate) fn dns(document: &Section<'_>, files: &mut Files) -> Dns {
    let Some(section) = document.known("dns", "[dns]", &DNS_KEYS) else { return Dns::default() };
    let dns = Dns {
        servers: section.each_parsed("servers", name_server),
        ca: section.text("ca").map(|text| files.check_authorities(text)),
    };
    if dns.ca.is_some() && !dns.is_any_secure() {
        let message = "`ca` has no effect, because no resolver of `servers` is asked over TLS; \
                       leave it out";
        section.value_at("ca").warning(message);
    }
    if dns.is_any_secure() && dns.is_any_clear() {
        let message = "if the resolvers over TLS fail, names are sent in clear to the others";
        section.value_at("servers").warning(message);
    }
    dns
}

pub(crate) fn evidence(document: &Section<'_>, files: &mut Files) -> EvidenceSettings {
    let mut evidence = EvidenceSettings::default();
    let Some(section) = document.known("evidence", "[evidence]", &EVIDENCE_KEYS) else {
        return evidence;
    };
    evidence.ca = section.text("ca").map(|text| files.check_authorities(text));
    for (key, value, range) in
        [("history", &mut evidence.history, HISTORY), ("timeout", &mut evidence.timeout, SHORT)]
    {
        *value = duration(&section, key, &range).unwrap_or(*value);
    }
    evidence
}

pub(crate) fn tickets(document: &Section<'_>) -> Tickets {
    let mut tickets = Tickets::default();
    let Some(section) = document.known("tickets", "[tickets]", &TICKET_KEYS) else {
        return tickets;
    };
    tickets.enabled = section.flag("enabled").unwrap_or(tickets.enabled);
    if let Some(lifetime) = duration(&section, "lifetime", &TICKET_LIFETIME) {
        match lifetime.subsec_nanos() {
            0 => tickets.lifetime = lifetime,
            _ => section.value_at("lifetime").error("expected whole seconds"),
        }
    }
    tickets
}

pub(crate) fn workers(document: &Section<'_>) -> Option<usize> {
    document.number("workers", WORKERS)
}

/// A duration within `range`.
pub(crate) fn duration(
    section: &Section<'_>,
    key: &str,
    range: &RangeInclusive<Duration>,
) -> Option<Duration> {
    let text = section.text_of(key, "a duration with its unit, as in \"30s\"")?;
    text.parse(|text| values::duration(text, range))
}

/// Bytes: a whole number, or a text with a unit.
pub(crate) fn bytes(
    section: &Section<'_>,
    key: &str,
    range: &RangeInclusive<usize>,
) -> Option<usize> {
    let value = section.value(key)?;
    let at = section.place(value);
    let bytes = match value.get_ref() {
        DeValue::Integer(number) => {
            usize::from_str_radix(number.as_str(), number.radix()).map_err(|_| number.to_string())
        }
        DeValue::String(text) => Ok(at.keep(values::size(text))?),
        other => {
            let message = format!(
                "`{key}` is a {}; expected a size such as \"64KiB\", or a number of bytes",
                other.type_str()
            );
            at.error(message);
            return None;
        }
    };
    match bytes {
        Ok(bytes) if range.contains(&bytes) => Some(bytes),
        wrong => {
            let wrong = wrong.map_or_else(|text| text, |bytes| bytes.to_string());
            let [low, high] = [range.start(), range.end()].map(|end| values::shown_size(*end));
            let message = format!("`{key}` is {wrong} bytes; expected \"{low}\" to \"{high}\"");
            at.error(message);
            None
        }
    }
}

/// The keys outside of any table.
pub(crate) const DOCUMENT_KEYS: [&str; 21] = [
    "acme",
    "admin",
    "dictionary",
    "dns",
    "evidence",
    "fleet",
    "hold",
    "http",
    "limits",
    "listener",
    "local",
    "log",
    "reload_ends_removed",
    "rule",
    "sandbox",
    "secret",
    "spiffe",
    "tickets",
    "trace",
    "watch",
    "workers",
];

const LIMIT_KEYS: [&str; 12] = [
    "connect_timeout",
    "connections_max",
    "drain_timeout",
    "handshake_timeout",
    "handshakes_per_second",
    "hello_bytes_max",
    "hello_timeout",
    "idle_timeout",
    "memory_max",
    "quic_idle_timeout",
    "shed_idle",
    "source_handshakes_per_second",
];

const HTTP_KEYS: [&str; 8] = [
    "body_timeout",
    "head_bytes_max",
    "head_timeout",
    "headers",
    "hsts",
    "http2_idle_timeout",
    "trusted_proxies",
    "upstream_timeout",
];

const LOG_KEYS: [&str; 4] = ["access", "decided", "format", "ja4"];

const DNS_KEYS: [&str; 2] = ["ca", "servers"];

const EVIDENCE_KEYS: [&str; 3] = ["ca", "history", "timeout"];

const TICKET_KEYS: [&str; 2] = ["enabled", "lifetime"];

/// For a peer that has done nothing yet: more than ten minutes is no limit.
const SHORT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_mins(10);

/// For an exchange: a report may take an hour, but a day is no limit.
const HTTP: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);

/// Bytes. Heads of today's browsers do not fit below 1 KiB.
const HEAD_BYTES: RangeInclusive<usize> = 1 << 10..=1 << 20;

/// A year of 365.25 days without a byte is longer than any connection lives.
const IDLE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(31_557_600);

/// Below a second a name would be queried for each connection. Above a week an address may already
/// have its next owner.
const HISTORY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(168);

/// RFC 8446 section 4.6.1 allows a week. A second is for tests: each lifetime makes a key.
const TICKET_LIFETIME: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(168);

/// 0: do not wait.
const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(24);

/// Bytes. Hellos of today's clients do not fit below 512.
const HELLO_BYTES: RangeInclusive<usize> = 512..=HELLO_BYTES_MAX;

/// Bytes. Below 16 MiB not even one busy worker's buffers fit; no machine has 16 TiB.
const MEMORY_BYTES: RangeInclusive<usize> = 16 << 20..=16 << 40;

/// Linux allows fs.nr_open up to 2^30, but memory ends long before.
const CONNECTIONS: RangeInclusive<usize> = 1..=100_000_000;

/// A second. No machine makes 100 million, and 0 would refuse all.
const HANDSHAKES: RangeInclusive<usize> = 1..=100_000_000;

/// Threads.
const WORKERS: RangeInclusive<usize> = 1..=1_024;
