//! An edge whose clock is wrong by a day: what it says of certificates, and whom it still serves.
//! Must not know how certificates are checked.

use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::client::{Offer, echo};
use crate::support::clock::{library, shift};
use crate::support::edge::{self, LISTENER, eyelet};
use crate::support::{Edge, Pki, Upstream, need, output};

/// Certificates in files are served whatever the clock says: clients have clocks of their own.
#[test]
fn check_and_the_log_name_the_clock_beside_a_date_that_is_wrong_by_it() {
    let Some(library) = library() else { return };
    let (pki, upstream) = (Pki::new(), Upstream::echo());
    let at = |hours| SystemTime::now() + Duration::from_hours(hours) - Duration::from_hours(12);
    pki.server_with("edge", &["app.test"], |params| {
        params.not_before = at(0).into();
        params.not_after = at(24).into();
    });
    let rule = pki.terminate(&format!("tcp://{}", upstream.address), "");
    let file = edge::write(&pki.folder, &format!("{LISTENER}{rule}"));
    for (by, fault) in [("-1d", "is not valid before 2"), ("+1d", "expired on 2")] {
        let mut check = eyelet(&pki.folder);
        shift(check.arg("check").arg(&file), &library, by);
        let said = output(&mut check);
        assert!(said.status.success(), "{said:?}");
        let mut serve = eyelet(&pki.folder);
        shift(serve.arg("serve").arg(&file), &library, by);
        let edge = Edge::spawn(serve, 1);
        edge.wait_log(fault);
        for said in [said.text, edge.log()] {
            let line = said.lines().find(|line| line.contains(fault)).unwrap_or_default();
            assert!(line.contains("edge.pem"), "{by}: {said}");
            assert!(line.contains("; this machine's clock says 2"), "{by}: {said}");
        }
        let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
        echo(&mut client, b"hello");
    }
}

/// A day in either direction harms nobody. A clock that is far too early is an error that says so.
#[test]
fn a_local_authority_serves_a_day_off_and_else_says_to_set_the_clock() {
    let Some(library) = library() else { return };
    if !need("curl") {
        return;
    }
    let upstream = Upstream::http();
    for made in ["-1d", "+0d", "+1d"] {
        let pki = Pki::new();
        let file = edge::write(
            &pki.folder,
            &format!(
                "{LISTENER}[[rule]]\nsni = \"app.test\"\naction = \"terminate\"\n\
                 certificate = \"local\"\nupstream = \"http://{}\"\n[local]\nfolder = \"ca\"\n",
                upstream.address
            ),
        );
        let serve = |by| {
            let mut serve = eyelet(&pki.folder);
            shift(serve.arg("serve").arg(&file), &library, by);
            serve
        };
        // Made by one clock, and used by a right one: the order in which clocks are set.
        for by in [made, "+0d"] {
            let edge = Edge::spawn(serve(by), 1);
            let (port, mut curl) = (edge.port(), Command::new("curl"));
            curl.args(["-sS", "--max-time", "60", "--cacert"]).arg(pki.file("ca/ca.pem"));
            curl.args(["--resolve", &format!("app.test:{port}:127.0.0.1")]);
            let said = output(curl.arg(format!("https://app.test:{port}/")));
            assert!(said.status.success(), "{made}, {by}: {said:?}\n{}", edge.log());
        }
        let said = output(&mut serve("-5d"));
        assert_eq!(said.status.code(), Some(1), "{made}: {said:?}");
        assert!(said.text.contains("is not valid before 2"), "{said:?}");
        assert!(said.text.contains("set this machine's clock"), "{said:?}");
    }
}
