#!/usr/bin/env bash
# Builds the static program and serves a page with it where there is nothing else. It needs
# musl-tools, `rustup target add x86_64-unknown-linux-musl`, curl, openssl and python3, and root for
# the second part.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=$(uname -m)-unknown-linux-musl
cargo build --locked --profile dist --target "$triple" -p eyelet --bin eyelet
program=${CARGO_TARGET_DIR:-target}/$triple/dist/eyelet
ls --size --human-readable "$program"
packaging/try-container.sh "$program"
