"""The search for a policy: what is tried, what is chosen, what is backed off from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flashllm.convert.families.known_shapes import describe_shape

from flashllm.batch import policy_trials
from flashllm.batch.block_search import Trial
from flashllm.batch.policy_trials import find_policy, near_policies
from flashllm.errors import MemoryCeilingTooSmall
from flashllm.options import ModelOptions
from flashllm.planning.advisor import Scenario
from flashllm.planning.batch import policy_search
from flashllm.planning.batch.applied_policy import apply_policy
from flashllm.planning.batch.policy import BatchPolicy, Workload, parse_batch_policy
from flashllm.planning.shape_estimate import sizes_of_shape
from flashllm.units import GIB, MIB
from tests.support.profiles import law

POLICIES = [parse_batch_policy(f"{rows},1,0,0,0,100,0,100") for rows in (8, 16, 4, 1)]


@pytest.mark.parametrize(
    ("fits", "speeds", "expected"),
    [
        (100, {8: 8.0, 16: 9.0, 4: 4.0, 1: 1.0}, 16),
        (100, {8: 8.0, 16: 8.1, 4: 4.0, 1: 1.0}, 8),
        (8, {8: 8.0, 4: 9.0, 1: 1.0}, 4),
        (1, {1: 1.0}, 1),
    ],
)
def test_the_fastest_that_fits_is_chosen(
    monkeypatch: pytest.MonkeyPatch, fits: int, speeds: dict[int, float], expected: int
) -> None:
    @contextlib.contextmanager
    def opened(policy: BatchPolicy) -> Iterator[Any]:
        if policy.block.rows > fits:
            raise MemoryCeilingTooSmall("too small\nby much", 1)
        yield SimpleNamespace()

    monkeypatch.setattr(
        policy_trials, "tokens_per_second", lambda _model, _ids, _n, rows: speeds[rows]
    )
    told: list[Trial] = []
    found = find_policy(opened, POLICIES, [[1]], 8, lambda: False, lambda _, one: told.append(one))
    assert found.block.rows == expected
    assert [one.rows for one in told] == [8, 16, 4, 1]
    assert {one.rows for one in told if one.problem == "too small"} == {8, 16, 4, 1} - speeds.keys()


def test_where_nothing_fits_the_last_reason_is_told() -> None:
    @contextlib.contextmanager
    def opened(policy: BatchPolicy) -> Iterator[Any]:
        if policy.block.rows:
            raise MemoryCeilingTooSmall(f"{policy.block.rows} rows are too many", 1)
        yield

    with pytest.raises(MemoryCeilingTooSmall, match="1 rows are too many"):
        find_policy(opened, POLICIES, [[1]], 8, lambda: False, lambda *_: None)


def test_what_is_tried_is_near_what_was_found_and_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("scipy")
    monkeypatch.setattr(policy_search, "BATCH_ROWS", (1, 8, 32, 64))
    monkeypatch.setattr(policy_search, "BATCHES_MAX", 1)
    spec = describe_shape("llama-2-7b")
    options = ModelOptions(select="all", io_threads=32, context=512, memory=9 * GIB)
    facts = Scenario(spec, sizes_of_shape(spec, 200 * MIB), None, options, law(1e-6, 2e9))
    policies = near_policies(facts, Workload(256, 32), 64, 1e12)
    rows = [policy.block.rows for policy in policies]
    assert len(set(rows)) == len(rows) >= 3
    assert rows[-1] == 1
    assert max(rows) <= 64
    for policy in policies:
        apply_policy(policy, facts)
