"""Made models for one big GPU: a 1 B Llama target in four shards, a small drafter, EAGLE3 drafters, a misfit.

    mk_models.py OUT TOKENIZER_DIR [--tiny]

The weights are a chain: embeddings dominate, layers add little, so the next token is mostly a function of the
current one. Greedy text falls into loops: NGRAM accepts well. `eagle3` has random weights and accepts nothing;
`eagle3-copy` and `eagle3-worse` hand the current token's embedding on (`copying`), the second with noise: two
drafters of one shape that are accepted, to be switched hot. `--tiny`: a rehearsal size for a CPU.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

TINY = "--tiny" in sys.argv
HEADS, KV_HEADS, HEAD_DIM, FF, LAYERS, LONGEST = (
    (8, 4, 64, 512, 4, 2048) if TINY else (16, 8, 128, 5632, 16, 8192)
)
RANDOM = torch.Generator().manual_seed(0)


def weight(*shape: int, std: float = 0.02) -> torch.Tensor:
    return (torch.randn(*shape, generator=RANDOM) * std).to(torch.bfloat16)


def ones(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bfloat16)


def layer(prefix: str, hidden: int, q_in: int, std: float) -> dict[str, torch.Tensor]:
    """One decoder layer; `q_in`: width that attention reads (EAGLE3: embedding and hidden state, side by side)."""
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return {
        attention + "q_proj.weight": weight(HEADS * HEAD_DIM, q_in),
        attention + "k_proj.weight": weight(KV_HEADS * HEAD_DIM, q_in),
        attention + "v_proj.weight": weight(KV_HEADS * HEAD_DIM, q_in),
        attention + "o_proj.weight": weight(hidden, HEADS * HEAD_DIM, std=std),
        mlp + "gate_proj.weight": weight(FF, hidden),
        mlp + "up_proj.weight": weight(FF, hidden),
        mlp + "down_proj.weight": weight(hidden, FF, std=std),
        prefix + "input_layernorm.weight": ones(hidden),
        prefix + "post_attention_layernorm.weight": ones(hidden),
    }


def copying(hidden: int, noise: float) -> dict[str, torch.Tensor]:
    """Attention of an EAGLE3 layer that looks at its own position and passes the token's embedding through.

    Query and key are one random projection of the embedding, so a token matches itself (and its repetitions, which
    say the same); value and output are an orthonormal projection and its transpose. `noise` is added to the value.
    """
    attention = "midlayer.self_attn."
    group = HEADS // KV_HEADS
    look = torch.randn(KV_HEADS, HEAD_DIM, hidden, generator=RANDOM) * 1.5 / hidden**0.5
    wide = torch.linalg.qr(torch.randn(hidden, KV_HEADS * HEAD_DIM, generator=RANDOM))[0].T
    none = torch.zeros(1, hidden)

    def beside(rows: torch.Tensor) -> torch.Tensor:  # reads the embedding, not the hidden state next to it
        return torch.cat([rows, none.expand(rows.shape[0], -1)], 1).to(torch.bfloat16)

    value = wide + noise * torch.randn(wide.shape, generator=RANDOM) / hidden**0.5
    out = torch.zeros(hidden, HEADS, HEAD_DIM)
    out[:, ::group] = 30 * wide.T.reshape(hidden, KV_HEADS, HEAD_DIM)
    return {
        attention + "q_proj.weight": beside(look.repeat_interleave(group, 0).reshape(-1, hidden)),
        attention + "k_proj.weight": beside(look.reshape(-1, hidden)),
        attention + "v_proj.weight": beside(value),
        attention + "o_proj.weight": out.reshape(hidden, -1).to(torch.bfloat16),
        "midlayer.mlp.down_proj.weight": torch.zeros(hidden, FF, dtype=torch.bfloat16),
        "fc.weight": torch.zeros(hidden, 3 * hidden, dtype=torch.bfloat16),
    }


def config(architecture: str, layers: int, hidden: int, vocab: int, **extra: object) -> dict[str, object]:
    return dict(
        architectures=[architecture],
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=FF,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        vocab_size=vocab,
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        hidden_act="silu",
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        torch_dtype="bfloat16",
        **extra,
    )


def write(
    folder: Path, tokenizer: Path, about: dict[str, object], weights: dict[str, torch.Tensor], shards: int = 1
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer / name, folder)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    keys = list(weights)
    each = -(-len(keys) // shards)
    places: dict[str, str] = {}
    for i in range(shards):
        part = {key: weights[key] for key in keys[i * each : (i + 1) * each]}
        name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    total = sum(tensor.numel() * 2 for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def main(out: Path, tokenizer: Path) -> None:
    vocab = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    hidden = 512 if TINY else 2048
    embeddings, head = weight(vocab, hidden, std=1.0), weight(vocab, hidden, std=1.0)
    target = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": ones(hidden),
        "lm_head.weight": head,
    }
    for i in range(LAYERS):
        target |= layer(f"model.layers.{i}.", hidden, hidden, 0.004)
    write(out / "target", tokenizer, config("LlamaForCausalLM", LAYERS, hidden, vocab), target, shards=4)

    noisy = head.float() + 0.3 * torch.randn(vocab, hidden, generator=RANDOM)
    draft = {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": ones(hidden),
        "lm_head.weight": noisy.to(torch.bfloat16),
    }
    draft |= {key: value for key, value in target.items() if key.startswith("model.layers.0.")}
    write(out / "draft-small", tokenizer, config("LlamaForCausalLM", 1, hidden, vocab), draft)

    aux = [0, 1, 2] if TINY else [2, 8, 13]
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": aux, "use_aux_hidden_state": True}}
    drafters = (
        ("eagle3", hidden, layers, None),
        ("eagle3-copy", hidden, layers, 0.0),
        ("eagle3-worse", hidden, layers, 0.4),
        ("eagle3-misfit", hidden // 2, {}, None),
    )
    for name, width, tables, noise in drafters:
        eagle = {
            "fc.weight": weight(width, 3 * width),
            "norm.weight": ones(width),
            "lm_head.weight": head if width == hidden else weight(vocab, width, std=1.0),
            "midlayer.hidden_norm.weight": ones(width),
        }
        eagle |= layer("midlayer.", width, 2 * width, 0.02)
        eagle |= {} if noise is None else copying(width, noise)
        about = config("LlamaForCausalLMEagle3", 1, width, vocab, draft_vocab_size=vocab, **tables)
        write(out / name, tokenizer, about, eagle)
    print("models ok, vocabulary", vocab)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
