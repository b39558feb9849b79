"""Targets: the JSON of checkpoints."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from flashllm.errors import ModelError, NotACheckpoint
from flashllm.spec import ModelSpec
from tools.convert.families.description import describe
from tools.convert.source.checkpoint import SAFETENSORS_FILE, read_weight_map

from .changes import changed_json
from .files import folder
from .target import Target, corpus

INDEX = f"{SAFETENSORS_FILE}.index.json"
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")
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


CHECKPOINT_TARGETS = (
    Target("shard_index", changed_json(corpus("shard_index")), _check_index),
    Target(
        "checkpoint_config",
        st.tuples(changed_json(corpus("checkpoint_config")), changed_json(GENERATION)),
        _check_config,
    ),
)
