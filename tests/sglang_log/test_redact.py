"""Secrets are gone from what is shown, and nothing else is."""

from __future__ import annotations

import json

import pytest

from specdash.sglang import redact

SECRET = "sEcReT-v4lue_99"


@pytest.mark.parametrize(
    "text",
    [
        f"server_args=ServerArgs(api_key='{SECRET}', port=1)",
        f"server_args={{'admin_api_key': '{SECRET}', 'port': 1}}",
        f'{{"api_key": "{SECRET}", "port": 1}}',
        f'{{\\"api_key\\": \\"{SECRET}\\"}}',
        f"--api-key {SECRET} --port 1",
        f"--admin-api-key={SECRET}",
        f"--ssl-keyfile-password {SECRET}",
        f"HF_TOKEN={SECRET} python3 -m sglang.launch_server",
        f"export HUGGING_FACE_HUB_TOKEN='{SECRET}'",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"password: {SECRET}",
        f"DB_PASSWORD={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' http://x",
        f"https://user:{SECRET}@hub.example/x",
        f"https://{SECRET}{SECRET}@hub.example/x",
        f"redis://:{SECRET}@10.0.0.1:6379/0",
        f"http://x/y?token={SECRET}&a=1",
        f"http://x/y?api_key={SECRET}",
        "token is hf_abcdefghijklmnopqrstuvwx",
        "key sk-abcdefghijklmnopqrstuvwx",
    ],
)
def test_by_key_and_by_shape(text: str) -> None:
    shown = redact.text(text)
    assert SECRET not in shown and "hf_abc" not in shown and "sk-abc" not in shown
    assert redact.MARK in shown
    assert redact.text(shown) == shown, "twice is the same"


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(api_key=None, max_total_tokens=16384, speculative_num_draft_tokens=4, skip_tokenizer_init=False)",
        "Decode batch, #running-req: 1, #token: 108, token usage: 0.00, gen throughput (token/s): 178.86, #queue-req: 0",
        "Prefill batch, #new-token: 8192, #cached-token: 0, #pending-token: 0",
        "max_total_num_tokens=418032, max_prefill_tokens=16384",
        "tokens: ['<|im_start|>', '[/INST]']",
        "tokenizer_path='/models/target', speculative_token_map=None, eos_token_id=2, stop_token_ids=[1]",
        "--max-total-tokens 16384 --speculative-num-draft-tokens 4 --tokenizer-path /m",
        "http://127.0.0.1:30000/generate",
        "git@github.com:a/b.git and https://github.com/sgl-project/sglang/issues/1",
        "ssl_keyfile='/etc/key.pem'",
        "#token: 812, token usage: 0.61, accept len: 2.31",
        "TypeError: unexpected keyword argument",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact.text(text) == text


def test_known_values_go_wherever_they_are() -> None:
    assert SECRET not in redact.text(f"odd place {SECRET}, glued{SECRET}glued", [SECRET])
    assert redact.text("abc", ["ab", ""]) == "abc", "short values would eat the text"


def test_json_values() -> None:
    value = {
        "api_key": SECRET,
        "max_total_num_tokens": 5,
        "internal_states": [{"admin_api_key": SECRET, "hf_token": SECRET, "tokenizer_path": "/m"}],
        "launch_command": ["python3", "--api-key", SECRET, "--port", "1"],
        "text": f"--api-key {SECRET}",
        "api_keys_empty": None,
        "password": "",
    }
    shown = redact.json_value(value)
    assert SECRET not in json.dumps(shown)
    assert shown["max_total_num_tokens"] == 5 and shown["internal_states"][0]["tokenizer_path"] == "/m"
    assert shown["launch_command"][:2] == ["python3", "--api-key"] and shown["launch_command"][3:] == [
        "--port",
        "1",
    ]
    assert shown["password"] == "" and value["api_key"] == SECRET


def test_argv() -> None:
    assert redact.argv(["x", "--api-key", SECRET, "--host=0.0.0.0", f"--admin-api-key={SECRET}"]) == [
        "x", "--api-key", redact.MARK, "--host=0.0.0.0", f"--admin-api-key={redact.MARK}",
    ]  # fmt: skip


def test_armoured_private_keys_lose_their_body() -> None:
    body = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\nAAAABAAAAMwAAAAtzc2gtZWQyNTUxOQAAACD"
    for label in ("OPENSSH ", "RSA ", "EC ", ""):
        for end in (f"\n-----END {label}PRIVATE KEY-----\nafter", ""):
            told = redact.text(f"before\n-----BEGIN {label}PRIVATE KEY-----\n{body}{end}")
            assert "b3Blbn" not in told and "AAAABAAAAM" not in told and told.startswith("before")
            assert not end or told.endswith("after")
    assert "c2VjcmV0" not in redact.text(
        '"-----BEGIN PRIVATE KEY-----\\nc2VjcmV0\\n-----END PRIVATE KEY-----"'
    )
