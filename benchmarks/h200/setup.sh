#!/bin/bash
# On the GPU machine, in the root of the repository:  setup.sh ROOT KIT [PIECES]
# Makes ROOT/venv (specdash's own Python, with no network), ROOT/ssh (an sshd where there is none), and, when
# PIECES is given (the folder of site/p.??), ROOT/site (SGLang) and ROOT/models (random weights, about 4 GB).
set -u
ROOT=$1 KIT=$2 PIECES=${3:-} PY=${PY:-python3}
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$ROOT"
"$PY" -m venv --without-pip "$ROOT/venv" || exit 1
SP=$("$ROOT/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$PY" - "$SP" "$KIT"/whl/*.whl <<'P' || exit 1
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
P
pwd > "$SP/specdash-tree.pth"
if ! command -v sshd >/dev/null; then
  mkdir -p "$ROOT/ssh" /run/sshd && cp -r "$KIT/ssh/." "$ROOT/ssh/"
  mkdir -p "$ROOT/bin"
  for program in sshd ssh; do
    printf '#!/bin/sh\nexec env LD_LIBRARY_PATH=%s/ssh/lib %s/ssh/%s "$@"\n' "$ROOT" "$ROOT" $program > "$ROOT/bin/$program"
    chmod 755 "$ROOT/bin/$program" "$ROOT/ssh/$program"
  done
  grep -q '^sshd:' /etc/passwd || echo 'sshd:x:22022:65534::/run/sshd:/usr/sbin/nologin' >> /etc/passwd
fi
"$ROOT/venv/bin/python" -m specdash --version || exit 1
if [ -n "$PIECES" ]; then
  mkdir -p "$ROOT/site" && cat "$PIECES"/p.* | xz -dc -T0 | tar -xf - -C "$ROOT/site" || exit 1
  cp "$HERE/stub_dsl.py" "$ROOT/site/sglang/jit_kernel/dsa/cutedsl_paged_mqa_logits.py"
  "$PY" "$HERE/mk_models.py" "$ROOT/models" "$KIT/tokenizer" || exit 1
fi
echo "setup ok"
