"""Runs on the host: imports SGLang in a child and lists what it registered. Python 3.8, standard library only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

_DEEP = """
import json, os, sys
out = {"algorithms": None, "aliases": {}, "plugins_loaded": None, "problem": ""}
try:
    try:
        from sglang.srt.plugins import load_plugins
        load_plugins()
        out["plugins_loaded"] = True
    except ImportError:
        out["plugins_loaded"] = False
    from sglang.srt.speculative import spec_info
    kind = spec_info.SpeculativeAlgorithm
    names = [member.name for member in kind]
    try:
        from sglang.srt.speculative import spec_registry
        names += [name for name in spec_registry._REGISTRY if name not in names]
    except (ImportError, AttributeError):
        pass
    out["algorithms"] = [name for name in names if name != "NONE"]
    for alias in ("NEXTN",):
        try:
            found = kind.from_string(alias)
            out["aliases"][alias] = getattr(found, "name", str(found))
        except Exception:
            pass
except BaseException as error:
    out["problem"] = "%s: %s" % (type(error).__name__, str(error)[:500])
    if isinstance(error, ImportError) and "speculative" in str(error):
        out["algorithms"] = []
with os.fdopen(int(sys.argv[1]), "w") as pipe:
    pipe.write(json.dumps(out))
os._exit(0)
"""


def deep(timeout_s: float = 120.0) -> dict[str, Any]:
    """Import SGLang in a child and list what it really registered, plugins included. Seconds to minutes.

    → {algorithms (None: it failed), aliases, plugins_loaded, problem, took_s}.
    """
    began = time.monotonic()
    reader, writer = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _DEEP, str(writer)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    problem = ""
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        problem = f"the import did not end within {timeout_s:g} s"
        os.killpg(child.pid, 9)
        child.wait()
    os.set_blocking(reader, False)
    try:
        data = os.read(reader, 1_000_000)
    except OSError:
        data = b""
    os.close(reader)
    out: dict[str, Any] = {"algorithms": None, "aliases": {}, "plugins_loaded": None, "problem": problem}
    try:
        out.update(json.loads(data.decode("utf-8")))
    except ValueError:
        out["problem"] = problem or f"the child ended with code {child.returncode} and said nothing"
    out["took_s"] = time.monotonic() - began
    return out
