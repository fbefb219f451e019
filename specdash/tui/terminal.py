"""What the terminal can be trusted with."""

from __future__ import annotations

import codecs
import locale
import os


def ascii_only() -> bool:
    """True where the terminal cannot be trusted with anything but ASCII (LANG=C and the like)."""
    names = [os.environ.get(key, "") for key in ("LC_ALL", "LC_CTYPE", "LANG")]
    told = next((name for name in names if name), "")
    if os.environ.get("SPECDASH_ASCII"):
        return os.environ["SPECDASH_ASCII"] != "0"
    if told in ("C", "POSIX"):
        return True
    encoding = told.partition(".")[2] or locale.getpreferredencoding(False)
    try:
        return codecs.lookup(encoding.partition("@")[0] or "utf-8").name not in ("utf-8",) and bool(told)
    except LookupError:
        return False
