"""The files of a synthetic checkpoint, made by some threads, written in order, named at the end."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from flashllm.convert import Progress
from flashllm.convert.output.destination import check_space, partial_directory
from numpy.typing import NDArray

from flashllm.dtypes import DTYPE_BYTES
from flashllm.errors import DestinationExists, Interrupted
from flashllm.flash.file_names import PREDICTORS_FILE
from flashllm.flash.safetensors_file import pack_tensor_header
from flashllm.spec import ModelSpec

from .neurons import Neurons, rank_of
from .normals import generator
from .shapes import Shape
from .tensors import NUMPY_DTYPES, Tensor

THREADS = 2
AHEAD = 8
"""Blocks in memory at a time."""
SHARD_BYTES_MAX = 1_000_000_000
SHARDS_MIN = 3
FIRST_ORDINARY_ID = 4
HELDOUT_CONTEXTS, HELDOUT_TOKENS = 8, 512
# Measuring streams the model once for each context, and takes at least 20 of them: a large model is
# measured in minutes, a small one has enough to train predictors on.
LARGE_WIDTH = 1024
LARGE_CONTEXTS, LARGE_TOKENS = 20, 64
SMALL_CONTEXTS, SMALL_TOKENS = 64, 256


def write_checkpoint(
    shape: Shape, destination: Path, dtype: str, seed: int, progress: Progress
) -> int:
    """Write the model and what comes with it; the bytes of its weights.

    The directory is complete afterwards or absent: `DestinationExists`, `NotEnoughSpace`,
    `CannotCreate`, and `Interrupted` on Ctrl-C.
    """
    destination = destination.absolute()
    if destination.exists():
        raise DestinationExists(f"{destination}: exists already; choose another name or remove it")
    tensors = shape.tensors(seed, dtype)
    sizes = {tensor.name: math.prod(tensor.shape) * DTYPE_BYTES[dtype] for tensor in tensors}
    try:
        with partial_directory(destination) as partial:
            check_space(partial, sum(sizes.values()) + predictor_bytes(shape.spec))
            progress.start("random weights", sum(sizes.values()))
            _write_weights(partial, tensors, sizes, dtype, progress)
            progress.finish()
            if not shape.spec.gated:
                _write_predictors(partial, shape.spec, seed, progress)
            calibration, heldout = _texts(shape.spec, seed)
            (partial / "calibration.ids").write_text(calibration)
            (partial / "heldout.ids").write_text(heldout)
            (partial / "config.json").write_text(json.dumps(shape.config, indent=1) + "\n")
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; nothing is left at {destination}") from stop
    finally:
        progress.finish()
    return sum(sizes.values())


def predictor_bytes(spec: ModelSpec) -> int:
    """About what the generator's own predictors take."""
    ranks = sum(rank_of(layer, spec.n_layers, spec.d_model) for layer in range(spec.n_layers))
    return 2 * ranks * (spec.d_model + spec.d_ffn) + 4 * spec.n_layers * (spec.d_ffn + 1)


def _write_weights(
    directory: Path, tensors: list[Tensor], sizes: dict[str, int], dtype: str, progress: Progress
) -> None:
    """The shards, then the index that makes them a checkpoint."""
    total_bytes = sum(sizes.values())
    shards = _shards(sizes, min(SHARD_BYTES_MAX, total_bytes // SHARDS_MIN))
    by_name = {tensor.name: tensor for tensor in tensors}
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file_name)
        with open(directory / file_name, "xb", buffering=0) as file:
            file.write(pack_tensor_header([(n, dtype, by_name[n].shape) for n in names]))
            for block in _made(tensors=[by_name[n] for n in names], dtype=dtype):
                view = block.data
                while len(view):
                    written = file.write(view) or 0
                    view = view[written:]
                    progress.advance(written)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _made(tensors: list[Tensor], dtype: str) -> Iterator[NDArray[np.uint8]]:
    """All blocks in order, a few ahead of the one that is written."""
    waiting: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for tensor in tensors:
                for first, count in tensor.blocks():
                    waiting.append(pool.submit(tensor.encoded, first, count, dtype))
                    if len(waiting) > AHEAD:
                        yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


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


def _write_predictors(directory: Path, spec: ModelSpec, seed: int, progress: Progress) -> None:
    """The low-rank parts of the weights, in the form that `--predictors PATH` takes."""
    layers = [
        Neurons(seed, layer, spec.n_layers, spec.d_model, spec.d_ffn)
        for layer in range(spec.n_layers)
    ]
    header = []
    for layer, neurons in enumerate(layers):
        name = f"layers.{layer}"
        header += [
            (f"{name}.bias", "f32", (spec.d_ffn,)),
            (f"{name}.threshold", "f32", (1,)),
            (f"{name}.down", "f16", (neurons.rank, spec.d_model)),
            (f"{name}.up", "f16", (spec.d_ffn, neurons.rank)),
        ]
    progress.start("the weights' own predictors", predictor_bytes(spec))
    with open(directory / PREDICTORS_FILE, "xb") as file:
        file.write(pack_tensor_header(header))
        for neurons in layers:
            down, up, bias, threshold = neurons.predictor()
            single = (bias, np.array([threshold], np.float32))
            halves = (matrix.astype(NUMPY_DTYPES["f16"]) for matrix in (down, up))
            for values in (*single, *halves):
                progress.advance(file.write(np.ascontiguousarray(values).data))
    progress.finish()


def _texts(spec: ModelSpec, seed: int) -> tuple[str, str]:
    """Random ordinary token ids, one context a line: to calibrate on, and others to measure on."""
    large = spec.d_model >= LARGE_WIDTH
    contexts, tokens = (LARGE_CONTEXTS, LARGE_TOKENS) if large else (SMALL_CONTEXTS, SMALL_TOKENS)
    return (
        _ids(spec, generator(seed, *b"calibration"), contexts, tokens),
        _ids(spec, generator(seed, *b"heldout"), HELDOUT_CONTEXTS, HELDOUT_TOKENS),
    )


def _ids(spec: ModelSpec, random: np.random.Generator, contexts: int, tokens: int) -> str:
    shape = (contexts, min(tokens, spec.max_positions))
    ids = random.integers(FIRST_ORDINARY_ID, spec.vocab_size, shape)
    return "".join(" ".join(map(str, line)) + "\n" for line in ids.tolist())
