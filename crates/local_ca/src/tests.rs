//! The authority's files, what it signs, and the stores that trust it, in temporary folders.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, SystemTime};

use eyelet_config::LocalSettings;
use eyelet_pki::certificate::date;
use tempfile::TempDir;
use x509_parser::parse_x509_certificate;

use super::*;
use crate::trust::{Places, TrustChange};

const DAY: Duration = Duration::from_hours(24);

/// A folder for an authority, which does not exist yet.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("deep/local-ca")
    }

    fn open(&self) -> Result<Authority, LocalCaError> {
        Authority::open(&LocalSettings { folder: Some(self.path()), ..Default::default() })
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path().join(name)).unwrap().permissions().mode() & 0o777
    }

    fn chmod(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path().join(name), Permissions::from_mode(mode)).unwrap();
    }

    fn fault(&self) -> String {
        self.open().map(drop).unwrap_err().to_string()
    }
}

fn dns(name: &str) -> SubjectName {
    name.parse().unwrap()
}

fn sign(authority: &Authority, name: &str, now: SystemTime) -> Result<SignedLeaf, LocalCaError> {
    authority.sign(&[dns(name)], &LeafKey::generate().unwrap(), LEAF_LIFETIME, now)
}

#[test]
fn of_several_that_start_together_one_makes_the_authority() {
    const PROCESSES: usize = 8;
    let (folder, together) = (Folder::new(), Barrier::new(PROCESSES));
    let made: Vec<_> = std::thread::scope(|scope| {
        let open = || {
            together.wait();
            folder.open().unwrap().pem
        };
        let threads: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|pem| *pem == made[0]));
    assert_eq!(fs::read_to_string(folder.path().join(CERTIFICATE_FILE)).unwrap(), made[0]);
    assert!(!made[0].contains("PRIVATE"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    assert_eq!([folder.mode(""), folder.mode(KEY_FILE)], [0o700, 0o600]);
}

/// systemd gives /var/lib/eyelet to the user of the service.
#[test]
fn the_authority_of_root_is_not_in_the_folder_of_the_service() {
    let state = tempfile::tempdir().unwrap();
    let user = process::user();
    let (new, old) = (state.path().join("eyelet-local-ca"), state.path().join("eyelet/local-ca"));
    assert_eq!(folder_of_root(state.path(), user), new, "there is none");
    fs::create_dir(state.path().join("eyelet")).unwrap();
    std::os::unix::fs::symlink("/", &old).unwrap();
    assert_eq!(folder_of_root(state.path(), user), new, "a link");
    fs::remove_file(&old).unwrap();
    fs::create_dir(&old).unwrap();
    assert_eq!(folder_of_root(state.path(), user), old, "of an earlier version");
    assert_eq!(folder_of_root(state.path(), user + 1), new, "somebody else's");
    fs::create_dir(&new).unwrap();
    assert_eq!(folder_of_root(state.path(), user), new, "both");
}

#[test]
fn files_that_others_can_read_or_that_are_damaged_are_refused() {
    let folder = Folder::new();
    folder.open().unwrap();
    folder.chmod(KEY_FILE, 0o640);
    assert!(folder.fault().contains("chmod 600 it"), "{}", folder.fault());
    folder.chmod(KEY_FILE, 0o600);
    folder.chmod("", 0o750);
    assert!(folder.fault().contains("chmod 700 it"), "{}", folder.fault());
    assert!(Authority::read(&folder.path()).is_err());
    folder.chmod("", 0o700);
    // A certificate that is missing or another one comes back.
    fs::write(folder.path().join(CERTIFICATE_FILE), "other").unwrap();
    let pem = folder.open().unwrap().pem;
    assert_eq!(fs::read_to_string(folder.path().join(CERTIFICATE_FILE)).unwrap(), pem);
    let key = folder.path().join(KEY_FILE);
    let text = fs::read_to_string(&key).unwrap();
    let other = Folder::new();
    other.open().unwrap();
    let stranger = fs::read_to_string(other.path().join(CERTIFICATE_FILE)).unwrap();
    let alone = text.split_once("-----BEGIN CERT").unwrap().0;
    for damaged in ["", "text", &pem, alone, &format!("{alone}{stranger}")] {
        fs::write(&key, damaged).unwrap();
        assert!(folder.fault().contains("is damaged"), "{}", folder.fault());
        assert!(folder.fault().contains("eyelet trust --install"), "{}", folder.fault());
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let settings = LocalSettings { folder: Some("/proc/local-ca".into()), ..Default::default() };
    let fault = Authority::open(&settings).map(drop).unwrap_err().to_string();
    assert!(fault.contains("/proc/local-ca, cannot be used"), "{fault}");
    assert!(fault.contains("`folder` in [local]"), "{fault}");
    assert!(Authority::read(Path::new("/proc/local-ca")).unwrap().is_none());
}

#[test]
fn dates_follow_the_clock_and_stay_within_the_authority() {
    let folder = Folder::new();
    let (authority, now) = (folder.open().unwrap(), SystemTime::now());
    let secs = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for (at, days) in [(now, 30), (now - DAY, 30), (now + DAY, 30), (now + 3640 * DAY, 10)] {
        let leaf = sign(&authority, "a.test", at).unwrap();
        let (_, parsed) = parse_x509_certificate(&leaf.certificate).unwrap();
        let dates = parsed.validity();
        let (start, end) =
            (dates.not_before.timestamp() as u64, dates.not_after.timestamp() as u64);
        // A client whose clock is a day late accepts it, and its life is 90 days at most.
        assert!(start <= secs(at - DAY) && end - start <= 90 * DAY.as_secs());
        assert!(start >= authority.validity.0 && end <= authority.validity.1);
        assert!(end.abs_diff(secs(at + days * DAY)) < 2, "{days}: {}", date(end));
        assert_eq!(end, secs(leaf.end));
    }
    let late = sign(&authority, "a.test", now + 3651 * DAY).map(drop).unwrap_err().to_string();
    assert!(late.contains("expired on") && late.contains("eyelet trust --remove"), "{late}");
    let early = sign(&authority, "a.test", now - 3 * DAY).map(drop).unwrap_err().to_string();
    assert!(early.contains("set this machine's clock"), "{early}");
    let two = [(), ()].map(|()| sign(&authority, "a.test", now).unwrap().certificate);
    let serial =
        |certificate: &[u8]| parse_x509_certificate(certificate).unwrap().1.raw_serial_as_string();
    assert_ne!(serial(&two[0]), serial(&two[1]));
}

#[test]
fn it_signs_what_it_may_and_nothing_else() {
    let folder = Folder::new();
    let (authority, now) = (folder.open().unwrap(), SystemTime::now());
    assert_eq!(authority.permitted, Some(Permitted::default()));
    for name in ["localhost", "*.app.test", "127.0.0.1", "::1", "192.168.7.7"] {
        sign(&authority, name, now).unwrap();
    }
    for name in ["bank.com", "*.com", "8.8.8.8"] {
        let fault = sign(&authority, name, now).map(drop).unwrap_err().to_string();
        assert!(fault.contains(&format!("may not sign {name}")), "{fault}");
        assert!(fault.contains("it is limited to localhost, test"), "{fault}");
    }
    for text in ["", "*", "a b", "ü.test", "-", "a..b"] {
        assert!(text.parse::<SubjectName>().is_err(), "{text}");
    }
    // A wider one.
    let (folder, mut permitted) = (Folder::new(), Permitted::default());
    permitted.add("corp.example.com").unwrap();
    permitted.add("203.0.113.0/24").unwrap();
    assert!(permitted.add("*.example.com").is_err());
    assert!(authority.check_permits(&permitted).is_err());
    let settings = LocalSettings { folder: Some(folder.path()), permitted: permitted.clone() };
    let wide = Authority::open(&settings).unwrap();
    assert_eq!(wide.permitted.as_ref(), Some(&permitted));
    wide.check_permits(&permitted).unwrap();
    sign(&wide, "a.corp.example.com", now).unwrap();
    sign(&wide, "203.0.113.9", now).unwrap();
    assert!(sign(&wide, "example.com", now).is_err());
    let late = wide.check_dates(now + 3651 * DAY).unwrap_err().to_string();
    let permits = "--permit corp.example.com --permit 203.0.113.0/24";
    assert!(late.contains(&format!("eyelet trust --install {permits} --folder")), "{late}");
}

/// One repair is enough: what the authority may sign already is kept, and all that is missing is
/// added.
#[test]
fn the_printed_commands_make_an_authority_that_signs_all_names() {
    let folder = Folder::new();
    let mut permitted = Permitted::default();
    permitted.add("corp.example.com").unwrap();
    let settings = LocalSettings { folder: Some(folder.path()), permitted };
    let names = ["a.test", "*.a.example.com", "b.example.com", "8.8.8.8", "a.example.com"].map(dns);
    let authority = Authority::open(&settings).unwrap();
    let fault = authority.check_names(&names).unwrap_err().to_string();
    let wanted = "may not sign *.a.example.com, b.example.com, 8.8.8.8, a.example.com: ";
    assert!(fault.contains(wanted), "{fault}");
    let (_, made) = fault.rsplit_once("eyelet trust ").unwrap();
    let words: Vec<&str> = made.split(' ').collect();
    let permits = words.windows(2).filter(|pair| pair[0] == "--permit").map(|pair| pair[1]);
    let permits: Vec<&str> = permits.collect();
    assert_eq!(permits, ["corp.example.com", "a.example.com", "b.example.com", "8.8.8.8"]);
    fs::remove_dir_all(folder.path()).unwrap();
    let mut permitted = Permitted::default();
    permits.into_iter().try_for_each(|permit| permitted.add(permit)).unwrap();
    let made = Authority::open(&LocalSettings { permitted, ..settings }).unwrap();
    made.check_names(&names).unwrap();
    made.check_name(&dns("x.corp.example.com")).unwrap();
    let mut wanted = Permitted::default();
    wanted.add("c.example.com").unwrap();
    wanted.add("192.0.2.0/24").unwrap();
    let fault = made.check_permits(&wanted).unwrap_err().to_string();
    assert!(fault.contains("--permit c.example.com --permit 192.0.2.0/24"), "{fault}");
}

/// The key is stolen, and the thief signs by another program.
#[test]
fn what_it_may_not_sign_verifies_nowhere() {
    if !has_openssl("what_it_may_not_sign_verifies_nowhere") {
        return;
    }
    let (folder, out) = (Folder::new(), tempfile::tempdir().unwrap());
    let mut authority = folder.open().unwrap();
    let ca = authority.certificate_path();
    let verify = |name: &str, file: &Path| {
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile"]).arg(&ca);
        let said = openssl.arg("-verify_hostname").arg(name).arg(file).output().unwrap();
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    };
    let [file, key] =
        write_files(&authority, &[dns("app.test"), dns("127.0.0.1")], DAY, out.path()).unwrap();
    assert_eq!(file, out.path().join("app.test.pem"));
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let said = verify("app.test", &file);
    assert!(said.contains("app.test.pem: OK"), "{said}");
    authority.permitted = None;
    let [stolen, _] = write_files(&authority, &[dns("bank.com")], DAY, out.path()).unwrap();
    let said = verify("bank.com", &stolen);
    assert!(said.contains("permitted subtree violation"), "{said}");
    let [wildcard, _] = write_files(&authority, &[dns("*.a.test")], DAY, out.path()).unwrap();
    assert_eq!(wildcard, out.path().join("_.a.test.pem"));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 6, "nothing is left beside");
    assert!(write_files(&authority, &[dns("a.test")], DAY, Path::new("/proc")).is_err());
}

/// False where there is no openssl, and says so as the end-to-end tests do: CI counts these lines.
pub fn has_openssl(test: &str) -> bool {
    if Command::new("openssl").arg("version").output().is_ok() {
        return true;
    }
    let line = format!("skipped: {test}: openssl not found");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("EYELET_SKIP_LOG") {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        writeln!(log, "{line}").unwrap();
    }
    false
}

/// A system with this folder for authorities and a program that counts its calls.
fn system(root: &Path, folder: &str, program: &str) -> PathBuf {
    for parent in [folder, Path::new(program).parent().unwrap().to_str().unwrap()] {
        fs::create_dir_all(root.join(parent)).unwrap();
    }
    let script = format!("#!/bin/sh\necho run $* >> {}\n", root.join("calls").display());
    write_program(root, program, &script);
    root.join(folder)
}

/// Another process writes it, so that no child of another test has it open for writing when it is
/// started (ETXTBSY, execve(2)).
fn write_program(root: &Path, program: &str, text: &str) {
    let source = root.join("text");
    fs::write(&source, text).unwrap();
    let mut install = Command::new("install");
    let done = install.args(["-m", "755"]).args([source, root.join(program)]).status().unwrap();
    assert!(done.success());
}

#[test]
fn each_systems_store_gets_the_certificate_and_loses_it() {
    let folder = Folder::new();
    let authority = folder.open().unwrap();
    for (anchors, program) in [
        ("usr/local/share/ca-certificates", "usr/sbin/update-ca-certificates"),
        ("etc/pki/ca-trust/source/anchors", "usr/bin/update-ca-trust"),
        ("etc/ca-certificates/trust-source/anchors", "usr/bin/update-ca-trust"),
        ("etc/pki/trust/anchors", "usr/sbin/update-ca-certificates"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let anchors = system(root.path(), anchors, program);
        let file = anchors.join(format!("eyelet-local-ca-{}.crt", authority.id()));
        let mut places = Places { root: Some(root.path().into()), home: None, is_root: false };
        // Another user gets the commands, and nothing is done.
        let said = trust::change(&authority, &places, TrustChange::Install);
        assert!(!said.is_complete && !file.exists());
        let install = format!("sudo install -m 644 {}", authority.certificate_path().display());
        assert!(said.text.contains(&install), "{}", said.text);
        assert!(said.text.contains(&format!("sudo {}", root.path().join(program).display())));
        let option = folder_option(&authority.folder);
        let shown = trust::show(&authority, &places).text;
        assert!(shown.contains("prints the commands by which root has the system's"), "{shown}");
        places.is_root = true;
        let shown = trust::show(&authority, &places).text;
        let installs = format!("\neyelet trust --install{option} makes all");
        assert!(shown.contains("not trusted by") && shown.contains(&installs), "{shown}");
        let undoes = format!("eyelet trust --remove{option}\n");
        assert!(said.text.contains(&undoes), "{}", said.text);
        for said in ["now trusted by", "trusted before by"] {
            let report = trust::change(&authority, &places, TrustChange::Install);
            assert!(report.is_complete && report.text.contains(said), "{}", report.text);
            assert_eq!(fs::read_to_string(&file).unwrap(), authority.pem);
        }
        assert!(!trust::show(&authority, &places).text.contains("not trusted by"));
        for said in ["removed from", "not in"] {
            let report = trust::change(&authority, &places, TrustChange::Remove);
            assert!(report.is_complete && report.text.contains(said), "{}", report.text);
            assert!(!file.exists());
        }
        let calls = fs::read_to_string(root.path().join("calls")).unwrap();
        let fresh = if program.ends_with("certificates") { "run --fresh" } else { "run" };
        assert_eq!(calls, format!("run\n{fresh}\n"), "only after a change");
        // The program fails.
        write_program(root.path(), program, "#!/bin/sh\necho full >&2\nexit 3\n");
        let report = trust::change(&authority, &places, TrustChange::Install);
        assert!(!report.is_complete && report.text.contains("full"), "{}", report.text);
    }
}

#[test]
fn databases_of_browsers_trust_it_and_no_more() {
    if !Path::new("/usr/bin/certutil").exists() {
        return;
    }
    let (folder, home, root) =
        (Folder::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = folder.open().unwrap();
    let profile = home.path().join(".mozilla/firefox/a.default");
    fs::create_dir_all(&profile).unwrap();
    let database = format!("sql:{}", profile.display());
    let made = Command::new("certutil").args(["-N", "--empty-password", "-d", &database]).status();
    assert!(made.unwrap().success());
    let places =
        Places { root: Some(root.path().into()), home: Some(home.path().into()), is_root: false };
    let shown = trust::show(&authority, &places);
    assert!(shown.text.contains("not trusted by    Firefox"), "{}", shown.text);
    let report = trust::change(&authority, &places, TrustChange::Install);
    assert!(report.is_complete, "{}", report.text);
    for reader in ["Firefox", "Chromium"] {
        assert!(report.text.contains(&format!("now trusted by    {reader}")), "{}", report.text);
    }
    for hint in ["NODE_EXTRA_CA_CERTS=", "REQUESTS_CA_BUNDLE=", "keytool -importcert"] {
        assert!(report.text.contains(hint), "{}", report.text);
    }
    assert!(!trust::show(&authority, &places).text.contains("not trusted by"));
    let report = trust::change(&authority, &places, TrustChange::Remove);
    assert!(report.is_complete, "{}", report.text);
    assert_eq!(report.text.matches("removed from").count(), 2, "{}", report.text);
    assert!(trust::show(&authority, &places).text.contains("not trusted by    Chromium"));
}

#[test]
fn words_for_the_shell() {
    let table = [("/tmp/a-b.c", "/tmp/a-b.c"), ("/t p/x", "'/t p/x'"), ("/a'b", r"'/a'\''b'")];
    for (path, word) in table {
        assert_eq!(shell_word(Path::new(path)), word);
        assert_eq!(folder_option(Path::new(path)), format!(" --folder {word}"));
    }
    if let Ok(own) = default_folder() {
        assert_eq!(folder_option(&own), "");
    }
}
