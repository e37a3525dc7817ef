//! Dictionaries as a browser sees them: offered, returned, used for a delta, kept over a restart.
//! Also everything that must not become or use one.

use std::path::PathBuf;

use eyelet_compress::dictionary::store::{Family, Sighting, StoredVersion};

use bytes::Bytes;
use eyelet_compress::Coding;

use super::*;
use crate::dictionaries::hash::hash;

/// A fixed effort: the choice must not depend on how busy the machine is.
const TERMS: &str = "compress_effort = \"small\"\ndictionary = [\"/assets/app.*.js\"]\n\
    [dictionary]\npath = \"store\"";
const FRESH: (&str, &str) = ("cache-control", "public, max-age=600");
const SCRIPT: (&str, &str) = ("content-type", "text/javascript");

fn available(dictionary: &[u8]) -> String {
    format!(":{}:", STANDARD.encode(hash(dictionary).0))
}

/// Two versions of a bundle: most of it the same.
fn versions(len: usize) -> (Vec<u8>, Vec<u8>) {
    let one = text(len, 7);
    let at = len / 3;
    let two = [&one[..at], &text(300, 99)[..], &one[at + 50..]].concat();
    (one, two)
}

fn get<'a>(edge: &Edge, path: &'a str, accept: &'a str, has: &'a str, body: &[u8]) -> Got {
    let request = [(":path", path), ("accept-encoding", accept), ("available-dictionary", has)];
    let pieces: Vec<&[u8]> = body.chunks(16 << 10).collect();
    let answer = Answer { status: 200, fields: &[SCRIPT, FRESH], pieces: &pieces, known: true };
    let fields = if has.is_empty() { &request[..2] } else { &request[..] };
    edge.exchange(fields, &answer)
}

/// Waits for the thread, which needs two seconds when nothing else runs.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const ALL: &str = "gzip, deflate, br, zstd, dcb, dcz";

fn knows(edge: &Edge, body: &[u8]) -> bool {
    let pattern = Pattern::new("/assets/app.*.js").unwrap();
    let (rule, origin) = ("app".into(), "app.example".into());
    let family = Family { rule, origin, pattern, is_file: false };
    edge.compressors.inner.shared.version(&family, hash(body)).is_some()
}

fn has_delta(edge: &Edge, from: &[u8], to: &[u8]) -> bool {
    let (from, to) = (hash(from), hash(to));
    let step = eyelet_compress::dictionary::store::Step { from, to, coding: Coding::Dcz };
    edge.compressors.inner.shared.has_delta(step)
}

#[test]
fn a_returning_client_gets_a_delta_also_after_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = versions(600_000);
    let edge = Edge::new(TERMS, scratch.path());
    let got = get(&edge, "/assets/app.1.js", "gzip, br, zstd", "", &one);
    assert_eq!(got.headers["use-as-dictionary"], "match=\"/assets/app.*.js\"");
    assert_eq!(got.headers["vary"], "accept-encoding, available-dictionary");
    assert_eq!(got.asked["accept-encoding"], "identity");
    assert!(decode(&got.headers, &got.body, &[]) == one);
    until("version 1 is known", || knows(&edge, &one));

    // Version 2 was not requested before: it is coded now, with what there is.
    let has = available(&one);
    let got = get(&edge, "/assets/app.2.js", ALL, &has, &two);
    assert_eq!(got.coding_info.coding, Some("dcz"));
    assert!(got.asked.get("available-dictionary").is_none());
    assert!(decode(&got.headers, &got.body, &one) == two);
    let made_now = got.body.len();
    until("the delta is ready", || has_delta(&edge, &one, &two));

    let got = get(&edge, "/assets/app.2.js", ALL, &has, &two);
    assert!(decode(&got.headers, &got.body, &one) == two);
    assert!(got.body.len() <= made_now && got.body.len() < 2_000, "{}", got.body.len());
    until("all are on disk", || files(&scratch, &one, &two).iter().all(|file| file.is_file()));
    let got = get(&edge, "/assets/app.2.js", "br, dcb", &has, &two);
    assert_eq!(got.coding_info.coding, Some("dcb"));
    assert!(decode(&got.headers, &got.body, &one) == two);
    drop(edge);

    let edge = Edge::new(TERMS, scratch.path());
    assert!(knows(&edge, &one) && has_delta(&edge, &one, &two), "kept over a restart");
    let got = get(&edge, "/assets/app.2.js", ALL, &has, &two);
    assert_eq!(got.coding_info.coding, Some("dcz"));
    assert!(decode(&got.headers, &got.body, &one) == two);
}

#[test]
fn a_large_delta_is_made_beside_the_path() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = versions(3 << 20);
    let edge = Edge::new(TERMS, scratch.path());
    get(&edge, "/assets/app.1.js", "gzip", "", &one);
    until("version 1 is known", || knows(&edge, &one));
    let has = available(&one);
    let got = get(&edge, "/assets/app.2.js", ALL, &has, &two);
    assert_ne!(got.coding_info.coding, Some("dcz"), "too large to make while the client waits");
    assert!(decode(&got.headers, &got.body, &[]) == two);
    until("the delta is ready", || has_delta(&edge, &one, &two));
    let got = get(&edge, "/assets/app.2.js", ALL, &has, &two);
    assert_eq!(got.coding_info.coding, Some("dcz"));
    assert!(decode(&got.headers, &got.body, &one) == two);
    assert!(got.body.len() < 3_000, "{}", got.body.len());

    // A delta in one coding does not help in the other.
    let dcb = "gzip, dcb";
    let got = get(&edge, "/assets/app.2.js", dcb, &has, &two);
    assert_eq!(got.coding_info.coding, Some("gzip"), "too large to make while the client waits");
    until("the other delta is ready", || {
        get(&edge, "/assets/app.2.js", dcb, &has, &two).coding_info.coding == Some("dcb")
    });
    let got = get(&edge, "/assets/app.2.js", dcb, &has, &two);
    assert!(decode(&got.headers, &got.body, &one) == two);
    assert!(got.body.len() < 3_000, "{}", got.body.len());

    // What the client has already needs no delta that was made before.
    let three = [&two[..], b"x"].concat();
    get(&edge, "/assets/app.4.js", "gzip", "", &three);
    until("version 3 is known", || knows(&edge, &three));
    let got = get(&edge, "/assets/app.4.js", ALL, &available(&three), &three);
    assert_eq!(got.coding_info.coding, Some("dcz"));
    assert!(decode(&got.headers, &got.body, &three) == three);
    assert!(got.body.len() < 1_000, "{}", got.body.len());

    // The same length, other bytes, the same path: the hash decides, not the length.
    let mut other = two.clone();
    other[1_000..1_010].copy_from_slice(b"0123456789");
    let got = get(&edge, "/assets/app.2.js", dcb, &has, &other);
    assert_eq!(got.coding_info.coding, Some("dcb"), "as was promised");
    assert!(decode(&got.headers, &got.body, &one) == other);
    other[1_000..1_010].copy_from_slice(b"9876543210");
    let got = get(&edge, "/assets/app.2.js", ALL, &has, &other);
    assert!(decode(&got.headers, &got.body, &one) == other);
}

const PER_FILE: &str = "compress_effort = \"small\"\ndictionary = [\"/svn/*/{file}\"]\n";

/// The text for `{file}` tells files apart, and each has its own history.
#[test]
fn each_file_has_a_dictionary_of_its_own() {
    let scratch = tempfile::tempdir().unwrap();
    let store = "[dictionary]\npath = \"store\"";
    let edge = Edge::new(&format!("{PER_FILE}{store}"), scratch.path());
    let bodies: Vec<Vec<u8>> = (0..300).map(|n| text(400, n)).collect();
    for (n, body) in bodies.iter().enumerate() {
        let got = get(&edge, &format!("/svn/1/trunk/{n}.c"), "gzip", "", body);
        let offered = format!("match=\"/svn/*/trunk/{n}.c\"");
        assert_eq!(got.headers["use-as-dictionary"], offered);
        assert_eq!(got.headers["vary"], "accept-encoding, available-dictionary");
    }
    let coding = |path: &str, has: &[u8], body: &[u8]| {
        let got = get(&edge, path, ALL, &available(has), body);
        assert!(decode(&got.headers, &got.body, has) == body);
        (got.coding_info.coding, got.body.len())
    };
    for (n, body) in bodies.iter().enumerate() {
        let path = format!("/svn/2/trunk/{n}.c");
        let newer = [body, &b"one more line\n"[..]].concat();
        until("the file is known", || coding(&path, body, &newer).0 == Some("dcz"));
        let (_, bytes) = coding(&path, body, &newer);
        assert!(bytes < 100, "{bytes} bytes of {path}");
        // The hash of another file is as good as none.
        let other = &bodies[(n + 1) % bodies.len()];
        assert_eq!(coding(&path, other, &newer).0, None);
    }
}

/// An edge that has lost its store answers as one that never had it, and learns anew.
#[test]
fn a_lost_store_costs_bytes_and_nothing_else() {
    let terms = format!("{PER_FILE}[dictionary]\npath = \"store\"");
    let (one, two) = (text(3_000, 1), [text(3_000, 1), text(300, 2)].concat());
    let has = available(&one);
    for _ in 0..2 {
        let scratch = tempfile::tempdir().unwrap();
        let edge = Edge::new(&terms, scratch.path());
        let got = get(&edge, "/svn/2/a", ALL, &has, &two);
        assert_eq!(got.coding_info.coding, Some("br"), "the hash is unknown");
        assert_eq!(got.headers["use-as-dictionary"], "match=\"/svn/*/a\"");
        assert!(decode(&got.headers, &got.body, &[]) == two);
        until("the new version is known", || {
            let has = available(&two);
            get(&edge, "/svn/2/a", ALL, &has, &two).coding_info.coding == Some("dcz")
        });
    }
}

/// Credentials keep a response from becoming a dictionary unless the rule says that all get it.
#[test]
fn only_a_shared_rule_learns_from_requests_with_credentials() {
    for (shared, learns) in [("", false), ("dictionary_shared = true\n", true)] {
        let scratch = tempfile::tempdir().unwrap();
        let store = "[dictionary]\npath = \"off\"";
        let edge = Edge::new(&format!("{PER_FILE}{shared}{store}"), scratch.path());
        let body = text(2_000, 7);
        let ask = |path: &str, has: &str, private: bool| {
            let fields = [
                (":path", path),
                ("accept-encoding", ALL),
                ("authorization", "Basic dTpw"),
                ("available-dictionary", has),
            ];
            let fields = if has.is_empty() { &fields[..3] } else { &fields[..] };
            let cache = if private { "private, max-age=600" } else { "max-age=600" };
            let answer = [SCRIPT, ("cache-control", cache)];
            let pieces = [&body[..]];
            let answer = Answer { status: 200, fields: &answer, pieces: &pieces, known: true };
            edge.exchange(fields, &answer)
        };
        let offers = |got: &Got| got.headers.contains_key("use-as-dictionary");
        assert_eq!(offers(&ask("/svn/1/a", "", false)), learns);
        assert!(!offers(&ask("/svn/1/private", "", true)), "private is private");
        let has = available(&body);
        if learns {
            until("it is known", || ask("/svn/2/a", &has, false).coding_info.coding == Some("dcz"));
        }
        assert_ne!(ask("/svn/2/private", &has, true).coding_info.coding, Some("dcz"));
        assert_ne!(ask("/svn/2/b", &has, false).coding_info.coding, Some("dcz"), "another file");
        let coding = ask("/svn/2/a", &has, false).coding_info.coding;
        assert_eq!(coding == Some("dcz"), learns);
    }
}

/// A stored delta of a body to itself once lost its history, because both were one buffer.
#[test]
fn an_unchanged_body_stays_small_when_its_delta_is_stored() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, _) = versions(600_000);
    let edge = Edge::new(TERMS, scratch.path());
    get(&edge, "/assets/app.1.js", "gzip", "", &one);
    until("the version is known", || knows(&edge, &one));
    let has = available(&one);
    let made_now = get(&edge, "/assets/app.1.js", ALL, &has, &one);
    assert_eq!(made_now.coding_info.coding, Some("dcz"));
    until("the delta is stored", || has_delta(&edge, &one, &one));
    let stored = get(&edge, "/assets/app.1.js", ALL, &has, &one);
    assert_eq!(stored.coding_info.coding, Some("dcz"));
    assert!(decode(&stored.headers, &stored.body, &one) == one);
    let (stored, now) = (stored.body.len(), made_now.body.len());
    assert!(stored <= now && now < 200, "{now} bytes made at once, {stored} stored");
}

#[test]
fn unknown_and_malformed_hashes_fall_back() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = versions(50_000);
    let edge = Edge::new(TERMS, scratch.path());
    get(&edge, "/assets/app.1.js", "gzip", "", &one);
    until("version 1 is known", || knows(&edge, &one));
    let good = available(&one);
    for has in [&available(b"nobody's"), ":AAAA:", "::", "x", &format!("{good}, {good}")] {
        let got = get(&edge, "/assets/app.2.js", ALL, has, &two);
        assert!(!["dcz", "dcb"].map(Some).contains(&got.coding_info.coding), "{has}");
        assert!(decode(&got.headers, &got.body, &[]) == two);
    }
    // Another path of the rule, another origin, and a client that accepts no dictionary coding.
    let got = get(&edge, "/other.js", ALL, &good, &two);
    assert_ne!(got.coding_info.coding, Some("dcz"));
    assert_eq!(got.asked["available-dictionary"], *good, "not ours: the upstream may know it");
    let got = get(&edge, "/assets/app.2.js", "gzip, br", &good, &two);
    assert_eq!(got.coding_info.coding, Some("br"));
}

#[test]
fn personal_responses_never_become_dictionaries() {
    let scratch = tempfile::tempdir().unwrap();
    let edge = Edge::new(TERMS, scratch.path());
    let path = (":path", "/assets/app.1.js");
    for (index, (request, fields)) in [
        (&[path][..], &[SCRIPT, FRESH, ("set-cookie", "a=b")][..]),
        (&[path], &[SCRIPT, ("cache-control", "private, max-age=60")]),
        (&[path], &[SCRIPT, ("cache-control", "no-store")]),
        (&[path], &[SCRIPT, FRESH, ("vary", "*")]),
        (&[path], &[SCRIPT, FRESH, ("vary", "Cookie")]),
        (&[path], &[SCRIPT]),
        (&[path, ("authorization", "Basic eA==")], &[SCRIPT, FRESH]),
        (
            &[path, ("cookie", "a=b"), ("sec-fetch-site", "cross-site")],
            &[SCRIPT, ("cache-control", "max-age=600")],
        ),
        (&[(":path", "/page")], &[SCRIPT, FRESH]),
    ]
    .iter()
    .enumerate()
    {
        let body = text(5_000, 1_000 + index as u32);
        let answer = Answer { status: 200, fields, pieces: &[&body], known: true };
        let got = edge.exchange(request, &answer);
        assert!(got.headers.get("use-as-dictionary").is_none(), "{request:?} {fields:?}");
    }
    let last = text(5_000, 77);
    get(&edge, "/assets/app.9.js", "", "", &last);
    until("the last one is known", || knows(&edge, &last));
    for index in 0..9 {
        assert!(!knows(&edge, &text(5_000, 1_000 + index)), "{index}");
    }
}

#[test]
fn other_sites_are_not_answered_with_dictionaries() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = versions(50_000);
    let edge = Edge::new(TERMS, scratch.path());
    get(&edge, "/assets/app.1.js", "gzip", "", &one);
    until("version 1 is known", || knows(&edge, &one));
    let has = available(&one);
    let base =
        [(":path", "/assets/app.2.js"), ("accept-encoding", ALL), ("available-dictionary", &has)];
    for (more, coding) in [
        (&[][..], "dcz"),
        (&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "no-cors")], "dcz"),
        (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], "br"),
        (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")], "br"),
    ] {
        let request = [&base[..], more].concat();
        let fields = [SCRIPT, FRESH];
        let answer = Answer { status: 200, fields: &fields, pieces: &[&two], known: true };
        let got = edge.exchange(&request, &answer);
        assert_eq!(got.coding_info.coding, Some(coding), "{more:?}");
    }
}

/// The files of two versions: each, and the delta.
fn files(scratch: &tempfile::TempDir, one: &[u8], two: &[u8]) -> [PathBuf; 3] {
    let (from, to) = (hash(one), hash(two));
    let names = [format!("{from}.version"), format!("{to}.version"), format!("{from}-{to}.dcz")];
    names.map(|name| scratch.path().join("store").join(name))
}

#[test]
fn broken_files_are_left_out_at_start() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = versions(50_000);
    let edge = Edge::new(TERMS, scratch.path());
    get(&edge, "/assets/app.1.js", "gzip", "", &one);
    get(&edge, "/assets/app.2.js", "gzip", "", &two);
    until("the delta is ready", || has_delta(&edge, &one, &two));
    let files = files(&scratch, &one, &two);
    until("all are on disk", || files.iter().all(|file| file.is_file()));
    let [file, ..] = files;
    drop(edge);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    std::fs::write(&file, bytes).unwrap();
    std::fs::write(scratch.path().join("store/half.version.new"), b"EYELETD1").unwrap();
    let edge = Edge::new(TERMS, scratch.path());
    assert!(!knows(&edge, &one) && knows(&edge, &two));
    assert!(!has_delta(&edge, &one, &two), "a delta without its dictionary is of no use");
    assert!(!file.exists() && !scratch.path().join("store/half.version.new").exists());
}

/// `bytes_max` was lowered, or files were copied into the folder.
#[test]
fn a_folder_with_more_than_the_bound_is_thinned_at_start() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("store");
    let folder = disk::DictionaryFolder::open(&path).unwrap();
    let pattern = Pattern::new("/assets/app.*.js").unwrap();
    let (rule, origin) = ("app".into(), "app.example".into());
    let family = Family { rule, origin, pattern, is_file: false };
    let bodies: Vec<Bytes> = (0..7).map(|n| text(250_000, n).into()).collect();
    let too_large = Bytes::from(text(300_000, 8));
    for (seen, body) in (1..).zip(bodies.iter().chain([&too_large])) {
        let (family, hash, body) = (family.clone(), hash(body), body.clone());
        let sightings = vec![Sighting { family, path: "/assets/app.1.js".into(), seen }];
        let version = StoredVersion { hash, sightings, body };
        assert!(folder.save_version(&version));
    }
    let edge = Edge::new(&format!("{TERMS}\nbytes_max = \"1MiB\""), scratch.path());
    let kept: Vec<bool> = bodies.iter().map(|body| knows(&edge, body)).collect();
    assert_eq!(kept, [false, false, false, true, true, true, true], "the newest within 1 MiB");
    assert!(!knows(&edge, &too_large), "one body has a quarter of the bound at most");
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 4, "the others are removed");
}

#[test]
fn a_trained_dictionary_is_offered_fetched_and_used() {
    let scratch = tempfile::tempdir().unwrap();
    let record = |n: u32| {
        let name = n.wrapping_mul(2_654_435_761);
        format!(
            "{{\"kind\":\"reading\",\"sensor\":{{\"identifier\":\"{name:08x}\",\
             \"place\":\"hall {n}\"}},\
             \"unit\":\"celsius\",\"quality\":\"calibrated by the owner\",\"value\":{},\
             \"notes\":\
             \"this text is in each of the records and only padding for a short answer, as \
             answers of interfaces have it: names of fields, and the same words again\",\"links\":\
             {{\"self\":\"/api/readings/{n}\",\"owner\":\"/api/owners/{}\"}},\
             \"tags\":[\"a{name:x}\"]}}",
            n % 40,
            n % 7
        )
        .repeat(2)
        .into_bytes()
    };
    let samples: Vec<Vec<u8>> = (0..300).map(record).collect();
    let content = eyelet_compress::dictionary::train::train(&samples, 8 << 10).unwrap();
    let store = scratch.path().join("store");
    let folder = disk::DictionaryFolder::open(&store).unwrap();
    folder.save_trained("app", &Pattern::new("/api/*").unwrap(), &content).unwrap();

    let edge = Edge::new("[dictionary]\npath = \"store\"", scratch.path());
    let body = record(7_777);
    let json = [("content-type", "application/json")];
    let answer = Answer { status: 200, fields: &json, pieces: &[&body], known: true };
    let got = edge.exchange(&[(":path", "/api/1"), ("accept-encoding", "gzip")], &answer);
    let hash = hash(&content);
    let path = format!("/.well-known/eyelet/dictionary/{hash}");
    assert_eq!(got.headers["link"], format!("<{path}>; rel=\"compression-dictionary\""));
    assert_eq!(got.headers["vary"], "accept-encoding, available-dictionary");
    let plain = got.body.len();

    let head = request_head("GET", &path, &[("accept-encoding", "gzip, br")]);
    let fetched = edge.compressors.answer(0, &head).unwrap();
    assert_eq!(fetched.headers()["use-as-dictionary"], "match=\"/api/*\"");
    assert_eq!(decode(fetched.headers(), fetched.body(), &[]), content);
    let head = request_head("GET", &path, &[]);
    assert_eq!(edge.compressors.answer(0, &head).unwrap().body()[..], content);
    let head = request_head("GET", "/.well-known/eyelet/dictionary/00", &[]);
    assert!(edge.compressors.answer(0, &head).is_none());

    let has = available(&content);
    for (coding, known, step) in
        [("dcz", true, 9_999), ("dcb", true, 9_999), ("dcz", false, 100), ("dcb", false, 100)]
    {
        let pieces: Vec<&[u8]> = body.chunks(step).collect();
        let answer = Answer { status: 200, fields: &json, pieces: &pieces, known };
        let accept = format!("gzip, br, zstd, {coding}");
        let request =
            [(":path", "/api/1"), ("accept-encoding", &accept), ("available-dictionary", &has)];
        let got = edge.exchange(&request, &answer);
        assert_eq!(got.coding_info.coding, Some(coding));
        assert!(got.headers.get("link").is_none(), "it has it");
        assert!(decode(&got.headers, &got.body, &content) == body, "{coding} {known}");
        if step > 1_000 {
            assert!(got.body.len() * 2 < plain, "{coding}: {} of {plain}", got.body.len());
        }
    }
}

#[test]
fn the_terms_of_a_rule_are_as_written() {
    let scratch = tempfile::tempdir().unwrap();
    assert_eq!(Edge::new("", scratch.path()).terminate.compression, Compression::default());
    let edge = Edge::new("offload = true\ndictionary = \"/x.*\"", scratch.path());
    let dictionary = vec![FilePattern::new("/x.*").unwrap()];
    let wanted = Compression { offload: true, dictionary, ..Compression::default() };
    assert_eq!(edge.terminate.compression, wanted);
}

/// HEAD and 304 have the Vary of GET (RFC 9110 9.3.2 and 15.4.5).
#[test]
fn responses_without_a_body_vary_by_the_dictionary_too() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, _) = versions(60_000);
    let edge = Edge::new(TERMS, scratch.path());
    let tag = ("etag", "\"a\"");
    let path = (":path", "/assets/app.1.js");
    let ask = |method, condition: &str| {
        let fields = [(":method", method), path, ("accept-encoding", ALL)];
        let fields = [&fields[..], &[("if-none-match", condition)]].concat();
        let status = if condition.is_empty() { 200 } else { 304 };
        let fields = if condition.is_empty() { &fields[..3] } else { &fields[..] };
        let said = [SCRIPT, FRESH, tag];
        let answer = Answer { status, fields: &said, pieces: &[&one], known: true };
        edge.exchange(fields, &answer)
    };
    let (got, head, known) = (ask("GET", ""), ask("HEAD", ""), ask("GET", "W/\"a\""));
    for name in ["vary", "etag", "use-as-dictionary", "cache-control"] {
        assert_eq!(got.headers.get(name), head.headers.get(name), "{name}");
    }
    for name in ["vary", "etag"] {
        assert_eq!(got.headers.get(name), known.headers.get(name), "{name}");
    }
    assert_eq!(got.headers["vary"], "accept-encoding, available-dictionary");
    assert_eq!(got.asked["accept-encoding"], head.asked["accept-encoding"]);
}

/// Whatever the BREACH rule says about a 200, its 206 and 304 have the same Vary.
#[test]
fn parts_and_304_vary_as_their_200() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, _) = versions(60_000);
    let edge = Edge::new(TERMS, scratch.path());
    let (public, range) =
        (("cache-control", "public, max-age=600"), ("content-range", "bytes 0-9/60000"));
    for cookie in [None, Some(("cookie", "s=1"))] {
        for cached in [FRESH, public] {
            let ask = |status| {
                let fields = [
                    (":method", "GET"),
                    (":path", "/assets/app.1.js"),
                    ("accept-encoding", ALL),
                    ("sec-fetch-site", "cross-site"),
                ];
                let fields: Vec<_> = fields.into_iter().chain(cookie).collect();
                let said = [SCRIPT, cached, ("etag", "\"a\""), range];
                let said = if status == 206 { &said[..] } else { &said[..3] };
                let answer = Answer { status, fields: said, pieces: &[&one], known: true };
                edge.exchange(&fields, &answer).headers["vary"].clone()
            };
            assert_eq!((ask(206), ask(304)), (ask(200), ask(200)), "{cookie:?} {cached:?}");
        }
    }
}

#[test]
fn threads_that_have_ended_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(Budget::new(1 << 30, 0));
    let start = |terms| SharedDictionaries::start(&config(terms, folder.path()), &memory).unwrap();
    let shared = start(TERMS);
    assert!(!shared.keeper_has_died() && !shared.maker_has_died());
    // No input makes the thread panic. This ends it, too, and the other one with it.
    shared.finish();
    let end = Instant::now() + Duration::from_secs(60);
    while !(shared.keeper_has_died() && shared.maker_has_died()) {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    let idle = start("");
    assert!(!idle.keeper_has_died() && !idle.maker_has_died(), "they were not started");
}
