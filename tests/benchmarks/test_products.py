"""Rates of products: every encoding beside torch."""

from __future__ import annotations

import json

import pytest

from benchmarks import products


def test_every_encoding_stands_beside_torch(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "70", "--columns", "64", "--vectors", "1", "3"]
    words = [*sizes, "--rounds", "1", "--dtype", "f16", "int4"]
    assert products.main(words) == 0
    *table, last = capsys.readouterr().out.splitlines()
    rates = json.loads(last)["rates"]
    assert {(rate["product"], rate["dtype"], rate["vectors"]) for rate in rates} == {
        (product, dtype, vectors)
        for product in products.PRODUCTS
        for dtype in ("torch", "f16", "int4")
        for vectors in (1, 3)
    }
    assert all(rate["gflop_per_s"] > 0 and rate["of_torch"] > 0 for rate in rates)
    assert sum("vectors  torch" in line for line in table) == 6
