"""The man page is what the parsers say, renders without a complaint, and every verb shows examples that parse."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from specdash import cli
from specdash.exits import Exit
from specdash.verbs import manpage

PAGE = Path(__file__).parents[2] / "docs" / "man" / "specdash.1"
VERBS = sorted(cli.available())


def test_the_page_in_the_repository_is_fresh() -> None:
    how = "Run: python -m specdash.verbs.manpage > docs/man/specdash.1"
    assert PAGE.read_text("utf-8") == manpage.page(), how


def test_it_is_made_by_its_module_and_names_all() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "specdash.verbs.manpage"], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0 and made.stdout == manpage.page()
    for verb in VERBS:
        assert f".SS specdash {verb}\n" in made.stdout
    for code in Exit:
        assert f".B {int(code)} ({code.name})" in made.stdout


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
def test_it_renders_without_a_complaint() -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-K", "utf-8", "-Tutf8", str(PAGE)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == ""
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for words in ("--over BASE", "specdash --check", "ROLLED_BACK", "~/.config/specdash/config.toml"):
        assert words in plain, words
    assert "\\f" not in plain and "\\-" not in plain


def examples(verb: str) -> list[list[str]]:
    """The words of each `specdash …` in a verb's examples, without what explains them."""
    text = re.sub(r"\\\n\s*", " ", getattr(import_module(cli.VERBS[verb][0]), "EXAMPLES", ""))
    found = []
    for line in text.splitlines():
        command = re.split(r"(?<=\S)\s{2,}", line.strip())[0].replace("…", "x")
        if "specdash " not in command:
            continue
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = ""
        part: list[str] = []
        for word in [*words, "|"]:
            if word[0] in "|&>;":
                if part[:1] == ["specdash"]:
                    found.append(part[1:])
                part = []
            else:
                part.append(word)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_summary_a_help_text_and_examples_that_parse(verb: str) -> None:
    module = import_module(cli.VERBS[verb][0])
    assert module.__doc__ and examples(verb), "its module has no docstring or no EXAMPLES"
    for words in examples(verb):
        used, rest, _ = cli._split(words)
        assert used == verb, words
        cli.verb_parser(str(used)).parse_args(rest)  # raises UsageError where it is none
