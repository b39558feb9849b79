"""Chosen keys and values against all of them on flash: that each case is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import long_context
from benchmarks.planted_keys import OUTLIER, OUTLIERS, fill
from flashllm import core
from flashllm.kv_cache.context import Context
from flashllm.kv_cache.dram import KvCache
from flashllm.kv_cache.selected import SelectedCache
from flashllm.kv_cache.selection import make_keys_values
from flashllm.options import KvSelection
from tests.kv_cache.test_kv_cache import SHAPE, contents

TOKENS = 600


def filled(policy: str, stretch: int = 1) -> Context:
    kernels = core.Kernels()
    rows = KvCache(SHAPE, TOKENS, "f32", kernels)
    selection = KvSelection(policy, start_layer=1)  # type: ignore[arg-type]
    context = Context(make_keys_values(SHAPE, rows, kernels, selection), 64)
    fill(context, SHAPE, TOKENS, 3, stretch)
    return context


def test_the_context_is_full_of_keys_with_a_few_large_channels() -> None:
    context = filled("full", stretch=4)
    assert context.length == TOKENS
    cache = context.keys_values
    assert isinstance(cache, KvCache)
    keys, values = contents(cache, 1, 0, TOKENS).numpy()
    large = keys.std(axis=1) > OUTLIER / 2
    assert (large.sum(axis=1) == OUTLIERS).all()
    assert not (values.std(axis=1) > 2).any()
    groups = keys[0][:512, large[0]].reshape(128, 4, -1)
    assert (groups == groups[:, :1]).all()


def test_the_index_of_a_policy_has_all_of_them() -> None:
    cache = filled("infinigen").keys_values
    assert isinstance(cache, SelectedCache)
    columns = cache.policy._fetch.index.chosen_columns(1)  # type: ignore[attr-defined]
    keys, _ = contents(cache._rows, 1, 0, TOKENS).numpy()  # type: ignore[arg-type]
    for head, own in enumerate(columns):
        assert set(np.flatnonzero(keys[head].std(axis=0) > OUTLIER / 2)) <= set(own.tolist())


def test_the_table(sparse_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(sparse_model), "--tokens", "120", "--decoded", "2", "--spec-start-layer", "1"]
    given += ["--memory", "2GiB", "--kv-memory", "10MiB", "--budget", "20%"]
    options = long_context._arguments().parse_args(given)
    rows = {}
    for case in ("infinigen", "ahead", "fits"):
        options.case = case
        rows[case] = {
            **long_context.measure(options, case),
            "seconds": 0.5,
            "bound_seconds": 0.25,
            "of_bound": 0.5,
        }
    assert rows["ahead"]["late_share"] == rows["fits"]["late_share"] == 0
    assert rows["fits"]["seen_share"] == 1.0
    assert 0 < rows["ahead"]["seen_share"] <= rows["infinigen"]["seen_share"] <= 0.2
    json.dumps(rows)
    lines = long_context._table(rows).splitlines()
    assert lines[2].startswith("| infinigen | 0.500 |")
