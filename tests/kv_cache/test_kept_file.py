"""A file of kept keys and values that others wrote, changed or cut: what fits is used."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashllm import core
from flashllm.errors import ReadFailed
from flashllm.kv_cache import kept_file
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.kept_directory import KeptDirectory
from flashllm.kv_cache.kept_file import KeptFile
from tests.support.specs import SPEC

SHAPE = dataclasses.replace(
    SPEC, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=8, d_model=16, embed_dim=16
)
TOKEN_BYTES = 2 * 2 * 8 * 4  # keys and values, heads, numbers, f32
SETTINGS = {"model": "a", "kv_dtype": "f32"}
IDS = [7, 5, 9, 9, 8, 6]


def new_context() -> Context:
    return Context(KvCache(SHAPE, 16, "f32", core.Kernels()), 4)


def filled() -> Context:
    context = new_context()
    draw = np.random.default_rng(4)
    for layer in range(2):
        keys, values = draw.standard_normal((2, 2, len(IDS), 8), np.float32)
        context.keys_values.append(layer, keys, values)
    context.append_prefilled(IDS)
    return context


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole file, of two records."""
    monkeypatch.setattr(kept_file, "RECORD_TOKENS", 4)
    found = tmp_path / "whole.kv"
    file, context = KeptFile.create(found, SETTINGS, 2, TOKEN_BYTES), filled()
    while file.next_bytes(context):
        file.append(context)
    file.close()
    file.close()  # nobody else's descriptor
    return found


def opened(path: Path, settings: dict[str, str] = SETTINGS) -> KeptFile:
    return KeptFile.open(path, settings, 2, TOKEN_BYTES)


def restored(file: KeptFile) -> Context:
    context = new_context()
    file.restore(context)
    file.close()
    return context


def check(context: Context, length: int) -> None:
    """It has the first tokens of the whole one, with their rows, and no more."""
    assert context.tokens.ids == IDS[:length]
    assert context.length == length
    whole = filled()
    for layer in range(2):
        expected = whole.keys_values.encoded(layer, 0, length)
        assert np.array_equal(context.keys_values.encoded(layer, 0, length), expected)


def record(head: bytes, rest: bytes = b"", magic: bytes = b"flashKV1") -> bytes:
    """As the format has it, with the right checksum."""
    checksum = core.crc32c(np.frombuffer(head, np.uint8))
    return struct.pack("<8sIIQ", magic, len(head), checksum, len(rest)) + head + rest


def records(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Each with its offset."""
    at = 0
    while at < len(raw):
        _, head, _, rest = struct.unpack_from("<8sIIQ", raw, at)
        end = at + 24 + head + rest
        yield at, raw[at:end]
        at = end


def test_a_whole_file_has_all_tokens(path: Path) -> None:
    file = opened(path)
    assert (file.length, file.nbytes, file.problem) == (6, path.stat().st_size, "")
    check(restored(file), 6)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (SETTINGS | {"model": "b"}, "another model$"),
        ({"model": "b", "kv_dtype": "f16"}, "another kv_dtype, model$"),
        (SETTINGS | {"numpy": "2"}, "another numpy$"),
        ({"model": "a"}, "another settings$"),
    ],
)
def test_what_was_computed_in_another_way_is_refused(
    path: Path, settings: dict[str, str], what: str
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ReadFailed, match=what):
        opened(path, settings)
    assert len(os.listdir("/proc/self/fd")) == descriptors


HEAD: dict[str, Any] = {"start": 4, "ids": [8, 6], "decoded": [False, False]}
ROWS = bytes(2 * (2 * TOKEN_BYTES + 4))
"""Of two tokens, with the checksums of each layer."""


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (record(json.dumps(HEAD | {"start": 3}).encode(), ROWS), "does not follow"),
        (record(json.dumps(HEAD).encode(), ROWS[1:]), "does not follow"),
        (record(json.dumps(HEAD | {"decoded": [True]}).encode(), ROWS), "does not follow"),
        (record(json.dumps(HEAD | {"ids": [], "decoded": []}).encode(), bytes(8)), "not follow"),
        (record(json.dumps(HEAD | {"ids": "8, 6"}).encode(), ROWS), "record.ids: expected a list"),
        (record(json.dumps(HEAD | {"more": 1}).encode(), ROWS), "unknown key 'more'"),
        (record(b"[]", ROWS), "expected a JSON object"),
        (record(b"", ROWS), "not valid JSON"),
        (record(json.dumps(HEAD).encode(), ROWS, b"flashKV2"), "is torn or damaged"),
        (record(json.dumps(HEAD).encode(), ROWS)[:-1], "is torn or damaged"),
        (record(json.dumps(HEAD).encode(), ROWS).replace(b"[8", b"[7"), "is torn or damaged"),
        (record(bytes(1 << 20 | 1), ROWS), "is torn or damaged"),
        (b"flash", "is torn or damaged"),
    ],
)
def test_the_file_ends_before_a_record_that_does_not_fit(
    path: Path, second: bytes, what: str
) -> None:
    _, _, (at, _) = records(path.read_bytes())
    path.write_bytes(path.read_bytes()[:at] + second)
    file = opened(path)
    assert (file.length, file.nbytes) == (4, at)
    assert str(path) in file.problem
    assert what in file.problem
    check(restored(file), 4)


@pytest.mark.parametrize("left", ["nothing", "rows without checksums", "checksums of others"])
def test_rows_that_change_while_the_file_is_open_are_noticed(path: Path, left: str) -> None:
    raw = path.read_bytes()
    _, _, (at, last) = records(raw)
    file = opened(path)
    assert file.length == 6
    if left == "checksums of others":
        path.write_bytes(raw[:-8] + bytes(8))
    else:
        os.truncate(path, at if left == "nothing" else len(raw) - 8)
    context = restored(file)
    assert file.problem == f"{path}: the rows of tokens 4 to 5 are damaged"
    assert (file.length, file.nbytes) == (4, len(raw) - len(last))
    check(context, 4)


@pytest.mark.parametrize("first", [b"", b"text", record(b'{"settings": {"model": 1}}')])
def test_a_directory_finds_most_and_passes_over_what_is_no_such_file(
    path: Path, first: bytes
) -> None:
    directory = KeptDirectory(path.parent, 1 << 20, SETTINGS, 2, TOKEN_BYTES)
    context = filled()
    files = [directory.create() for _ in range(3)]
    for age, (file, records) in enumerate(zip(files, (1, 2, 1), strict=True)):
        for _ in range(records):
            file.append(context)
        file.close()
        os.utime(file.path, (age, age))
    for name, content in (("damaged", first), ("other", b"not looked into")):
        prefix = files[0].path.name.partition("-")[0] if name == "damaged" else "0" * 16
        (path.parent / f"{prefix}-{name}.kv").write_bytes(content)
    descriptors = len(os.listdir("/proc/self/fd"))
    found = directory.find([*IDS, 3], 0, context.tokens)
    assert found is not None
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1
    assert found.path == files[1].path
    assert "damaged.kv" in directory.problem
    check(restored(found), 6)
