//! Node with one connection of HTTP/2, whose requests have any path.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::{Talk, until};

pub struct Streams(Talk);

impl Streams {
    /// To app.test at a port, or through a CONNECT proxy there to an origin.
    pub fn new(port: u16, origin: Option<SocketAddr>, ca: &str) -> Self {
        let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs/streams.js");
        let mut node = Command::new("node");
        let origin = origin.map_or(String::new(), |origin| origin.to_string());
        node.arg(program).args([&port.to_string(), &origin, "app.test", ca]);
        let mut node = Talk::start(&mut node);
        node.hear("open\n");
        Self(node)
    }

    /// Asks for all at once. Returns the status and the body of each.
    pub fn ask(&mut self, requests: &[(&str, String)]) -> Vec<(u64, String)> {
        let known = self.0.said().len();
        self.0.say(&format!("{}\n", serde_json::to_string(requests).unwrap()));
        let answers: serde_json::Value = until("the answers", || {
            let said = self.0.said();
            let (line, _) = said[known..].split_once('\n')?;
            let text = line.strip_prefix("answers ");
            Some(serde_json::from_str(text.unwrap_or_else(|| panic!("{said}"))).unwrap())
        });
        serde_json::from_value(answers).unwrap()
    }
}
