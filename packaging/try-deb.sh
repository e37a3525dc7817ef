#!/usr/bin/env bash
# Installs a package in a view of this machine, uses it there, and removes it: packaging/try-deb.sh
# FILE.deb, as root. The view is an overlay of / in memory, which ends with this script.
set -euo pipefail
if [[ $1 != --inside ]]; then
    exec unshare --mount --net --pid --fork --kill-child "$0" --inside "$(realpath "$1")"
fi

# Only this script sees what is mounted here.
work=/mnt
mount -t tmpfs tmpfs "$work"
mkdir "$work"/{upper,work,view}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/view"
mount -t proc proc "$work/view/proc"
mount --rbind /dev "$work/view/dev"
cp "$2" "$work/view/eyelet.deb"

# This machine's own systemd is out of reach: /run is empty.
mount -t tmpfs tmpfs "$work/view/run"
ip link set lo up
chroot "$work/view" bash -euo pipefail <<'END'
cd /
if command -v eyelet; then
    echo "there is an eyelet already: this proves nothing"
    exit 1
fi
# Without triggers: man-db's would index all pages of this machine, for 3 s of a processor each time.
dpkg --no-triggers --install eyelet.deb
eyelet --version
eyelet check /etc/eyelet/edge.toml
grep --quiet '^ExecStart=/usr/bin/eyelet serve ' /usr/lib/systemd/system/eyelet.service
[[ -s /usr/share/doc/eyelet/copyright && -s /usr/share/doc/eyelet/docs/images/demo-wide-dark.png ]]
systemd-analyze verify /usr/lib/systemd/system/eyelet.service
getent passwd eyelet
bash -n /usr/share/bash-completion/completions/eyelet
bash -c 'source /usr/share/bash-completion/completions/eyelet && complete -p eyelet'
for page in eyelet eyelet-serve eyelet-run; do
    dpkg-deb --fsys-tarfile eyelet.deb | tar -xO "./usr/share/man/man1/$page.1.gz" | gzip -t
done

echo "# mine" >>/etc/eyelet/edge.toml
dpkg --no-triggers --install eyelet.deb
grep --quiet "# mine" /etc/eyelet/edge.toml

# As the user of the service, from the first byte to the refusal.
setpriv --reuid eyelet --regid eyelet --clear-groups \
    eyelet serve /etc/eyelet/edge.toml >access.log &
for _ in {1..100}; do
    openssl s_client -connect 127.0.0.1:8443 -servername app.example </dev/null >client.log 2>&1 ||
        true
    if grep --quiet '"outcome":"refused","rule":"the rest"' access.log; then
        break
    fi
    sleep 0.1
done
kill %1
wait %1
grep --quiet '"outcome":"refused","rule":"the rest"' access.log

# A purge removes what the service made, and nothing else.
mkdir -p /var/lib/eyelet/acme/server /var/lib/eyelet/mine
dpkg --no-triggers --purge eyelet
[[ ! -e /etc/eyelet && ! -e /usr/bin/eyelet && ! -e /var/lib/eyelet/acme ]]
[[ -d /var/lib/eyelet/mine ]]
END
echo "installed, used, removed"
