"""`benchmarks.device`: whole layers on torch's CPU in the stead of a device, and its table."""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.device import Row, _NaiveLayer, measure_naive, parse_shares, table
from flashllm.device.kernels import TorchKernels
from flashllm.device.opening import find_device, open_memory
from flashllm.errors import UsageError
from flashllm.flash.layout import read_header
from flashllm.flash.store import Store


def test_whole_layers_are_read_copied_and_counted(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, header = (
        open_memory(find_device("cpu-torch"), 1 << 30),
        read_header(demo / "ffn.bundles"),
    )
    monkeypatch.setattr("benchmarks.device._ROUND_BYTES", 7 * header.stride)  # and a rest
    nbytes = header.bundles_per_layer * header.stride
    kernels = TorchKernels(1, memory, 1 << 20)
    with Store(demo) as store:
        store.open_reader(True, 2)
        layer = _NaiveLayer(store, memory, kernels)
        layer.compute(1)
        start = header.offset(1, 0)
        expected = (demo / "ffn.bundles").read_bytes()[start : start + nbytes]
        assert np.asarray(layer._rows).tobytes() == expected
        layer.close()
    kernels.close()
    row = measure_naive(argparse.Namespace(model=demo, dram=None, naive_tokens=1), memory)
    assert row.bytes_read == header.n_layers * nbytes
    assert row.bytes_up > row.bytes_read  # vectors and numbers too
    assert row.ns == sum(row.parts_ns.values())


def test_the_table_tells_the_bound() -> None:
    row = Row("slots", 0.25, 2e6, {"io_exposed": 1e6, "plan": 2e5, "manage": 3e5}, 4e5, 5e6, 6e6,
              pinned=True, bound_ns=5e5)  # fmt: skip
    cells = [cell.strip() for cell in table([row]).splitlines()[-1].strip("|").split("|")]
    assert cells == ["slots", "25%", "locked", "2.00", "1.00", "0.40", "0.00", "0.50", "0.00",
                     "0.00", "0.00", "5.0", "6.0", "0.50", "25%"]  # fmt: skip


def test_shares_are_above_0_and_at_most_1() -> None:
    assert parse_shares("1, 1/4") == [Fraction(1), Fraction(1, 4)]
    for text in ("0", "5/4", "half", "1/0"):
        with pytest.raises(UsageError, match="share"):
            parse_shares(text)
