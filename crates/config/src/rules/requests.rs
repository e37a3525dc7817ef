//! Reads the matchers of a rule on requests: `method`, `path` and `http_only_reads`.

use eyelet_policy::{PathGlob, RequestMatchers, RequestPattern};

use crate::model::{Action, Splice, TerminateUpstream};
use eyelet_document::reader::Section;

/// The keys of a rule on requests.
pub(crate) const REQUEST_KEYS: [&str; 3] = ["http_only_reads", "method", "path"];

/// The methods of `http_only_reads`. They are safe (RFC 9110 section 9.2.1).
const READS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];

/// Reads the matchers as they are written: methods, and globs of paths. Reports each mistake.
pub(crate) fn written(section: &Section<'_>) -> (Vec<String>, Vec<String>) {
    let (mut methods, mut paths) = (Vec::new(), Vec::new());
    for pattern in patterns(section) {
        match pattern {
            RequestPattern::Method(method) => methods.push(method.into()),
            RequestPattern::Path(glob) => paths.push(glob.to_string()),
        }
    }
    (methods, paths)
}

/// Reads the matchers.
pub(crate) fn matchers(section: &Section<'_>) -> RequestMatchers {
    patterns(section).into_iter().collect()
}

fn patterns(section: &Section<'_>) -> Vec<RequestPattern> {
    let methods = section.texts("method").unwrap_or_default().into_iter().filter_map(|text| {
        let read = |text: &str| {
            RequestPattern::method(text).map_err(|fault| format!("\"{text}\": {fault}"))
        };
        let method = text.parse(read)?;
        if NEVER_PASS.contains(&text.text) {
            let message = format!("no {} passes, so this never matches", text.text);
            text.at.warning(message);
        } else if !KNOWN.contains(&text.text) {
            text.at.warning(format!("\"{}\" is no registered method", text.text));
        }
        Some(method)
    });
    let paths = section.each_parsed("path", |text| {
        let glob = text.parse::<PathGlob>().map_err(|fault| format!("\"{text}\": {fault}"))?;
        Ok::<_, String>(RequestPattern::Path(glob))
    });
    let reads = only_reads(section).into_iter().flatten();
    let reads = reads.filter_map(|method| RequestPattern::method(method).ok());
    methods.chain(paths).chain(reads).collect()
}

fn only_reads(section: &Section<'_>) -> Option<[&'static str; 3]> {
    let is_set = section.flag("http_only_reads")?;
    if let Some(at) = section.key_at("http_only_reads") {
        if section.value("method").is_some() {
            at.error(
                "`http_only_reads` is short for `method = [\"GET\", \"HEAD\", \"OPTIONS\"]`: \
                give one of them",
            );
        }
        if section.value("action").and_then(|action| action.get_ref().as_str()) == Some("refuse") {
            at.error(
                "a refuse rule with `http_only_reads` refuses requests that read; list the methods \
                 that it shall refuse in `method`",
            );
        }
    }
    is_set.then_some(READS)
}

/// Reports a rule on requests whose action reads none.
pub(crate) fn check_action(section: &Section<'_>, action: &Action) {
    let Some((key, at)) = section.present(&REQUEST_KEYS).next() else { return };
    let upstream = match action {
        Action::Refuse(_) => return,
        Action::Splice(Splice { hold: Some(_), .. }) => {
            return at.error(format!(
                "`{key}` asks for a request, and a hold rule without a `certificate` passes bytes \
                 on unread; expected `certificate = \"mint\"` or one of yours, with an upstream by \
                 HTTP: docs/held.md"
            ));
        }
        Action::Splice(_) => return check_splice(section),
        Action::Originate(originate) => &originate.requests.upstream,
        Action::Terminate(terminate) => &terminate.upstream,
    };
    if !matches!(upstream, TerminateUpstream::Http(_)) {
        at.error(format!(
            "`{key}` asks for a request, and bytes for {upstream} are not read as HTTP; expected \
             an upstream such as \"http://127.0.0.1:3000\""
        ));
    }
}

/// Reports a splice rule on requests.
pub(crate) fn check_splice(section: &Section<'_>) {
    if let Some((key, at)) = section.present(&REQUEST_KEYS).next() {
        at.error(format!(
            "`{key}` asks for a request, and a splice rule passes bytes on unread; expected \
             `action = \"terminate\"` with an upstream by HTTP: docs/requests.md"
        ));
    }
}

/// Methods that no request passes with. A WebSocket's CONNECT (RFC 8441) is asked as GET.
const NEVER_PASS: [&str; 2] = ["CONNECT", "TRACE"];

/// The registered methods (IANA: HTTP Method Registry).
const KNOWN: [&str; 40] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];
