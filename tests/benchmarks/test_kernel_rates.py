"""`python -m benchmarks.kernels` says for each kernel what its rate is held against."""

from __future__ import annotations

import json

import pytest

from benchmarks import kernels


def test_scattered_rows_are_held_against_reads_of_the_same_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    size = ["--mib", "4", "--rounds", "1", "--threads", "1", "--columns", "256"]
    words = [*size, "--dtype", "f16", "int4", "--isa", "scalar"]
    assert kernels.main([*words, "--kernel", "matvec", "dot_rows", "weighted_sum"]) == 0
    table, _, line = capsys.readouterr().out.rstrip().rpartition("\n")
    rates = json.loads(line)["rates"]
    assert {(rate["kernel"], rate["dtype"]) for rate in rates} == {
        (kernel, dtype)
        for kernel in ("matvec", "dot_rows", "weighted_sum")
        for dtype in ("f16", "int4")
    }
    for rate in rates:
        assert rate["gb_per_s"] > 0
        assert rate["of_dram"] > 0
        assert (rate["of_row_reads"] is None) == (rate["kernel"] == "matvec")
    (dots,) = [text for text in table.splitlines() if text.startswith("dot_rows")]
    assert dots.count("%") == 4
