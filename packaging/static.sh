#!/usr/bin/env bash
# Builds the static program and serves a page with it from a container, where there is nothing else:
# packaging/static.sh [OPTIONS OF PODMAN RUN]. It needs musl-tools, `rustup target add
# x86_64-unknown-linux-musl`, and packaging/try-podman.sh's programs and root for what follows the
# build.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=$(uname -m)-unknown-linux-musl
# Relative relocations as a bitmap (RELR), which the program's own start reads: 0.6 MB less. GNU ld
# makes them from 2.38 on for x86, and ignores the wish elsewhere. In .cargo/config.toml it would
# have all other builds begin anew.
export RUSTFLAGS="${RUSTFLAGS:-} -Clink-arg=-Wl,-z,pack-relative-relocs"
cargo build --locked --profile dist --target "$triple" -p eyelet --bin eyelet
program=${CARGO_TARGET_DIR:-target}/$triple/dist/eyelet
ls --size --human-readable "$program"
packaging/try-podman.sh "$program" "$@"
