#!/usr/bin/env bash
# Makes the folder from which packaging/Containerfile builds an image, of a static program:
# packaging/container.sh PROGRAM FOLDER
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
context=$(realpath "$2")
cd "$(dirname "$0")"
umask 022

# An assignment of its own: `set -e` ends the script if readelf fails.
headers=$(readelf --program-headers "$program")
if grep --quiet INTERP <<<"$headers"; then
    echo "$program needs libraries of the system: packaging/static.sh builds one that does not" >&2
    exit 1
fi
install -D "$program" "$context/files/eyelet"
# Authorities for TLS to upstreams: those of this machine, which is where the image is made.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt -t "$context/files/etc/ssl/certs"
echo "eyelet:x:65532:65532:Eyelet:/var/lib/eyelet:/" >"$context/files/etc/passwd"
echo "eyelet:x:65532:" >"$context/files/etc/group"
mkdir -p "$context/run" "$context/state"
install -m 644 Containerfile -t "$context"
