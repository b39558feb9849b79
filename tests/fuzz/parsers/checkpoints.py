"""Targets: the JSON of checkpoints, and the headers of GGUF."""

from __future__ import annotations

import contextlib
import re

from hypothesis import strategies as st

from flashllm.errors import ModelError, NotACheckpoint
from flashllm.spec import ModelSpec
from tools.convert.families.description import describe
from tools.convert.output.gguf_tokenizer import made_tokenizer
from tools.convert.source.checkpoint import SAFETENSORS_FILE, read_weight_map
from tools.convert.source.gguf_header import read_header

from .changes import changed_bytes, changed_json
from .files import folder
from .target import Target, corpus

INDEX = f"{SAFETENSORS_FILE}.index.json"
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
GGUF_DATA_BYTES = 1 << 14
GENERATION = (
    b"{}",
    b'{"bos_token_id": 1, "eos_token_id": [2, 3]}',
    b'{"eos_token_id": null}',
)


def _check_index(raw: bytes) -> None:
    directory = folder("index")
    (directory / INDEX).write_bytes(raw)
    try:
        found = read_weight_map(directory, INDEX)
    except NotACheckpoint:
        return
    assert found
    assert all(PLAIN.fullmatch(shard) for shard in found.values())


def _check_config(value: tuple[bytes, bytes]) -> None:
    directory = folder("config")
    for name, raw in zip(("config.json", "generation_config.json"), value, strict=True):
        (directory / name).write_bytes(raw)
    try:
        spec = describe(directory)
    except ModelError:
        return
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert all(0 <= token < spec.vocab_size for token in spec.eos_ids)


def _check_gguf(raw: bytes) -> None:
    path = folder("gguf") / "model.gguf"
    # What is kept are headers alone: changes of weights would find nothing.
    path.write_bytes(raw + bytes(GGUF_DATA_BYTES))
    size = path.stat().st_size
    try:
        header = read_header(path)
    except ModelError:
        return
    assert all(0 < t.offset <= t.offset + t.nbytes <= size for t in header.tensors)
    assert len({tensor.name for tensor in header.tensors}) == len(header.tensors)
    with contextlib.suppress(ModelError):
        made_tokenizer(path, header.metadata, ())
    with contextlib.suppress(ModelError):
        spec = describe(path, requantise=True)
        assert ModelSpec.from_json(spec.to_json()) == spec


CHECKPOINT_TARGETS = (
    Target("gguf_header", changed_bytes(corpus("gguf_header")), _check_gguf),
    Target("shard_index", changed_json(corpus("shard_index")), _check_index),
    Target(
        "checkpoint_config",
        st.tuples(changed_json(corpus("checkpoint_config")), changed_json(GENERATION)),
        _check_config,
    ),
)
