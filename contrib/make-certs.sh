#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later
# Makes the certificates for --tls-creds with openssl: a CA once, and for each host a folder that serves as it is.
#
#   contrib/make-certs.sh ca DIR [--name NAME] [--days N]
#   contrib/make-certs.sh host DIR HOST [NAME|ADDRESS]... [--days N]
#
# `ca` makes DIR/ca-cert.pem and DIR/ca-key.pem. Keep the key off the hosts: who has it can be any host.
# `host` makes DIR/HOST/ with ca-cert.pem, server-cert.pem, server-key.pem (rdmamigd) and client-cert.pem,
# client-key.pem (rdmamig send), for the name HOST and the further names and IP addresses that it is called by.
# Copy that folder to the host, as /etc/rdmamig/pki for example. An existing one is replaced file by file, so that a
# running rdmamigd can be told to read it again (kill -HUP).
#
# The layout is QEMU's and libvirt's, so such folders of theirs serve, too. Keys are ECDSA P-256, files of keys 0600.
set -euo pipefail
umask 077

me=make-certs
fail() { echo "$me: $*" >&2; exit 1; }
usage() { sed -n 's/^# \{2,\}contrib/usage: contrib/p' "$0"; }

name='rdmamig CA' days='' words=()
while [ $# -gt 0 ]; do
    case $1 in
    --name) [ $# -ge 2 ] || fail "--name needs a name"; name=$2; shift ;;
    --days) [ $# -ge 2 ] || fail "--days needs a number"; days=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) words+=("$1") ;;
    esac
    shift
done
[[ "$days" =~ ^[0-9]*$ ]] || fail "--days: \`$days\` is no number"
[ "${#words[@]}" -ge 2 ] || { usage >&2; exit 2; }
command -v openssl >/dev/null || fail "openssl is not installed"
verb=${words[0]} dir=${words[1]}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# quietly COMMAND...: what it says is shown only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "openssl failed"; }; }

new_key() { quietly openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# place MODE FILE TARGET: in one step, so that nobody reads half of it.
place() {
    install -m "$1" "$2" "$3.new"
    mv -f "$3.new" "$3"
}

make_ca() {
    local config=$work/ca.cnf
    [ ! -e "$dir/ca-key.pem" ] || fail "$dir has a CA already; make another folder for another one"
    mkdir -p "$dir"
    cat >"$config" <<END
[req]
distinguished_name = dn
x509_extensions = ca
prompt = no
utf8 = yes
[dn]
CN = $name
[ca]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
END
    new_key "$work/key.pem"
    quietly openssl req -x509 -new -config "$config" -key "$work/key.pem" -days "${days:-3650}" -out "$work/cert.pem"
    place 600 "$work/key.pem" "$dir/ca-key.pem"
    place 644 "$work/cert.pem" "$dir/ca-cert.pem"
    echo "$me: $dir/ca-cert.pem is the CA's certificate; keep $dir/ca-key.pem off the hosts"
}

# alternatives NAME...: the subjectAltName.
alternatives() {
    local one all=''
    for one in "$@"; do
        if [[ "$one" =~ ^[0-9.]+$ || "$one" == *:* ]]; then
            all+=",IP:$one"
        elif [[ "$one" =~ ^[A-Za-z0-9_.-]+$ ]]; then
            all+=",DNS:$one"
        else
            fail "\`$one\` is neither a name nor an IP address"
        fi
    done
    echo "${all#,}"
}

# issue KIND USAGE FOLDER NAMES: KIND-cert.pem and KIND-key.pem in FOLDER.
issue() {
    local kind=$1 usage=$2 folder=$3 names=$4
    cat >"$work/extensions" <<END
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = $usage
subjectAltName = $names
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
    new_key "$work/key.pem"
    quietly openssl req -new -key "$work/key.pem" -subj "/CN=rdmamig $kind" -out "$work/request.pem"
    quietly openssl x509 -req -in "$work/request.pem" -CA "$dir/ca-cert.pem" -CAkey "$dir/ca-key.pem" \
        -set_serial "0x$(openssl rand -hex 16 | sed 's/^./4/')" -days "${days:-365}" -extfile "$work/extensions" \
        -out "$work/cert.pem"
    place 600 "$work/key.pem" "$folder/$kind-key.pem"
    place 644 "$work/cert.pem" "$folder/$kind-cert.pem"
}

make_host() {
    local host=${1:-} folder names
    [[ "$host" =~ ^[A-Za-z0-9_.:-]+$ && "$host" != .* ]] || fail "which host? give its name"
    [ -r "$dir/ca-key.pem" ] || fail "$dir/ca-key.pem: there is no CA yet; make one with: contrib/make-certs.sh ca $dir"
    folder=$dir/$host
    names=$(alternatives "$@")
    mkdir -p "$folder"
    issue server serverAuth "$folder" "$names"
    issue client clientAuth "$folder" "$names"
    place 644 "$dir/ca-cert.pem" "$folder/ca-cert.pem"
    echo "$me: $folder is for $host; copy it there, and give it to both programs with --tls-creds"
}

case $verb in
ca) [ "${#words[@]}" = 2 ] || { usage >&2; exit 2; }; make_ca ;;
host) make_host "${words[@]:2}" ;;
*) usage >&2; exit 2 ;;
esac
