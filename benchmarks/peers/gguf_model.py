"""Writes a GGUF of as many parameters and bits as a checkpoint, for measuring llama.cpp.

    python -m benchmarks.peers.gguf_model CHECKPOINT FILE.gguf [--dtype q8_0] [--seed S]
    python -m benchmarks.peers.gguf_model --describe FILE.gguf

For a dense runtime a token costs the same whatever the weights are, so these are random. llama.cpp
has no OPT: the architecture is LLaMA's, of the checkpoint's width, layers, heads and vocabulary,
its feed-forward width such that the parameters come out nearly the same; both numbers are
printed. In q8_0 and q4_0, as in our int8 and int4, 32 weights share a scale of 16 bits; every
matrix is in it. There is no vocabulary in the file: token ids go in, logits come out.
Needs the package gguf, which `make peers` installs.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from flashllm.convert import Progress, progress_for
from flashllm.convert.output.destination import check_space, write_error
from numpy.typing import NDArray

from benchmarks.peers.files import Checkpoint, read_checkpoint
from benchmarks.peers.gguf_encoding import ENCODINGS, Encoding, encoding_of
from flashllm.cli.shared.flags import argument
from flashllm.errors import (
    EXIT_INTERRUPTED,
    CannotCreate,
    DestinationExists,
    FlashllmError,
    UsageError,
)
from flashllm.settings.values import parse_count
from flashllm.spec import ModelSpec
from flashllm.system.atomic_file import sync

ARCHITECTURE = "llama"
FFN_MULTIPLE = 32
CONTEXT_MAX = 4096
HEADER_BYTES_MAX = 1 << 20
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer, such as exFAT."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model that is written."""

    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    vocab_size: int
    context: int
    tied_head: bool

    @classmethod
    def like(cls, spec: ModelSpec, parameters: int) -> Shape:
        """The shape that comes nearest to so many parameters."""
        narrow = cls(
            spec.d_model, spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim, 0,
            spec.vocab_size, min(spec.max_positions, CONTEXT_MAX), spec.tied_head,
        )  # fmt: skip
        left = parameters - narrow.parameters
        steps = round(left / (3 * spec.d_model * spec.n_layers * FFN_MULTIPLE))
        return cls(**{**_fields(narrow), "d_ffn": max(1, steps) * FFN_MULTIPLE})

    @property
    def parameters(self) -> int:
        """All weights, those of norms included."""
        return sum(rows * columns for _, rows, columns in self.tensors())

    def tensors(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns; norms have one row."""
        query, key = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        yield "token_embd.weight", self.vocab_size, self.d_model
        yield "output_norm.weight", 1, self.d_model
        if not self.tied_head:
            yield "output.weight", self.vocab_size, self.d_model
        for layer in range(self.n_layers):
            prefix = f"blk.{layer}"
            yield f"{prefix}.attn_norm.weight", 1, self.d_model
            yield f"{prefix}.attn_q.weight", query, self.d_model
            yield f"{prefix}.attn_k.weight", key, self.d_model
            yield f"{prefix}.attn_v.weight", key, self.d_model
            yield f"{prefix}.attn_output.weight", self.d_model, query
            yield f"{prefix}.ffn_norm.weight", 1, self.d_model
            yield f"{prefix}.ffn_gate.weight", self.d_ffn, self.d_model
            yield f"{prefix}.ffn_up.weight", self.d_ffn, self.d_model
            yield f"{prefix}.ffn_down.weight", self.d_model, self.d_ffn


def _fields(shape: Shape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def write_model(
    checkpoint: Checkpoint,
    destination: Path,
    *,
    dtype: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Shape:
    """Write the file, whole or not at all; the space for it is asked for before.

    `dtype` is one of ENCODINGS; None for as many bits as the checkpoint's. Errors:
    `DestinationExists`, `NotEnoughSpace`, `CannotCreate`; `UsageError` without gguf, and for
    widths that are no whole groups.
    """
    gguf = import_gguf()
    shape = Shape.like(checkpoint.spec, checkpoint.parameters)
    encoding = encoding_of(checkpoint.spec.dtype) if dtype is None else ENCODINGS[dtype]
    for name, rows, columns in shape.tensors():
        if rows > 1 and columns % encoding.group:
            raise UsageError(
                f"{name} would have rows of {columns} weights, which are no whole groups of "
                f"{encoding.group}; {encoding.name} needs those. Give --dtype f16"
            )
    file_bytes = encoding.nbytes(shape.parameters) + HEADER_BYTES_MAX
    progress = progress or progress_for()

    def write(path: Path) -> None:
        _write(gguf, shape, encoding, path, np.random.default_rng(seed), progress)

    write_whole(destination, file_bytes, progress, write)
    return shape


def write_whole(
    destination: Path, file_bytes: int, progress: Progress, write: Callable[[Path], None]
) -> None:
    """Have `write` write a file of about so many bytes, which is there whole or not at all.

    Errors: `DestinationExists`, `NotEnoughSpace`, `CannotCreate`.
    """
    if os.path.lexists(destination):
        raise DestinationExists(f"{destination}: exists already; choose another name or remove it")
    if not destination.parent.is_dir():
        raise CannotCreate(f"{destination.parent}: no such directory; create it first")
    check_space(destination.parent, file_bytes)
    progress.start(f"writing {destination.name}", file_bytes)
    partial = destination.with_name(f"{destination.name}.partial-{os.getpid()}")
    try:
        write(partial)
        sync(partial)
        publish(partial, destination)
    except FileExistsError as problem:
        raise DestinationExists(f"{destination}: was created by somebody else") from problem
    except OSError as problem:
        raise write_error(problem, destination) from problem
    finally:
        progress.finish()
        with contextlib.suppress(OSError):
            partial.unlink()


def publish(partial: Path, destination: Path) -> None:
    """Give a finished file its name; `FileExistsError` where that is taken."""
    try:
        os.link(partial, destination)  # unlike a rename, replaces nothing
    except OSError as problem:
        if problem.errno not in _NO_HARD_LINKS:
            raise
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from problem
        os.rename(partial, destination)


def _write(
    gguf: ModuleType,
    shape: Shape,
    encoding: Encoding,
    path: Path,
    generator: np.random.Generator,
    progress: Progress,
) -> None:
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    kind = gguf.GGMLQuantizationType[encoding.name.upper()]
    try:
        _add_facts(gguf, writer, shape, encoding)
        for name, rows, columns in shape.tensors():
            if rows == 1:
                writer.add_tensor_info(name, (columns,), np.dtype(np.float32), 4 * columns)
                continue
            # Of quantised tensors the writer is told the shape in bytes.
            row = encoding.nbytes(columns) if encoding.group > 1 else columns
            nbytes = rows * encoding.nbytes(columns)
            writer.add_tensor_info(name, (rows, row), encoding.dtype, nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, rows, columns in shape.tensors():
            content: NDArray[Any] = np.ones(columns, np.float32)
            if rows > 1:
                content = encoding.random(generator, rows, columns)
            writer.write_tensor_data(content)
            progress.advance(content.nbytes)
    finally:
        writer.close()


def _add_facts(gguf: ModuleType, writer: Any, shape: Shape, encoding: Encoding) -> None:
    kinds = gguf.LlamaFileType
    name = "ALL_F32" if encoding.name == "f32" else f"MOSTLY_{encoding.name.upper()}"
    writer.add_name("synthetic")
    writer.add_description("random weights, for measuring speed only")
    writer.add_file_type(kinds[name])
    if encoding.group > 1:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.d_model)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.d_ffn)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")


def describe(path: Path) -> dict[str, Any]:
    """Architecture, parameters and encoding of a GGUF; `UsageError` for anything else."""
    gguf = import_gguf()
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    try:
        reader = gguf.GGUFReader(path)
        tensors = [(t.tensor_type.name, int(t.n_elements)) for t in reader.tensors]
        architecture = reader.get_field("general.architecture").contents()
    except (OSError, ValueError, KeyError, IndexError, AttributeError) as problem:
        raise UsageError(f"{path}: no GGUF that can be read ({problem})") from problem
    sizes: dict[str, int] = {}
    for kind, elements in tensors:
        sizes[kind] = sizes.get(kind, 0) + elements
    return {
        "architecture": architecture,
        "parameters": sum(sizes.values()),
        "encoding": max(sizes, key=lambda kind: sizes[kind], default="").lower(),
        "bytes": path.stat().st_size,
    }


def import_gguf() -> ModuleType:
    """The package, or `UsageError` that says how to get it."""
    try:
        return importlib.import_module("gguf")
    except ImportError as problem:
        raise UsageError(
            "the package gguf is not installed here; run `make peers`, then this command with "
            ".venv-peers/bin/python"
        ) from problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.gguf_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", type=Path, nargs="?", help="whose size the model gets")
    parser.add_argument("file", type=Path, nargs="?", help="the GGUF to write")
    parser.add_argument("--describe", type=Path, metavar="FILE", help="say what a GGUF holds")
    parser.add_argument(
        "--dtype", choices=sorted(ENCODINGS), help="of the weights (as many bits as CHECKPOINT)"
    )
    parser.add_argument(
        "--seed", type=argument(parse_count), default=0, metavar="S", help="of the weights (0)"
    )
    options = parser.parse_args(arguments)
    try:
        if options.describe is not None:
            print(json.dumps(describe(options.describe)))
            return 0
        if options.checkpoint is None or options.file is None:
            parser.error("give a checkpoint and the file to write")
        checkpoint = read_checkpoint(options.checkpoint)
        shape = write_model(checkpoint, options.file, dtype=options.dtype, seed=options.seed)
        share = shape.parameters / checkpoint.parameters
        print(
            f"{options.file}: {shape.parameters:,} parameters, {share:.2%} of the "
            f"{checkpoint.parameters:,} of {options.checkpoint}"
        )
    except FlashllmError as error:
        print(f"gguf_model: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("gguf_model: interrupted; nothing was written", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
