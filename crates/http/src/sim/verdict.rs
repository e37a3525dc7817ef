//! Checks at the end of a run: what clients heard against what was logged.

use serde_json::Value;

use super::events::Events;
use super::plan::{Weather, When};
use super::request::{Request, index_of};

/// An access line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The connection, and the request if the line is about one that was read.
    pub connection: usize,
    pub request: Option<usize>,
    pub is_request: bool,
    pub status: Option<u16>,
    pub outcome: String,
    pub reason: String,
    bytes_sent: usize,
}

impl Line {
    pub fn read(text: &str) -> Self {
        let line: Value = serde_json::from_str(text).expect("a line is JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let port = text(&line["client"]).rsplit_once(':').map(|(_, port)| port.parse());
        let path = text(&line["http"]["path"]);
        Self {
            connection: port.expect("a port").expect("a number"),
            request: (!path.is_empty()).then(|| index_of(&path)),
            is_request: line["event"] == "request",
            status: line["http"]["status"].as_u64().map(|status| status as u16),
            outcome: text(&line["outcome"]),
            reason: text(&line["reason"]),
            bytes_sent: line["bytes_sent"].as_u64().unwrap_or(0) as usize,
        }
    }

    fn is_whole(&self) -> bool {
        self.outcome == "terminated"
    }
}

/// Panics unless each connection has one line, and each line is of something that was asked.
pub fn check_lines(connections: usize, requests: &[Request], lines: &[Line]) {
    for index in 0..connections {
        let ends = lines.iter().filter(|line| !line.is_request && line.connection == index);
        assert_eq!(ends.count(), 1, "lines of connection {index}: {lines:#?}");
    }
    for line in lines {
        let Some(request) = line.request else { continue };
        assert!(requests[request].is_begun, "nobody has asked: {line:?}");
        assert_eq!(requests[request].connection, line.connection);
    }
}

/// Panics unless a request ended as it should.
pub fn check(request: &Request, is_fair: bool, requests: &[Request], lines: &[Line]) {
    let own: Vec<_> = lines.iter().filter(|line| line.request == Some(request.index)).collect();
    let unread = |line: &&Line| {
        line.is_request && line.request.is_none() && line.connection == request.connection
    };
    let line = match &own[..] {
        [] => lines.iter().find(unread).filter(|line| line.status == request.response.status),
        [line] => Some(*line),
        lines => panic!("several lines {lines:?}: {request:?}"),
    };
    let heard = &request.response;
    let who = || format!("{line:?}: {request:#?} {lines:#?}");
    // Steps may let time pass and give its client no turn to acknowledge anything.
    let is_silent = lines.iter().any(|line| {
        line.connection == request.connection && line.reason.contains("SETTINGS_TIMEOUT detected")
    });
    let was_read = !request.attempts.is_empty() || heard.status.is_some();
    assert!(line.is_some() || !was_read, "no line: {}", who());
    if let Some(line) = line {
        if heard.status.is_some() || !request.is_left && !request.is_unserved {
            assert_eq!(heard.status, line.status, "{}", who());
        }
        // That of a WebSocket by HTTP/1.1 is about its handshake.
        let is_whole = line.is_whole() && !request.plan.switches;
        if is_whole && !request.is_left && !(is_silent && request.is_unserved) {
            assert!(heard.is_whole && heard.by_upstream, "not whole: {}", who());
            let sent = if request.coded > 0 { request.coded } else { heard.body };
            assert_eq!(sent, line.bytes_sent, "{}", who());
        }
        if heard.is_whole && heard.by_upstream && !request.is_left {
            assert!(line.is_whole(), "whole: {}", who());
        }
    }
    let is_excused = is_excused(request, requests) || is_silent;
    if is_fair && request.is_begun && !is_excused {
        assert!(heard.is_whole && heard.by_upstream, "not answered: {}", who());
    }
}

/// Says if an exchange before this one may have ended the connection.
fn is_excused(request: &Request, requests: &[Request]) -> bool {
    let ends = |other: &Request| {
        other.connection == request.connection
            && (other.plan.closes || other.plan.answer.when == When::Early)
            && other.index < request.index
    };
    request.is_unserved && requests.iter().any(ends)
}

/// Notes what happened to a request.
pub fn note(request: &Request, is_http2: bool, weather: &Weather, events: &mut Events) {
    let heard = &request.response;
    let mut when = |is: bool, event: &str| {
        if is {
            events.note(event);
        }
    };
    when(heard.is_whole && heard.by_upstream && is_http2, "a whole response by HTTP/2");
    when(heard.is_whole && heard.by_upstream && !is_http2, "a whole response by HTTP/1.1");
    when(heard.status.is_some() && !heard.is_whole, "a truncated response");
    when(request.attempts.len() > 1, "a request that was sent again");
    when(heard.interim > 0, "an interim response that arrived");
    when(heard.trailers > 0, "trailers");
    when(request.plan.method == "HEAD" && heard.is_whole, "HEAD");
    when(request.plan.expects && heard.is_whole, "Expect");
    when(request.coded > 0 && heard.is_whole, "a coded response");
    let is_websocket = request.plan.switches && heard.is_whole;
    when(is_websocket && is_http2, "a whole WebSocket by HTTP/2");
    when(is_websocket && !is_http2, "a whole WebSocket by HTTP/1.1");
    when(weather.is_fair() && heard.is_whole, "fair weather");
    if let Some(status) = heard.status.filter(|_| !heard.by_upstream) {
        events.note(&format!("a page of the edge: {status}"));
    }
}
