#!/usr/bin/env bash
# Runs a static program where there is nothing else, as a container engine would: as process 1 of
# its own namespaces, with the image's root, a page served by HTTPS, and SIGTERM at the end.
# packaging/try-container.sh PROGRAM, as root.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$(dirname "$0")/container.sh" "$1" "$work/image"
root=$work/image/files
mkdir -p "$root/proc" "$root/run/eyelet" "$root/etc/eyelet"
chown 65532 "$root/run/eyelet"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=app.example \
    -addext subjectAltName=DNS:app.example -keyout "$root/etc/eyelet/app.key" \
    -out "$root/etc/eyelet/app.pem" 2>"$work/openssl"
chown 65532 "$root/etc/eyelet/app.key"
# python3 at port 3000 is the upstream. The namespace has its own loopback: no port of the machine
# is taken.
mkdir "$work/pages"
echo "from the upstream" >"$work/pages/index.html"
cat >"$root/etc/eyelet/edge.toml" <<'END'
[[listener]]
address = "127.0.0.1:443"

[[rule]]
sni = "app.example"
action = "terminate"
certificate = "app.pem"
key = "app.key"
upstream = "http://127.0.0.1:3000"
END
export root work
# The end of process 1 of the namespace ends the others.
unshare --net --pid --fork --kill-child --mount-proc bash -euo pipefail <<'END'
ip link set lo up
sysctl --quiet --write net.ipv4.ip_unprivileged_port_start=0
python3 -m http.server --bind 127.0.0.1 --directory "$work/pages" 3000 2>"$work/upstream" &
unshare --pid --fork --kill-child --mount --root "$root" --mount-proc=/proc \
    --setuid 65532 --setgid 65532 /eyelet serve /etc/eyelet/edge.toml \
    >"$work/access.log" 2>"$work/messages" &
edge=$!
for _ in {1..100}; do
    page=$(curl --silent --cacert "$root/etc/eyelet/app.pem" \
        --connect-to app.example:443:127.0.0.1:443 https://app.example/) || true
    [[ $page == "from the upstream" ]] && break
    sleep 0.1
done
[[ $page == "from the upstream" ]]
# Process 1 of the inner namespace gets the signal as an engine sends it.
kill -TERM "$(cat "/proc/$edge/task/$edge/children")"
wait "$edge"
END
cat "$work/messages"
echo "served from an empty root"
