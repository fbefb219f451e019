"""Profiles: the model, inheritance, references, and TOML both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdash.config import inherit, paths, write
from specdash.config.keys import key_of, option_of
from specdash.config.settings import Settings
from specdash.control import profiles
from specdash.errors import ConfigError
from specdash.sglang.commandline import LaunchSpec
from tests.config.test_shell_line import specs
from tests.support.examples import examples

BASE = """
host = "local"
python = "/v/bin/python3"
cwd = "/w"
[server]
model-path = "/m"
tp_size = 8
log-level = "info"
trust-remote-code = true
api-key = "env:KEY"
[env]
A = "1"
HF_TOKEN = "file:~/t"
N = 5
[check]
warn = ["accept<1.8"]
"""


def put(name: str, text: str, folder: str = "profiles") -> Path:
    path = Path(folder) / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def get(name: str) -> LaunchSpec:
    return profiles.resolve(name, Settings())


def complaint(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        get(name)
    return str(caught.value)


def test_a_profile() -> None:
    put("base", BASE)
    spec = get("base")
    assert spec.argv() == [
        *("/v/bin/python3", "-m", "sglang.launch_server", "--model-path", "/m", "--tp-size", "8"),
        *("--log-level", "info", "--trust-remote-code"),
    ]
    assert spec.env == {"A": "1", "N": "5"}
    assert spec.secret_flags == {"--api-key": "env:KEY"} and spec.secret_env == {"HF_TOKEN": "file:~/t"}


def test_values_become_flags() -> None:
    put(
        "v",
        """
        launcher = "sglang serve"
        wrapper = ["numactl", "-N", "0"]
        python = "/v/bin/python3"
        [server]
        off = false
        lora-paths = ["a", "b"]
        again = [["1", "2"], ["3"]]
        json = { a = [1, true], b = { c = "d" } }
        "--odd_one" = 1
        no-enable-x = true
        raw = { bytes = '/caf\\xe9\\\\' }
        hidden = { ref = "host-file:/k" }
        [speculation]
        num_steps = 3
        no-thing = true
        speculative-eagle-topk = 1
        uno-lora-path = "/l"
        enable-multi-layer-eagle = true
        """,
    )
    spec = get("v")
    assert spec.argv() == [
        *("numactl", "-N", "0", "/v/bin/python3", "/v/bin/sglang", "serve", "--lora-paths", "a", "b"),
        *(
            "--again",
            "1",
            "2",
            "--again",
            "3",
            "--json",
            '{"a": [1, true], "b": {"c": "d"}}',
            "--odd_one",
            "1",
        ),
        *("--no-enable-x", "--raw", "/caf\udce9\\", "--speculative-num-steps", "3", "--no-speculative-thing"),
        *("--speculative-eagle-topk", "1", "--uno-lora-path", "/l", "--enable-multi-layer-eagle"),
    ]
    assert spec.secret_flags == {"--hidden": "host-file:/k"}


def test_a_drafter_is_five_lines_over_its_base() -> None:
    put("base", BASE)
    put(
        "draft",
        'extends = "base"\nunset = ["server.log-level", "env.A", "cwd"]\n[server]\ntp-size = 4\ntrust-remote-code = false\n'
        '[speculation]\nalgorithm = "EAGLE3"\n[check]\ncrit = ["tok/s<40"]\n',
    )
    found = profiles.load("draft", Settings())
    assert found.spec.argv()[3:] == [
        "--model-path",
        "/m",
        "--tp-size",
        "4",
        "--speculative-algorithm",
        "EAGLE3",
    ]
    assert (found.spec.cwd, found.spec.env, found.spec.algorithm) == ("", {"N": "5"}, "EAGLE3")
    assert found.merged.check.warn == ("accept<1.8",) and found.merged.check.crit == ("tok/s<40",)
    told = {key: (s.profile, s.line) for key, s in found.merged.sources.items()}
    assert told["server.tp-size"] == ("draft", 4) and told["server.model-path"] == ("base", 6)
    assert told["speculation.algorithm"] == ("draft", 7)
    assert "server.log-level" not in told and "env.A" not in told

    put("plain", 'extends = "draft"\nunset = ["speculation"]\n')
    assert get("plain").algorithm == ""


def test_the_child_wins_whatever_table_or_spelling() -> None:
    put("base", '[server]\ntp = 8\nspeculative-num-steps = 5\n"--max_x" = 1\n')
    put("child", 'extends = "base"\n[server]\ntp-size = 4\n[speculation]\nnum_steps = 3\n')
    spec = get("child")
    assert spec.flag("--speculative-num-steps") == 3 and spec.argv().count("--speculative-num-steps") == 1
    assert spec.argv().index("--tp-size") > spec.argv().index("--tp"), (
        "argparse takes the later of two aliases"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serverr]\ntp = 1", [":1:", '"serverr"', '"server"']),
        ("tp = 8", [":1:", '"tp"', "[server]"]),
        ("[check]\nwarm = []", [":2:", "check.warm", '"warn"']),
        ("[server]\n\napi-key = 'abc'", [":3:", "server.api-key", "secret", "env:NAME"]),
        ("[server]\nssl_keyfile_password = 'abc'", [":2:", "secret"]),
        ("[env]\nHF_TOKEN = 'hf_x'", [":2:", "env.HF_TOKEN", "secret"]),
        ("[env]\nMY_PASSWORD_2 = 'x'", [":2:", "secret"]),
        ("[env]\nA = true", [":2:", "env.A", "text or a number"]),
        ("[env]\nA = { ref = 'nope' }", [":2:", "reference"]),
        ("[server]\ntp = 1\nt_p = 1\ntp-size = 2\ntp_size = 2", [":5:", "--tp-size", "twice"]),
        (
            "[speculation]\nnum-steps = 1\nspeculative-num-steps = 2",
            [":3:", "--speculative-num-steps", "twice"],
        ),
        ("[server]\nx = 2026-01-01", [":2:", "server.x"]),
        ("[server]\nx = [true]", [":2:", "server.x"]),
        ("[server]\nx = ['a', '--b']", [":2:", "--b"]),
        ("[server]\nx = 'a\\u0000b'", [":2:"]),
        ('[server]\nx = "a\\u0000b"', [":2:", "NUL"]),
        ('[server]\n"a b" = 1', [":2:", "cannot be an option"]),
        ("[server]\nport = 'x'", [":2:", "port", "65535"]),
        ('python = "a\\u0000b"', [":1:", "python", "NUL"]),
        ("python = ''", [":1:", "python is empty"]),
        ("python = 3", [":1:", "python", "text"]),
        ('launcher = "\'"', [":1:", "launcher"]),
        ("extends = 'nope'", [":1:", "nope"]),
        ("unset = ['server.x']", [":1:", "server.x"]),
        ("server = 3", [":1:", "server"]),
        ("[server\n", [":1:", "not TOML"]),
    ],
)
def test_what_is_off_is_named(text: str, words: list[str]) -> None:
    if "a\\u0000b'" in text:
        text = text.replace("'", '"')
    put("bad", text)
    told = complaint("bad")
    assert told.startswith("profiles/bad.toml")
    for word in words:
        assert word in told


def test_circles_and_missing_bases() -> None:
    put("a", 'extends = "b"')
    put("b", 'extends = "a"')
    assert "circle: a → b → a" in complaint("a")
    put("self", 'extends = "self"')
    assert "circle" in complaint("self")
    put("base", BASE)
    put("c", 'extends = "bas"')
    assert '"base"' in complaint("c")
    put("d", 'extends = "base"\nunset = ["server.log-levl"]')
    assert '"server.log-level"' in complaint("d")


def test_where_profiles_are_found(home: Path) -> None:
    put("one", 'description = "mine"')
    put("one", 'description = "config"', str(paths.config_dir() / "profiles"))
    put("two", 'extends = "one"', str(paths.config_dir() / "profiles"))
    assert inherit.load("one").description == "mine"
    assert inherit.load("two").layers[0].profile.description == "config", (
        "a base beside the profile comes first"
    )
    assert inherit.load(str(paths.config_dir() / "profiles" / "one.toml")).description == "config"
    put("kimi-k2.5-base", 'extends = "kimi-k2.5-base"\n[server]\ntp = 4')
    assert get("kimi-k2.5-base").argv()[-2:] == ["--tp", "4"], "ours may be extended under its own name"
    with pytest.raises(ConfigError, match="no profile"):
        get("thre")
    for path in ("./gone.toml", "profiles/"):
        with pytest.raises(ConfigError, match="no profile at"):
            get(path)


def test_the_fields_own_profiles() -> None:
    base = ["/root/ml-env/bin/python3", "-m", "sglang.launch_server", "--model-path", "/data/Kimi-K2.5-INT4"]
    base += ["--tp", "8", "--mem-fraction-static", "0.85", "--port", "8000", "--trust-remote-code"]
    base += ["--log-level", "info"]
    assert get("kimi-k2.5-base").argv() == base
    assert get("kimi-k2.5-eagle3").argv() == [
        *base,
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", "/data/eagle3/aq-medai-k2-drafter"),
        *(
            "--speculative-num-steps",
            "3",
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            "4",
        ),
    ]
    assert get("kimi-k2.5-ngram").argv() == [*base, "--speculative-algorithm", "NGRAM"]


@pytest.mark.parametrize(
    "option",
    [
        "--tp", "--speculative-num-steps", "--no-speculative-x", "--no-x", "--uno-lora-path", "--spec-trace-dir", "-h",
        "--speculative-speculative-x", "--speculative-no-x", "--odd_one", "--speculative-odd_one", "--decoupled-spec-rank",
        "--speculative-enable-w4a4-mxfp4-megamoe", "--no-speculative-enable-w4a4-mxfp4-megamoe", "--speculative-uno-x",
        "--no-uno-x", "---x",
    ],
)  # fmt: skip
def test_keys_and_options_are_one_to_one(option: str) -> None:
    table, key = key_of(option)
    assert option_of(table, key) == option


@settings(max_examples=examples(120), deadline=None)
@given(spec=specs, extra=st.dictionaries(st.sampled_from(["--speculative-algorithm", "--x-y"]), st.just("V")))
def test_toml_and_back_is_exact(spec: LaunchSpec, extra: dict[str, str]) -> None:
    import tempfile
    from dataclasses import replace

    spec = replace(
        spec, flags=(*spec.flags, *((o, v) for o, v in extra.items() if o not in dict(spec.flags)))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.toml"
        write.create(path, write.profile_text(profiles.to_tables(spec)))
        back = profiles.resolve(str(path), Settings())
    assert sorted(back.flags, key=str) == sorted(spec.flags, key=str)
    for name in ("python", "launcher", "wrapper", "env", "cwd", "log", "secret_flags", "secret_env", "host"):
        assert getattr(back, name) == getattr(spec, name), name


def test_create_never_overwrites() -> None:
    write.create(Path("x.toml"), "a = 1\n")
    with pytest.raises(ConfigError, match="already"):
        write.create(Path("x.toml"), "a = 2\n")
    assert Path("x.toml").read_text() == "a = 1\n"
    write.create(Path("x.toml"), "a = 2\n", replace=True)
    assert sorted(p.name for p in Path().iterdir()) == ["x.toml"]
