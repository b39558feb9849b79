"""Writes a checkpoint of a known shape with random weights, for measuring speed without a download.

    python benchmarks/synthetic.py opt-1.3b DIR [--dtype f32|f16] [--layers N] [--seed S]

The text that such a model writes means nothing, but it moves as many bytes as the real one:

- about 97 % of the neurons are silent: each bias is -1.88 (the 97 % point of the normal
  distribution) times the deviation of the neuron's pre-activation over layer-normed inputs;
- low-rank predictors can work: up matrices are of rank 48, but for noise of 5 % of the variance;
- generation wanders: layers move the residual far enough from the token's embedding that the tied
  head does not just repeat the token.

No neuron is more often active than another, which is the worst case for a window. Only a block of
rows is in memory. `calibration.ids` holds token ids to train predictors on, one context a line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flashllm.convert import Progress, progress_for
from flashllm.convert.destination import check_space
from flashllm.convert.encoding import narrow
from numpy.typing import NDArray

from flashllm.errors import DestinationExists, FlashllmError
from flashllm.flash.safetensors_header import pack_tensor_header
from flashllm.spec import DTYPE_BYTES

SILENT_Z = 1.8808
"""The normal distribution lies below this 97 % of the time."""
RELU_SECOND_MOMENT = 0.0080
"""E[max(z - SILENT_Z, 0)^2] for a standard normal z."""
RANK = 48
NOISE = 0.05
ROWS = 1024
SHARD_BYTES_MAX = 1_000_000_000
SHARDS_MIN = 3
CALIBRATION_TOKENS = 4096
CONTEXT_TOKENS = 512
FIRST_ORDINARY_ID = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model; `embed_dim` of 0 is `d_model`."""

    d_model: int
    n_layers: int
    n_heads: int
    d_ffn: int
    embed_dim: int = 0
    pre_norm: bool = True
    vocab_size: int = 50272
    max_positions: int = 2048


SHAPES = {
    "tiny": Shape(96, 3, 4, 1024, vocab_size=600, max_positions=128),
    "opt-125m": Shape(768, 12, 12, 3072),
    "opt-350m": Shape(1024, 24, 16, 4096, embed_dim=512, pre_norm=False),
    "opt-1.3b": Shape(2048, 24, 32, 8192),
    "opt-2.7b": Shape(2560, 32, 32, 10240),
    "opt-6.7b": Shape(4096, 32, 32, 16384),
}
Blocks = Iterator[NDArray[np.float32]]


class Weights:
    """Names, shapes and values of the tensors; the same seed gives the same values."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._seed = seed
        self._deviations: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self.shapes = self._names()

    def _names(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape; a layer's fc1.bias follows its fc1.weight, from which it is computed."""
        shape = self._shape
        width, embed = shape.d_model, shape.embed_dim or shape.d_model
        names: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (shape.vocab_size, embed),
            "embed_positions.weight": (shape.max_positions + 2, width),
        }
        if embed != width:
            names |= {"project_in.weight": (width, embed), "project_out.weight": (embed, width)}
        for layer in range(shape.n_layers):
            linears = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
            linears |= {"fc1": (shape.d_ffn, width), "fc2": (width, shape.d_ffn)}
            for name, size in linears.items():
                names |= {f"layers.{layer}.{name}.weight": size}
                names |= {f"layers.{layer}.{name}.bias": size[:1]}
            for name in ("self_attn_layer_norm", "final_layer_norm"):
                names |= {f"layers.{layer}.{name}.{leaf}": (width,) for leaf in ("weight", "bias")}
        if shape.pre_norm:
            names |= {f"final_layer_norm.{leaf}": (width,) for leaf in ("weight", "bias")}
        return {f"model.decoder.{name}": size for name, size in names.items()}

    def blocks(self, name: str) -> Blocks:
        """The values of one tensor, a block of rows at a time; in the order of `shapes`."""
        size = self.shapes[name]
        generator = np.random.Generator(
            np.random.SFC64([self._seed, list(self.shapes).index(name)])
        )
        if "layer_norm.weight" in name:
            yield np.ones(size, dtype=np.float32)
        elif name.endswith("fc1.bias"):
            yield -np.float32(SILENT_Z) * self._deviations
        elif name.endswith("bias"):
            yield 0.01 * generator.standard_normal(size, dtype=np.float32)
        elif name.endswith("fc1.weight"):
            yield from self._low_rank(generator, size)
        else:
            deviation = np.float32(self._deviation(name))
            for rows in _row_counts(size[0]):
                yield deviation * generator.standard_normal((rows, size[1]), dtype=np.float32)

    def _deviation(self, name: str) -> float:
        """Standard deviation of the values of a matrix.

        Each layer adds a variance of 1/n_layers to the residual, which so ends near 1, against
        that of 4/d_model of the embeddings: the head's logits then favour no token of the input.
        """
        shape = self._shape
        gain = 1 / math.sqrt(shape.n_layers)
        if "embed_" in name:
            return 1 / (0.5 * math.sqrt(shape.d_model))
        if name.endswith("fc2.weight"):
            return gain / math.sqrt(RELU_SECOND_MOMENT * shape.d_ffn)
        into = self.shapes[name][1]
        return (gain if name.endswith("out_proj.weight") else 1) / math.sqrt(into)

    def _low_rank(self, generator: np.random.Generator, size: tuple[int, ...]) -> Blocks:
        """An up matrix whose pre-activations have a deviation near 1; exact ones are kept."""
        basis = np.linalg.qr(generator.standard_normal((size[1], RANK)))[0].T.astype(np.float32)
        deviations = []
        for rows in _row_counts(size[0]):
            factors = generator.standard_normal((rows, RANK), dtype=np.float32)
            factors *= math.sqrt(1 - NOISE) / np.linalg.norm(factors, axis=1, keepdims=True)
            noise = generator.standard_normal((rows, size[1]), dtype=np.float32)
            block = factors @ basis + np.float32(math.sqrt(NOISE / size[1])) * noise
            deviations.append(np.linalg.norm(block, axis=1))
            yield block
        self._deviations = np.concatenate(deviations).astype(np.float32)


def _row_counts(rows: int) -> list[int]:
    """`rows` in blocks."""
    return [min(ROWS, rows - start) for start in range(0, rows, ROWS)]


def write_checkpoint(
    shape: Shape, directory: Path, dtype: str, seed: int, progress: Progress
) -> None:
    """Write the shards, then the index, the ids and, last, config.json, to a new directory."""
    weights = Weights(shape, seed)
    sizes = {n: math.prod(s) * DTYPE_BYTES[dtype] for n, s in weights.shapes.items()}
    total_bytes = sum(sizes.values())
    if directory.exists():
        raise DestinationExists(f"{directory}: exists already")
    check_space(directory.absolute().parent, total_bytes)
    directory.mkdir()
    progress.start("random weights", total_bytes)
    shards = _shards(sizes, min(SHARD_BYTES_MAX, total_bytes // SHARDS_MIN))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file_name)
        with open(directory / file_name, "xb") as file:
            file.write(pack_tensor_header([(n, dtype, weights.shapes[n]) for n in names]))
            for name in names:
                for block in weights.blocks(name):
                    progress.advance(file.write(narrow(block.reshape(-1), dtype).data))
    progress.finish()
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (directory / "calibration.ids").write_text(_calibration(shape, seed))
    (directory / "config.json").write_text(json.dumps(_config(shape, dtype), indent=1) + "\n")


def _shards(sizes: dict[str, int], bytes_max: int) -> list[list[str]]:
    """Names in order, cut where a shard would grow beyond `bytes_max`."""
    shards: list[list[str]] = [[]]
    used_bytes = 0
    for name, size in sizes.items():
        if shards[-1] and used_bytes + size > bytes_max:
            shards.append([])
            used_bytes = 0
        shards[-1].append(name)
        used_bytes += size
    return shards


def _calibration(shape: Shape, seed: int) -> str:
    """Random ordinary token ids, one context a line."""
    tokens = min(CONTEXT_TOKENS, shape.max_positions)
    generator = np.random.default_rng(seed)
    ids = generator.integers(
        FIRST_ORDINARY_ID, shape.vocab_size, (CALIBRATION_TOKENS // tokens, tokens)
    )
    return "".join(" ".join(map(str, line)) + "\n" for line in ids.tolist())


def _config(shape: Shape, dtype: str) -> dict[str, object]:
    """The configuration, marked as synthetic."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "word_embed_proj_dim": shape.embed_dim or shape.d_model,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "ffn_dim": shape.d_ffn,
        "max_position_embeddings": shape.max_positions,
        "activation_function": "relu",
        "do_layer_norm_before": shape.pre_norm,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
        "torch_dtype": {"f32": "float32", "f16": "float16"}[dtype],
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "flashllm_synthetic": True,
    }


def main() -> int:
    """Write what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", choices=["f32", "f16"], default="f16")
    parser.add_argument("--layers", type=int, help="so many layers instead of the shape's own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers is not None:
        if options.layers < 1:
            parser.error("--layers: expected 1 or more")
        shape = dataclasses.replace(shape, n_layers=options.layers)
    try:
        write_checkpoint(shape, options.directory, options.dtype, options.seed, progress_for())
    except FlashllmError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
