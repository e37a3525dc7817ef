//! Chromium and Firefox without a window, with a profile of their own that trusts the authority of
//! a test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Folder, output, until};

/// Firefox asks nobody but the test's edge.
const FIREFOX_SETTINGS: &str = "\
user_pref('app.normandy.enabled', false);
user_pref('app.update.enabled', false);
user_pref('browser.aboutwelcome.enabled', false);
user_pref('browser.safebrowsing.update.enabled', false);
user_pref('browser.shell.checkDefaultBrowser', false);
user_pref('datareporting.healthreport.uploadEnabled', false);
user_pref('datareporting.policy.dataSubmissionEnabled', false);
user_pref('dom.push.connection.enabled', false);
user_pref('extensions.update.enabled', false);
user_pref('network.captive-portal-service.enabled', false);
user_pref('network.connectivity-service.enabled', false);
";

fn firefox_profile(folder: &Folder) -> PathBuf {
    folder.path().join("firefox")
}

/// Chromium's command line, with more arguments and a URL.
pub fn chromium(folder: &Folder, more: &[&str]) -> Command {
    let home = folder.path();
    let mut command = Command::new("chromium");
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update"])
        .arg(format!("--user-data-dir={}", home.join("profile").display()))
        .args(more)
        .env("HOME", home);
    command
}

/// A browser with a profile of its own, which trusts the test's authority.
pub struct Browser(Child);

impl Browser {
    pub fn open(folder: &Folder, url: &str) -> Self {
        Self::open_with(folder, &[url])
    }

    /// A browser with more arguments, the URL last.
    pub fn open_with(folder: &Folder, arguments: &[&str]) -> Self {
        let child = chromium(folder, arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// The other browser.
    pub fn open_firefox(folder: &Folder, url: &str) -> Self {
        let profile = firefox_profile(folder);
        std::fs::write(profile.join("user.js"), FIREFOX_SETTINGS).unwrap();
        let child = Command::new("firefox-esr")
            .args(["--headless", "--no-remote", "--profile"])
            .arg(profile)
            .arg(url)
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Asks it to end, so that its profile is written.
    pub fn close(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        until("the browser to end", || self.0.try_wait().unwrap());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the browsers of this folder trust an authority.
pub fn trust(folder: &Folder, authority: &Path) {
    for store in [folder.path().join(".pki/nssdb"), firefox_profile(folder)] {
        std::fs::create_dir_all(&store).unwrap();
        let store = format!("sql:{}", store.display());
        for arguments in [
            vec!["-N", "--empty-password"],
            vec!["-A", "-t", "C,,", "-n", "test", "-i", authority.to_str().unwrap()],
        ] {
            let said = output(Command::new("certutil").args(["-d", &store]).args(arguments));
            assert!(said.status.success(), "{}", said.text);
        }
    }
}
