//! A real systemd as process 1 of its own namespaces, for one test: it shares the network, the
//! files that it does not cover, and nothing else. Its units are in a folder of the test.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::program::{Said, need, skip};
use super::{Folder, output, until};

/// The path that Debian and the others have.
const PROGRAM: &str = "/lib/systemd/systemd";
/// The user of the unit. No user of the machine has this number.
const USER: u32 = 64_999;

/// `$1` the folder of the configuration, `$2` the units, `$3` the program, `$4` the user.
const BOOT: &str = r#"set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/units /run/etc
cp -R "$2"/. /run/units
for target in sysinit basic shutdown sockets network-online multi-user; do
    printf '[Unit]\nDefaultDependencies=no\n' >/run/units/$target.target
done
cp -P /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.cache /run/etc
: >/run/etc/machine-id
echo "eyelet:x:$4:$4::/:/bin/false" >>/run/etc/passwd
echo "eyelet:x:$4:" >>/run/etc/group
mkdir /run/etc/eyelet
mount --bind "$1" /run/etc/eyelet
mount --rbind /run/etc /etc
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /usr/local/bin
touch /usr/local/bin/eyelet
mount --bind "$3" /usr/local/bin/eyelet
mkdir /run/bin.upper /run/bin.work
mount -t overlay -o lowerdir=/usr/bin,upperdir=/run/bin.upper,workdir=/run/bin.work overlay /usr/bin
touch /usr/bin/eyelet
mount --bind "$3" /usr/bin/eyelet
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /proc/sys /proc/sys
mount -o remount,ro,bind /proc/sys
export SYSTEMD_UNIT_PATH=/run/units container=eyelet-test
exec "$5" --system --unit=basic.target --log-target=console --show-status=no
"#;

pub struct Systemd {
    /// `unshare`, whose end ends everything within.
    child: Child,
    /// Its process 1, as it is known here.
    pid: u32,
    cgroup: PathBuf,
    /// The output of the service.
    log: PathBuf,
}

impl Systemd {
    /// Starts it with these units (names and texts) and this folder as /etc/eyelet. `None`, and
    /// says so, where it cannot run.
    pub fn start(folder: &Folder, units: &[(&str, &str)]) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            skip("systemd in namespaces needs root");
            return None;
        }
        if !need("setpriv") || !need("unshare") || !need("nsenter") || !need("systemctl") {
            return None;
        }
        let Some(groups) = Path::new(PROGRAM).exists().then(cgroups).flatten() else {
            skip("no systemd, or no cgroup2");
            return None;
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let cgroup = groups.join(format!("eyelet-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&cgroup).unwrap();
        let (texts, log) = (folder.path().join("units"), folder.path().join("service.log"));
        write_units(&texts, units, &log);
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            std::os::unix::fs::chown(entry.unwrap().path(), Some(USER), Some(USER)).unwrap();
        }
        let mut command = Command::new("sh");
        // It ends with the test, however that ends.
        let enter = "echo $$ >\"$1\"; shift; exec setpriv --pdeathsig KILL unshare --mount \
                     --uts --ipc --pid --cgroup --fork --kill-child --mount-proc \"$@\"";
        command.args(["-c", enter, "sh"]).arg(cgroup.join("cgroup.procs"));
        command.args(["sh", "-c", BOOT, "sh"]).args([folder.path(), &texts]);
        command.arg(env!("CARGO_BIN_EXE_eyelet")).args([&USER.to_string(), PROGRAM]);
        let said = std::fs::File::create(folder.path().join("systemd.log")).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let mut child = command.process_group(0).spawn().unwrap();
        let pid = until("systemd's process", || {
            let ended = child.try_wait().unwrap().is_some();
            ended.then_some(None).or_else(|| child_of(child.id()).map(Some))
        });
        let mut systemd = Self { child, pid: pid.unwrap_or_default(), cgroup, log };
        let runs = until("systemd", || {
            if pid.is_none() || systemd.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            systemd.systemctl(&["show", "--property=Version"]).status.success().then_some(true)
        });
        if !runs {
            let said = std::fs::read_to_string(folder.path().join("systemd.log")).unwrap();
            skip(&format!("systemd does not run here: {}", said.replace('\n', "; ")));
        }
        runs.then_some(systemd)
    }

    /// Runs a program where systemd runs, as root.
    pub fn run(&self, words: &[&str]) -> Said {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--cgroup", "--target", &self.pid.to_string()]);
        output(command.args(words))
    }

    pub fn systemctl(&self, words: &[&str]) -> Said {
        self.run(&[&["systemctl"], words].concat())
    }

    /// `systemctl`, which must work.
    pub fn does(&self, words: &[&str]) {
        let said = self.systemctl(words);
        let more = || self.systemctl(&["status", "--no-pager", "eyelet.service"]).text;
        assert!(said.status.success(), "{words:?}: {}\n{}\n{}", said.text, more(), self.log());
    }

    /// A property of the service.
    pub fn property(&self, name: &str) -> String {
        let said = self.systemctl(&["show", "--value", "--property", name, "eyelet.service"]);
        said.text.trim().to_owned()
    }

    /// Returns the output of the service: access lines and messages.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The kernel ends the others when process 1 has ended.
        until("the end of the namespaces", || remove(&self.cgroup).ok());
        if std::thread::panicking() {
            let said = self.log.with_file_name("systemd.log");
            eprintln!("{}\n{}", self.log(), std::fs::read_to_string(said).unwrap_or_default());
        }
    }
}

/// Returns the path at which the kernel shows cgroup2.
fn cgroups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.find(|fields| fields[2] == "cgroup2").map(|fields| PathBuf::from(fields[1]))
}

/// The unit files, and a log for the service, because there is no journal.
fn write_units(folder: &Path, units: &[(&str, &str)], log: &Path) {
    std::fs::create_dir_all(folder.join("eyelet.service.d")).unwrap();
    std::fs::write(log, "").unwrap();
    let append = "append:/etc/eyelet/service.log";
    let more = format!("[Service]\nStandardOutput={append}\nStandardError={append}\n");
    std::fs::write(folder.join("eyelet.service.d/log.conf"), more).unwrap();
    for (name, text) in units {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// The first child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Removes a cgroup and those below it.
fn remove(cgroup: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(cgroup)
}
