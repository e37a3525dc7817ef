#!/usr/bin/env bash
# Builds the image of a static program by podman and runs it: a page by HTTP/2 through a published
# port, and status 0 after SIGTERM. packaging/try-podman.sh PROGRAM [OPTIONS OF PODMAN RUN]. It needs
# podman, curl, openssl, python3 and root. Within a container itself it may need options such as
# --runtime runc --ulimit nofile=1024:1024 --ulimit nproc=1000:1000.
set -euo pipefail
work=$(mktemp -d)
image=eyelet-try-$$
leave() {
    podman rm --force "$image" >"$work/removed" 2>&1 || true
    podman rmi --force "$image" >"$work/removed" 2>&1 || true
    [[ -z $app ]] || kill "$app" || true
    rm -rf "$work"
}
app=
trap leave EXIT

"$(dirname "$0")/container.sh" "$1" "$work/image"
podman build --quiet --tag "$image" "$work/image"

# The user of the image reads the key, and connects to the application at a socket of this machine.
mkdir "$work/edge" "$work/app"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=app.example \
    -addext subjectAltName=DNS:app.example -keyout "$work/edge/app.key" \
    -out "$work/edge/app.pem" 2>"$work/openssl"
chown 65532 "$work/edge/app.key"
chmod 755 "$work"
cat >"$work/edge/edge.toml" <<'END'
[[listener]]
address = "0.0.0.0:443"

[[rule]]
sni = "app.example"
action = "terminate"
certificate = "app.pem"
key = "app.key"
upstream = "http+unix:/app/app.sock"
END
python3 - "$work/app/app.sock" 2>"$work/requests" <<'END' &
import http.server, os, socketserver, sys

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "18")
        self.end_headers()
        self.wfile.write(b"from the upstream\n")
    def address_string(self):
        return "edge"

server = socketserver.ThreadingUnixStreamServer(sys.argv[1], Page)
os.chmod(sys.argv[1], 0o777)
server.serve_forever()
END
app=$!

podman run --detach --name "$image" --sysctl net.ipv4.ip_unprivileged_port_start=0 \
    --publish 127.0.0.1::443 --volume "$work/edge:/etc/eyelet:ro" --volume "$work/app:/app" \
    "${@:2}" "$image" >"$work/id"
port=$(podman port "$image" 443)
for _ in {1..100}; do
    page=$(curl --silent --show-error --http2 --cacert "$work/edge/app.pem" \
        --write-out '%{http_version} ' --connect-to "app.example:443:127.0.0.1:${port##*:}" \
        https://app.example/ 2>"$work/curl") || true
    [[ $page == "from the upstream"$'\n'"2 " ]] && break
    sleep 0.1
done
podman stop --time 20 "$image" >"$work/stopped"
podman logs "$image"
if [[ $page != "from the upstream"$'\n'"2 " ]]; then
    printf 'the page did not come: curl has "%s" and says: ' "$page" >&2
    cat "$work/curl" >&2
    exit 1
fi
status=$(podman inspect --format '{{.State.ExitCode}}' "$image")
if [[ $status != 0 ]]; then
    echo "the edge ended with $status" >&2
    exit 1
fi
echo "served by HTTP/2 from a container of $(podman --version), and ended with 0"
