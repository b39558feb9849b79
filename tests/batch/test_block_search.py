"""The search for the number of rows: what is tried, what is chosen, what is backed off from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashllm.batch import block_search
from flashllm.batch.block_search import Trial, find_block
from flashllm.engine.local import open_model
from flashllm.errors import MemoryCeilingTooSmall

CEILING = MemoryCeilingTooSmall("too small\nby much", 1)


def search(
    monkeypatch: pytest.MonkeyPatch,
    speed: Callable[[int], float],
    most: int = 100,
    fits: int = 1000,
    stop_after: int = 1000,
) -> tuple[int, list[Trial]]:
    @contextlib.contextmanager
    def opened(rows: int) -> Iterator[Any]:
        if rows > fits:
            raise CEILING
        yield SimpleNamespace()

    monkeypatch.setattr(block_search, "tokens_per_second", lambda _model, _ids, rows: speed(rows))
    trials: list[Trial] = []
    found = find_block(opened, [[1]], most, lambda: len(trials) >= stop_after, trials.append)
    return found, trials


@pytest.mark.parametrize(
    ("speed", "options", "expected", "tried"),
    [
        (lambda n: n, {}, 82, [1, 2, 4, 8, 16, 32, 64, 82]),
        (lambda n: n, {"most": 1}, 1, [1]),
        (lambda n: n, {"fits": 11}, 8, [1, 2, 4, 8, 16, 12]),
        (lambda n: n, {"fits": 13}, 12, [1, 2, 4, 8, 16, 12]),
        (lambda n: -abs(n - 6.0) + 100, {}, 1, [1, 2, 4, 64]),
        (lambda n: n if n > 20 else 8, {}, 82, [1, 2, 4, 64, 82]),
        (lambda n: n if n > 20 else 8, {"fits": 40}, 32, [1, 2, 4, 64, 32, 48]),
        (lambda n: n if n > 20 else 8, {"fits": 10}, 1, [1, 2, 4, 64, 32, 16, 8]),
        (lambda n: n if n != 2 else 0.5, {}, 82, [1, 2, 4, 8, 16, 32, 64, 82]),
        (lambda n: min(n, 4), {}, 4, [1, 2, 4, 8, 16, 64, 6]),
        (lambda n: n if n < 7 else 1, {}, 6, [1, 2, 4, 8, 16, 64, 6]),
        (lambda n: n, {"stop_after": 2}, 2, [1, 2]),
    ],
)
def test_numbers_are_doubled_while_that_gains(
    monkeypatch: pytest.MonkeyPatch,
    speed: Callable[[int], float],
    options: dict[str, int],
    expected: int,
    tried: list[int],
) -> None:
    found, trials = search(monkeypatch, speed, **options)
    assert [trial.rows for trial in trials] == tried
    assert found == expected
    assert all((trial.problem == "too small") == (trial.tokens_per_second == 0) for trial in trials)


def test_one_row_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryCeilingTooSmall):
        search(monkeypatch, float, fits=0)


def test_with_a_model(sparse_model: Path) -> None:
    trials: list[Trial] = []
    found = find_block(
        lambda rows: open_model(sparse_model, contexts=rows),
        [[5, 17, 40], [9], list(range(20, 34))],
        3,
        lambda: False,
        trials.append,
    )
    assert found in (1, 2)
    assert [trial.rows for trial in trials][:2] == [1, 2]
    assert all(trial.tokens_per_second > 0 and not trial.problem for trial in trials)


def test_pages_on_flash_take_as_long_as_the_weights_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short trials read none: a step that reads 4 MB would read 6 MB more when it is full."""
    clock = iter(range(100))
    monkeypatch.setattr(block_search, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    token = SimpleNamespace(cost=SimpleNamespace(bytes_read=2e6))
    going = SimpleNamespace(
        pending=token,
        first_of_each=lambda _others: None,
        next_of_each=lambda _others: [token, token],
        close=lambda: None,
    )
    model: Any = SimpleNamespace(generate=lambda *_ids, **_how: going, new_context=object)

    def rate(pages: Any) -> float:
        model.plan = SimpleNamespace(kv_pages=pages)
        return block_search.tokens_per_second(model, [[1]], 2)

    assert rate(None) == 2
    assert rate(SimpleNamespace(flash_bytes=0, memory_bytes=10**7)) == 2
    assert rate(SimpleNamespace(flash_bytes=10**7, memory_bytes=4 * 10**6)) == 2 / 2.5
