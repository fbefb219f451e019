#!/bin/bash
# Makes what travels to a GPU machine that has no network and no sshd:
#   pack.sh DEST SITE.tar.xz TOKENIZER_DIR
# SITE.tar.xz: the site-packages of a real SGLang without torch (see README.md); TOKENIZER_DIR: tokenizer.json etc.
# DEST gets: site/p.?? (45 MB pieces), kit/ (wheels of specdash's own needs for Python 3.12, sshd, tokenizer).
set -eu
DEST=$1 SITE=$2 TOKENIZER=$3
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$DEST/site" "$DEST/kit/whl" "$DEST/kit/ssh/lib" "$DEST/kit/tokenizer"
split -b 45M "$SITE" "$DEST/site/p."
cp "$TOKENIZER"/tokenizer*.json "$TOKENIZER"/generation_config.json "$DEST/kit/tokenizer/"
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux1_x86_64 -d "$DEST/kit/whl" -r "$HERE/wheels.txt"
# This machine's OpenSSH with the libraries that it needs (not the C library): run by a wrapper, see setup.sh.
cp /usr/sbin/sshd /usr/bin/ssh "$DEST/kit/ssh/"
for program in /usr/sbin/sshd /usr/bin/ssh; do
  ldd "$program" | awk '/=> \//{print $3}' | grep -vE '/(libc|libm|libdl|libpthread|libresolv|librt)\.so' |
    xargs -I{} cp -Ln {} "$DEST/kit/ssh/lib/"
done
du -sh "$DEST"/*
