#!/usr/bin/env bash
# Makes a Debian package of a built program:
#
#   cargo build --release && packaging/deb.sh target/release/eyelet FOLDER [OPTIONS OF DPKG-DEB]
#
# It needs dpkg-dev, binutils and cargo, and builds nothing but the example that writes the manual
# pages. cargo-deb would do the same, but takes 114 s of CPU time to build: dpkg-deb is there.
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
output=$(realpath "$2")
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
share=$root/usr/share
# The same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct || stat --format=%Y Cargo.lock)}
export SOURCE_DATE_EPOCH
umask 022

# These crates have no text of their licence with them. Another crate of their project has it:
# alloc-no-stdlib, asn1-rs.
without_text=(alloc-stdlib asn1-rs-impl)

# What the licences of the libraries in the program ask for: their names and texts.
licences() {
    local crate licence file sum found missing=()
    declare -A shown=()
    echo "Eyelet is under Apache-2.0: /usr/share/common-licenses/Apache-2.0"
    echo "It contains these libraries, whose texts follow:"
    cargo tree --locked -p eyelet -e normal --prefix none --format '{p}|{l}' | sed 's/ (\*)$//' |
        grep -v ' (/' | sort -u >"$work/crates"
    cat "$work/crates"
    while IFS='|' read -r crate licence; do
        crate=${crate% (proc-macro)}
        found=
        for file in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${crate/ v/-}"/{LICEN[CS]E,COPY,NOTICE}*; do
            [[ -f $file ]] || continue
            found=yes
            sum=$(sha256sum <"$file")
            [[ -z ${shown[$sum]:-} ]] || continue
            shown[$sum]=1
            printf '\n---- %s: %s\n\n' "$crate" "${file##*/}"
            cat "$file"
        done
        [[ $found || " ${without_text[*]} " == *" ${crate% v*} "* ]] || missing+=("$crate")
    done <"$work/crates"
    if [[ ! -s $work/crates || ${#missing[@]} -gt 0 ]]; then
        echo "no text of a licence: ${missing[*]:-there are no libraries}. Are the sources there?" >&2
        return 1
    fi
}

# The libraries of the system that the program loads, with the versions that it needs.
depends() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: eyelet\n\nPackage: eyelet\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "$root/usr/bin/eyelet") | sed -n 's/^shlibs:Depends=//p'
}

# The symbols and line tables that the packaged program lacks, where perf and gdb look for them. The
# build id names them, so they fit no other build.
symbols() {
    local id file folder=$work/symbols
    id=$(readelf --notes "$program" | sed -n 's/^ *Build ID: //p')
    if [[ -z $id ]]; then
        echo "$program has no build id: nothing would find its symbols" >&2
        return 1
    fi
    file=$folder/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    install -d "${file%/*}" "$folder/DEBIAN"
    objcopy --only-keep-debug "$program" "$file"
    chmod 644 "$file"
    nm "$file" >"$work/names"
    if ! grep -q eyelet "$work/names"; then
        echo "$program has no symbols" >&2
        return 1
    fi
    cat >"$folder/DEBIAN/control" <<END
Package: eyelet-dbgsym
Version: ${version#eyelet }
Architecture: $(dpkg --print-architecture)
Maintainer: Eyelet maintainers <eyelet@maintainers.example>
Section: debug
Priority: optional
Depends: eyelet (= ${version#eyelet })
Installed-Size: $(du -sk --exclude=DEBIAN "$folder" | cut -f1)
Description: symbols of eyelet, for perf and gdb
END
    dpkg-deb --root-owner-group "$@" --build "$folder" "$output"
}

install -D "$program" "$root/usr/bin/eyelet"
strip --strip-unneeded "$root/usr/bin/eyelet"
# The path of the packaged program: another one in /usr/local/bin would come first.
sed -E 's|^(Exec[A-Za-z]+=)eyelet |\1/usr/bin/eyelet |; /^# In this file /,/^# installs /d' \
    packaging/eyelet.service | install -D -m 644 /dev/stdin "$root/usr/lib/systemd/system/eyelet.service"
install -D -m 644 packaging/eyelet.sysusers "$root/usr/lib/sysusers.d/eyelet.conf"
install -D -m 644 packaging/edge.toml -t "$root/etc/eyelet"

# Build scripts of C libraries look at the date, too: all that needs them would be built anew.
env -u SOURCE_DATE_EPOCH cargo build --quiet --locked --workspace --example manuals
"$target/debug/examples/manuals" "$work/manuals"
install -D -m 644 "$work"/manuals/man1/* -t "$share/man/man1"
install -D -m 644 "$work/manuals/eyelet.bash" "$share/bash-completion/completions/eyelet"
install -D -m 644 "$work/manuals/eyelet.fish" -t "$share/fish/vendor_completions.d"
install -D -m 644 "$work/manuals/_eyelet" -t "$share/zsh/vendor-completions"

install -D -m 644 README.md SECURITY.md -t "$share/doc/eyelet"
install -D -m 644 docs/*.md docs/*.svg -t "$share/doc/eyelet/docs"
install -D -m 644 docs/images/* -t "$share/doc/eyelet/docs/images"
install -D -m 644 examples/* -t "$share/doc/eyelet/examples"
install -m 644 CHANGELOG.md "$share/doc/eyelet/changelog"
licences >"$share/doc/eyelet/copyright"
gzip -9n "$share"/man/man1/* "$share/doc/eyelet/changelog"

version=$("$program" --version)
mkdir "$root/DEBIAN"
libraries=$(depends)
cp packaging/debian/* "$root/DEBIAN"
echo /etc/eyelet/edge.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<END
Package: eyelet
Version: ${version#eyelet }
Architecture: $(dpkg --print-architecture)
Maintainer: Eyelet maintainers <eyelet@maintainers.example>
Section: net
Priority: optional
Depends: ${libraries:+$libraries, }systemd | systemd-standalone-sysusers | systemd-sysusers
Recommends: ca-certificates
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: TLS edge that peeks at the ClientHello and decides by rules
 Eyelet splices a connection through untouched, terminates TLS in front of an
 application, or refuses it. An idle connection costs about 300 bytes. Changes
 of the configuration, of certificates and of the program drop no connection.
END
dpkg-deb --root-owner-group "${@:3}" --build "$root" "$output"
symbols "${@:3}"
