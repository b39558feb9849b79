"""Shapes that are built in, so that a model can be planned for before it is downloaded.

Contents of `config.json` as published, cut down to what a shape needs. Sources: OPT (arXiv
2205.01068, table 1), Falcon (arXiv 2311.16867, table 15), LLaMA (arXiv 2302.13971, table 2) and
Llama 2 (arXiv 2307.09288), and the files of their uploads. The Falcons are those whose activation
was replaced by relu, as the paper runs them; of the others `-relu` says so.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from flashllm.errors import UsageError
from flashllm.spec import ModelSpec

from .config import CONFIG_FILE, Config
from .spec_from_config import describe_config

_NEAR_NAMES = 4


def _opt(layers: int, width: int, heads: int, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
        "word_embed_proj_dim": width,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "torch_dtype": "float16",
    } | other


def _falcon(layers: int, width: int, heads: int, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "falcon",
        "activation": "relu",
        "alibi": False,
        "bias": False,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 65024,
        "max_position_embeddings": 2048,
        "bos_token_id": 11,
        "eos_token_id": 11,
        "torch_dtype": "bfloat16",
    } | other


def _llama(layers: int, width: int, heads: int, d_ffn: int, **other: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": d_ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-6,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float16",
    } | other


_LLAMAS = {
    "llama-7b": _llama(32, 4096, 32, 11008),
    "llama-13b": _llama(40, 5120, 40, 13824),
    "llama-65b": _llama(80, 8192, 64, 22016),
    "llama-70b": _llama(
        80, 8192, 64, 28672,
        num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=4096,
    ),
}  # fmt: skip

SHAPES: dict[str, dict[str, Any]] = {
    "opt-125m": _opt(12, 768, 12),
    # The one whose norms come last and whose embeddings are narrow.
    "opt-350m": _opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(24, 2048, 32),
    "opt-2.7b": _opt(32, 2560, 32),
    "opt-6.7b": _opt(32, 4096, 32),
    "opt-13b": _opt(40, 5120, 40),
    "opt-30b": _opt(48, 7168, 56),
    "opt-66b": _opt(64, 9216, 72),
    "opt-175b": _opt(96, 12288, 96),
    "falcon-7b": _falcon(32, 4544, 71),
    "falcon-40b": _falcon(60, 8192, 128, new_decoder_architecture=True, num_kv_heads=8),
    **_LLAMAS,
    **{f"{name}-relu": config | {"hidden_act": "relu"} for name, config in _LLAMAS.items()},
}
"""Name -> what its `config.json` says."""


def describe_shape(
    name: str,
    *,
    act: str | None = None,
    fatrelu_threshold: float | None = None,
    dtype: str | None = None,
    resident_dtype: str | None = None,
) -> ModelSpec:
    """The spec of a built-in shape, as `describe` would find it in a checkpoint's directory.

    `UsageError` for a name that is none, with those that are near.
    """
    known = name.lower()
    if known not in SHAPES:
        near = difflib.get_close_matches(known, SHAPES, n=_NEAR_NAMES, cutoff=0.4) or [*SHAPES]
        raise UsageError(
            f"{name}: no such directory, and no shape of that name is built in. Give the directory"
            f" of a checkpoint or of a converted model, or one of: {', '.join(near)}"
        )
    config = Config(Path(f"built-in:{known}") / CONFIG_FILE, dict(SHAPES[known]))
    return describe_config(
        config,
        act=act,
        fatrelu_threshold=fatrelu_threshold,
        dtype=dtype,
        resident_dtype=resident_dtype,
    )
