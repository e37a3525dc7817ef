//! What is on the list is reached, and nothing else.

use crate::ground::{Sandbox, is_possible, report};
use crate::support::pki::Kind;
use crate::support::{Pki, Upstream, need};

const HOSTS: [(&str, &str); 2] = [("app.test", "127.0.0.1"), ("other.test", "127.0.0.1")];

#[test]
fn a_listed_name_is_reached_by_tls_and_http_at_its_port() {
    if !is_possible() || !need("curl") {
        return;
    }
    let pki = Pki::new();
    let tls = Upstream::https(pki.server("app", &["app.test"], Kind::P256));
    let http = Upstream::http();
    let list = format!("app.test:{}\napp.test:{}\n", tls.address.port(), http.address.port());
    let sandbox = Sandbox::new(&pki.folder, &HOSTS, &list).option("--report", "report.json");
    let said = sandbox.script(&format!(
        "curl -sS --cacert ca.pem https://app.test:{0}/one && curl -sS http://app.test:{1}/two; \
         curl -sS --cacert ca.pem https://other.test:{0}/; echo status $?; exit 7",
        tls.address.port(),
        http.address.port()
    ));
    assert_eq!(said.status.code(), Some(7), "{}", said.text);
    for part in
        ["GET /one HTTP", "GET /two HTTP", "status 6", "refused: other.test: not on the list"]
    {
        assert!(said.text.contains(part), "{part}: {}", said.text);
    }
    let report = report(pki.folder.path());
    assert_eq!(report["status"], 7, "{report}");
    assert_eq!(report["connections"], 2, "{report}");
    assert_eq!(report["names"][0]["name"], "app.test", "{report}");
    assert_eq!(report["refused"][0]["name"], "other.test", "{report}");
}
