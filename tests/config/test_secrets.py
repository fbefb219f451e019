"""Secret names, references, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdash.config.secrets import is_secret_env, is_secret_option, resolve, store
from specdash.errors import ConfigError


def test_names() -> None:
    for option in ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--hf-token", "--api_key"):
        assert is_secret_option(option), option
    for option in (
        *(
            "--ssl-keyfile",
            "--kt-max-deferred-experts-per-token",
            "--bucket-time-to-first-token",
            "--tokenizer-path",
        ),
        *("--speculative-token-map", "--speculative-num-draft-tokens", "--api-key-file"),
    ):
        assert not is_secret_option(option), option
    for name in (
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "hf_token",
        "MY_SECRET_2",
        "TOKEN",
    ):
        assert is_secret_env(name), name
    for name in ("HF_HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "SSL_KEY_FILE", "MONKEY"):
        assert not is_secret_env(name), name


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "v")
    assert resolve("env:K").value == "v"
    file = tmp_path / "k"
    file.write_bytes(b"s \xe9\n")
    file.chmod(0o600)
    found = resolve(f"file:{file}")
    assert found.value == "s \udce9" and not found.warning and "s \udce9" not in repr(found)
    file.chmod(0o644)
    assert "chmod 600" in resolve(f"file:{file}").warning
    remote = resolve("host-file:~/k")
    assert remote.value is None and remote.host_path == "~/k"
    file.write_bytes(b"")
    for bad in ("env:NOT_SET_HERE", f"file:{file}", "file:/gone", "abc", "env:", "ftp:x"):
        with pytest.raises(ConfigError) as caught:
            resolve(bad)
        assert "abc" not in str(caught.value)


def test_store_is_private_and_never_overwrites(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    first = store(folder, "p-api-key", "one")
    assert store(folder, "p-api-key", "one") == first
    second = store(folder, "p-api-key", "two")
    assert second != first and (resolve(first).value, resolve(second).value) == ("one", "two")
    odd = store(folder, "../../x y", "three\n")
    assert resolve(odd).value == "three\n"
    assert (
        all(p.stat().st_mode & 0o777 == 0o600 for p in folder.iterdir())
        and folder.stat().st_mode & 0o077 == 0
    )
    assert json.dumps([first, second, odd]).count(str(folder)) == 3
