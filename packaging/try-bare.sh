#!/usr/bin/env bash
# Times a bare Debian 12 from two commands to a page of a Node application by https, with a package
# of Eyelet and with Debian's Caddy: packaging/try-bare.sh FILE.deb [FOLDER], as root. FOLDER is
# where Debian is, or is put; it stays, for the next time. Needs mmdebstrap and Debian's mirror.
set -euo pipefail

# In namespaces and a view of FOLDER of its own: installs, serves, and asks for the page.
inside() {
    local name=$1 root=$2 deb=$3 user=dev port=8443 app=
    local began installed served ready status command_1 command_2 authority
    mount -t tmpfs tmpfs /mnt
    mkdir /mnt/{upper,work,view}
    mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/view
    mount -t proc proc /mnt/view/proc
    mount --rbind /dev /mnt/view/dev
    ip link set lo up
    cp "$deb" /mnt/view/eyelet.deb
    chroot /mnt/view useradd --create-home --home-dir /srv/dev dev
    cat >/mnt/view/srv/dev/server.js <<'END'
const port = process.env.PORT || 3000;
require("http").createServer((_, response) => response.end("hello\n")).listen(port, "127.0.0.1");
END
    # The shell of the user who asks expands the path of the authority.
    case $name in
    eyelet)
        command_1="apt-get install --yes ./eyelet.deb"
        command_2="eyelet run -- node server.js"
        authority='~/.local/share/eyelet/local-ca/ca.pem'
        ;;
    caddy)
        command_1="apt-get install --yes --no-install-recommends caddy"
        command_2="caddy reverse-proxy --from app.localhost --to 127.0.0.1:3000"
        authority='~/.local/share/caddy/pki/authorities/local/root.crt'
        # It ends where it may not have port 80, whatever port it serves.
        user=root
        port=443
        # Caddy starts no application: this is a third command, which is not timed.
        as dev "node server.js" &
        app=$!
        ;;
    esac
    began=$EPOCHREALTIME
    chroot /mnt/view bash -c "cd / && $command_1" >/mnt/install.log 2>&1 ||
        { cat /mnt/install.log; return 1; }
    installed=$EPOCHREALTIME
    as "$user" "$command_2" >/mnt/serve.log 2>&1 &
    served=$!
    for _ in {1..600}; do
        status=$(as "$user" "curl --silent --cacert $authority https://app.localhost:$port/ \
            --write-out '%{http_code} by HTTP/%{http_version}'") || true
        [[ $status == $'hello\n200'* ]] && break
        kill -0 "$served" || break
        sleep 0.05
    done
    ready=$EPOCHREALTIME
    if [[ $status != $'hello\n200'* ]]; then
        echo "$name: the page did not come: $status" >&2
        cat /mnt/serve.log >&2
        return 1
    fi
    printf '# %s\n$ %s\n' "$command_1" "$command_2"
    awk -v name="$name" -v status="${status#*$'\n'}" -v a="$began" -v b="$installed" -v c="$ready" 'BEGIN {
        printf "%s: %s after %.1f s: %.1f to install, %.1f to serve\n\n", name, status, c - a, b - a, c - b
    }'
    kill "$served" $app
}

# Runs a command line as a user of the view, in that user's home.
as() {
    chroot /mnt/view runuser --login --shell /bin/bash --command "exec $2" "$1"
}

if [[ $1 == --inside ]]; then
    inside "${@:2}"
    exit
fi
deb=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(realpath --canonicalize-missing "${2:-$work/root}")
if [[ ! -d $root ]]; then
    # With the packages that Caddy needs fetched, so that no network is in the times.
    mmdebstrap --mode=root --variant=apt --skip=cleanup/apt \
        --include=ca-certificates,curl,nodejs,systemd \
        --customize-hook='chroot "$1" apt-get install --yes --no-install-recommends --download-only caddy' \
        bookworm "$root" 2>"$work/mmdebstrap.log" || {
        tail -n 20 "$work/mmdebstrap.log" >&2
        # Half a Debian would be taken for a whole one the next time.
        rm -rf --one-file-system "$root"
        exit 1
    }
fi
for name in eyelet caddy; do
    unshare --mount --net --pid --fork --kill-child --mount-proc \
        "$0" --inside "$name" "$root" "$deb"
done
