"""Drafters and a simulated installed SGLang for tests of the hot switch."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

from specdash.control import remote_hot
from specdash.host.remote import hotweights, runstore

STUB = Path(__file__).parents[1] / "support" / "hot_stub.py"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4,
    "vocab_size": 16,
    "draft_vocab_size": 8,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
}
TABLE: dict[str, tuple[str, list[int]]] = {
    "fc.weight": ("BF16", [4, 12]),
    "lm_head.weight": ("BF16", [8, 4]),
    "d2t": ("I64", [8]),
    "embed_tokens.weight": ("BF16", [16, 4]),
}
SIZE = {"BF16": 2, "I64": 8, "F32": 4}


def drafter(
    folder: Path,
    fill: bytes = b"\1",
    *,
    config: dict[str, Any] | None = None,
    table: dict[str, tuple[str, list[int]]] | None = None,
    other: dict[str, bytes] | None = None,
) -> Path:
    """A drafter's folder. `fill`: the byte of its weights; maps and embeddings are b"\\2" unless in `other`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config if config is not None else CONFIG))
    header, body = {}, b""
    for name, (dtype, shape) in (table or TABLE).items():
        count = SIZE[dtype]
        for n in shape:
            count *= n
        byte = (other or {}).get(name, b"\2" if "d2t" in name or "embed" in name else fill)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + count]}
        body += byte * count
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + body)
    old = 1_700_000_000  # as checkpoints are: older than any server
    for path in folder.iterdir():
        os.utime(path, (old, old))
    return folder


def site(folder: Path, *, selector: bool = True, routes: bool = True) -> Path:
    """A folder for PYTHONPATH with as much of an SGLang as the readers look at."""
    word = 'Literal["target", "draft", "all"] = "all"' if selector else 'str = "all"'
    classes = "".join(
        f"class {name}:\n    selector: {word}\n"
        for name in ("UpdateWeightsFromTensorReqInput", "BeginWeightUpdateReqInput", "CheckWeightsReqInput")
    )
    paths = ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update", "/weights_checker"]
    paths = (paths if routes else paths[1:2]) + ["/set_internal_state"]
    served = "".join(f'@app.post("{path}")\nasync def f{i}(): ...\n' for i, path in enumerate(paths))
    handlers = (
        "class A:\n    def _update_handlers(self):\n        return {\n"
        '            "speculative_accept_threshold_single": 1,\n            "dspark_clear_info_records": 2,\n'
        '            "dspark_force_budget_frac": 3,\n        }\n'
    )
    files = {
        "__init__.py": "",
        "version.py": '__version__ = "0.5.23"\n',
        "srt/server_args.py": "",
        "srt/managers/io_struct.py": classes,
        "srt/managers/scheduler_components/internal_state.py": handlers,
        "srt/entrypoints/http_server.py": served,
    }
    for name, text in files.items():
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def prove(run_folder: str, path: Path, python: str) -> None:
    """What the engine's own program would have left behind: a payload that names each shared file once."""
    read = remote_hot.drafter(str(path))
    sent = [(n, t) for n, t in read["tensors"].items() if n not in read["hashes"]]
    table = [[name, one["dtype"], one["shape"]] for name, one in sent]
    record = runstore.record(run_folder)
    assert record is not None
    engine = [record["boot_id"], record["pid"], record["start"]]
    token = "a" * 12
    names = (f"/{hotweights.prefix(run_folder)}{token}-{i:05d}" for i in range(len(table)))
    (Path(run_folder) / hotweights.PROOF).write_text(
        json.dumps(
            {
                "key": hashlib.sha256(json.dumps([table, engine, python]).encode()).hexdigest(),
                "token": token,
                "payload": base64.b64encode("\n".join(names).encode()).decode(),
            }
        )
    )
