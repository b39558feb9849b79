"""Writes a GGUF of a known mixture of experts with random weights and drawn routing.

    python -m benchmarks.synthetic_experts qwen3-30b-a3b FILE.gguf --routing RECORDED.csv.gz
        [--layers N] [--codes N] [--seed S]

The same file is converted (`flashllm convert FILE.gguf OUT`, bit for bit) and given to llama.cpp,
so both compute with the same numbers. A greedy answer to any prompt goes through a table of tokens
whose experts were drawn from the recording: their skew in each layer, and what stays from token to
token, are the recorded ones. Experts a token beyond those that were recorded are drawn too; a shape
with fewer experts than the recording has each stand for several. All of it is marked synthetic. The
space is asked for before anything is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from flashllm.convert import progress_for
from flashllm.convert.families.known_shapes import describe_shape

from benchmarks.own_command import ended
from benchmarks.peers.gguf_encoding import ENCODINGS
from benchmarks.peers.gguf_model import HEADER_BYTES_MAX, import_gguf, write_whole
from benchmarks.synthetic_experts.routing import Sets, draw, fold, read_recording
from benchmarks.synthetic_experts.tensors import Maker
from flashllm.cli.shared.flags import argument
from flashllm.errors import UsageError
from flashllm.progress import Progress
from flashllm.settings.values import parse_count
from flashllm.spec import ModelSpec

NAME = "synthetic_experts"
CODES = 1024
CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """How published files of a known model are in GGUF."""

    architecture: str
    encoding: str
    expert_encoding: str
    second_norm: str = "ffn_norm"

    def maker(self, spec: ModelSpec, sets: Sets, seed: int) -> Maker:
        """What makes the tensors of a model of this shape."""
        own, experts = ENCODINGS[self.encoding], ENCODINGS[self.expert_encoding]
        return Maker(spec, sets, seed, own, experts, self.second_norm)


SHAPES = {
    "qwen3-30b-a3b": Shape("qwen3moe", "q4_0", "q4_0"),
    "gpt-oss-20b": Shape("gpt-oss", "q8_0", "mxfp4", "post_attention_norm"),
}


def write(shape: Shape, maker: Maker, routing: str, destination: Path, progress: Progress) -> int:
    """Write the file, whole or not at all; its size in bytes. Errors as those of `write_whole`."""
    gguf = import_gguf()
    nbytes = HEADER_BYTES_MAX + sum(one.n_rows * one.row_bytes for one in maker.tensors())

    def write_to(path: Path) -> None:
        _write(gguf, shape, maker, routing, path, progress)

    write_whole(destination, nbytes, progress, write_to)
    return destination.stat().st_size


def _write(
    gguf: ModuleType, shape: Shape, maker: Maker, routing: str, path: Path, progress: Progress
) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    try:
        _add_facts(gguf, writer, maker, routing)
        for one in maker.tensors():
            total = one.n_rows * one.row_bytes
            if one.kind == "f32":
                writer.add_tensor_info(one.name, one.shape, np.dtype(np.float32), total)
                continue
            # Of quantised tensors the writer is told the shape in bytes.
            in_bytes = (*one.shape[:-1], one.row_bytes)
            kind = gguf.GGMLQuantizationType[one.kind.upper()]
            writer.add_tensor_info(one.name, in_bytes, np.dtype(np.uint8), total, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        file = writer.fout[0]
        for one in maker.tensors():
            writer.write_padding(file, file.tell())
            for block in one.blocks():
                file.write(block.data)
                progress.advance(block.nbytes)
            writer.write_padding(file, file.tell())
    finally:
        writer.close()


def _add_facts(gguf: ModuleType, writer: Any, maker: Maker, routing: str) -> None:
    spec = maker.spec
    experts, rope = spec.experts, spec.rope
    assert experts is not None
    assert rope is not None
    writer.add_name("synthetic")
    note = f"random weights, routing drawn from {routing}: for measuring only"
    writer.add_description(note)
    writer.add_bool("flashllm.synthetic", True)
    writer.add_string("flashllm.synthetic_note", note)
    mxfp4 = maker.expert_encoding is not None and maker.expert_encoding.name == "mxfp4"
    types = gguf.LlamaFileType
    writer.add_file_type(types.MOSTLY_MXFP4_MOE if mxfp4 else types.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(min(spec.max_positions, CONTEXT))
    writer.add_embedding_length(spec.d_model)
    writer.add_block_count(spec.n_layers)
    writer.add_feed_forward_length(experts.d_ffn)
    writer.add_head_count(spec.n_heads)
    writer.add_head_count_kv(spec.n_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_freq_base(rope.theta)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_expert_count(experts.n_experts)
    writer.add_expert_used_count(experts.per_token)
    writer.add_expert_feed_forward_length(experts.d_ffn)
    writer.add_vocab_size(spec.vocab_size)
    if any(spec.attention_windows):
        writer.add_sliding_window(max(spec.attention_windows))
    if rope.scaling == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope.factor)
        writer.add_rope_scaling_orig_ctx_len(rope.original_positions)
    writer.add_tokenizer_model("no_vocab")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what the arguments ask for; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    count = argument(parse_count)
    add("shape", metavar="SHAPE", choices=SHAPES, help=f"one of {', '.join(SHAPES)}")
    add("file", metavar="FILE", type=Path, help="the GGUF to write")
    add("--routing", type=Path, required=True, metavar="CSV", help="recorded routing of experts")
    add("--layers", type=count, metavar="N", help="so many layers, instead of the shape's own")
    add("--codes", type=count, default=CODES, metavar="N", help=f"tokens of the table ({CODES})")
    add("--seed", type=count, default=0, metavar="S", help="of weights and routing (0)")
    options = parser.parse_args(arguments)
    spec = describe_shape(options.shape)
    if options.layers:
        spec = replace(spec, n_layers=options.layers)
    experts = spec.experts
    assert experts is not None
    if not 2 <= options.codes <= spec.d_model:
        raise UsageError(f"--codes {options.codes}: expected 2 to {spec.d_model}")
    recording = read_recording(options.routing)
    if recording.n_experts > experts.n_experts:
        recording = fold(recording, experts.n_experts)
    sets = draw(
        recording, spec.n_layers, experts.n_experts, experts.per_token, options.codes, options.seed
    )
    shape = SHAPES[options.shape]
    maker = shape.maker(spec, sets, options.seed)
    nbytes = write(shape, maker, recording.name, options.file, progress_for())
    print(
        f"{options.file}: {nbytes / 1e9:.2f} GB of synthetic weights, {spec.n_layers} layers;"
        f" routing drawn from {recording.name}, of {recording.sets.shape[2]} experts a token"
        f" extended to {experts.per_token}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(ended(NAME, main))
