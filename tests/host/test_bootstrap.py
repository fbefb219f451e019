"""The command line that starts the agent, under every shell that is installed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdash.host import bootstrap

SHELLS = [name for name in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if shutil.which(name)]
WORDS = [
    "plain",
    "",
    "it's",
    "a\\b\\\\c\\'d\\",
    "$(touch x) `y` $HOME ${z}",
    '"double" !bang !! %h ^caret ~tilde *?[x]',
    "é \t | & ; < > ( ) { } #",
    "\\",
    "'",
    "!",
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("word", WORDS)
def test_one_word_arrives_whole_in_every_shell(shell: str, word: str):
    script = f"printf %s {bootstrap.shlex.quote(word)}"
    done = subprocess.run([shell, "-c", bootstrap.wrap(script)], capture_output=True, timeout=20)
    assert done.stdout == word.encode(), done.stderr


@given(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\0"), max_size=40))
def test_quoting_is_exact_in_posix_sh(word: str):
    done = subprocess.run(
        ["sh", "-c", f"printf %s {bootstrap.quote_any(word)}"], capture_output=True, timeout=20
    )
    assert done.stdout == word.encode()


def test_line_breaks_are_refused():
    with pytest.raises(ValueError):
        bootstrap.quote_any("a\nb")


def test_the_marker_is_found_after_noise_only_on_its_own_line():
    start = bootstrap.Start.of("python3")
    mark = start.marker.encode()
    assert bootstrap.greeting(start, b"noise " + mark + b" py 3.9.1\n") is None, (
        "inside a line: an echo of us"
    )
    assert bootstrap.greeting(start, b"\n" + mark + b" py 3.9.") is None
    found = bootstrap.greeting(start, b"hi\nspecdash-0 py 2.7.1\n\n" + mark + b" py 3.12.4\nrest")
    assert found is not None and (found.version, found.rest) == ((3, 12, 4), b"rest")
    found = bootstrap.greeting(start, b"\r\n" + mark + b" none\r\n")
    assert found is not None and found.version is None


def test_a_home_folder_is_expanded_by_the_shell():
    assert bootstrap.sh_path("~/my env/bin/python") == "\"$HOME\"/'my env/bin/python'"
