"""Encodings against torch, bit by bit, and memory against the promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flashllm.convert.source.encoding import encode, narrow, widen
from hypothesis import given, settings
from hypothesis import strategies as st

from flashllm.errors import TensorMismatch

TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def all_finite(dtype: str) -> np.ndarray:
    """Every finite value of a 16-bit type, as bytes."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    exponent = {"f16": 0x7C00, "bf16": 0x7F80}[dtype]
    return bits[(bits & exponent) != exponent].view(np.uint8)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_value_survives_a_round_trip(dtype: str) -> None:
    raw = all_finite(dtype)
    wide = encode(raw, dtype, "f32", "t")
    expected = torch.from_numpy(raw.copy()).view(TORCH[dtype]).float()
    assert torch.equal(torch.from_numpy(wide.view(np.float32).copy()), expected)
    np.testing.assert_array_equal(encode(wide, "f32", dtype, "t"), raw)


@settings(deadline=None)
@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64))
def test_narrowing_rounds_as_torch_does(bits: list[int]) -> None:
    values = np.array(bits, dtype=np.uint32).view(np.float32)
    values = np.append(values[np.isfinite(values)], np.float32(1.0))
    for dtype in ("f16", "bf16"):
        expected = torch.from_numpy(values.copy()).to(TORCH[dtype])
        found = torch.from_numpy(narrow(values, dtype).copy()).view(TORCH[dtype])
        assert torch.equal(found, expected)


def test_ties_go_to_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0xBF808000], dtype=np.uint32).view(np.float32)
    assert narrow(halfway, "bf16").view(np.uint16).tolist() == [0x3F80, 0x3F82, 0xBF80]


@pytest.mark.parametrize("target", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_nan_and_no_infinity_passes(source: str, target: str, value: float) -> None:
    values = torch.tensor([1.0, value, 2.0], dtype=TORCH[source])
    raw = values.view(torch.uint8).numpy()
    with pytest.raises(TensorMismatch, match=r"tensor some\.name: holds NaN"):
        encode(raw, source, target, "some.name")


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [(65520.0, "f32", "f16"), (-1e6, "bf16", "f16"), (3.4e38, "f32", "bf16")],
)
def test_overflow_is_an_error_and_underflow_is_not(value: float, source: str, target: str) -> None:
    raw = torch.tensor([value], dtype=TORCH[source]).view(torch.uint8).numpy()
    with pytest.raises(TensorMismatch, match=f"too large for {target}"):
        encode(raw, source, target, "t")
    small = torch.tensor([1e-30], dtype=TORCH[source]).view(torch.uint8).numpy()
    assert abs(widen(encode(small, source, target, "t"), target)[0]) <= 1.1e-30


MEASURE = """
import json, os, resource, sys
from pathlib import Path
from flashllm.convert import convert
if sys.argv[3] == "torch":
    import torch
rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = rss()
convert(Path(sys.argv[1]), Path(sys.argv[2]), dtype=sys.argv[4], allow_pickle=True)
print(json.dumps([before, rss()]))
"""


def peak_growth_bytes(source: Path, out: Path, library: str, dtype: str) -> int:
    """How much the peak RSS of a fresh process grows over its imports while it converts."""
    command = [sys.executable, "-c", MEASURE, str(source), str(out), library, dtype]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = json.loads(result.stdout)
    return int(after - before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "dtype"), [("numpy", "f32"), ("torch", "f16"), ("numpy", "int4")]
)
def test_one_tensor_at_a_time(tmp_path: Path, library: str, dtype: str) -> None:
    """320 MB of weights, the largest 64 MB: what is held grows with neither."""
    sizes = {"vocab_size": 16384, "hidden_size": 1024, "ffn_dim": 16384, "num_hidden_layers": 2}
    source = write_sparse(tmp_path / "source", library, **sizes)
    largest_bytes = 16384 * 1024 * 4
    growth_bytes = peak_growth_bytes(source, tmp_path / "out", library, dtype)
    # The whole of the transposed matrix, and five blocks of 16 MiB.
    assert growth_bytes < largest_bytes + (96 << 20)


def write_sparse(directory: Path, library: str, **sizes: int) -> Path:
    """A checkpoint of zeros that takes no room on disk, whole or as torch writes it."""
    from tests.support.checkpoints import CONFIG, shapes

    config = {**CONFIG, "num_attention_heads": 4, **sizes}
    config["word_embed_proj_dim"] = config["hidden_size"]
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    if library == "torch":
        tensors = {name: torch.zeros(shape) for name, shape in shapes(config).items()}
        torch.save(tensors, directory / "pytorch_model.bin")
        return directory
    header, position = {}, 0
    for name, shape in shapes(config).items():
        end = position + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + position)
    return directory
