//! A machine for the commands of a page: namespaces with the program installed, files that may be
//! changed, an application, and servers on another host. The real machine stays untouched.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::program::{Said, need, skip};
use super::{Folder, until};

/// The user that runs the commands. No user of the real machine has this number.
const USER: &str = "64999";
/// The programs that the commands of the documentation call, beside a shell.
const PROGRAMS: [&str; 10] = [
    "bash",
    "curl",
    "ip",
    "jq",
    "node",
    "nsenter",
    "openssl",
    "python3",
    "redis-server",
    "setpriv",
];

/// `$1` the folder of the page, `$2` the program. What is written below the covered folders goes to
/// a file system in memory, which ends with the machine.
const BOOT: &str = r#"set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/page
touch /mnt/eyelet
mount --bind "$1" /mnt/page
mount --bind "$2" /mnt/eyelet
cd /mnt/page
for folder in etc usr/local var/lib; do
    mkdir -p "/mnt/$folder.upper" "/mnt/$folder.work"
    upper="upperdir=/mnt/$folder.upper,workdir=/mnt/$folder.work"
    mount -t overlay -o "lowerdir=/$folder,$upper" overlay "/$folder"
done
for folder in srv run; do mount -t tmpfs -o mode=755 tmpfs /$folder; done
mkdir -p /srv/dev /srv/admin
mount --bind home /srv/dev
mount --bind work /srv/dev/app
mkdir -p /run/user/64999
chown 64999 /run/user/64999
echo "dev:x:64999:64999::/srv/dev:/bin/sh" >>/etc/passwd
echo "dev:x:64999:" >>/etc/group
ln -sf /mnt/eyelet /usr/local/bin/eyelet
mkdir -p /etc/eyelet
cp etc/* /etc/eyelet
cat hosts >/etc/hosts
printf 'silent\nshow-error\n' | tee /srv/admin/.curlrc >/srv/dev/.curlrc
cat ca.pem >>/etc/ssl/certs/ca-certificates.crt
ip link set lo up
ip netns add far
ip -n far link set lo up
ip link add wan0 type veth peer name eth0 netns far
ip addr add 10.0.0.1/32 dev lo
ip addr add 192.168.77.1/24 dev wan0
ip link set wan0 up
ip -n far addr add 192.168.77.2/24 dev eth0
ip -n far link set eth0 up
for address in 10.0.0.7 10.0.0.9 20.0.0.10 20.0.0.66; do
    ip -n far addr add $address/32 dev lo
    ip route add $address via 192.168.77.2
done
ip -n far route add 10.0.0.1 via 192.168.77.1
ip netns exec far node machine.js far &
node machine.js near &
until [ -e far.ready ] && [ -e near.ready ]; do sleep 0.02; done
touch ready
wait
"#;

/// Makes `start`, which begins a server and shows what it said: at least `$1` lines. The log is in
/// the machine's own memory.
const PRELUDE: &str = r#"
start() {
    local lines=$1 log; shift
    log=$(mktemp -p "$XDG_RUNTIME_DIR")
    "$@" >"$log" 2>&1 &
    for try in $(seq 1200); do
        if grep -Eq 'listening on|serving (https|tls)|Open this page' "$log"; then
            [ "$(wc -l <"$log")" -lt "$lines" ] || { cat "$log"; return; }
        fi
        kill -0 $! 2>/dev/null || break
        sleep 0.05
    done
    cat "$log"; return 1
}
finish() {
    local status=$?
    for try in $(seq 1200); do
        pkill -INT -x eyelet || exit $status
        for nap in $(seq 40); do pgrep -x eyelet >/dev/null || exit $status; sleep 0.02; done
    done
    exit $status
}
trap finish EXIT
"#;

pub struct Machine {
    /// `unshare`, whose end ends everything within.
    child: Child,
    /// Its process 1, as it is known here.
    pid: u32,
}

impl Machine {
    /// Starts it over a folder that has `ca.pem`, `etc`, `hosts`, `home` and `work`. `None`, and
    /// says so, where it cannot run.
    pub fn start(folder: &Folder) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("a machine of namespaces needs root");
            return None;
        }
        if !PROGRAMS.iter().all(|program| need(program)) {
            return None;
        }
        folder.write("machine.js", include_str!("../programs/machine.js"));
        let mut command = Command::new("setpriv");
        // It ends with the test, however that ends.
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--ipc", "--uts"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", BOOT, "sh"]);
        command.arg(folder.path()).arg(env!("CARGO_BIN_EXE_eyelet"));
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let ready = folder.path().join("ready");
        until("the machine", || {
            assert!(child.try_wait().unwrap().is_none(), "the machine does not start");
            ready.exists().then_some(())
        });
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Some(Self { child, pid })
    }

    /// Runs a script there in the folder `work`, as root or as an ordinary user, until a command
    /// fails if `strict`.
    pub fn run(&self, root: bool, strict: bool, script: &str) -> Said {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid.to_string()]);
        command.args(["--mount", "--net", "--ipc", "--uts", "--pid", "--wdns=/srv/dev/app"]);
        command.args(["env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
        let variables = if root {
            ["HOME=/srv/admin", "XDG_RUNTIME_DIR=/run"]
        } else {
            ["HOME=/srv/dev", "XDG_RUNTIME_DIR=/run/user/64999"]
        };
        command.args(variables);
        if !root {
            command.args(["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]);
        }
        // Ends what hangs, and says by status 124 that it did.
        command.args(["timeout", "100", "bash", "-o", "pipefail"]);
        if strict {
            command.arg("-e");
        }
        command.arg("-c").arg(format!("exec 2>&1\n{PRELUDE}{script}"));
        super::long_output(&mut command)
    }

    /// Gives a folder and all in it to the ordinary user.
    pub fn give(path: &Path) {
        let user: u32 = USER.parse().unwrap();
        std::os::unix::fs::lchown(path, Some(user), Some(user)).unwrap();
        for entry in std::fs::read_dir(path).into_iter().flatten() {
            Self::give(&entry.unwrap().path());
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
