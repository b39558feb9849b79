"""GGUF files that are cut off, lie or attack: errors of ours, in little time and memory."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flashllm.convert import convert, describe
from flashllm.convert.source.gguf_files import find_gguf
from flashllm.convert.source.gguf_header import (
    HEADER_BYTES_MAX,
    STRINGS_MAX,
    WEIGHTS_MAX,
    read_header,
)

from flashllm.errors import (
    ModelError,
    ModelTruncated,
    NotACheckpoint,
    NotEnoughSpace,
    TensorMismatch,
    UnsupportedModel,
)
from tests.support.gguf_models import write_gguf
from tests.support.tiny import tiny

U8, U32, F32, TEXT, ARRAY, U64 = 0, 4, 6, 8, 9, 10
HUGE = 1 << 60
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "vocab_size": 8,
}


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(
    name: bytes = b"t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    numbers = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", len(dims)) + numbers + struct.pack("<IQ", kind, offset)


def file_of(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 0,
) -> bytes:
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    start = magic + struct.pack("<IQQ", version, n_tensors, n_keys)
    header = start + b"".join(keys) + b"".join(tensors)
    return header.ljust(-(-len(header) // 32) * 32, b"\0") + bytes(data)


GOOD = file_of(
    (
        key(b"general.architecture", TEXT, text(b"llama")),
        key(b"general.alignment", U32, struct.pack("<I", 32)),
        key(b"f", F32, struct.pack("<f", 1e-6)),
        key(b"a", ARRAY, struct.pack("<IQ", TEXT, 2) + text(b"x") + text("é".encode())),
        key(b"n", ARRAY, struct.pack("<IQ3B", U8, 3, 1, 2, 3)),
    ),
    (tensor(b"one", (4, 2), 1), tensor(b"two", (32,), 8, 32)),
    data=32 + 34,
)
CASES: dict[str, tuple[bytes, type[ModelError], str]] = {
    "another magic": (file_of(magic=b"GGUX"), NotACheckpoint, "no GGUF file"),
    "PowerInfer": (file_of(magic=b"PWRI"), NotACheckpoint, "PowerInfer"),
    "GGML": (file_of(magic=b"lmgg"), NotACheckpoint, "early llama.cpp"),
    "version 1": (file_of(version=1), UnsupportedModel, "version 1; read are"),
    "version 4": (file_of(version=4), UnsupportedModel, "version 4"),
    "big endian": (file_of(version=3 << 24), UnsupportedModel, "big endian"),
    "2**60 tensors": (file_of(counts=(HUGE, 0)), ModelTruncated, f"{HUGE} tensors, but the file"),
    "2**60 keys": (file_of(counts=(0, HUGE)), ModelTruncated, f"{HUGE} keys"),
    "many keys": (file_of(counts=(0, 20_000), data=300_000), NotACheckpoint, "20000 keys; at most"),
    "a text of 2**60": (
        file_of((key(b"k", TEXT, struct.pack("<Q", HUGE)),)), ModelTruncated, "a text of"
    ),
    "a text beyond the header": (
        file_of((key(b"k", TEXT, struct.pack("<Q", 40)),)), ModelTruncated, "a text of 40 bytes"
    ),
    "an array of 2**60 numbers": (
        file_of((key(b"k", ARRAY, struct.pack("<IQ", U64, HUGE)),)), ModelTruncated, "an array of"
    ),
    "an array of 2**60 texts": (
        file_of((key(b"k", ARRAY, struct.pack("<IQ", TEXT, HUGE)),)), ModelTruncated, "an array of"
    ),
    "an array of arrays": (
        file_of((key(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(12)),)),
        NotACheckpoint,
        "arrays hold plain values",
    ),
    "a value of an unknown type": (
        file_of((key(b"k", 13, bytes(8)),)), NotACheckpoint, "of type 13, which does not exist"
    ),
    "a key twice": (
        file_of((key(b"k", U8, b"\1"), key(b"k", U8, b"\1"))), NotACheckpoint, "'k' occurs twice"
    ),
    "a key that is too long": (
        file_of((key(b"k" * 300, U8, b"\1"),)), NotACheckpoint, "a name of 300 bytes"
    ),
    "a key that is no text": (file_of((key(b"\xff", U8, b"\1"),)), NotACheckpoint, "not UTF-8"),
    "alignment 0": (
        file_of((key(b"general.alignment", U32, bytes(4)),)), NotACheckpoint, "power of two"
    ),
    "alignment 48": (
        file_of((key(b"general.alignment", U32, struct.pack("<I", 48)),)),
        NotACheckpoint,
        "general.alignment is 48",
    ),
    "alignment 2**31": (
        file_of((key(b"general.alignment", U32, struct.pack("<I", 1 << 31)),)),
        NotACheckpoint,
        "general.alignment",
    ),
    "a tensor twice": (
        file_of((), (tensor(), tensor(offset=128)), data=512), NotACheckpoint, "'t' occurs twice"
    ),
    "tensors that overlap": (
        file_of((), (tensor(b"a"), tensor(b"b", offset=96)), data=512),
        NotACheckpoint,
        "'a' and 'b' overlap",
    ),
    "no dimension": (file_of((), (tensor(dims=()),)), NotACheckpoint, "0 dimensions"),
    "five dimensions": (file_of((), (tensor(dims=(1,) * 5),)), NotACheckpoint, "5 dimensions"),
    "a dimension of 0": (file_of((), (tensor(dims=(32, 0)),)), NotACheckpoint, "the shape"),
    "2**60 weights": (file_of((), (tensor(dims=(HUGE,)),)), NotACheckpoint, "the shape"),
    "a product past 64 bits": (
        file_of((), (tensor(dims=(1 << 32, 1 << 32)),)), NotACheckpoint, "the shape"
    ),
    "more weights than the file": (
        file_of((), (tensor(dims=(WEIGHTS_MAX,)),), data=64), ModelTruncated, "fetch it again"
    ),
    "an offset past the end": (
        file_of((), (tensor(offset=4096),), data=256), ModelTruncated, "but the file has"
    ),
    "an offset of 2**63": (
        file_of((), (tensor(offset=1 << 63),), data=256), ModelTruncated, "but the file has"
    ),
    "an offset that is not aligned": (
        file_of((), (tensor(offset=4),), data=256), NotACheckpoint, "begins at 4"
    ),
    "a type that nobody knows": (
        file_of((), (tensor(kind=999),), data=256), UnsupportedModel, "'t' is of type 999"
    ),
    "half a block": (
        file_of((), (tensor(dims=(48,), kind=2),), data=256), NotACheckpoint, "no whole blocks"
    ),
}  # fmt: skip


def test_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(GOOD)
    header = read_header(tmp_path / "x.gguf")
    numbers = header.metadata.pop("n")
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1, 2, 3]
    assert header.metadata == {
        "general.architecture": "llama", "general.alignment": 32, "f": 1e-6, "a": ["x", "é"],
    }  # fmt: skip
    one, two = header.tensors
    assert (one.name, one.dtype, one.shape, one.nbytes) == ("one", "f16", (2, 4), 16)
    assert (two.dtype, two.shape, two.nbytes, two.offset) == ("q8_0", (32,), 34, one.offset + 32)


@pytest.mark.parametrize("case", list(CASES))
def test_what_lies(tmp_path: Path, case: str) -> None:
    raw, error, message = CASES[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=message) as raised:
        read_header(path)
    assert type(raised.value) is error
    assert str(raised.value).startswith(str(path))


def test_cut_off_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(ModelError):
            read_header(path)


LARGE = {
    "texts": (TEXT, STRINGS_MAX, 8),
    "too many texts": (TEXT, STRINGS_MAX + 1, 8),
    "numbers": (U8, HEADER_BYTES_MAX - 99, 1),
    "numbers that do not fit": (U8, HEADER_BYTES_MAX, 1),
}
"""Type and number of an array's elements, and the bytes of each."""
_MEASURE = """
import resource, sys, time
from pathlib import Path
from flashllm.convert.source.gguf_header import read_header
from flashllm.errors import ModelError
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    read_header(Path(sys.argv[1]))
    said = ""
except ModelError as problem:
    said = str(problem)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_maxrss - before.ru_maxrss, said)
"""


@pytest.mark.parametrize("case", list(LARGE))
def test_the_largest_headers_take_bounded_memory(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.gguf"
    kind, count, nbytes = LARGE[case]
    value = struct.pack("<IQ", kind, count) + bytes(nbytes * count)
    path.write_bytes(file_of((key(b"k", ARRAY, value),)))
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], check=True, capture_output=True, text=True
    )
    kib, _, said = done.stdout.strip().partition(" ")
    assert int(kib) < 300 << 10 or resource.getpagesize() != 4096
    assert ("header is longer" in said or "more than" in said) == (case not in ("texts", "numbers"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny("llama", **SIZES).save_pretrained(tmp_path / "source")
    return write_gguf(tmp_path / "source", tmp_path, "llama", "Q8_0").gguf


def test_a_scale_that_is_no_number(tmp_path: Path, model: Path) -> None:
    raw = bytearray(model.read_bytes())
    found = next(t for t in read_header(model).tensors if t.name == "blk.0.attn_v.weight")
    place = found.offset + 3 * found.nbytes // found.shape[0]
    raw[place : place + 2] = np.float16(np.inf).tobytes()
    model.write_bytes(raw)
    with pytest.raises(TensorMismatch, match=r"blk\.0\.attn_v\.weight: holds NaN.*row 3.*gguf"):
        convert(model, tmp_path / "out", requantise=True)
    assert not (tmp_path / "out").exists()


def test_tensors_that_do_not_fit(tmp_path: Path, model: Path) -> None:
    raw = model.read_bytes()
    for old, new, message in (
        (b"blk.0.attn_q", b"blk.0.attn_x", r"not expected: blk\.0\.attn_x\.weight"),
        (b"blk.0.attn_q", b"blk.7.attn_q", r"not expected: blk\.7\.attn_q\.weight"),
        (b"token_embd", b"token_embx", r"has no token_embd\.weight"),
        (b"llama.block_count", b"llama.block_cound", "block_count is missing"),
    ):
        model.write_bytes(raw.replace(old, new))
        with pytest.raises(ModelError, match=message):
            describe(model)


def test_parts_that_are_not_of_one_model(tmp_path: Path) -> None:
    def part(number: int, *tensors: bytes, total: int = 2) -> bytes:
        numbers = {b"split.no": number, b"split.count": 2, b"split.tensors.count": total}
        keys = [key(name, U32, struct.pack("<I", value)) for name, value in numbers.items()]
        return file_of(tuple(keys), tensors, data=256)

    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(part(0, tensor(b"a")))
    second.write_bytes(part(1, tensor(b"a")))
    with pytest.raises(NotACheckpoint, match=r"tensor 'a' is in m-00001-of-00002\.gguf as well"):
        describe(first)
    first.write_bytes(part(0, tensor(b"b"), total=3))
    with pytest.raises(NotACheckpoint, match="there are 3 tensors, but its parts have 2"):
        describe(second)
    second.write_bytes(part(0, tensor(b"a")))
    with pytest.raises(NotACheckpoint, match="says that it is part 1 of 2, but its name"):
        describe(first)


def test_files_without_the_ending_are_known_by_their_content(tmp_path: Path, model: Path) -> None:
    (tmp_path / "sha256-0123").write_bytes(model.read_bytes())  # as ollama keeps them
    assert describe(tmp_path / "sha256-0123", dtype="f32").dtype == "f32"
    (tmp_path / "notes").write_bytes(b"hello")
    with pytest.raises(NotACheckpoint, match="not a directory"):
        describe(tmp_path / "notes")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_file_whose_beginning_cannot_be_read_is_none() -> None:
    assert find_gguf(Path("/proc/self/mem")) is None  # nothing is at address 0


def test_types_that_are_no_weights(tmp_path: Path, model: Path) -> None:
    raw = model.read_bytes()
    place = raw.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    for number, name in ((24, "i8"), (28, "f64")):
        model.write_bytes(
            raw[:place] + struct.pack("<I", number) + raw[place + 4 :] + bytes(1 << 14)
        )
        with pytest.raises(ModelError, match=f"is of type {name}; supported|overlap"):
            describe(model)


def test_too_little_space_is_said_first(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = type("Status", (), {"f_bavail": 1, "f_frsize": 4096})
    monkeypatch.setattr("flashllm.convert.output.destination.os.statvfs", lambda _: status)
    with pytest.raises(NotEnoughSpace):
        convert(model, tmp_path / "out", dtype="f32")
    assert not (tmp_path / "out").exists()


def test_directories_of_several_models_and_names_of_parts(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    (folder / "mmproj-a.gguf").write_bytes(GOOD)
    with pytest.raises(NotACheckpoint, match=r"no config\.json"):
        describe(folder)
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf"):
        (folder / name).write_bytes(model.read_bytes())
    with pytest.raises(NotACheckpoint, match=r"several models in GGUF \(a-Q4_0, a-Q8_0\)"):
        describe(folder)
    (folder / "b-00003-of-00002.gguf").write_bytes(GOOD)
    (folder / "my model.gguf").write_bytes(GOOD)
    with pytest.raises(NotACheckpoint, match=r"my model\.gguf: its name has to.*rename it"):
        describe(folder / "my model.gguf")
    with pytest.raises(NotACheckpoint, match="part 00003 of 00002"):
        describe(folder / "b-00003-of-00002.gguf")
    (folder / "d-00001-of-00001.gguf").write_bytes(model.read_bytes())
    (tmp_path / "link.gguf").symlink_to(folder / "d-00001-of-00001.gguf")
    assert describe(tmp_path / "link.gguf", dtype="f32") == describe(model, dtype="f32")
    for part in (1, 2):
        (folder / f"c-0000{part}-of-00002.gguf").write_bytes(model.read_bytes())
    with pytest.raises(NotACheckpoint, match="says that it is part 1 of 1, but its name"):
        describe(folder / "c-00001-of-00002.gguf")


def test_a_checkpoint_of_transformers_goes_before_a_file_beside_it(model: Path) -> None:
    (model.parent / "source" / "x.gguf").write_bytes(GOOD)
    config = json.loads((model.parent / "source" / "config.json").read_text())
    assert describe(model.parent / "source").d_model == config["hidden_size"]
