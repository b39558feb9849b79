"""Makes the golden files again: `python tests/flash/golden/make.py` in the root of the project.

Do so only when a layout itself, or what a file_id is made from, is meant to change, and change
docs/layout-v1.md or docs/layout-v2.md with it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
VERSION = "golden"
CONVERTED = {
    "converted": ("source", None),
    "converted-int8": ("source", "int8"),
    "converted-int4": ("source", "int4"),
    "experts-converted": ("experts-source", None),
    "experts-converted-int4": ("experts-source", "int4"),
    "experts-converted-mxfp4": ("experts-source", "mxfp4"),
}
"""Folder -> its source, and the encoding that is asked for; None for that of the source."""
SIZES = {
    "vocab_size": 6,
    "hidden_size": 10,
    "word_embed_proj_dim": 4,
    "num_attention_heads": 2,
    "ffn_dim": 3,
    "max_position_embeddings": 5,
}
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 6,
    "hidden_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 5,
    "tie_word_embeddings": True,
}


def write_source(directory: Path) -> None:
    """The checkpoint of layout v1, of neurons."""
    from tests.support.checkpoints import CONFIG, shapes

    config = {**CONFIG, **SIZES}
    tensors = {name: counted(shape) for name, shape in sorted(shapes(config).items())}
    for name in tensors:
        if name.endswith("fc2.weight"):
            tensors[name] *= np.float16(-1)
    _write(directory, config, tensors)


def write_experts_source(directory: Path) -> None:
    """The checkpoint of layout v2, of experts."""
    width, neurons = EXPERTS["hidden_size"], EXPERTS["moe_intermediate_size"]
    heads, kv_heads = (
        EXPERTS["head_dim"] * EXPERTS[f"num_{kind}_heads"] for kind in ("attention", "key_value")
    )
    in_layer = {
        "self_attn.q_proj": (heads, width),
        "self_attn.k_proj": (kv_heads, width),
        "self_attn.v_proj": (kv_heads, width),
        "self_attn.o_proj": (width, heads),
        "self_attn.q_norm": (EXPERTS["head_dim"],),
        "self_attn.k_norm": (EXPERTS["head_dim"],),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "mlp.gate": (EXPERTS["num_experts"], width),
    }
    tensors = {"embed_tokens": counted((EXPERTS["vocab_size"], width)), "norm": counted((width,))}
    for layer in range(EXPERTS["num_hidden_layers"]):
        for name, shape in in_layer.items():
            tensors[f"layers.{layer}.{name}"] = counted(shape)
        for expert in range(EXPERTS["num_experts"]):
            # Each goes on where the one before ended, so no two experts of the file are alike.
            before = (layer * EXPERTS["num_experts"] + expert) * neurons * width
            prefix = f"layers.{layer}.mlp.experts.{expert}"
            tensors[f"{prefix}.gate_proj"] = counted((neurons, width), before)
            tensors[f"{prefix}.up_proj"] = -counted((neurons, width), before)
            tensors[f"{prefix}.down_proj"] = counted((width, neurons), before) / np.float16(2)
    tensors = {f"model.{name}.weight": tensors[name] for name in sorted(tensors)}
    _write(directory, EXPERTS, tensors)


SOURCES = {"source": write_source, "experts-source": write_experts_source}


def counted(shape: tuple[int, ...], before: int = 0) -> NDArray[np.float16]:
    """Values that count upwards, so that a dump shows what lies where."""
    # Whole numbers below 2048 are exact in f16; 1, 2, 3, ... are 3c00, 4000, 4200, ...
    count = int(np.prod(shape))
    return np.arange(before + 1, before + 1 + count, dtype=np.float16).reshape(shape)


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
    from tests.support.checkpoints import write_tensors

    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_tensors(directory / "model.safetensors", tensors)


def main() -> None:
    """Replace sources and converted models."""
    from flashllm.convert import convert

    import flashllm

    flashllm.__version__ = VERSION
    for name in (*SOURCES, *CONVERTED):
        shutil.rmtree(HERE / name, ignore_errors=True)
    for name, write in SOURCES.items():
        write(HERE / name)
    for name, (source, dtype) in CONVERTED.items():
        convert(HERE / source, HERE / name, dtype=dtype)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[2]))
    main()
