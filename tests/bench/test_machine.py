"""Rates of this machine: what is measured, not how fast it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashllm import core
from flashllm.bench.tokens import machine_rates
from flashllm.dtypes import DTYPES
from flashllm.planning.cost_model import CHUNK, NARROW, OWN
from flashllm.units import MIB


def test_matrices_are_past_the_cache_where_memory_allows() -> None:
    assert machine_rates.matrix_bytes(0, 1 << 40) == 256 * MIB
    assert machine_rates.matrix_bytes(32 * MIB, 1 << 40) == 256 * MIB
    assert machine_rates.matrix_bytes(128 * MIB, 1 << 40) == 512 * MIB
    assert machine_rates.matrix_bytes(4 << 30, 1 << 40) == machine_rates.MATRIX_BYTES_MOST
    assert machine_rates.matrix_bytes(128 * MIB, 1 << 30) == 128 * MIB
    assert machine_rates.matrix_bytes(128 * MIB, MIB) == machine_rates.MATRIX_BYTES_LEAST


def test_the_last_caches_are_read_from_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = [(1, "48K", "0"), (2, "2048K", "0"), (3, "32M", "0-3"), (2, "rubbish", "1")]
    for cpu, shared in ((0, "0-3"), (1, "0-3"), (4, "4-7")):
        for index, (level, size, alone) in enumerate(caches):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "size").write_text(size)
            (folder / "level").write_text(f"{level}\n")
            (folder / "shared_cpu_list").write_text(shared if level == 3 else f"{cpu}{alone}")
    monkeypatch.setattr(machine_rates, "_CPUS", tmp_path)
    assert machine_rates.last_cache_bytes() == 64 * MIB, "two of them, each shared by four"
    monkeypatch.setattr(machine_rates, "_CPUS", tmp_path / "none")
    assert machine_rates.last_cache_bytes() == 0


def test_all_rates_are_there(monkeypatch: pytest.MonkeyPatch, demo: Path) -> None:
    monkeypatch.setenv("FLASHLLM_HOME", str(demo.parents[1]))
    monkeypatch.setattr(machine_rates, "MATRIX_BYTES_LEAST", 2 * MIB)
    monkeypatch.setattr(machine_rates, "MATRIX_BYTES_MOST", 2 * MIB)
    monkeypatch.setattr(machine_rates, "TIMED_TOKENS", 5)
    rates = machine_rates.measure_rates([1, 2])
    assert set(rates.dram_bytes_per_second) == {1, 2}
    keys = ("{}", NARROW, CHUNK, OWN)
    assert set(rates.kernel_bytes_per_second) == {k.format(d) for k in keys for d in DTYPES}
    assert set(rates.rows_bytes_per_second) == set(DTYPES)
    found = [*rates.dram_bytes_per_second.values(), *rates.kernel_bytes_per_second.values()]
    assert min(*found, *rates.rows_bytes_per_second.values()) > 0
    assert min(rates.layer_overhead_ns, rates.token_overhead_ns) >= 0


def test_a_rate_is_the_bytes_that_the_kernel_goes_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that gives every call a second, the rates are bytes."""
    monkeypatch.setattr(machine_rates, "_median_seconds", lambda call: call() or 1.0)
    monkeypatch.setattr(machine_rates, "_median_call", lambda call: call() or 1.0)
    buffer = core.Buffer(4 * MIB)
    buffer.array().fill(0x3C)
    kernels = core.Kernels(threads=1)
    try:
        assert machine_rates.matvec_rate(kernels, buffer, "f16", 8192) == 4 * MIB
        assert machine_rates.matvec_rate(kernels, buffer, "f16", 256) == 2 * MIB
        assert machine_rates.scattered_rate(kernels, buffer, "f32") == 64 * 2 * 8192
        # As many weights in a row as of 16 bits: 4096 are 4352 bytes in int8, 2304 in int4. Rows
        # make whole tiles.
        rows = 4 * MIB // 4352 // 32 * 32
        assert machine_rates.matvec_rate(kernels, buffer, "int8", 8192) == rows * 4352
        rows = 2 * MIB // 72 // 32 * 32
        assert machine_rates.matvec_rate(kernels, buffer, "int4", 256) == rows * 72
        assert machine_rates.scattered_rate(kernels, buffer, "int4") == 227 * 2 * 2304
        assert machine_rates.chunk_rate("bf16", 1) == 4 * MIB * 128
        # An eighth of a block's bundles for each of 128 tokens.
        assert machine_rates.own_rate(kernels, buffer, "bf16") == 128 * 32 * 2 * 8192
    finally:
        kernels.close()
    monkeypatch.setattr(core, "stream_read_ns", lambda _buffer, threads: 10**9 // threads)
    assert machine_rates.dram_rate(buffer, 2) == pytest.approx(8 * MIB)
