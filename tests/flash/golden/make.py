"""Makes the golden files again: `python tests/flash/golden/make.py` in the root of the project.

Do so only when layout v1 itself, or what a file_id is made from, is meant to change, and change
docs/layout-v1.md with it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
VERSION = "golden"
CONVERTED = {"converted": None, "converted-int8": "int8", "converted-int4": "int4"}
"""Folder -> the encoding that is asked for; None for that of the source."""
SIZES = {
    "vocab_size": 6,
    "hidden_size": 10,
    "word_embed_proj_dim": 4,
    "num_attention_heads": 2,
    "ffn_dim": 3,
    "max_position_embeddings": 5,
}


def write_source(directory: Path) -> None:
    """A checkpoint in f16 whose values count upwards, so that a dump shows what lies where."""
    from tests.support.checkpoints import CONFIG, shapes, write_tensors

    config = {**CONFIG, **SIZES}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {}
    for name, shape in sorted(shapes(config).items()):
        # Whole numbers below 2048 are exact in f16; 1, 2, 3, ... are 3c00, 4000, 4200, ...
        tensors[name] = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float16).reshape(shape)
        if name.endswith("fc2.weight"):
            tensors[name] *= np.float16(-1)
    write_tensors(directory / "model.safetensors", tensors)


def main() -> None:
    """Replace source and converted models."""
    from flashllm.convert import convert

    import flashllm

    flashllm.__version__ = VERSION
    for name in ("source", *CONVERTED):
        shutil.rmtree(HERE / name, ignore_errors=True)
    write_source(HERE / "source")
    for name, dtype in CONVERTED.items():
        convert(HERE / "source", HERE / name, dtype=dtype)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[2]))
    main()
